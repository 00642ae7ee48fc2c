# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Attention of a block over the whole cache buffer, and which slots each token may see."""

import jax
import jax.numpy as jnp

from specjax.types import Array, Block

# Finite, so that the softmax of a row that sees nothing is uniform instead of NaN.
_HIDDEN = -1e30


def visible_slots(block: Block, capacity: int, window: int | None = None) -> Array:
  """Which cache slots each token sees once the block is written: `[B, T, S]` bool.

  A token sees the committed slots below `block.start` (those that `block.committed_mask` shows
  it, where there is one) and what `block.mask` shows it of the block; with a window, of those
  only positions closer than `window` to its own.
  """
  batch, num_tokens = block.positions.shape
  slots = jnp.arange(capacity, dtype=jnp.int32)[None, :]
  offset = slots - block.start[:, None]  # [B, S], index into the block
  index = jnp.clip(offset, 0, num_tokens - 1)
  mask = jnp.broadcast_to(block.mask, (batch, num_tokens, num_tokens))
  shown = jnp.take_along_axis(mask, index[:, None, :], axis=2)
  # Clipped, a committed slot looks like the block's first token.
  committed = True if block.committed_mask is None else block.committed_mask
  visible = jnp.where((offset < 0)[:, None, :], committed, shown)
  visible &= (offset < num_tokens)[:, None, :]
  if window is None:
    return visible
  in_block = jnp.take_along_axis(block.positions, index, axis=1)
  earlier = slots if block.committed_positions is None else block.committed_positions
  slot_positions = jnp.where(offset < 0, earlier, in_block)
  distance = block.positions[:, :, None] - slot_positions[:, None, :]
  return visible & (distance < window)


def attend(
  queries: Array,
  keys: Array,
  values: Array,
  visible: Array,
  *,
  scale: float,
  soft_cap: float | None = None,
  precision: jax.lax.PrecisionLike = None,
) -> Array:
  """Grouped-query attention without repeating keys or values.

  Args:
    queries: `[B, T, num_heads, head_dim]`.
    keys: `[B, num_kv_heads, S, head_dim]`.
    values: `[B, num_kv_heads, S, head_dim]`.
    visible: `[B, T, S]` bool.
    scale: factor on the scores.
    soft_cap: c of `c * tanh(score / c)`, or None.
    precision: of the two products.

  Returns:
    `[B, T, num_heads * head_dim]` in the dtype of `values`. Softmax is in float32.
  """
  batch, num_tokens, num_heads, head_dim = queries.shape
  num_kv_heads = keys.shape[1]
  group = num_heads // num_kv_heads
  # Batch dimensions first and heads of a group beside the tokens: the small queries are
  # transposed, never the cache.
  queries = queries.reshape(batch, num_tokens, num_kv_heads, group, head_dim)
  queries = queries.transpose(0, 2, 1, 3, 4)
  queries = queries.reshape(batch, num_kv_heads, num_tokens * group, head_dim)
  scores = jax.lax.dot_general(
    queries,
    keys,
    (((3,), (3,)), ((0, 1), (0, 1))),
    precision=precision,
    preferred_element_type=jnp.float32,
  )
  scores = scores * jnp.float32(scale)
  if soft_cap is not None:
    scores = soft_cap * jnp.tanh(scores / soft_cap)
  scores = scores.reshape(batch, num_kv_heads, num_tokens, group, -1)
  scores = jnp.where(visible[:, None, :, None, :], scores, jnp.float32(_HIDDEN))
  weights = jax.nn.softmax(scores, axis=-1).astype(values.dtype)
  weights = weights.reshape(batch, num_kv_heads, num_tokens * group, -1)
  mixed = jax.lax.dot_general(
    weights,
    values,
    (((3,), (2,)), ((0, 1), (0, 1))),
    precision=precision,
    preferred_element_type=jnp.float32,
  ).astype(values.dtype)
  mixed = mixed.reshape(batch, num_kv_heads, num_tokens, group, head_dim)
  return mixed.transpose(0, 2, 1, 3, 4).reshape(batch, num_tokens, num_heads * head_dim)
