# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers that studies read off the rows of a run, and how they are written."""

from collections.abc import Sequence

from experiments.report import summarize
from experiments.results import Row


def block_efficiency(rows: Sequence[Row]) -> float | None:
  """New tokens a target call, the calls that a drafter makes of the target included."""
  return summarize(rows).block_efficiency


def tokens_per_second(rows: Sequence[Row]) -> float | None:
  """Of decoding alone: without reading the prompt, without compilation."""
  return summarize(rows).tokens_per_second


def speed_up(rows: Sequence[Row], baseline: Sequence[Row]) -> float | None:
  """Tokens a second over the baseline's, which decoded the same prompts in turn."""
  ours, theirs = tokens_per_second(rows), tokens_per_second(baseline)
  return ours / theirs if ours and theirs else None


def seconds_per_call(rows: Sequence[Row]) -> float | None:
  """Decoding seconds a target call."""
  summary = summarize(rows)
  return summary.decode_seconds / summary.target_calls if summary.target_calls else None


def token_acceptance(rows: Sequence[Row], draft_length: int, certain: int = 0) -> float | None:
  """alpha: how often a drafted token is kept, of those whose predecessors were.

  Leviathan, Kalman, Matias (2023, arXiv 2211.17192), section 3.1. A block of which j < L tokens are
  kept tells of j tokens that were and of one that was not; the others were never judged. It is
  the likeliest alpha if each token is kept independently of the others.

  Args:
    rows: of one method.
    draft_length: L, the tokens drafted a round.
    certain: leading tokens of the draft that are the target's own and always kept (PaSS with two
      calls has one); they are left out.

  Returns:
    None where nothing was drafted.
  """
  kept = judged = 0
  for row in rows:
    for length, count in enumerate(row["accepted_histogram"]):
      length = min(length - certain, draft_length)
      if length >= 0:
        kept += count * length
        judged += count * min(length + 1, draft_length)
  return kept / judged if judged else None


def number(value: float | None, pattern: str = "{:.2f}") -> str:
  """A cell of a table; "-" where nothing was measured."""
  return "-" if value is None else pattern.format(value)


def percent(value: float | None) -> str:
  """A share as a cell of a table."""
  return number(value, "{:.1%}")
