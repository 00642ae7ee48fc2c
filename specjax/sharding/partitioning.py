# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""From a mesh and rules to a `PartitionSpec` for every array."""

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from specjax.sharding.logical_axes import PER_HEAD, Axes, leaf_path, logical_axes
from specjax.sharding.mesh import make_mesh
from specjax.sharding.processes import place
from specjax.sharding.rules import RulePairs, Rules, make_rules
from specjax.types import Array, PyTree


@dataclasses.dataclass(frozen=True)
class Partitioning:
  """How arrays lie on a mesh. Hashable: compiled programs are specialised on it.

  Attributes:
    mesh: the devices; an `AbstractMesh` is enough for `specs`.
    rules: what `make_rules` returned.
    head_dim: width of one attention head of the model that the arrays belong to; None where
      there are no heads.
  """

  mesh: Mesh | AbstractMesh
  rules: RulePairs = dataclasses.field(default_factory=make_rules)
  head_dim: int | None = None

  @classmethod
  def of(
    cls, mesh: Mesh | AbstractMesh | str, rules: Rules | str | None = None, model: Any = None
  ) -> "Partitioning":
    """From what a user writes.

    Args:
      mesh: a mesh, or text such as "data:2,model:4".
      rules: laid over `DEFAULT_RULES`.
      model: the model, or drafter, whose arrays are meant: its heads are not cut in two.

    Raises:
      ValueError: as `make_mesh` and `make_rules`.
    """
    if not isinstance(mesh, AbstractMesh):
      mesh = make_mesh(mesh)
    return cls(mesh, make_rules(rules), find_head_dim(model))

  def spec(self, axes: Axes, shape: tuple[int, ...]) -> PartitionSpec:
    """The spec of an array whose dimensions have these logical names. See `rules`."""
    rules, used, entries = dict(self.rules), set[str](), []
    for name, size in zip(axes, shape, strict=True):
      units = size
      if name is not None and name.endswith(PER_HEAD):
        name = name.removesuffix(PER_HEAD)
        units = size // (self.head_dim or 1)
      wanted = [axis for axis in rules.get(name or "", ()) if self.mesh.shape[axis] > 1]
      wanted = [axis for axis in wanted if axis not in used]
      while wanted and units % math.prod(self.mesh.shape[axis] for axis in wanted):
        wanted.pop()
      used.update(wanted)
      entries.append(tuple(wanted) if len(wanted) > 1 else wanted[0] if wanted else None)
    return PartitionSpec(*entries)

  def specs(self, tree: PyTree, batch: int | None = None) -> PyTree:
    """A tree of `PartitionSpec`s for a tree of arrays, or of anything with a shape.

    Args:
      tree: parameters, a cache, a loop state, an optimiser's state.
      batch: B, for trees of per-row arrays. See `logical_axes`.
    """

    def one(path: Any, leaf: Any) -> PartitionSpec:
      shape = tuple(jax.numpy.shape(leaf))
      return self.spec(logical_axes(leaf_path(path), shape, batch), shape)

    return jax.tree_util.tree_map_with_path(one, tree)

  def shardings(self, tree: PyTree, batch: int | None = None) -> PyTree:
    """The same as `NamedSharding`s on the mesh."""
    return jax.tree.map(
      self._named, self.specs(tree, batch), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
    )

  def shard(self, tree: PyTree, batch: int | None = None) -> PyTree:
    """The arrays of a tree on their devices; those that are there already are not copied."""
    return place(tree, self.shardings(tree, batch))

  def constrain(self, array: Array, *axes: str | None) -> Array:
    """Tells the compiler how an intermediate result with these logical dimensions lies."""
    spec = self.spec(axes, array.shape)
    return jax.lax.with_sharding_constraint(array, self._named(spec))

  def constrain_tree(self, tree: PyTree, batch: int | None = None) -> PyTree:
    """`constrain` for every array of a tree, by its path."""
    return jax.lax.with_sharding_constraint(tree, self.shardings(tree, batch))

  @property
  def batch_shards(self) -> int:
    """Into how many parts the rows of a batch are cut."""
    return math.prod(self.mesh.shape[axis] for axis in dict(self.rules)["batch"])

  def check_batch(self, batch: int, name: str = "batch") -> None:
    """Raises ValueError where a batch cannot be cut evenly."""
    if batch % self.batch_shards:
      axes = " x ".join(f"{axis}:{self.mesh.shape[axis]}" for axis in dict(self.rules)["batch"])
      raise ValueError(
        f"{name} must be a multiple of {self.batch_shards}, the rows' share of the mesh ({axes}), "
        f"got {batch}"
      )

  def _named(self, spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(self.mesh, spec)


def find_head_dim(model: Any) -> int | None:
  """The width of the attention heads of a model, or of the model inside a drafter."""
  found = getattr(getattr(model, "config", None), "head_dim", None)
  if found is not None or not dataclasses.is_dataclass(model):
    return found
  inside = (getattr(model, field.name) for field in dataclasses.fields(model))
  return next((head_dim for part in inside if (head_dim := find_head_dim(part))), None)


def shard(
  tree: PyTree,
  mesh: Mesh | str,
  rules: Rules | str | None = None,
  *,
  model: Any = None,
  batch: int | None = None,
) -> PyTree:
  """Puts a tree of arrays on a mesh.

  Args:
    tree: parameters, a cache or a state, by the names that specjax gives them.
    mesh: a mesh of `make_mesh`, or its text: "data:2,model:4".
    rules: laid over `DEFAULT_RULES`; `REPLICATED` for a small drafter.
    model: the model or drafter that the arrays belong to; without it, a matrix may be cut in the
      middle of a head, which is slower and not wrong.
    batch: B, for trees of per-row arrays.

  Raises:
    ValueError: as `make_mesh` and `make_rules`.
  """
  return Partitioning.of(mesh, rules, model).shard(tree, batch)
