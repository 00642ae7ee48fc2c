# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The text files of a checkpoint: errors name the file."""

import json
from pathlib import Path
from typing import Any


def read_text(path: Path) -> str:
  """The file's text.

  Raises:
    ValueError: where it is missing, cannot be read, or is not UTF-8.
  """
  try:
    return path.read_text(encoding="utf-8")
  except FileNotFoundError:
    raise ValueError(f"{path}: there is no such file") from None
  except UnicodeDecodeError as error:
    raise ValueError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from error
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any]:
  """The file's JSON object.

  Raises:
    ValueError: as `read_text`, and where it is not a JSON object.
  """
  try:
    value = json.loads(read_text(path))
  except json.JSONDecodeError as error:
    raise ValueError(f"{path} is not JSON: {error}") from error
  if not isinstance(value, dict):
    raise ValueError(f"{path} holds a JSON {type(value).__name__}, expected an object")
  return value


def read_json_if_there(path: Path) -> dict[str, Any]:
  """The file's JSON object; an empty one where there is no such file."""
  return read_json(path) if path.is_file() else {}
