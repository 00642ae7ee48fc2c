# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""From rows of results to acceptance rates by draft position, and from those to block efficiency.

A row is a line of `results.jsonl`, or anything with its keys. Of each target call that scored a
draft it keeps how many drafted tokens were committed (`accepted_histogram`), and of all of them
together how many had a draft (`draft_calls`) and of how many tokens (`drafted_tokens`).

What a round makes is the sum over j of the probability that at least j drafted tokens are kept
(`theory_chains.expected_tokens`). Three things stand between that and a row:

  * *silent rounds*, in which the drafter had nothing to propose, are no rejections: they count in
    `drafting_share`;
  * a *draft that is shorter* than the others (near the end of the budget, a copy that reached the
    end of the text) ends where it ends. A rate by position counts it as not kept beyond, which is
    what predicts the same drafter again. The one rate alpha for all positions takes a token that
    was never drafted as not judged. Rows do not say which round drafted less, so alpha is only
    known within `alpha_bounds`;
  * a *block cut by the end of the text*, whose last token was drafted, lacks the target's own.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from specjax.arguments import check_integer
from specjax.evaluation.theory_chains import expected_tokens

Row = Mapping[str, Any]
_KEYS = (
  "accepted_histogram",
  "accepted_tokens",
  "draft_calls",
  "drafted_tokens",
  "new_tokens",
  "target_calls",
)


