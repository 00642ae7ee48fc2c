# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts read in chunks, right-padded and ragged, equal each prompt read alone at once."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import FunctionModel, Transformer, TransformerConfig
from specjax.models.prefill import prefill, prefill_with_layers
from specjax.types import Block

MODEL = Transformer(
  TransformerConfig(
    vocab_size=31,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    max_positions=64,
    sliding_window=3,
    layer_types=("full", "sliding"),
  ),
  dtype="float32",
)
LENGTHS = np.array([1, 2, 7, 12, 5], np.int32)
WIDTH = 12


@functools.cache
def setup():
  random = np.random.default_rng(0)
  tokens = random.integers(0, 31, (len(LENGTHS), WIDTH)).astype(np.int32)
  return jax.jit(MODEL.init)(jax.random.key(0)), tokens


@functools.cache
def alone(row):
  """The cache and the states of one row, read without padding in one block."""
  params, tokens = setup()
  length = int(LENGTHS[row])
  block = Block.chain(jnp.zeros(1, jnp.int32), length)
  run = jax.jit(functools.partial(MODEL.apply, hidden_layers=(0,)))
  return run(params, jnp.asarray(tokens[row : row + 1, :length]), block, MODEL.init_cache(1, 16))


@pytest.mark.parametrize("chunk", [1, 2, 5, 7, 12, 512])
def test_every_row_and_chunk_gives_the_state_of_the_row_alone(chunk):
  params, tokens = setup()
  read = functools.partial(prefill_with_layers, MODEL, chunk=chunk, hidden_layers=(0,))
  cache, hidden, (early,) = jax.jit(read)(
    params, MODEL.init_cache(len(LENGTHS), 16), jnp.asarray(tokens), jnp.asarray(LENGTHS)
  )
  for row, length in enumerate(LENGTHS):
    expected = alone(row)
    if length == 1:
      assert not np.any(hidden[row]) and not np.any(early[row])
    else:
      np.testing.assert_allclose(hidden[row], expected.hidden[0, length - 2], atol=1e-5)
      np.testing.assert_allclose(early[row], expected.layer_hidden[0][0, length - 2], atol=1e-5)
    for got, own in zip(jax.tree.leaves(cache), jax.tree.leaves(expected.cache), strict=True):
      # The pending token, at length - 1, and what follows are garbage by definition.
      np.testing.assert_allclose(got[row, :, : length - 1], own[0, :, : length - 1], atol=1e-5)


def test_prefill_returns_the_same_without_layers():
  params, tokens = setup()
  arguments = (MODEL, params, MODEL.init_cache(len(LENGTHS), 16), jnp.asarray(tokens), LENGTHS)
  cache, hidden = prefill(*arguments, chunk=6)
  expected_cache, expected, layers = prefill_with_layers(*arguments, chunk=6)
  assert layers == ()
  np.testing.assert_array_equal(hidden, expected)
  jax.tree.map(np.testing.assert_array_equal, cache, expected_cache)


def test_a_chunk_that_reaches_past_the_capacity_overwrites_nothing():
  params, tokens = setup()
  exact = WIDTH  # capacity; the last chunk of 5 reaches to slot 15
  cache, _ = prefill(
    MODEL, params, MODEL.init_cache(len(LENGTHS), exact), jnp.asarray(tokens), LENGTHS, chunk=5
  )
  for got, own in zip(jax.tree.leaves(cache), jax.tree.leaves(alone(3).cache), strict=True):
    np.testing.assert_allclose(got[3, :, :WIDTH], own[0, :, :WIDTH], atol=1e-5)


def test_no_logits_are_computed():
  params, tokens = setup()
  read = functools.partial(prefill, MODEL)
  jaxpr = jax.make_jaxpr(read)(
    params, MODEL.init_cache(len(LENGTHS), 16), jnp.asarray(tokens), jnp.asarray(LENGTHS)
  )
  assert f"{len(LENGTHS)},{WIDTH},16]" in str(jaxpr)
  assert f"{len(LENGTHS)},{WIDTH},31]" not in str(jaxpr)


def running_sum(params, tokens, block, cache):
  """A recurrent toy: the state is a decayed sum; it leaves the state after each token behind."""
  del block

  def step(state, token):
    state = 0.5 * state + params[token]
    return state, state

  states = [jax.lax.scan(step, cache["state"][row], tokens[row])[1] for row in range(len(tokens))]
  states = jnp.stack(states)
  return states, {"state": states[:, -1], "before": cache["state"], "after": states}


class TestRecurrent:
  """A recurrent model: neither padding nor the pending token may enter its state."""

  @pytest.mark.parametrize("chunk", [1, 3, 4, 6])
  def test_state_is_that_of_the_tokens_before_the_pending_one(self, chunk):
    table = jnp.asarray(np.random.default_rng(1).standard_normal((9, 9)), jnp.float32)
    lengths = np.array([1, 2, 4, 6], np.int32)
    tokens = np.random.default_rng(2).integers(0, 9, (4, 6)).astype(np.int32)

    def init_cache(batch, capacity):
      del capacity
      zeros = jnp.zeros((batch, 9))
      return {"state": zeros, "before": zeros, "after": jnp.zeros((batch, chunk, 9))}

    def rollback(cache, path, kept):
      last = jnp.take_along_axis(path, jnp.maximum(kept - 1, 0)[:, None], axis=1)
      after = jnp.take_along_axis(cache["after"], last[..., None], axis=1)[:, 0]
      return {**cache, "state": jnp.where((kept > 0)[:, None], after, cache["before"])}

    model = FunctionModel(running_sum, init_cache, 9, rollback=rollback)
    cache, hidden = prefill(
      model, table, model.init_cache(4, 8), jnp.asarray(tokens), lengths, chunk=chunk
    )
    for row, length in enumerate(lengths):
      state = np.zeros(9)
      for token in tokens[row, : length - 1]:
        state = 0.5 * state + np.asarray(table[token])
      np.testing.assert_allclose(cache["state"][row], state, atol=1e-5)
      np.testing.assert_allclose(hidden[row], state, atol=1e-5)


@pytest.mark.parametrize(
  ("tokens", "lengths", "chunk", "message"),
  [
    (np.zeros((2, 0), np.int32), [1, 1], 4, r"tokens must be \[B, P\] with P >= 1"),
    (np.zeros(3, np.int32), [1], 4, r"tokens must be \[B, P\]"),
    (np.zeros((2, 3), np.int32), [1], 4, "one entry for each of 2 rows"),
    (np.zeros((2, 3), np.int32), [1, 1], 0, "chunk must be >= 1, got 0"),
  ],
)
def test_bad_arguments_are_refused_by_name(tokens, lengths, chunk, message):
  params, _ = setup()
  with pytest.raises(ValueError, match=message):
    prefill(MODEL, params, MODEL.init_cache(2, 8), tokens, np.array(lengths), chunk=chunk)
