# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What the dimensions of every array are called: parameters, caches, loop and optimiser state.

An array is known by the end of its path in its pytree: the parameters of a draft model, an
optimiser's moments and the changes of a weight (`specjax.models.weight_changes`) have the names
of the parameters that they belong to.
"""

import functools
import re
from typing import Any

import jax

Axes = tuple[str | None, ...]

# A dimension of heads times head_dim, of which whole heads are cut off.
PER_HEAD = "*head_dim"

# (end of the path, names of the dimensions); the first that fits path and rank.
_TABLE: tuple[tuple[str, Axes], ...] = (
  # Transformers: see `specjax.models.Transformer`.
  ("embed/embedding", ("vocab", "embed")),
  ("head/kernel", ("embed", "vocab")),
  ("attention/query/kernel", ("embed", "heads" + PER_HEAD)),
  ("attention/query/bias", ("heads" + PER_HEAD,)),
  ("attention/(key|value)/kernel", ("embed", "kv_heads" + PER_HEAD)),
  ("attention/(key|value)/bias", ("kv_heads" + PER_HEAD,)),
  ("attention/output/kernel", ("heads" + PER_HEAD, "embed")),
  ("attention/output/bias", ("embed",)),
  ("mlp/(gate|up)/kernel", ("embed", "mlp")),
  ("mlp/(gate|up)/bias", ("mlp",)),
  ("mlp/down/kernel", ("mlp", "embed")),
  ("mlp/down/bias", ("embed",)),
  (r"\w*norm/scale", ("norm",)),
  # Drafters: heads of blockwise decoding, the columns of a draft vocabulary, look-ahead.
  ("hidden/kernel", ("embed", "mlp")),
  ("hidden/bias", ("mlp",)),
  ("output/kernel", ("draft", "mlp", "embed")),
  ("output/bias", ("draft", "embed")),
  ("head", ("embed", "vocab")),
  ("look_ahead", ("draft", "embed")),
  # Caches, and what the loop carries.
  (r"(keys|values)/\d+", ("batch", "kv_heads", "slots", "head_dim")),
  ("tokens", ("batch", "slots")),
  (r"records/\w+", ("batch", "slots")),
  ("(prompt_)?counts", ("batch", "vocab")),
  ("eos_ids", (None,)),
)
_PATTERNS = tuple((re.compile(rf"(.*/)?{end}"), axes) for end, axes in _TABLE)
_CHANGE = re.compile(r"(?P<weight>.*)/(?P<part>whole|left|right)")


@functools.lru_cache(maxsize=4096)
def logical_axes(path: str, shape: tuple[int, ...], batch: int | None = None) -> Axes:
  """The names of an array's dimensions; None for one that is never cut.

  Args:
    path: where it stands in its pytree, as `leaf_path` writes it.
    shape: its shape.
    batch: B of a tree of per-row arrays: one that is not known by its path, but has B entries in
      its first dimension, is cut there.
  """
  change = _CHANGE.fullmatch(path)
  if change is not None:
    return _axes_of_change(change["weight"], change["part"], shape)
  for pattern, axes in _PATTERNS:
    if len(axes) == len(shape) and pattern.fullmatch(path):
      return axes
  if batch is not None and shape and shape[0] == batch:
    return ("batch", *[None] * (len(shape) - 1))
  return (None,) * len(shape)


def leaf_path(path: tuple[Any, ...]) -> str:
  """A key path of `jax.tree_util` as text: "layers/0/mlp/up/kernel"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


def _axes_of_change(weight: str, part: str, shape: tuple[int, ...]) -> Axes:
  """A change is cut like its weight; the rank between two narrow matrices is not."""
  if part == "whole":
    return logical_axes(weight, shape)
  whole = logical_axes(weight, (0, 0))
  return (whole[0], None) if part == "left" else (None, whole[1])
