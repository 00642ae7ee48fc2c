# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The output folder of a run: `config.json`, and `results.jsonl` that grows row by row.

A run that was stopped anywhere, even killed in the middle of a line, goes on from what the
folder holds. A folder only ever holds the results of one setting.
"""

import datetime
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from specjax import json_lines
from specjax.models import cached_files

Row = dict[str, Any]
RowKey = tuple[str, int, int]


def row_key(row: Row) -> RowKey:
  """What a row is the result of: (method, prompt_index, turn)."""
  return row["method"], row["prompt_index"], row["turn"]


def fresh_folder(root: Path = Path("runs")) -> Path:
  """A folder that does not exist yet, named after the time; not created."""
  stamp = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
  path, number = root / stamp, 1
  while path.exists():
    number += 1
    path = root / f"{stamp}-{number}"
  return path


class ResultsFolder:
  """The folder, opened for one setting.

  Attributes:
    path: the folder.
    rows: finished rows, by `row_key`, those of earlier runs included.
    resumed: how many of them an earlier run left.
  """

  def __init__(self, path: Path, settings: dict[str, Any]):
    """Reads what is finished. The folder is made when the first row comes.

    Args:
      path: the folder.
      settings: JSON values that decide the results.

    Raises:
      ValueError: if the folder holds results of other settings, or damaged ones.
    """
    self.path = path
    self._file_path = path / "results.jsonl"
    # Through JSON, so that values compare as they are written.
    self._settings = json.loads(json.dumps(settings))
    self._check_settings()
    self.rows: dict[RowKey, Row] = {}
    for number, row in enumerate(json_lines.recover(self._file_path), start=1):
      try:
        self.rows[row_key(row)] = row
      except (KeyError, TypeError):
        raise ValueError(f"{self._file_path} line {number} is not a row of results") from None
    self.resumed = len(self.rows)

  @classmethod
  def of_run(cls, path: Path | None, settings: dict[str, Any]) -> "ResultsFolder":
    """The folder of a run: of several processes, the first reads and writes for all.

    Args:
      path: the folder; None takes a fresh one.
      settings: JSON values that decide the results.

    Raises:
      ValueError: as the constructor, in every process; or if processes have other settings.
    """
    from specjax.sharding import processes

    processes.check_same("settings or prompts", settings)
    path = Path(processes.from_first(lambda: str(path or fresh_folder())))
    if processes.is_first():
      # Told to all, a ValueError is raised in all of them.
      folder: list[ResultsFolder] = []
      processes.from_first(lambda: folder.append(cls(path, settings)))
      processes.from_first(lambda: list(folder[0].rows.values()))
      return folder[0]
    processes.from_first(lambda: None)
    return _FollowedResults(path, processes.from_first(lambda: None))

  def check_source(self, source: str) -> None:
    """Checks that finished rows came from the same weights.

    Raises:
      ValueError: if a row names another source.
    """
    for row in self.rows.values():
      if row.get("source") != source:
        raise ValueError(
          f"{self.path} holds results of the weights {row.get('source')!r}, this run has "
          f"{source!r}; choose another --output"
        )

  def check_drafters(self, checksums: Mapping[str, str | None]) -> None:
    """Checks that finished rows came from the same trained drafters.

    Args:
      checksums: by method, of the file of its drafter; None where it has none.

    Raises:
      ValueError: if a row of a method has another one.
    """
    for row in self.rows.values():
      if row.get("drafter_sha256") != checksums.get(row["method"]):
        raise ValueError(
          f"{self.path} holds results of {row['method']} with another trained drafter "
          f"({row.get('drafter_file')}); choose another --output"
        )

  def append(self, rows: Iterable[Row]) -> None:
    """Adds rows that are not there yet, and returns when they are on the disk."""
    new = [row for row in rows if row_key(row) not in self.rows]
    if not self._file_path.exists():
      self.path.mkdir(parents=True, exist_ok=True)
      text = json.dumps(self._settings, indent=2, ensure_ascii=False)
      cached_files.write_text(self.path / "config.json", text + "\n")
    with self._file_path.open("ab") as file:
      for row in new:
        file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
        self.rows[row_key(row)] = row

  def _check_settings(self) -> None:
    if self.path.exists() and not self.path.is_dir():
      raise ValueError(f"output {self.path} is not a folder")
    if not self._file_path.exists():
      return
    config_path = self.path / "config.json"
    try:
      earlier = json.loads(config_path.read_text(encoding="utf-8"))
    except FileNotFoundError:
      raise ValueError(
        f"output {self.path} holds results but no config.json to compare settings with; choose "
        "another --output"
      ) from None
    except ValueError as error:
      raise ValueError(f"{config_path} is damaged ({error}); choose another --output") from None
    for name in {**earlier, **self._settings}:
      before, now = earlier.get(name), self._settings.get(name)
      if before != now:
        raise ValueError(
          f"output {self.path} holds a run with other settings: {name} was {_short(before)}, now "
          f"it is {_short(now)}; choose another --output"
        )


class _FollowedResults(ResultsFolder):
  """What another process than the first knows of the folder: rows, and no files."""

  def __init__(self, path: Path, rows: Iterable[Row]):
    self.path = path
    self.rows = {row_key(row): row for row in rows}
    self.resumed = len(self.rows)

  def append(self, rows: Iterable[Row]) -> None:
    """Keeps the rows, as later turns read earlier answers."""
    for row in rows:
      self.rows.setdefault(row_key(row), row)


def _short(value: Any) -> str:
  text = json.dumps(value, ensure_ascii=False)
  return text if len(text) <= 60 else text[:57] + "..."
