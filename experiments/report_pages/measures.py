# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Speed-ups with their intervals, and acceptance by draft position, from rows."""

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from experiments.results import Row

RESAMPLES = 2000


@dataclasses.dataclass(frozen=True)
class Ratio:
  """A ratio with its bootstrap 95 % interval; the ends are None for fewer than two questions."""

  value: float
  low: float | None = None
  high: float | None = None

  def __str__(self) -> str:
    text = f"{self.value:.2f}x"
    if self.low is None or self.high is None:
      return text
    return f"{text} [{self.low:.2f}, {self.high:.2f}]"


@dataclasses.dataclass(frozen=True)
class SpeedUp:
  """How much faster than the baseline on the questions that both answered.

  Attributes:
    questions: how many those are (batches, where several questions were decoded together).
    wall_clock: of all tokens a second of reading prompts and decoding, compilation apart.
    mean_of_rates: of the means over questions of the same rate, as Spec-Bench has it.
    decode: of all tokens a second of decoding alone.
  """

  questions: int
  wall_clock: Ratio
  mean_of_rates: Ratio
  decode: Ratio


def speed_up(
  rows: Sequence[Row], baseline: Sequence[Row], resamples: int = RESAMPLES
) -> SpeedUp | None:
  """Compares two methods question by question; None where nothing can be compared.

  Questions are drawn again with replacement (Efron 1979), each with both methods' figures: a
  question that is slow for one is slow for the other.

  Args:
    rows: of one method, with `unit`.
    baseline: of the method it is compared with.
    resamples: of the bootstrap.
  """
  a, b = _paired(rows, baseline)
  if not len(a):
    return None
  draws = np.arange(len(a))[None, :]
  if len(a) > 1:
    again = np.random.default_rng(0).integers(0, len(a), (resamples, len(a)))
    draws = np.concatenate([draws, again])

  def rate_of_totals(values: np.ndarray, seconds: Sequence[int], tokens: int) -> np.ndarray:
    summed = values[draws].sum(1)
    return summed[:, tokens] / summed[:, list(seconds)].sum(1)

  def mean_rate(values: np.ndarray) -> np.ndarray:
    return (values[:, 0] / values[:, 2:4].sum(1))[draws].mean(1)

  return SpeedUp(
    questions=len(a),
    wall_clock=_ratio(rate_of_totals(a, (2, 3), 0) / rate_of_totals(b, (2, 3), 0)),
    mean_of_rates=_ratio(mean_rate(a) / mean_rate(b)),
    decode=_ratio(rate_of_totals(a, (3,), 1) / rate_of_totals(b, (3,), 1)),
  )


def tokens_per_second(rows: Sequence[Row]) -> float | None:
  """Tokens a second of decoding; None where nothing was timed."""
  values = np.array(list(_turns(rows).values())).reshape(-1, 4).sum(0)
  return float(values[1] / values[3]) if values[1] and values[3] > 0 else None


def block_efficiency(rows: Sequence[Row]) -> float | None:
  """New tokens a target call, the target's own (bonus) token included."""
  calls = sum(row["target_calls"] for row in rows)
  return sum(row["new_tokens"] for row in rows) / calls if calls else None


@dataclasses.dataclass(frozen=True)
class Acceptance:
  """Acceptance by draft position.

  Attributes:
    drafts: rounds in which something was drafted.
    reached: `[N]`, share of the drafts whose tokens were accepted at least up to each position.
    conditional: `[N]`, of the drafts accepted up to the position before, the share accepted at this
      one too; None where there were none. A draft that ended before counts as not accepted.
  """

  drafts: int
  reached: list[float]
  conditional: list[float | None]


def acceptance(rows: Sequence[Row]) -> Acceptance | None:
  """By draft position, over all rounds with a draft; None where nothing was drafted."""
  drafts = sum(row["draft_calls"] for row in rows)
  histogram = accepted_histogram(rows)
  if not drafts or histogram.size < 2:
    return None
  at_least = np.cumsum(histogram[::-1])[::-1][1:]
  before = np.concatenate([[drafts], at_least[:-1]])
  return Acceptance(
    drafts=drafts,
    reached=(at_least / drafts).tolist(),
    conditional=[float(a / b) if b else None for a, b in zip(at_least, before, strict=True)],
  )


def accepted_histogram(rows: Sequence[Row]) -> np.ndarray:
  """Rounds by how many drafted tokens they committed, `[1 + longest draft]`, from 0."""
  longest = max((len(row["accepted_histogram"]) for row in rows), default=0)
  total = np.zeros(longest, np.int64)
  for row in rows:
    total[: len(row["accepted_histogram"])] += row["accepted_histogram"]
  return total


def draft_length(rows: Sequence[Row]) -> int:
  """The longest draft that a method could make."""
  return max(accepted_histogram(rows).size - 1, 0)


Turn = tuple[Hashable, int]


def _turns(rows: Sequence[Row]) -> dict[Turn, np.ndarray]:
  """By question and turn: new tokens, those of decoding, prefill and decode seconds.

  A batch's seconds stand with each of its rows, which share them equally. Where a turn was measured
  more than once, its mean is taken.
  """
  measured: dict[Turn, list[tuple[Any, ...]]] = {}
  for row in rows:
    size, tokens = row.get("batch_size", 1), row["new_tokens"]
    decoded = row.get("decode_tokens", tokens)
    values = (tokens, decoded, row["prefill_seconds"] / size, row["decode_seconds"] / size)
    measured.setdefault((row["question"], row["turn"]), []).append(values)
  return {turn: np.mean(values, axis=0) for turn, values in measured.items()}


def _paired(rows: Sequence[Row], baseline: Sequence[Row]) -> tuple[np.ndarray, np.ndarray]:
  """What `_turns` has, summed over what was timed together, `[units, 4]` for each of the two.

  Only turns that both have count, and of those only units that have something to divide.
  """
  ours, theirs = _turns(rows), _turns(baseline)
  sums: dict[Hashable, np.ndarray] = {}
  units = {(row["question"], row["turn"]): row["unit"] for row in rows}
  for turn, unit in units.items():
    if turn in theirs:
      sums[unit] = sums.get(unit, np.zeros((2, 4))) + np.stack([ours[turn], theirs[turn]])
  pairs = [pair for pair in sums.values() if (pair[:, (0, 1, 3)] > 0).all()]
  stacked = np.array(pairs).reshape(-1, 2, 4)
  return stacked[:, 0], stacked[:, 1]


def _ratio(values: np.ndarray) -> Ratio:
  """The first value is that of all questions, the others are of the resamples."""
  if len(values) == 1:
    return Ratio(float(values[0]))
  low, high = np.percentile(values[1:], [2.5, 97.5])
  return Ratio(float(values[0]), float(low), float(high))
