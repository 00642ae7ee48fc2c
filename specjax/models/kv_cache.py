# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The key/value cache: preallocated, written in place, undone by length alone."""

import jax
import jax.numpy as jnp

from specjax.types import Array, Block, pytree_dataclass


@pytree_dataclass
class KVCache:
  """Keys and values of every layer. Which slots are in use is not stored here: see `Block`.

  One leaf per layer and no stacking: a stacked cache is sliced and copied in every step.

  Attributes:
    keys: per layer `[B, num_kv_heads, S, head_dim]`, already rotated.
    values: per layer `[B, num_kv_heads, S, head_dim]`.
  """

  keys: tuple[Array, ...]
  values: tuple[Array, ...]

  @property
  def capacity(self) -> int:
    """S, static."""
    return int(self.keys[0].shape[2])

  @classmethod
  def zeros(
    cls,
    num_layers: int,
    batch: int,
    num_kv_heads: int,
    capacity: int,
    head_dim: int,
    dtype: jnp.dtype,
  ) -> "KVCache":
    """An empty cache. Each leaf is its own buffer, so that all can be donated."""
    shape = (batch, num_kv_heads, capacity, head_dim)
    return cls(
      keys=tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)),
      values=tuple(jnp.zeros(shape, dtype) for _ in range(num_layers)),
    )


def write(buffer: Array, entries: Array, slots: Array) -> Array:
  """Writes `entries [B, T, heads, head_dim]` to `slots [B, T]` of `[B, heads, S, head_dim]`.

  A slot that is S or more drops its entry. A scatter, because a `dynamic_update_slice` with an
  offset per row would clamp a block that reaches past the end and overwrite valid slots.
  """
  entries = entries.astype(buffer.dtype)
  if slots.size == 1:
    # XLA turns a scatter of one entry into a dynamic-update-slice, fuses it into each reader
    # of the cache, and copies the whole buffer for every one of them, in every step. A second
    # entry that is dropped keeps it a scatter, which is done once and in place.
    slots = jnp.concatenate([slots, jnp.full_like(slots, buffer.shape[2])], axis=1)
    entries = jnp.concatenate([entries, entries], axis=1)
  return jax.vmap(_write_row)(buffer, entries, slots)


def _write_row(buffer: Array, entries: Array, slots: Array) -> Array:
  """One row. With the rows as a batch dimension of the scatter, no device of a mesh asks for
  another one's rows; with their indices in it, all would."""
  return buffer.at[:, slots].set(entries.swapaxes(0, 1), mode="drop")


def compact(buffer: Array, source: Array, target: Array) -> Array:
  """Copies slots `source [B, K]` (in range) to `target [B, K]` (S drops) in each row.

  All K are read before any is written, and nothing else of the buffer is touched.
  """
  rows = jnp.arange(buffer.shape[0], dtype=jnp.int32)[:, None]
  entries = buffer.at[rows, :, source].get(mode="promise_in_bounds")
  return buffer.at[rows, :, target].set(entries, mode="drop")


def path_slots(block: Block, path: Array, kept: Array, capacity: int) -> tuple[Array, Array]:
  """Where the entries of a kept path stand and where they belong.

  Args:
    block: the block that was written.
    path: `[B, K]` int32 block indices in the order of the sequence.
    kept: `[B]` int32, how many entries of `path` the row keeps.
    capacity: S.

  Returns:
    source `[B, K]`, always in range, and target `[B, K]`, `capacity` for what is not kept.
  """
  order = jnp.arange(path.shape[1], dtype=jnp.int32)[None, :]
  source = block.start[:, None] + path.astype(jnp.int32)
  target = block.start[:, None] + order
  # An entry that was never written (out of range) must not be read from its clamped neighbour.
  written = (source >= 0) & (source < capacity) & (target >= 0)
  target = jnp.where((order < kept[:, None]) & written, target, capacity)
  return jnp.clip(source, 0, capacity - 1), target
