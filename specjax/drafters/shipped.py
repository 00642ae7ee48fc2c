# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The trained drafters that come with specjax, found by the target that they serve.

They lie in `specjax/drafters/trained/<target>/<scheme>.safetensors`. The folder's name is for
people: what counts is the fingerprint in each file, so that a target is known by its weights
whatever name or path it was loaded by.
"""

from pathlib import Path

from specjax.drafters.drafter_file import read_header
from specjax.models.fingerprint import fingerprint
from specjax.types import Model, Params

FOLDER = Path(__file__).resolve().parent / "trained"


def shipped_drafters() -> list[Path]:
  """All drafter files that come with specjax."""
  return sorted(FOLDER.glob("*/*.safetensors"))


def find_shipped(scheme: str, model: Model, params: Params) -> Path | None:
  """The shipped drafter of a scheme for a target, or None.

  Args:
    scheme: a key of `specjax.drafters.drafter_file.BUILDERS`.
    model: the target.
    params: its parameters.

  Raises:
    ValueError: for a shipped file that is damaged.
  """
  paths = [path for path in shipped_drafters() if path.stem == scheme]
  if not paths:
    return None
  target = fingerprint(model, params)
  return next((path for path in paths if read_header(path).serves(target)), None)
