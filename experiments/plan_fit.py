# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Acceptance rate and cost of drafting, fitted from measured rows for experiments.plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.report import format_table
from specjax import json_lines
from specjax.evaluation.theory_fit import BASELINE, Fit, fit


def read_rows(sources: Sequence[str]) -> list[dict[str, Any]]:
  """The rows of folders or files; each says in `run` which one it is of.

  Args:
    sources: folders of experiments.decode, or their results.jsonl.

  Raises:
    ValueError: for what is not there, or holds no rows.
  """
  rows = []
  for source in sources:
    path = Path(source)
    path = path / "results.jsonl" if path.is_dir() else path
    if not path.is_file():
      raise ValueError(f"--from {source} has no results.jsonl")
    for number, row in enumerate(json_lines.read(path), start=1):
      if not isinstance(row, dict) or not isinstance(row.get("method"), str):
        raise ValueError(f"{path} line {number} is not a row of results: it has no 'method'")
      rows.append({**row, "run": str(path)})
  if not rows:
    raise ValueError(f"--from {', '.join(sources)} has no rows")
  return rows


def fit_all(rows: Sequence[dict[str, Any]], method: str | None) -> tuple[Fit, str]:
  """Fits every method and draft length.

  Args:
    rows: of `read_rows`.
    method: the one to advise on; None takes the one that was fastest.

  Returns:
    The fit to advise on, and a table of all as text.

  Raises:
    ValueError: for rows that cannot tell.
  """
  plain = [row for row in rows if row["method"] == BASELINE]
  drafters = sorted({(row["method"], _length(row)) for row in rows if row["method"] != BASELINE})
  if method is not None:
    names = sorted({name for name, _ in drafters})
    drafters = [(name, length) for name, length in drafters if name == method]
    if not drafters:
      raise ValueError(f"method must be one that drafts, of {', '.join(names)}, got {method!r}")
  fits, refused = [], []
  for name, length in drafters:
    ours = [row for row in rows if row["method"] == name and _length(row) == length]
    try:
      fits.append(fit([*plain, *ours], name))
    except ValueError as error:
      refused.append(f"{name}, draft length {length}: {error}")
  if not fits:
    raise ValueError("nothing could be fitted: " + ("; ".join(refused) or "no method drafts"))
  header = (
    "method",
    "gamma",
    "prompts",
    "drafts",
    "alpha (95 %)",
    "c (95 %)",
    "tokens/call",
    "by position",
    "one alpha",
    "speed-up (95 %)",
    "expected",
  )
  lines = [
    (
      found.method,
      str(found.acceptance.draft_length),
      str(found.conversations),
      f"{found.acceptance.drafting_share:.0%}",
      str(found.alpha),
      str(found.cost_ratio),
      f"{found.acceptance.measured:.2f}",
      f"{found.acceptance.predicted():.2f}",
      f"{found.acceptance.predicted(rates=found.alpha.value):.2f}",
      str(found.speed_up),
      f"{found.expected_speed_up:.3f}",
    )
    for found in fits
  ]
  best = max(fits, key=lambda found: found.speed_up.value)
  text = [
    f"Fitted from {len(rows)} rows\n{format_table(header, lines)}",
    "drafts: share of target calls that had one. by position, one alpha: tokens/call that the "
    "theory expects from\nthe acceptance rates by position, and from alpha alone. Intervals are "
    "bootstrapped over prompts.",
    *(f"left out: {line}" for line in refused),
    f"Advice for {best.method} (draft length {best.acceptance.draft_length}), from its acceptance "
    f"rates by position:\n{', '.join(f'{rate:.3f}' for rate in best.acceptance.rates)}",
  ]
  if best.cost_ratio.value < 0:
    text.append("Drafting took no measurable time: c is taken to be 0.")
  return best, "\n\n".join(text)


def _length(row: dict[str, Any]) -> int:
  histogram = row.get("accepted_histogram")
  if not isinstance(histogram, list) or not histogram:
    raise ValueError(f"a row of {row['method']!r} in {row['run']} has no accepted_histogram")
  return len(histogram) - 1
