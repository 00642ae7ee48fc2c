# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Where greedy outputs part from autoregressive decoding, and how close a tie it was there.

Lossless methods give the same tokens, but a block of another width is rounded differently, and
where the two best logits are nearly equal the other one can win. From there on two texts differ
although nothing is wrong; the gap between the two best logits tells that from a mistake. It takes
the model, so it is measured with the run, into `differences.jsonl` beside the results.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.report import BASELINE
from experiments.results import Row
from specjax import json_lines
from specjax.models.checkpoint import Checkpoint

FILE_NAME = "differences.jsonl"


@dataclasses.dataclass(frozen=True)
class Difference:
  """A row whose tokens are not those of autoregressive decoding.

  Attributes:
    row: that row.
    baseline: the autoregressive row of the same prompt and turn.
    token_index: the first new token that differs; None where an earlier answer of the conversation
      was another text, so that the two had not the same prompt.
  """

  row: Row
  baseline: Row
  token_index: int | None


def find_differences(
  rows: Iterable[Row],
  baseline: Iterable[Row],
  key: Callable[[Row], Any] = lambda row: row["prompt_index"],
) -> list[Difference]:
  """The rows that differ, in their order; rows without an autoregressive one are passed over.

  Args:
    rows: of any methods.
    baseline: autoregressive rows.
    key: what tells questions apart.
  """
  plain = {(key(row), row["turn"]): row for row in baseline}
  rows = list(rows)
  texts = {(row["method"], key(row), row["turn"]): row["text"] for row in rows}
  found = []
  for row in rows:
    question, turn = key(row), row["turn"]
    other = plain.get((question, turn))
    if other is None or row["method"] == BASELINE:
      continue
    same_prompt = all(
      texts.get((row["method"], question, earlier)) == plain[question, earlier]["text"]
      for earlier in range(turn)
      if (question, earlier) in plain
    )
    if not same_prompt:
      found.append(Difference(row, other, None))
    elif row["token_ids"] != other["token_ids"]:
      index = first_different(row["token_ids"], other["token_ids"])
      found.append(Difference(row, other, index))
  return found


def first_different(ours: Sequence[int], theirs: Sequence[int]) -> int:
  """The first index at which two different sequences part; the shorter may begin the longer."""
  pairs = enumerate(zip(ours, theirs, strict=False))
  return next((index for index, (a, b) in pairs if a != b), min(len(ours), len(theirs)))


def measure_margins(
  folder: Path,
  rows: Mapping[Any, Row],
  target: Checkpoint,
  read_prompt: Callable[[str, int, int], Sequence[int]],
) -> None:
  """Adds to `differences.jsonl` what it does not have yet: the logits where a row first differs.

  Args:
    folder: of the results.
    rows: all of them.
    target: who was decoded.
    read_prompt: the tokens that a method read, by method, prompt index and turn.
  """
  from specjax.evaluation import check_greedy

  path = folder / FILE_NAME
  known = {_key(value) for value in json_lines.recover(path)}
  plain = [row for row in rows.values() if row["method"] == BASELINE]
  for difference in find_differences(rows.values(), plain):
    row, index = difference.row, difference.token_index
    if index is None or _key(row) in known:
      continue
    tokens, other = row["token_ids"], difference.baseline["token_ids"]
    # The shorter of two texts may be the beginning of the longer.
    token = tokens[index] if index < len(tokens) else None
    expected = other[index] if index < len(other) else None
    judged = tokens[index] if index < len(tokens) else other[index]
    check = check_greedy(
      target.model,
      target.params,
      read_prompt(row["method"], row["prompt_index"], row["turn"]),
      [*other[:index], judged],
    )
    value = {
      **{name: row[name] for name in ("method", "prompt_index", "turn")},
      "token_index": index,
      "token": token,
      "baseline_token": expected,
      "margin": float(check.margin[-1]),
      "gap": float(check.gap[-1]),
    }
    with path.open("ab") as file:
      file.write(json.dumps(value).encode() + b"\n")
      file.flush()
      os.fsync(file.fileno())


def read_margins(folder: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
  """What `measure_margins` wrote: by method, prompt index and turn."""
  return {_key(value): value for value in json_lines.read(folder / FILE_NAME)}


def _key(value: Mapping[str, Any]) -> tuple[str, int, int]:
  return value["method"], value["prompt_index"], value["turn"]
