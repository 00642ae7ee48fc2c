# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Writing to the cache and moving a kept path, against slow loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.models.kv_cache import KVCache, compact, path_slots, write
from specjax.types import Block

HEADS, CAPACITY, WIDTH = 2, 6, 3


def numbered(batch):
  """A buffer `[B, heads, S, width]` in which no two entries are alike."""
  shape = (batch, HEADS, CAPACITY, WIDTH)
  return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-4, 9), min_size=1, max_size=3), st.integers(1, 4))
def test_write_drops_what_is_out_of_range_and_never_clamps_or_wraps(starts, num_tokens):
  batch = len(starts)
  buffer = numbered(batch)
  entries = -1.0 - np.arange(batch * num_tokens * HEADS * WIDTH, dtype=np.float32)
  entries = entries.reshape(batch, num_tokens, HEADS, WIDTH)
  block = Block.chain(jnp.asarray(starts, jnp.int32), num_tokens)
  got = write(jnp.asarray(buffer), jnp.asarray(entries), block.slots(CAPACITY))
  expected = buffer.copy()
  for row, start in enumerate(starts):
    for token in range(num_tokens):
      if 0 <= start + token < CAPACITY:
        expected[row, :, start + token] = entries[row, token]
  np.testing.assert_array_equal(got, expected)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 3), st.integers(1, 4))
def test_keeping_a_path_moves_its_entries_and_touches_nothing_else(data, batch, num_tokens):
  start = data.draw(st.lists(st.integers(-2, CAPACITY), min_size=batch, max_size=batch))
  paths, kept = [], []
  for _ in range(batch):
    # A path of a tree: strictly increasing block indices.
    path = sorted(data.draw(st.sets(st.integers(0, num_tokens - 1), min_size=1)))
    kept.append(data.draw(st.integers(0, len(path))))
    paths.append(path + [0] * (num_tokens - len(path)))
  buffer = numbered(batch)
  expected = buffer.copy()
  for row in range(batch):
    for k in range(kept[row]):
      source, target = start[row] + paths[row][k], start[row] + k
      if 0 <= source < CAPACITY and 0 <= target < CAPACITY:
        expected[row, :, target] = buffer[row, :, source]
  block = Block.chain(jnp.asarray(start, jnp.int32), num_tokens)
  source, target = path_slots(
    block, jnp.asarray(paths, jnp.int32), jnp.asarray(kept, jnp.int32), CAPACITY
  )
  np.testing.assert_array_equal(compact(jnp.asarray(buffer), source, target), expected)


def test_every_leaf_of_an_empty_cache_is_its_own_buffer():
  cache = KVCache.zeros(2, 1, HEADS, CAPACITY, WIDTH, jnp.float32)
  assert cache.capacity == CAPACITY
  pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(cache)}
  assert len(pointers) == 4, "a buffer that stands twice in a pytree cannot be donated"


@pytest.mark.parametrize("batch", [1, 2])
def test_compaction_in_a_loop_copies_no_buffer(batch):
  @jax.jit
  def loop(buffer):
    def body(carry):
      i, buffer = carry
      source = jnp.full((batch, 2), i) + jnp.array([0, 2])
      return i + 1, compact(buffer, source, source - 1)

    return jax.lax.while_loop(lambda carry: carry[0] < 50, body, (jnp.int32(3), buffer))

  shape = (batch, HEADS, 128, 8)
  text = loop.lower(jax.ShapeDtypeStruct(shape, jnp.float32)).compile().as_text()
  dimensions = ",".join(map(str, shape))
  in_body = text[: text.index("ENTRY")]
  assert f"f32[{dimensions}]" in in_body
  assert f"f32[{dimensions}]{{3,2,1,0}} copy(" not in in_body
