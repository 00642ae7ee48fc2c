# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Results in the format of Spec-Bench's own tools (Xia et al. 2024, arXiv 2401.07851).

One file a method, one line a question, all in the order of the questions: `evaluation/speed.py`
and `evaluation/equal.py` there read them. They follow from `results.jsonl` and are written anew
each time. `wall_time` holds the reading of the prompt as theirs does, but no compilation.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.results import Row
from specjax.models import cached_files

FOLDER = "spec_bench"


def write_spec_bench_files(folder: Path, rows: Iterable[Row]) -> list[Path]:
  """Writes `spec_bench/<method>.jsonl` in a folder of results; returns the files.

  A question whose turns are not all answered yet is left out.
  """
  questions: dict[str, dict[int, list[Row]]] = {}
  for row in rows:
    questions.setdefault(row["method"], {}).setdefault(row["prompt_index"], []).append(row)
  written = []
  for method, by_question in questions.items():
    lines = []
    for _, turns in sorted(by_question.items()):
      turns.sort(key=lambda row: row["turn"])
      if len(turns) == turns[0].get("num_turns", len(turns)):
        lines.append(json.dumps(_answer(folder, turns), ensure_ascii=False) + "\n")
    path = folder / FOLDER / f"{method}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    cached_files.write_text(path, "".join(lines))
    written.append(path)
  return written


def _answer(folder: Path, turns: list[Row]) -> dict[str, Any]:
  """The line of one question."""
  first = turns[0]
  question_id = first["question_id"]
  question_id = first["prompt_index"] if question_id is None else question_id
  model_id = f"{Path(first['model']).name}-{first['method']}"
  tokens = json.dumps([model_id, question_id, [row["token_ids"] for row in turns]])
  return {
    "question_id": question_id,
    "category": first["category"],
    "answer_id": hashlib.sha256(tokens.encode()).hexdigest()[:22],
    "model_id": model_id,
    "choices": [
      {
        "index": 0,
        "turns": [row["text"].strip() for row in turns],
        "decoding_steps": [row["target_calls"] for row in turns],
        "new_tokens": [row["new_tokens"] for row in turns],
        "wall_time": [
          (row["prefill_seconds"] + row["decode_seconds"]) / row.get("batch_size", 1)
          for row in turns
        ],
        "accept_lengths": [count for row in turns for count in _tokens_per_call(row)],
      }
    ],
    "tstamp": (folder / "results.jsonl").stat().st_mtime,
  }


def _tokens_per_call(row: Row) -> list[int]:
  """New tokens of each target call; rows of older runs have only how often each number came."""
  if "tokens_per_call" in row:
    return row["tokens_per_call"]
  counts = enumerate(row["accepted_histogram"], start=1)
  return [length for length, count in counts for _ in range(count)]
