# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights as changes to a model's own: what a draft model made of the target learns and stores.

A change is a matrix added to a weight: a whole one, or the product of two narrow ones (LoRA, Hu et
al. 2021, arXiv 2106.09685, section 4.1). Only the changes are written to a drafter's file, in
bfloat16 or as 8-bit integers.

Changes are a flat dictionary `{"layers/0/mlp/up/kernel": change}`, where a change is
`{"whole": [in, out]}` or `{"left": [in, r], "right": [r, out]}`, all float32.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.arguments import check_integer
from specjax.types import Array, Params

STORAGES = ("bfloat16", "int8")
_INT8_MAX = 127

Changes = dict[str, dict[str, Array]]


def init_changes(key: Array, params: Params, rank: int) -> Changes:
  """Changes that change nothing yet, for every array of `params`.

  Args:
    key: a typed key.
    params: nested dictionaries of the arrays that may change.
    rank: r of the two narrow matrices; 0 changes whole matrices. Vectors, and matrices that are
      not larger than their two factors would be, always change as a whole.

  Raises:
    ValueError: for a negative rank.
  """
  check_integer("rank", rank, 0)
  changes: Changes = {}
  for serial, (name, leaf) in enumerate(_flatten(params).items()):
    narrow = rank > 0 and leaf.ndim == 2 and rank * sum(leaf.shape) < leaf.size
    if not narrow:
      changes[name] = {"whole": jnp.zeros(leaf.shape, jnp.float32)}
      continue
    height, width = leaf.shape
    # One factor random and one zero: the product starts at zero, with a gradient that is not.
    noise = jax.random.normal(jax.random.fold_in(key, serial), (height, rank), jnp.float32)
    changes[name] = {
      "left": noise * height**-0.5,
      "right": jnp.zeros((rank, width), jnp.float32),
    }
  return changes


def apply_changes(params: Params, changes: Changes) -> Params:
  """`params` with the changes added; arrays without one are passed on. Differentiable.

  Raises:
    ValueError: for a change of an array that `params` lack, or of another shape.
  """
  flat = _flatten(params)
  for name, change in changes.items():
    flat[name] = _changed(name, flat, change)
  return _nest(flat)


def encode_changes(params: Params, changes: Changes, storage: str) -> dict[str, np.ndarray]:
  """The changes as arrays for a file, under flat names.

  Args:
    params: the arrays that are changed. With "int8" a matrix is written as its change or as the
      changed weight, whichever is rounded less: a small change has a smaller step.
    changes: what `init_changes` made and training moved.
    storage: "bfloat16" or "int8" (symmetric, one scale an output channel), for matrices. Vectors
      are few and stay in float32.

  Raises:
    ValueError: for another storage.
  """
  if storage not in STORAGES:
    raise ValueError(f"storage must be one of {', '.join(STORAGES)}, got {storage!r}")
  flat = _flatten(params)
  arrays: dict[str, np.ndarray] = {}
  for name, change in changes.items():
    for kind, leaf in change.items():
      values = np.asarray(leaf, np.float32)
      if values.ndim < 2:
        arrays[f"{name}/{kind}"] = values
      elif storage == "bfloat16":
        arrays[f"{name}/{kind}"] = values.astype(jnp.bfloat16)
      else:
        candidates = {kind: values}
        if kind == "whole":
          candidates["weight"] = np.asarray(flat[name], np.float32) + values
        arrays |= _encode_int8(name, candidates)
  return arrays


def decode_changes(params: Params, arrays: Mapping[str, Any]) -> Params:
  """`params` with the changes added that `encode_changes` wrote.

  Args:
    params: the arrays that are changed.
    arrays: what `encode_changes` returned, of any array type.

  Raises:
    ValueError: for a name or shape that does not fit `params`.
  """
  changes: Changes = {}
  for full_name, values in arrays.items():
    name, _, kind = full_name.rpartition("/")
    if kind.endswith("_scale"):
      continue
    values = jnp.asarray(values).astype(jnp.float32)
    if kind.endswith("_int8"):
      kind = kind.removesuffix("_int8")
      scale = arrays.get(f"{name}/{kind}_scale")
      if scale is None or jnp.shape(scale) != values.shape[-1:]:
        raise ValueError(f"{full_name} must come with {kind}_scale [{values.shape[-1]}]")
      values = values * jnp.asarray(scale)[None, :]
    if kind not in ("whole", "weight", "left", "right"):
      raise ValueError(f"{full_name} is not the name of a change of weights")
    changes.setdefault(name, {})[kind] = values
  return apply_changes(params, changes)


def _changed(name: str, flat: Mapping[str, Array], change: Mapping[str, Array]) -> Array:
  """The array `name` after its change, in its own dtype."""
  if name not in flat:
    raise ValueError(f"there is no array {name} to change")
  base = flat[name]
  if set(change) == {"left", "right"}:
    if change["left"].shape[-1] != change["right"].shape[0]:
      raise ValueError(f"the factors of {name} have ranks that differ")
    added = change["left"] @ change["right"]
  elif len(change) == 1 and not {"whole", "weight"}.isdisjoint(change):
    (added,) = change.values()
  else:
    raise ValueError(f"{name} must change as a whole or by two factors, got {sorted(change)}")
  if added.shape != base.shape:
    raise ValueError(f"{name} has shape {base.shape}, its change {added.shape}")
  total = added if "weight" in change else base.astype(jnp.float32) + added
  return total.astype(base.dtype)


def _encode_int8(name: str, candidates: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The candidate with the smallest rounding error, as int8 with a scale for each column."""
  best: tuple[float, dict[str, np.ndarray]] | None = None
  for kind, values in candidates.items():
    largest = np.max(np.abs(values), axis=0)
    scale = np.where(largest > 0, largest / _INT8_MAX, 1.0).astype(np.float32)
    whole = np.clip(np.round(values / scale), -_INT8_MAX, _INT8_MAX).astype(np.int8)
    error = float(np.mean(np.square(whole * scale - values)))
    if best is None or error < best[0]:
      best = (error, {f"{name}/{kind}_int8": whole, f"{name}/{kind}_scale": scale})
  assert best is not None
  return best[1]


def _flatten(params: Params) -> dict[str, Array]:
  """Nested dictionaries as `{"a/b/c": array}`."""
  return {
    jax.tree_util.keystr(path, simple=True, separator="/"): leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
  }


def _nest(flat: Mapping[str, Array]) -> Params:
  """The inverse of `_flatten`."""
  nested: dict[str, Any] = {}
  for name, leaf in flat.items():
    *parents, last = name.split("/")
    place = nested
    for parent in parents:
      place = place.setdefault(parent, {})
    place[last] = leaf
  return nested
