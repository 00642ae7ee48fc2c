# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of our own, in Orbax: what a run trains or converts is saved and loaded here.

A checkpoint is a folder:

  specjax_config.json      the architecture and the dtype that the parameters have
  params/                  the parameters, written by Orbax
  tokenizer.json, ...      the tokenizer and the EOS ids, where they were given
"""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh
from orbax.checkpoint import v1 as ocp

from specjax.models import cached_files
from specjax.models.config import TransformerConfig
from specjax.models.text_files import read_json
from specjax.models.tokenizer import Tokenizer
from specjax.models.transformer import Transformer
from specjax.sharding.partitioning import Partitioning
from specjax.sharding.processes import from_first, is_first
from specjax.sharding.rules import Rules
from specjax.types import Params, PyTree

CONFIG_NAME = "specjax_config.json"
_PARAMS_NAME = "params"
_FORMAT = 1


def is_orbax_checkpoint(folder: str | os.PathLike) -> bool:
  """Whether `folder` is one that `save_orbax` wrote."""
  return (Path(folder) / CONFIG_NAME).is_file()


def save_orbax(
  folder: str | os.PathLike,
  model: Transformer,
  params: Params,
  *,
  tokenizer: Tokenizer | None = None,
  eos_ids: Sequence[int] = (),
  overwrite: bool = False,
) -> None:
  """Writes a checkpoint: whole, or not at all.

  Everything is written to a temporary folder beside `folder`, which takes its place at the end.

  Args:
    folder: the new checkpoint.
    model: its architecture.
    params: its parameters, as `model.init` shapes them.
    tokenizer: is saved with it, so that `specjax.models.checkpoint.load` finds it.
    eos_ids: the token ids that end a text.
    overwrite: replaces what is at `folder`.

  Raises:
    FileExistsError: where there is something at `folder` and `overwrite` is False.
    ValueError: where `params` does not fit the model, naming the tensor.
  """
  # Orbax takes absolute paths only.
  folder = Path(folder).expanduser().absolute()
  if folder.exists() and not overwrite:
    raise FileExistsError(f"{folder} exists: choose another folder, or overwrite=True")
  _check_shapes(model.param_shapes(), params, "params")
  with contextlib.ExitStack() as stack:

    def make_folder() -> str:
      fresh = stack.enter_context(cached_files.temporary_folder(folder.parent)) / "checkpoint"
      fresh.mkdir()
      return str(fresh)

    # Of several processes each writes its part of the parameters, and the first the rest.
    fresh = Path(from_first(make_folder))
    ocp.save(fresh / _PARAMS_NAME, params)
    if not is_first():
      return
    if tokenizer is not None:
      tokenizer.save(fresh)
    if eos_ids:
      _write_json(fresh / "generation_config.json", {"eos_token_id": [int(i) for i in eos_ids]})
    config = {
      "format": _FORMAT,
      "config": model.config.to_dict(),
      "dtype": str(model.dtype),
      "precision": model.precision,
    }
    _write_json(fresh / CONFIG_NAME, config)
    cached_files.replace_folder(fresh, folder)


def load_orbax(
  folder: str | os.PathLike,
  *,
  dtype: Any = None,
  precision: str | None = None,
  shardings: PyTree | None = None,
  mesh: Mesh | str | None = None,
  rules: Rules | str | None = None,
) -> tuple[Transformer, Params]:
  """Reads a checkpoint that `save_orbax` wrote.

  Args:
    folder: the checkpoint.
    dtype: of the loaded parameters; None keeps the one they were saved with.
    precision: of matrix products; None keeps the saved one.
    shardings: a `jax.sharding.Sharding` for all parameters, or a tree of them shaped like the
      parameters; None puts them on the first device.
    mesh: in place of `shardings`, a mesh of devices or its text: each process reads what its
      devices hold.
    rules: with `mesh`, over `specjax.sharding.DEFAULT_RULES`.

  Raises:
    ValueError: where a file is missing or broken, or a tensor is missing or has another shape,
      naming it.
  """
  folder = Path(folder).expanduser().absolute()
  if mesh is not None and shardings is not None:
    raise ValueError("give either mesh or shardings, got both")
  model = read_orbax_model(folder, dtype=dtype, precision=precision)
  shapes = model.param_shapes()
  if mesh is not None:
    shardings = Partitioning.of(mesh, rules, model).shardings(shapes)
  path = folder / _PARAMS_NAME
  _check_shapes(shapes, _stored_tree(path), str(path))
  wanted = _with_shardings(shapes, shardings)
  try:
    return model, ocp.load(path, wanted)
  except Exception as error:
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error)
    raise ValueError(f"{path} cannot be read: {reason}") from error


def read_orbax_model(
  folder: str | os.PathLike, *, dtype: Any = None, precision: str | None = None
) -> Transformer:
  """The architecture of a checkpoint, without its parameters. See `load_orbax`."""
  path = Path(folder) / CONFIG_NAME
  fields = read_json(path)
  if fields.get("format") != _FORMAT:
    raise ValueError(f"{path}: format {fields.get('format')!r} is not known, only {_FORMAT}")
  try:
    return Transformer(
      config=TransformerConfig.from_dict(fields["config"]),
      dtype=fields["dtype"] if dtype is None else dtype,
      precision=fields["precision"] if precision is None else precision,
    )
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f"{path}: {error}") from error


def _stored_tree(path: Path) -> PyTree:
  """What Orbax says that it stored: a tree of things with a shape."""
  try:
    stored = ocp.metadata(path).metadata
  except Exception as error:
    # Orbax raises its own layout errors, OSError and more, by what exactly is broken.
    raise ValueError(f"{path} is not a complete Orbax checkpoint") from error
  # Where the index of the arrays is damaged, Orbax logs that and goes on without them.
  if not stored:
    raise ValueError(f"{path} is not a complete Orbax checkpoint")
  return stored


def _with_shardings(shapes: PyTree, shardings: PyTree | None) -> PyTree:
  """The tree of shapes with a sharding on each: a checkpoint may come from other devices."""
  if shardings is None:
    shardings = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  if isinstance(shardings, jax.sharding.Sharding):
    one = shardings
    shardings = jax.tree.map(lambda _: one, shapes)

  def place(shape: jax.ShapeDtypeStruct, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

  try:
    return jax.tree.map(place, shapes, shardings)
  except (TypeError, ValueError) as error:
    raise ValueError(
      "shardings must be one sharding, or a tree of them shaped like the parameters"
    ) from error


def _check_shapes(expected: PyTree, found: PyTree, where: str) -> None:
  """Compares two trees of things that have a shape; names the first tensor that differs."""
  wanted, there = dict(_named(expected)), dict(_named(found))
  for name, tensor in wanted.items():
    if name not in there:
      raise ValueError(f"{where}: the tensor {name!r} is missing")
    if tuple(there[name].shape) != tuple(tensor.shape):
      raise ValueError(
        f"{where}: the tensor {name!r} has shape {tuple(there[name].shape)}, the model takes "
        f"{tuple(tensor.shape)}"
      )
  for name in there:
    if name not in wanted:
      raise ValueError(f"{where}: the model has no tensor {name!r}")


def _named(tree: PyTree) -> Iterator[tuple[str, Any]]:
  """(`layers/0/attention/query/kernel`, leaf) for each leaf that has a shape."""
  leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda leaf: hasattr(leaf, "shape"))
  for path, leaf in leaves:
    yield "/".join(str(getattr(entry, "key", entry)) for entry in path), leaf


def _write_json(path: Path, value: dict[str, Any]) -> None:
  path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
