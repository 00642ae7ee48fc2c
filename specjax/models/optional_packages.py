# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Packages that only real checkpoints need: imported where they are used."""

import importlib
from types import ModuleType


def require(name: str) -> ModuleType:
  """Imports the optional package `name` (`"gguf"`, `"tokenizers"`, ...).

  Raises:
    ImportError: naming the extra that brings the package, where it is not installed.
  """
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as error:
    # A package that is there but lacks something of its own says so itself.
    if error.name != name.split(".")[0]:
      raise
    raise ImportError(
      f"reading this checkpoint needs the package {name!r}: pip install 'specjax[models]'"
    ) from error
