# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Files of one JSON value a line that a run which is killed may leave with half a line."""

import json
import os
from pathlib import Path
from typing import Any


def recover(path: Path) -> list[Any]:
  """The values of a file, none if there is no file; half a last line is cut from it.

  Raises:
    ValueError: for a whole line that is not JSON, naming it.
  """
  if not path.exists():
    return []
  data = path.read_bytes()
  whole = data.rfind(b"\n") + 1
  if whole < len(data):
    with path.open("r+b") as file:
      file.truncate(whole)
      os.fsync(file.fileno())
  return _values(data[:whole], path)


def read(path: Path) -> list[Any]:
  """The same without touching the file: another process may be writing the half line.

  Raises:
    ValueError: for a whole line that is not JSON, naming it.
  """
  data = path.read_bytes() if path.exists() else b""
  return _values(data[: data.rfind(b"\n") + 1], path)


def _values(data: bytes, path: Path) -> list[Any]:
  values = []
  for number, line in enumerate(data.splitlines(), start=1):
    try:
      values.append(json.loads(line))
    except ValueError as error:
      raise ValueError(f"{path} line {number} is damaged: {error}") from None
  return values
