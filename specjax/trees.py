# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Token trees as arrays: parents in, depths, ancestor masks and blocks out.

A tree of N nodes is its parents, `[N]` or `[B, N]` int32 in topological order
(`parents[n] < n`), -1 standing for the last committed token. Trees of one row need no batch
axis; the functions below take any leading axes.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from specjax.types import Array, Block, check_sequence


def chain_parents(num_nodes: int) -> Array:
  """The parents of a chain, `[N]` int32: -1, 0, 1, ..."""
  return jnp.arange(num_nodes, dtype=jnp.int32) - 1


def check_parents(parents: Sequence[int]) -> tuple[int, ...]:
  """A static tree's parents as a tuple.

  Raises:
    ValueError: if the tree is not in topological order.
  """
  parents = check_sequence("parents", parents)
  for node, parent in enumerate(parents):
    if not -1 <= parent < node:
      raise ValueError(
        "parents must be in topological order (-1 <= parents[n] < n), "
        f"got parents[{node}] = {parent}"
      )
  return parents


def static_depths(parents: Sequence[int]) -> tuple[int, ...]:
  """The depth of each node of a static tree; children of the root have depth 1."""
  depths: list[int] = []
  for parent in check_parents(parents):
    depths.append(1 if parent < 0 else depths[parent] + 1)
  return tuple(depths)


def ancestors(parents: Array) -> Array:
  """`[..., N, N]` bool: whether node s is node n itself or above it, at `[..., n, s]`.

  Repeated squaring of the parent relation: ceil(log2 N) small matrix products, whatever the
  shape of the tree.
  """
  num_nodes = parents.shape[-1]
  identity = jnp.eye(num_nodes, dtype=bool)
  parent_of = parents[..., :, None] == jnp.arange(num_nodes, dtype=parents.dtype)
  reach = identity | parent_of
  covered = 1
  while covered < num_nodes:
    numbers = reach.astype(jnp.float32)
    reach = jnp.matmul(numbers, numbers) > 0.5
    covered *= 2
  return reach


def depths(parents: Array) -> Array:
  """The depth of each node, `[..., N]` int32; children of the root have depth 1."""
  return jnp.sum(ancestors(parents), axis=-1, dtype=jnp.int32)


def block_of(start: Array, parents: Array) -> Block:
  """The block `[pending token, node 0, ..., node N - 1]` that scores a tree.

  Args:
    start: `[B]` int32, cache slots before the block (the pending token goes to this slot).
    parents: `[B, N]` int32.

  Returns:
    A block of T = 1 + N tokens: the pending token is the root, seen by all; a node sees its
    ancestors, and its position is the root's plus its depth.
  """
  root = jnp.full((*parents.shape[:-1], 1), -1, parents.dtype)
  in_block = jnp.concatenate([root, parents + 1], axis=-1)
  mask = ancestors(in_block)
  depth = jnp.sum(mask, axis=-1, dtype=jnp.int32) - 1
  return Block(start=start, positions=start[:, None] + depth, mask=mask)
