# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Result folders read back, and pooled where only their methods or questions differ."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.differences import read_margins
from experiments.report import BASELINE
from experiments.results import Row, row_key
from specjax import json_lines

# Settings that say what was run, not under which conditions.
_WHAT = ("methods", "prompts", "peers")
# Settings that autoregressive decoding does not depend on.
_DRAFTING = (
  *("drafter", "draft_length", "max_ngram", "min_ngram", "occurrence", "wrap", "draft_checkpoint"),
  *("draft_layers", "draft_temperature", "fallback_min_tokens", "verifier", "accept_top_k"),
  *("accept_distance", "min_block_size"),
)
# Every report needs them; whatever else a row may have is looked for where it is used.
_REQUIRED = (
  *("method", "prompt_index", "turn", "token_ids", "text", "new_tokens", "target_calls"),
  *("draft_calls", "drafted_tokens", "accepted_tokens", "accepted_histogram", "batch_index"),
  *("prefill_seconds", "decode_seconds", "compile_seconds", "lossless"),
)


@dataclasses.dataclass(frozen=True)
class Run:
  """One result folder.

  Attributes:
    folder: where it is.
    settings: its `config.json`.
    rows: its rows, each with `question` (what tells questions apart across folders), `unit` (what
      is timed together: the batch), `margin` (None where it was not measured) and `folder`.
  """

  folder: Path
  settings: dict[str, Any]
  rows: list[Row]


@dataclasses.dataclass(frozen=True)
class Pool:
  """Runs under the same conditions.

  Attributes:
    differing: the settings in which it differs from the other pools; none for the only one.
    settings: of its first run.
    rows: by method, autoregressive decoding first, then in the order of the runs.
    baseline: autoregressive rows: its own, or else those of another pool whose settings differ in
      drafting alone.
    greedy: whether outputs are to be compared with the baseline's.
  """

  differing: dict[str, Any]
  settings: dict[str, Any]
  rows: dict[str, list[Row]]
  baseline: list[Row]
  greedy: bool

  def label(self, *without: str) -> str:
    """What tells the pool apart, as text, without some settings."""
    kept = {name: value for name, value in self.differing.items() if name not in without}
    return ", ".join(
      f"{name} {'default' if value is None else value}" for name, value in kept.items()
    )


def read_run(folder: Path) -> Run:
  """Reads a folder, which may belong to a run that goes on.

  Raises:
    ValueError: for a folder without results, or with damaged ones.
  """
  path = folder / "results.jsonl"
  if not path.is_file():
    raise ValueError(f"{folder} is not a folder of results: it has no results.jsonl")
  try:
    config = folder / "config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
  except ValueError as error:
    raise ValueError(f"{folder / 'config.json'} is damaged ({error})") from None
  margins = read_margins(folder)
  prompts = json.dumps(settings.get("prompts"), sort_keys=True)
  rows = []
  for number, row in enumerate(json_lines.read(path), start=1):
    missing = [name for name in _REQUIRED if not isinstance(row, dict) or name not in row]
    if missing:
      raise ValueError(f"{path} line {number} is not a row of results: it has no {missing[0]!r}")
    question = row.get("question_id")
    question = f"{prompts} {row['prompt_index']}" if question is None else question
    batched = row.get("batch_size", 1) > 1 or settings.get("batch_size", 1) > 1
    unit = f"{prompts} batch {row['batch_index']}" if batched else question
    margin = margins.get(row_key(row), {}).get("margin")
    found = {"question": question, "unit": unit, "margin": margin, "folder": str(folder)}
    rows.append(row | found)
  return Run(folder, settings, rows)


def pool_runs(runs: Sequence[Run]) -> list[Pool]:
  """Runs of equal settings together, in the order of the first of each."""
  groups: dict[str, list[Run]] = {}
  for run in runs:
    groups.setdefault(_conditions(run, _WHAT), []).append(run)
  firsts = [group[0].settings for group in groups.values()]
  names = [name for name in dict.fromkeys(name for first in firsts for name in first)]
  differing = [
    name
    for name in names
    if name not in _WHAT and len({json.dumps(first.get(name)) for first in firsts}) > 1
  ]
  plain: dict[str, list[Row]] = {}
  for run in runs:
    rows = [row for row in run.rows if row["method"] == BASELINE]
    plain.setdefault(_conditions(run, (*_WHAT, *_DRAFTING)), []).extend(rows)
  pools = []
  for group in groups.values():
    by_method: dict[str, list[Row]] = {BASELINE: []}
    for run in group:
      for row in run.rows:
        by_method.setdefault(row["method"], []).append(row)
    settings = group[0].settings
    baseline = by_method[BASELINE] or plain[_conditions(group[0], (*_WHAT, *_DRAFTING))]
    if not by_method[BASELINE]:
      del by_method[BASELINE]
    pools.append(
      Pool(
        differing={name: settings.get(name) for name in differing},
        settings=settings,
        rows=by_method,
        baseline=baseline,
        greedy=settings.get("temperature", 0) == 0,
      )
    )
  return pools


def machines(runs: Sequence[Run]) -> list[dict[str, str]]:
  """The different stamps of the rows: machine, versions and number format."""
  stamps = []
  for run in runs:
    for row in run.rows:
      how = {"weights": row.get("dtype"), "mesh": row.get("mesh")}
      known = {name: str(value) for name, value in how.items() if value is not None}
      stamp = row.get("machine", {}) | known
      if stamp and stamp not in stamps:
        stamps.append(stamp)
  return stamps


def _conditions(run: Run, without: Sequence[str]) -> str:
  kept = {name: value for name, value in run.settings.items() if name not in without}
  return json.dumps(kept, sort_keys=True)
