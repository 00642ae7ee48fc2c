# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Numbers that studies read off the rows of a run, and how they are written."""

from collections.abc import Sequence

from experiments.report import summarize
from experiments.results import Row
from specjax.evaluation.theory_rows import token_acceptance

__all__ = [
  "block_efficiency",
  "number",
  "percent",
  "seconds_per_call",
  "speed_up",
  "token_acceptance",
  "tokens_per_second",
]


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


def number(value: float | None, pattern: str = "{:.2f}") -> str:
  """A cell of a table; "-" where nothing was measured."""
  return "-" if value is None else pattern.format(value)


def percent(value: float | None) -> str:
  """A share as a cell of a table."""
  return number(value, "{:.1%}")
