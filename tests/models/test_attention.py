# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Which slots a token sees, and attention itself, against slow loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.attention import attend, visible_slots
from specjax.types import Block


def slow_visible(
  start, positions, mask, capacity, window, committed_mask=None, committed_positions=None
):
  """The rule of `Block`, slot by slot."""
  batch, num_tokens = positions.shape
  visible = np.zeros((batch, num_tokens, capacity), bool)
  for row in range(batch):
    for token in range(num_tokens):
      for slot in range(capacity):
        if slot < start[row]:
          seen = committed_mask is None or committed_mask[row, token, slot]
          position = slot if committed_positions is None else committed_positions[row, slot]
        elif slot - start[row] < num_tokens:
          other = slot - start[row]
          seen, position = mask[row % len(mask), token, other], positions[row, other]
        else:
          continue
        near = window is None or positions[row, token] - position < window
        visible[row, token, slot] = seen and near
  return visible


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_visible_slots_follow_the_rule_of_block(window, shared):
  random = np.random.default_rng(0)
  start = np.array([0, 5, 12, -2, 9], np.int32)
  num_tokens, capacity = 4, 13  # rows 2 and 4 reach past the end, row 3 begins before it
  mask = random.random((1 if shared else 5, num_tokens, num_tokens)) < 0.5
  mask |= np.eye(num_tokens, dtype=bool)
  positions = np.maximum(start[:, None] + random.integers(0, 3, (5, num_tokens)), 0)
  block = Block(jnp.asarray(start), jnp.asarray(positions, jnp.int32), jnp.asarray(mask))
  expected = slow_visible(start, positions, mask, capacity, window)
  np.testing.assert_array_equal(visible_slots(block, capacity, window), expected)


@pytest.mark.parametrize("window", [None, 2, 5])
def test_of_a_packed_context_only_what_is_shown_and_near_by_its_own_position_is_seen(window):
  random = np.random.default_rng(1)
  start = np.array([7, 0, 9], np.int32)
  num_tokens, capacity = 3, 10
  positions = random.integers(0, 9, (3, num_tokens)).astype(np.int32)
  mask = np.tril(np.ones((1, num_tokens, num_tokens), bool))
  shown = random.random((3, num_tokens, capacity)) < 0.5
  slot_positions = random.integers(0, 6, (3, capacity)).astype(np.int32)
  block = Block(*map(jnp.asarray, (start, positions, mask, shown, slot_positions)))
  expected = slow_visible(start, positions, mask, capacity, window, shown, slot_positions)
  np.testing.assert_array_equal(visible_slots(block, capacity, window), expected)
  # The block of the first tokens keeps what those see.
  np.testing.assert_array_equal(
    visible_slots(block.leading(2), capacity, window),
    slow_visible(start, positions[:, :2], mask[:, :2, :2], capacity, window, shown, slot_positions),
  )


def slow_attend(queries, keys, values, visible, scale, soft_cap):
  batch, num_tokens, num_heads, head_dim = queries.shape
  group = num_heads // keys.shape[1]
  out = np.zeros((batch, num_tokens, num_heads, head_dim))
  for row, token, head in np.ndindex(batch, num_tokens, num_heads):
    seen = np.flatnonzero(visible[row, token])
    scores = keys[row, head // group, seen] @ queries[row, token, head] * scale
    if soft_cap is not None:
      scores = soft_cap * np.tanh(scores / soft_cap)
    weights = np.exp(scores - scores.max())
    out[row, token, head] = (weights / weights.sum()) @ values[row, head // group, seen]
  return out.reshape(batch, num_tokens, num_heads * head_dim)


def random_inputs(num_heads=6, num_kv_heads=2, head_dim=4, capacity=9):
  random = np.random.default_rng(1)
  queries = random.standard_normal((2, 3, num_heads, head_dim)).astype(np.float32)
  keys = random.standard_normal((2, num_kv_heads, capacity, head_dim)).astype(np.float32)
  values = random.standard_normal((2, num_kv_heads, capacity, head_dim)).astype(np.float32)
  visible = random.random((2, 3, capacity)) < 0.5
  visible[:, :, 0] = True
  return queries, keys, values, visible


@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 6])
def test_grouped_attention_equals_a_loop_over_heads(num_kv_heads, soft_cap):
  inputs = random_inputs(num_kv_heads=num_kv_heads)
  got = jax.jit(lambda *a: attend(*a, scale=0.3, soft_cap=soft_cap, precision="highest"))(*inputs)
  np.testing.assert_allclose(got, slow_attend(*inputs, 0.3, soft_cap), atol=1e-5)


def test_what_is_not_visible_has_no_influence():
  queries, keys, values, visible = random_inputs()
  got = attend(queries, keys, values, visible, scale=1.0)
  hidden = ~visible.any(axis=1)[:, None, :, None]
  assert hidden.any()
  changed = attend(
    queries, np.where(hidden, 1e4, keys), np.where(hidden, 1e4, values), visible, scale=1.0
  )
  np.testing.assert_array_equal(got, changed)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_a_token_that_sees_nothing_gets_finite_output(dtype):
  queries, keys, values, visible = random_inputs()
  visible[0, 1] = False
  inputs = [jnp.asarray(x, dtype) for x in (queries, keys, values)]
  got = attend(*inputs, jnp.asarray(visible), scale=1.0)
  assert got.dtype == dtype
  assert bool(jnp.all(jnp.isfinite(got)))
