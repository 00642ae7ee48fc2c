# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Reading prompts: right-padded rows of different lengths, a chunk at a time."""

from typing import Any

import jax
import jax.numpy as jnp

from specjax.types import Array, Block, Cache, Model, Params


def prefill(
  model: Model,
  params: Params,
  cache: Cache,
  tokens: Array,
  lengths: Array,
  *,
  chunk: int = 512,
) -> tuple[Cache, Array]:
  """Writes prompts to an empty cache. Logits are never computed.

  The last token of each row, at `lengths - 1`, is pending: the first round feeds it again. A
  position-addressed cache holds it already, as garbage; a recurrent state has not seen it.

  Args:
    model: the model.
    params: its parameters.
    cache: an empty cache of that model.
    tokens: `[B, P]` int32, right-padded; P and the chunk are static.
    lengths: `[B]` int32, from 1 to P.
    chunk: how many tokens one call of the model reads at most. Attention scores take
      `chunk * S` numbers per head, whatever P is.

  Returns:
    The cache, and `[B, D]` the last hidden state at position `lengths - 2`, which predicted the
    pending token; zeros in a row of one token.

  Raises:
    ValueError: for arguments of another shape or a chunk below 1.
  """
  cache, hidden, _ = prefill_with_layers(model, params, cache, tokens, lengths, chunk=chunk)
  return cache, hidden


def prefill_with_layers(
  model: Model,
  params: Params,
  cache: Cache,
  tokens: Array,
  lengths: Array,
  *,
  chunk: int = 512,
  hidden_layers: tuple[int, ...] = (),
) -> tuple[Cache, Array, tuple[Array, ...]]:
  """Like `prefill`, and returns the states after `hidden_layers` at `lengths - 2` too.

  Returns:
    The cache, `[B, D]` the last hidden state, and one `[B, D]` for each of `hidden_layers`.
  """
  _check(tokens, lengths, chunk)
  batch, width = tokens.shape
  # A model whose state is undone from a trail of limited length says so (`FunctionModel`).
  widest = getattr(model, "max_block", None)
  chunk = min(chunk, width) if widest is None else min(chunk, width, widest)
  num_chunks = -(-width // chunk)
  tokens = jnp.pad(tokens, ((0, 0), (0, num_chunks * chunk - width)))
  lengths = jnp.asarray(lengths).astype(jnp.int32)

  def read(start: Array, cache: Cache) -> tuple[Cache, tuple[Array, ...]]:
    """One chunk: the cache and the states at `lengths - 2`, zeros if they are elsewhere."""
    block = Block.chain(jnp.full((batch,), start, jnp.int32), chunk)
    part = jax.lax.dynamic_slice_in_dim(tokens, start, chunk, axis=1)
    output = model.apply(params, part, block, cache, hidden_layers=hidden_layers)
    cache = output.cache
    if not model.position_addressed:
      path = jnp.broadcast_to(jnp.arange(chunk, dtype=jnp.int32), (batch, chunk))
      kept = jnp.clip(lengths - 1 - start, 0, chunk)
      cache = model.keep(cache, block, path, kept)
    states = (output.hidden, *output.layer_hidden)
    return cache, jax.tree.map(lambda x: _select(x, lengths - 2 - start), states)

  if num_chunks == 1:
    cache, states = read(jnp.int32(0), cache)
    return cache, states[0], states[1:]

  def body(index: Array, carry: tuple[Cache, tuple[Array, ...]]) -> Any:
    cache, states = carry
    cache, found = read(index.astype(jnp.int32) * chunk, cache)
    # Each row's position lies in one chunk; all others contribute zeros.
    return cache, jax.tree.map(jnp.add, states, found)

  shapes = jax.eval_shape(lambda cache: read(jnp.int32(0), cache)[1], cache)
  states = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
  cache, states = jax.lax.fori_loop(0, num_chunks, body, (cache, states))
  return cache, states[0], states[1:]


def _select(hidden: Array, index: Array) -> Array:
  """`hidden[b, index[b]]` of `[B, T, D]` as `[B, D]`; zeros where the index is out of range."""
  num_tokens = hidden.shape[1]
  safe = jnp.clip(index, 0, num_tokens - 1)
  found = jnp.take_along_axis(hidden, safe[:, None, None], axis=1)[:, 0]
  inside = (index >= 0) & (index < num_tokens)
  return jnp.where(inside[:, None], found, jnp.zeros_like(found))


def _check(tokens: Array, lengths: Array, chunk: int) -> None:
  if tokens.ndim != 2 or tokens.shape[1] < 1:
    raise ValueError(f"tokens must be [B, P] with P >= 1, got shape {tokens.shape}")
  if jnp.shape(lengths) != tokens.shape[:1]:
    raise ValueError(
      f"lengths must have one entry for each of {tokens.shape[0]} rows, got shape "
      f"{jnp.shape(lengths)}"
    )
  if chunk < 1:
    raise ValueError(f"chunk must be >= 1, got {chunk}")