@dataclasses.dataclass(frozen=True)
class ChainAcceptance:
  """What rows of a drafter tell of its acceptance. Sums over rows.

  Attributes:
    kept: by number of tokens j from 0 to the draft length: rounds with a draft of which at least
      j drafted tokens were kept; the first entry counts all rounds with a draft.
    silent_rounds: rounds without a draft.
    drafted_tokens: in all drafts together.
    cut_rounds: rounds that an end of the text cut before the target's own token.
    certain_tokens: tokens that the drafter takes from the target itself, by a call of its own, at
      the head of each draft (PaSS with two calls has one). They count as the target's.
    new_tokens: tokens made.
    target_calls: calls for them, the drafter's own included.
  """

  kept: tuple[int, ...]
  silent_rounds: int
  drafted_tokens: int
  cut_rounds: int
  certain_tokens: int
  new_tokens: int
  target_calls: int

  @property
  def draft_length(self) -> int:
    """The longest draft, without certain tokens."""
    return len(self.kept) - 1

  @property
  def drafting_rounds(self) -> int:
    """Rounds with a draft."""
    return self.kept[0]

  @property
  def rounds(self) -> int:
    """All rounds: calls that scored a draft, or would have."""
    return self.drafting_rounds + self.silent_rounds

  @property
  def drafting_share(self) -> float:
    """The share of rounds with a draft; 0 without rounds."""
    return self.drafting_rounds / self.rounds if self.rounds else 0.0

  @property
  def rates(self) -> tuple[float, ...]:
    """By position: how often a round that kept all tokens before it kept the one there, too."""
    pairs = zip(self.kept[:-1], self.kept[1:], strict=True)
    return tuple(after / before if before else 0.0 for before, after in pairs)

  @property
  def alpha(self) -> float | None:
    """One rate for all positions: the middle of `alpha_bounds`; None where nothing was judged."""
    bounds = self.alpha_bounds
    return None if bounds is None else (bounds[0] + bounds[1]) / 2

  @property
  def alpha_bounds(self) -> tuple[float, float] | None:
    """What alpha can be: kept tokens over those that were judged.

    A round of which j tokens are kept judged j + 1, if its draft was that long. The lower bound
    takes it that every draft was; the upper one puts what is missing in `drafted_tokens` where it
    hides the most judgements: behind the longest drafts that were kept in full.
    """
    kept, judged = self.kept_and_judged
    if not judged:
      return None
    missing = max(self.drafting_rounds * self.draft_length - self.drafted_tokens, 0)
    hidden = 0
    for length in range(self.draft_length - 1, 0, -1):
      stopped = self.kept[length] - self.kept[length + 1]
      shorter = min(stopped, missing // (self.draft_length - length))
      hidden += shorter
      missing -= shorter * (self.draft_length - length)
    return kept / judged, kept / max(judged - hidden, 1)

  @property
  def kept_and_judged(self) -> tuple[int, int]:
    """Drafted tokens kept, and those judged if every draft was as long as the longest."""
    return sum(self.kept[1:]), sum(self.kept[:-1])

  @property
  def measured(self) -> float | None:
    """The block efficiency of the rows: tokens a target call; None without calls."""
    return self.new_tokens / self.target_calls if self.target_calls else None

  def predicted(
    self, draft_length: int | None = None, *, rates: Sequence[float] | float | None = None
  ) -> float:
    """The block efficiency that the theory expects: tokens a target call.

    With the rows' own rates by position and draft length it differs from `measured` by rounding
    alone: that is the sum that the theory is made of, taken apart and put together. It says more
    for another draft length of the same drafter, for other rows, or with one rate for all
    positions (`rates=self.alpha`), which takes drafted tokens to be kept independently.

    Args:
      draft_length: of the drafts, at most that of the rows for rates by position; None is theirs.
      rates: acceptance as in `theory_chains.expected_tokens`; None is the rows' own by position.

    Raises:
      ValueError: naming the argument, what it got and what it takes; without any round.
    """
    if not self.rounds:
      raise ValueError("rows must have at least one target call to predict from, got none")
    length = self.draft_length if draft_length is None else draft_length
    check_integer("draft_length", length, 0)
    rates = self.rates if rates is None else rates
    share = self.drafting_share if length else 0.0
    tokens = expected_tokens(rates, length, drafting_share=share)
    tokens += share * self.certain_tokens - self.cut_rounds / self.rounds
    return tokens / (1 + share * self.certain_tokens)


def chain_acceptance(rows: Iterable[Row]) -> ChainAcceptance:
  """Sums rows of one chain drafter (for a tree drafter, positions are depths).

  Args:
    rows: with the keys `accepted_histogram`, `accepted_tokens`, `draft_calls`, `drafted_tokens`,
      `new_tokens`, `target_calls`; their histograms all equally long.

  Raises:
    ValueError: for no rows, rows of different draft lengths, or numbers that contradict each other.
  """
  rows = list(rows)
  if not rows:
    raise ValueError("rows must hold at least one row, got none")
  parts = [_read(row, index) for index, row in enumerate(rows)]
  lengths = sorted({part.draft_length for part in parts})
  if len(lengths) > 1:
    raise ValueError(f"rows must all have the same draft length, got {lengths}")
  certain = {part.certain_tokens for part in parts if part.drafting_rounds}
  if len(certain) > 1:
    raise ValueError("rows must all be of one drafter, some make target calls to draft, some none")

  def total(name: str) -> int:
    return sum(getattr(part, name) for part in parts)

  return ChainAcceptance(
    kept=tuple(np.sum([part.kept for part in parts], axis=0).tolist()),
    silent_rounds=total("silent_rounds"),
    drafted_tokens=total("drafted_tokens"),
    cut_rounds=total("cut_rounds"),
    certain_tokens=certain.pop() if certain else 0,
    new_tokens=total("new_tokens"),
    target_calls=total("target_calls"),
  )


def predict_block_efficiency(rows: Iterable[Row]) -> float:
  """The block efficiency that the theory expects from the acceptance rates of rows, by position.

  Silent rounds, shorter drafts, and blocks cut by the end of the text are taken into account; see
  `ChainAcceptance.predicted`.

  Raises:
    ValueError: as `chain_acceptance`; without any target call.
  """
  return chain_acceptance(rows).predicted()


def token_acceptance(rows: Iterable[Row], draft_length: int) -> float | None:
  """alpha: how often a drafted token is kept, of those whose predecessors were.

  Leviathan, Kalman, Matias (2023, arXiv 2211.17192), section 3.1. A block of which j < L tokens are
  kept tells of j tokens that were and of one that was not; the others were never judged. It is
  the likeliest alpha if each token is kept independently of the others. Rounds without a draft
  judge nothing, where rows tell them (`draft_calls`).

  Args:
    rows: of one method, with `accepted_histogram` (in which a token that the drafter has from a
      target call of its own does not count).
    draft_length: L, the tokens drafted a round.

  Returns:
    None where nothing was drafted.
  """
  kept = judged = 0
  for row in rows:
    histogram = list(row["accepted_histogram"])
    histogram[0] -= sum(histogram) - row.get("draft_calls", sum(histogram))
    for length, count in enumerate(histogram):
      length = min(length, draft_length)
      kept += count * length
      judged += count * min(length + 1, draft_length)
  return kept / judged if judged else None


def _read(row: Row, index: int) -> ChainAcceptance:
  """One row as sums."""
  missing = [key for key in _KEYS if key not in row]
  if missing:
    raise ValueError(f"row {index} must have the keys {', '.join(_KEYS)}, it lacks {missing}")
  histogram = row["accepted_histogram"]
  rounds, drafting = sum(histogram), row["draft_calls"]
  silent = rounds - drafting
  own_calls = row["target_calls"] - rounds
  certain = own_calls // drafting if drafting else 0
  # A block of the target's own token and what was kept, but for those that the text's end cut.
  cut = rounds + own_calls + row["accepted_tokens"] - row["new_tokens"]
  consistent = (
    0 <= silent <= histogram[0]
    and own_calls == certain * drafting
    and 0 <= cut <= rounds + own_calls
    and row["accepted_tokens"] == sum(size * count for size, count in enumerate(histogram))
  )
  if not consistent:
    raise ValueError(
      f"row {index} contradicts itself: accepted_histogram {list(histogram)}, "
      + ", ".join(f"{key} {row[key]}" for key in _KEYS[1:])
    )
  return ChainAcceptance(
    kept=(drafting, *np.cumsum(histogram[:0:-1])[::-1].tolist()),
    silent_rounds=silent,
    drafted_tokens=row["drafted_tokens"],
    cut_rounds=cut,
    certain_tokens=certain,
    new_tokens=row["new_tokens"],
    target_calls=row["target_calls"],
  )
