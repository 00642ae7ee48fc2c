# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""alpha and c from measured rows: what the theory needs to know of a drafter, and how surely.

The rows are of `experiments.decode`: the same prompts decoded autoregressively and with a drafter,
in turn. With t the seconds of a plain target call, a round with a draft takes r seconds, and a
silent one t. The draft takes what r is longer than t, so c = (r / t - 1) / gamma. That puts what
the wider target call costs more than a plain one into c, too: the speed-up at the measured draft
length is right, and for other lengths the cost is taken to grow with the length.

Intervals are bootstrapped over conversations (Efron 1979): tokens of one text are no independent
samples. Rows that cannot tell are refused.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax.evaluation.theory_chains import expected_speed_up
from specjax.evaluation.theory_rows import ChainAcceptance, Row, chain_acceptance

BASELINE = "autoregressive"

# What is refused: less than this tells nothing, wider than this leaves every advice open.
MIN_CONVERSATIONS = 3
MIN_JUDGED = 30
MAX_ALPHA_WIDTH = 0.3
MAX_COST_WIDTH = 1.0

_TIMED_KEYS = ("method", "prompt_index", "turn", "decode_seconds", "batch_size")


@dataclasses.dataclass(frozen=True)
class Estimate:
  """A number and its 95 % interval.

  Attributes:
    value: the estimate from all rows.
    low: lower end.
    high: upper end.
  """

  value: float
  low: float
  high: float

  def __str__(self) -> str:
    """Three digits and the interval."""
    return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclasses.dataclass(frozen=True)
class Fit:
  """What rows say of one drafter.

  Attributes:
    method: its name.
    conversations: how many the fit is from.
    acceptance: the sums of its rows: rates by position, share of rounds with a draft.
    alpha: one acceptance rate for all positions; the interval holds what shorter drafts leave open.
    cost_ratio: c, of a draft step; below 0 where drafting took no time that could be measured.
    speed_up: tokens a second over autoregressive decoding, as measured.
  """

  method: str
  conversations: int
  acceptance: ChainAcceptance
  alpha: Estimate
  cost_ratio: Estimate
  speed_up: Estimate

  @property
  def expected_speed_up(self) -> float:
    """The theory's speed-up at the measured draft length, from rates by position and c."""
    return expected_speed_up(
      self.acceptance.rates,
      self.acceptance.draft_length,
      max(self.cost_ratio.value, 0.0),
      drafting_share=self.acceptance.drafting_share,
    )


def fit(rows: Sequence[Row], method: str, *, resamples: int = 1000, seed: int = 0) -> Fit:
  """Fits alpha and c of one method.

  Args:
    rows: of `method` and of "autoregressive", decoded one prompt at a time. Conversations that
      only one of them has are left out. Rows of several runs are told apart by a key `run`.
    method: whose drafter.
    resamples: of the bootstrap.
    seed: of the bootstrap.

  Raises:
    ValueError: for rows that cannot tell, saying why and what would help.
  """
  ours, plain = _by_conversation(rows, method), _by_conversation(rows, BASELINE)
  if not ours:
    raise ValueError(f"there is no row of the method {method!r}")
  if not plain:
    raise ValueError(
      f"there is no row of {BASELINE!r} to compare {method!r} with: c cannot be told; decode with "
      f"--methods={BASELINE},{method}"
    )
  common = sorted(set(ours) & set(plain))
  if len(common) < MIN_CONVERSATIONS:
    raise ValueError(
      f"{method!r} and {BASELINE!r} have {len(common)} conversations in common; it takes at least "
      f"{MIN_CONVERSATIONS} to say how sure a fit is"
    )
  parts = [chain_acceptance(ours[key]) for key in common]
  whole = chain_acceptance([row for key in common for row in ours[key]])
  _check_acceptance(method, whole)
  sums = np.array(
    [_sums(part, ours[key], plain[key]) for part, key in zip(parts, common, strict=True)]
  )
  draws = np.random.default_rng(seed).integers(len(common), size=(resamples, len(common)))
  resampled = sums[draws].sum(axis=1)
  total = sums.sum(axis=0)
  if total[_PLAIN_SECONDS] <= 0 or total[_SECONDS] <= 0:
    raise ValueError(f"the rows of {method!r} or {BASELINE!r} have no decode_seconds")

  def estimate(function: Any, width: float, name: str) -> Estimate:
    with np.errstate(all="ignore"):
      values = function(resampled)
    values = values[np.isfinite(values)]
    if len(values) < resamples // 2:
      raise ValueError(f"too few conversations of {method!r} have drafts to tell its {name}")
    low, high = np.quantile(values, (0.025, 0.975))
    if high - low > width:
      raise ValueError(
        f"the rows of {method!r} cannot tell its {name}: it lies between {low:.2f} and "
        f"{high:.2f}; decode more prompts, or more tokens of each"
      )
    return Estimate(float(function(total)), float(low), float(high))

  lower, upper = whole.alpha_bounds or (0.0, 1.0)
  alpha = estimate(lambda s: s[..., _KEPT] / s[..., _JUDGED], MAX_ALPHA_WIDTH, "alpha")
  alpha = Estimate((lower + upper) / 2, alpha.low, min(alpha.high + upper - lower, 1.0))
  if alpha.high - alpha.low > MAX_ALPHA_WIDTH:
    raise ValueError(
      f"the rows of {method!r} cannot tell its alpha: many of its drafts are shorter than its "
      f"draft length of {whole.draft_length}, and it lies between {alpha.low:.2f} and "
      f"{alpha.high:.2f}; decode with a shorter draft length"
    )
  length = whole.draft_length
  return Fit(
    method=method,
    conversations=len(common),
    acceptance=whole,
    alpha=alpha,
    cost_ratio=estimate(lambda s: _cost_ratio(s, length), MAX_COST_WIDTH, "draft cost c"),
    speed_up=estimate(_speed_up, np.inf, "speed-up"),
  )


