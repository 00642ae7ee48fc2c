# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What each device holds of every array: shapes, specs, bytes."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from specjax.sharding.logical_axes import leaf_path
from specjax.sharding.partitioning import Partitioning
from specjax.types import PyTree


@dataclasses.dataclass(frozen=True)
class LeafRow:
  """One array.

  Attributes:
    path: where it stands, such as "layers/0/mlp/up/kernel".
    shape: of the whole array.
    dtype: its name.
    spec: how it is cut.
    total_bytes: of the whole array.
    device_bytes: of the part that one device holds (all devices hold parts of one size).
  """

  path: str
  shape: tuple[int, ...]
  dtype: str
  spec: PartitionSpec
  total_bytes: int
  device_bytes: int

  @property
  def is_cut(self) -> bool:
    """Whether a device holds less than the whole."""
    return self.device_bytes < self.total_bytes


def leaf_rows(
  tree: PyTree, partitioning: Partitioning, batch: int | None = None, prefix: str = ""
) -> list[LeafRow]:
  """A row for every array of a tree, of `jax.ShapeDtypeStruct`s for one.

  Args:
    tree: the arrays; only their shapes and dtypes are looked at.
    partitioning: how they are cut.
    batch: B, for trees of per-row arrays.
    prefix: written before each path.
  """
  specs = jax.tree.leaves(
    partitioning.specs(tree, batch), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
  )
  rows = []
  for (path, leaf), spec in zip(jax.tree_util.tree_leaves_with_path(tree), specs, strict=True):
    shape = tuple(leaf.shape)
    total = math.prod(shape) * _item_bytes(leaf)
    name = leaf_path(path)
    parts = num_parts(spec, partitioning)
    rows.append(LeafRow(f"{prefix}{name}", shape, str(leaf.dtype), spec, total, total // parts))
  return rows


def num_parts(spec: PartitionSpec, partitioning: Partitioning) -> int:
  """Into how many parts a spec cuts an array."""
  axes = [
    axis for entry in spec if entry for axis in ((entry,) if isinstance(entry, str) else entry)
  ]
  return math.prod(partitioning.mesh.shape[axis] for axis in axes)


def _item_bytes(leaf: Any) -> int:
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return 8  # threefry: two 32-bit words
  return int(jnp.dtype(leaf.dtype).itemsize)
