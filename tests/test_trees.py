# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax import trees


@st.composite
def parents_lists(draw):
  size = draw(st.integers(1, 12))
  return [draw(st.integers(-1, node - 1)) for node in range(size)]


def slow_ancestors(parents):
  mask = np.zeros((len(parents), len(parents)), bool)
  for node in range(len(parents)):
    above = node
    while above >= 0:
      mask[node, above] = True
      above = parents[above]
  return mask


@settings(deadline=None, max_examples=30)
@given(parents_lists())
def test_ancestors_and_depths_follow_the_parents(parents):
  expected = slow_ancestors(parents)
  np.testing.assert_array_equal(trees.ancestors(jnp.array(parents)), expected)
  np.testing.assert_array_equal(trees.depths(jnp.array(parents)), expected.sum(1))
  assert trees.static_depths(parents) == tuple(expected.sum(1))


@settings(deadline=None, max_examples=30)
@given(parents_lists(), st.integers(0, 5))
def test_block_puts_each_node_at_its_depth_and_shows_it_its_ancestors(parents, start):
  block = trees.block_of(jnp.array([start]), jnp.array([parents]))
  depth = np.concatenate([[0], slow_ancestors(parents).sum(1)])
  np.testing.assert_array_equal(block.positions[0], start + depth)
  mask = np.asarray(block.mask[0])
  assert mask[:, 0].all() and not mask[0, 1:].any()
  np.testing.assert_array_equal(mask[1:, 1:], slow_ancestors(parents))


def test_block_of_a_chain_is_the_chain_block():
  chain = trees.block_of(jnp.array([3, 7]), jnp.tile(trees.chain_parents(4), (2, 1)))
  plain = type(chain).chain(jnp.array([3, 7]), 5)
  np.testing.assert_array_equal(chain.positions, plain.positions)
  np.testing.assert_array_equal(chain.mask, np.broadcast_to(plain.mask, (2, 5, 5)))


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-1, -2], [-1, 5]])
def test_a_tree_out_of_order_is_refused(parents):
  with pytest.raises(ValueError, match="topological order"):
    trees.check_parents(parents)


def test_slots_outside_the_cache_are_out_of_range_and_never_negative():
  block = trees.block_of(jnp.array([-1, 6]), jnp.tile(trees.chain_parents(2), (2, 1)))
  np.testing.assert_array_equal(block.slots(8), [[8, 0, 1], [6, 7, 8]])