# Columns of the sums of a conversation.
_KEPT, _JUDGED, _DRAFTING, _SILENT, _SECONDS, _TOKENS, _PLAIN_CALLS, _PLAIN_SECONDS = range(8)


def _sums(part: ChainAcceptance, ours: Sequence[Row], plain: Sequence[Row]) -> list[float]:
  """What of a conversation alpha and c are computed from."""
  kept, judged = part.kept_and_judged
  return [
    kept,
    judged,
    part.drafting_rounds,
    part.silent_rounds,
    sum(row["decode_seconds"] for row in ours),
    part.new_tokens,
    sum(row["target_calls"] for row in plain),
    sum(row["decode_seconds"] for row in plain),
  ]


def _cost_ratio(sums: np.ndarray, draft_length: int) -> np.ndarray:
  """c, from sums `[..., 8]`."""
  call = sums[..., _PLAIN_SECONDS] / sums[..., _PLAIN_CALLS]
  drafting = sums[..., _SECONDS] - call * sums[..., _SILENT]
  return (drafting / sums[..., _DRAFTING] / call - 1) / draft_length


def _speed_up(sums: np.ndarray) -> np.ndarray:
  """Tokens a second over those of plain calls, of one token each, from sums `[..., 8]`."""
  rate = sums[..., _TOKENS] / sums[..., _SECONDS]
  return rate * sums[..., _PLAIN_SECONDS] / sums[..., _PLAIN_CALLS]


def _by_conversation(rows: Sequence[Row], method: str) -> dict[tuple[str, int], list[Row]]:
  """The rows of one method, by run and prompt."""
  found: dict[tuple[str, int], list[Row]] = {}
  for row in rows:
    if row.get("method") != method:
      continue
    missing = [key for key in _TIMED_KEYS if key not in row]
    if missing:
      raise ValueError(f"a row of {method!r} lacks {', '.join(missing)}")
    if row["batch_size"] != 1:
      raise ValueError(
        f"the rows of {method!r} were decoded {row['batch_size']} at a time: the seconds of a "
        "batch do not tell those of a call on one row; decode with --batch_size=1"
      )
    found.setdefault((str(row.get("run", "")), row["prompt_index"]), []).append(row)
  return found


def _check_acceptance(method: str, whole: ChainAcceptance) -> None:
  """Refuses rows that say nothing of a chain drafter with draft steps."""
  if whole.draft_length == 0 or not whole.drafted_tokens:
    raise ValueError(f"{method!r} drafted nothing: neither alpha nor c can be told")
  if whole.certain_tokens:
    raise ValueError(
      f"{method!r} calls the target itself to draft: a draft of any length costs it a target call, "
      "which has no c"
    )
  if whole.drafted_tokens > whole.drafting_rounds * whole.draft_length:
    raise ValueError(f"{method!r} drafts token trees; alpha and c are those of a chain")
  judged = whole.kept_and_judged[1]
  if judged < MIN_JUDGED:
    raise ValueError(
      f"only {judged} drafted tokens of {method!r} were judged; it takes at least {MIN_JUDGED} to "
      "tell its alpha: decode more prompts, or more tokens of each"
    )
