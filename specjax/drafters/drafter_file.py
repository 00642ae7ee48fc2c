# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Trained drafters as files: what a training run writes and decoding loads.

A drafter file is a safetensors file. Its arrays are what was trained; what the drafter shares with
its target is not stored again. Its header says which scheme it is of, how it was built, and which
target it was made for. Loading it for another target is refused: a verifier would keep the output
right and hide that the drafts are worth nothing.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from specjax.drafters import blockwise, pass_look_ahead, trained_draft_model
from specjax.models.cached_files import replace_file, temporary_folder
from specjax.models.fingerprint import fingerprint, same_target, short_fingerprint
from specjax.models.optional_packages import require
from specjax.sharding.processes import fetch, is_first
from specjax.training.objective import TrainedDrafter
from specjax.types import Drafter, Model, Params

VERSION = 1
# One key: safetensors writes several in no fixed order, and the same drafter is the same bytes.
_KEY = "specjax_drafter"

# By scheme: builds the drafter and its parameters from (trained, model, params, **options).
BUILDERS: dict[str, Callable[..., tuple[Drafter, Params]]] = {
  "blockwise": blockwise.Blockwise.from_trained,
  "draft_model": trained_draft_model.from_trained,
  "pass": pass_look_ahead.from_trained,
}


@dataclasses.dataclass(frozen=True)
class DrafterHeader:
  """What a drafter file says of itself.

  Attributes:
    scheme: a key of `BUILDERS`.
    settings: `TrainedDrafter.settings`.
    target_name: what people call the target.
    target_fingerprint: `specjax.models.fingerprint.fingerprint` of the target.
    specjax_version: of the package that wrote it.
  """

  scheme: str
  settings: Mapping[str, Any]
  target_name: str
  target_fingerprint: str
  specjax_version: str

  def serves(self, target_fingerprint: str) -> bool:
    """Whether the drafter was made for the target with this fingerprint."""
    return same_target(self.target_fingerprint, target_fingerprint)


def save_drafter(
  path: str | os.PathLike,
  trained: TrainedDrafter,
  model: Model,
  params: Params,
  target_name: str,
) -> None:
  """Writes a drafter file: whole, or not at all. What was at `path` is replaced.

  The same drafter gives the same bytes. Of several processes, which must all call it, the first
  writes.

  Args:
    path: the file; its folder is made if need be.
    trained: the drafter.
    model: the target that it was trained for.
    params: the target's parameters.
    target_name: what people call that target, such as "SmolLM2-135M-Instruct".

  Raises:
    ValueError: for a scheme that cannot be loaded, or settings that are not JSON values.
    ImportError: where the package safetensors is missing.
  """
  save = require("safetensors.numpy").save
  _check_scheme(trained.scheme)
  header = {
    "version": VERSION,
    "scheme": trained.scheme,
    "settings": dict(trained.settings),
    "target_name": target_name,
    "target_fingerprint": fingerprint(model, params),
    "specjax_version": _specjax_version(),
  }
  try:
    text = json.dumps(header, allow_nan=False, sort_keys=True)
  except (TypeError, ValueError) as error:
    raise ValueError(f"settings of a trained drafter must be JSON values: {error}") from error
  arrays = {name: np.asarray(array) for name, array in fetch(dict(trained.arrays)).items()}
  arrays = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
  if not is_first():
    return
  destination = Path(path).expanduser()
  with temporary_folder(destination.absolute().parent) as aside:
    # Not safetensors' own save_file, whose files only their owner may read.
    (aside / destination.name).write_bytes(save(arrays, metadata={_KEY: text}))
    replace_file(aside / destination.name, destination)


def read_header(path: str | os.PathLike) -> DrafterHeader:
  """Reads what a drafter file says of itself, without its arrays.

  Raises:
    ValueError: naming the file, where there is none, or it is truncated, no drafter file, or one
      of a format or scheme that this specjax does not know.
  """
  return _open(path)[1]


def read_drafter(path: str | os.PathLike) -> tuple[TrainedDrafter, DrafterHeader]:
  """Reads a drafter file.

  Returns:
    The drafter, its arrays in NumPy and in the dtypes that they were saved in, and the header.

  Raises:
    ValueError: as `read_header`.
  """
  file, header = _open(path)
  arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
  return TrainedDrafter(header.scheme, header.settings, arrays), header


def load_drafter(
  path: str | os.PathLike,
  model: Model,
  params: Params,
  *,
  target_name: str = "this target",
  **options: Any,
) -> tuple[Drafter, Params]:
  """Builds the drafter of a file for its target.

  Args:
    path: the file.
    model: the target.
    params: the target's parameters.
    target_name: what to call the target in errors.
    **options: for the scheme's `from_trained`, such as `draft_length`.

  Returns:
    The drafter and its parameters, as `specjax.generate` takes them.

  Raises:
    ValueError: naming the file, as `read_header`; where the drafter was made for another target,
      lacks an array or has one of another shape; or for an option that it cannot serve.
  """
  trained, header = read_drafter(path)
  found = fingerprint(model, params)
  if not header.serves(found):
    raise ValueError(
      f"{path} was made for {header.target_name} (fingerprint "
      f"{short_fingerprint(header.target_fingerprint)}), not for {target_name} (fingerprint "
      f"{short_fingerprint(found)})"
    )
  try:
    return BUILDERS[header.scheme](trained, model, params, **options)
  except KeyError as error:
    raise ValueError(f"{path}: the array or setting {error} is missing") from error
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def _open(path: str | os.PathLike) -> tuple[Any, DrafterHeader]:
  """The opened safetensors file and its header."""
  place = Path(path).expanduser()
  if place.is_dir():
    raise ValueError(f"{path} is a folder; a trained drafter is one file")
  if not place.exists():
    raise ValueError(f"{path}: there is no such drafter file")
  safetensors = require("safetensors")
  try:
    file = safetensors.safe_open(str(place), framework="np")
  except safetensors.SafetensorError as error:
    with place.open("rb") as start:
      # A length of 8 bytes, then the header's JSON.
      begins_well = start.read(9)[8:] in (b"", b"{")
    what = "is truncated or damaged" if begins_well else "is not a drafter file"
    raise ValueError(f"{path} {what} ({error})") from error
  except OSError as error:
    raise ValueError(f"{path} cannot be read: {error}") from error
  text = (file.metadata() or {}).get(_KEY)
  if text is None:
    raise ValueError(
      f"{path} is not a drafter file: it is a safetensors file without the header {_KEY!r}"
    )
  return file, _parse(path, text)


def _parse(path: str | os.PathLike, text: str) -> DrafterHeader:
  try:
    fields = dict(json.loads(text))
    version = fields.pop("version")
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f"{path} has a damaged header: {error!r}") from error
  if version != VERSION:
    raise ValueError(
      f"{path} has the drafter format {version!r}, written by specjax "
      f"{fields.get('specjax_version')}; this specjax {_specjax_version()} reads format {VERSION}"
    )
  try:
    header = DrafterHeader(**fields)
    header.serves(header.target_fingerprint)
  except (TypeError, ValueError, AttributeError) as error:
    raise ValueError(f"{path} has a damaged header: {error}") from error
  try:
    _check_scheme(header.scheme)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error
  return header


def _check_scheme(scheme: str) -> None:
  if scheme not in BUILDERS:
    raise ValueError(
      f"unknown scheme {scheme!r} of a trained drafter; the schemes are "
      f"{', '.join(sorted(BUILDERS))}"
    )


def _specjax_version() -> str:
  import specjax  # the package imports this module

  return specjax.__version__
