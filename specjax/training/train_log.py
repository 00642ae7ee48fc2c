# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The log of a training run: `metrics.jsonl`, one object a logged step."""

import json
from pathlib import Path
from typing import Any

from specjax.models import cached_files


class TrainLog:
  """Rows of a run, kept in memory and in its folder."""

  def __init__(self, folder: Path | None, step: int):
    """Reads what is there up to `step`; later rows belong to steps that will be made again.

    Args:
      folder: where `metrics.jsonl` lies; None keeps rows in memory alone.
      step: the step that the run goes on from.
    """
    self._path = None if folder is None else folder / "metrics.jsonl"
    self.rows: list[dict[str, Any]] = []
    if self._path is None:
      return
    self._path.parent.mkdir(parents=True, exist_ok=True)
    if self._path.exists():
      self.rows = [row for row in _whole_rows(self._path) if row["step"] <= step]
    cached_files.write_text(self._path, "".join(json.dumps(row) + "\n" for row in self.rows))

  def append(self, row: dict[str, Any]) -> None:
    """Adds a row and writes it at once."""
    self.rows.append(row)
    if self._path is not None:
      with open(self._path, "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _whole_rows(path: Path) -> list[dict[str, Any]]:
  """The rows of a file whose last line may have been cut off."""
  rows = []
  for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      break
  return rows
