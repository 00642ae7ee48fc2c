# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`Transformer` against `transformers`: full passes, ragged left context, token trees."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, loaded, reference, reference_logits

from specjax.types import Block

TOLERANCE = 1e-4
every_family = pytest.mark.parametrize("family", FAMILIES)


def random_tokens(seed, shape):
  return np.random.default_rng(seed).integers(3, 61, shape).astype(np.int32)


def run(model, params, tokens, block, cache):
  output = jax.jit(model.apply)(params, jnp.asarray(tokens), block, cache)
  return np.asarray(model.logits(params, output.hidden)), output.cache


@every_family
def test_full_pass_has_the_logits_of_transformers(family):
  model, params = loaded(family)
  tokens = random_tokens(1, (2, 17))
  block = Block.chain(jnp.zeros(2, jnp.int32), 17)
  logits, _ = run(model, params, tokens, block, model.init_cache(2, 32))
  expected = reference_logits(family, tokens)
  assert np.ptp(expected, axis=-1).min() > 1.0, "flat logits would hide errors"
  np.testing.assert_allclose(logits, expected, atol=TOLERANCE, rtol=0)


def with_context(model, params, tokens, lengths, capacity):
  """A cache that holds each row's first `lengths` tokens, and garbage behind them."""
  block = Block.chain(jnp.zeros(len(lengths), jnp.int32), tokens.shape[1])
  _, cache = run(model, params, tokens, block, model.init_cache(len(lengths), capacity))
  return cache


@every_family
def test_block_after_ragged_contexts_has_the_logits_of_transformers(family):
  model, params = loaded(family)
  lengths, width = np.array([0, 1, 6, 12], np.int32), 5
  tokens = random_tokens(2, (4, 20))
  # The context that is prefilled is right only up to each row's length.
  padded = np.where(np.arange(12) < lengths[:, None], tokens[:, :12], 60).astype(np.int32)
  cache = with_context(model, params, padded, lengths, 24)
  block = Block.chain(jnp.asarray(lengths), width)
  new = np.stack([row[n : n + width] for row, n in zip(tokens, lengths, strict=True)])
  logits, _ = run(model, params, new, block, cache)
  for row, length in enumerate(lengths):
    expected = reference_logits(family, tokens[row, : length + width])[0, length:]
    np.testing.assert_allclose(logits[row], expected, atol=TOLERANCE, rtol=0)


def tree_block(start, parents):
  """A block of trees, by the slow rule: a node sees its ancestors and itself."""
  batch, num_nodes = parents.shape
  mask = np.zeros((batch, num_nodes, num_nodes), bool)
  depth = np.zeros((batch, num_nodes), np.int32)
  for row in range(batch):
    for node in range(num_nodes):
      ancestor = node
      while ancestor >= 0:
        mask[row, node, ancestor] = True
        depth[row, node] += 1
        ancestor = parents[row, ancestor]
  positions = np.asarray(start)[:, None] + depth - 1
  return Block(jnp.asarray(start), jnp.asarray(positions), jnp.asarray(mask))


def path_to(parents, node):
  path = []
  while node >= 0:
    path.insert(0, node)
    node = parents[node]
  return path


@every_family
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_tree_node_has_the_logits_of_its_linear_path(family, seed):
  model, params = loaded(family)
  random = np.random.default_rng(seed)
  if model.config.sliding_window is not None:
    # The weights do not depend on the window: any window is a model of the family.
    window = int(random.integers(1, 5))
    config = dataclasses.replace(model.config, sliding_window=window)
    model = dataclasses.replace(model, config=config)
  check_tree(family, model, params, random)


def check_tree(family, model, params, random):
  batch, num_nodes = 2, 9
  lengths = random.integers(1, 10, batch).astype(np.int32)
  context = random_tokens(int(random.integers(1000)), (batch, 10))
  # Random parents in topological order; node 0 is the pending token, the root of all. They are
  # among the last three nodes, so that paths grow longer than a window and skip slots.
  parents = np.array(
    [
      [-1] + [int(random.integers(max(n - 3, 0), n)) for n in range(1, num_nodes)]
      for _ in range(batch)
    ]
  )
  nodes = random.integers(3, 61, (batch, num_nodes)).astype(np.int32)
  cache = with_context(model, params, context, lengths, 32)
  logits, _ = run(model, params, nodes, tree_block(lengths, parents), cache)
  for row in range(batch):
    for node in range(num_nodes):
      path = nodes[row, path_to(parents[row], node)]
      sequence = np.concatenate([context[row, : lengths[row]], path])
      expected = windowed_reference(family, model.config.sliding_window, sequence)
      np.testing.assert_allclose(logits[row, node], expected, atol=TOLERANCE, rtol=0)


def windowed_reference(family, window, sequence):
  """The last logits of `transformers` with another window than the family's own."""
  config = reference(family).config
  saved = config.sliding_window if window is not None else None
  try:
    if window is not None:
      config.sliding_window = window
    return reference_logits(family, sequence)[0, -1]
  finally:
    if window is not None:
      config.sliding_window = saved


def test_window_of_the_reference_can_be_changed_in_place():
  sequence = random_tokens(5, (12,))
  narrow = windowed_reference("mistral", 2, sequence)
  wide = windowed_reference("mistral", 100, sequence)
  own = reference_logits("mistral", sequence)[0, -1]
  assert np.abs(narrow - wide).max() > 0.1
  assert np.abs(own - wide).max() > 0.1


@every_family
def test_positions_of_a_tree_come_from_depth_and_not_from_the_slot(family):
  model, params = loaded(family)
  # Two children of one root: the second stands in slot start + 2 but at position start + 1.
  tokens, children = random_tokens(7, (1, 6)), np.array([[9, 20, 20]], np.int32)
  cache = with_context(model, params, tokens, [6], 16)
  block = tree_block(np.array([6], np.int32), np.array([[-1, 0, 0]]))
  logits, _ = run(model, params, children, block, cache)
  np.testing.assert_allclose(logits[0, 1], logits[0, 2], atol=1e-5)
