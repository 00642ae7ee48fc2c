# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a model makes of a text: hidden states, or its likeliest tokens at every place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array, Block, Model, Params


def top_tokens(
  model: Model, params: Params, tokens: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
  """The likeliest tokens after each token of a text.

  Args:
    model: the target.
    params: its parameters.
    tokens: `[B, T]` int32, rows padded on the right.
    size: R.

  Returns:
    ids `[B, T, R]` int32 and log-probabilities `[B, T, R]` float32 at temperature 1, the
    likeliest first, on the host. What stands in padding is unspecified.
  """
  return jax.device_get(_top_tokens(model, size, params, jnp.asarray(tokens)))


def hidden_states(model: Model, params: Params, tokens: Array, block: Block) -> Array:
  """The last hidden states `[B, T, D]` of text `tokens [B, T]` that starts with an empty cache."""
  return model.apply(params, tokens, block, model.init_cache(*tokens.shape)).hidden


@functools.partial(jax.jit, static_argnums=(0, 1))
def _top_tokens(model: Model, size: int, params: Params, tokens: Array) -> tuple[Array, Array]:
  batch, length = tokens.shape
  block = Block.chain(jnp.zeros((batch,), jnp.int32), length)
  hidden = hidden_states(model, params, tokens, block)

  def row(states: Array) -> tuple[Array, Array]:
    # One row after another: the logits of all would be the largest buffer by far.
    log_probs = jax.nn.log_softmax(model.logits(params, states))
    values, ids = jax.lax.top_k(log_probs, size)
    return ids.astype(jnp.int32), values

  return jax.lax.map(row, hidden)
