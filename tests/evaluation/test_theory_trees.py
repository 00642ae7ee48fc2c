# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The theory of token trees, against all trees, simulation, and trees that were really decoded."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from toys import TableModel, TableTree

import specjax
from specjax import trees
from specjax.evaluation.theory import expected_tokens
from specjax.evaluation.theory_batching import roofline
from specjax.evaluation.theory_trees import (
  best_tree,
  best_tree_for_cost,
  expected_tree_tokens,
  geometric_rank_rates,
)

RATES = [(0.6, 0.2, 0.1), (0.1, 0.5, 0.3), (0.9,), (0.4, 0.0, 0.6), (0.0, 0.0)]


@functools.cache
def all_forests(num_nodes):
  """Every ordered forest of so many nodes, a forest being a tuple of the forests below."""
  if num_nodes == 0:
    return [()]
  return [
    (below, *rest)
    for first in range(1, num_nodes + 1)
    for below in all_forests(first - 1)
    for rest in all_forests(num_nodes - first)
  ]


def value(forest, rates):
  """What an accepted node's children add, by the definition."""
  return sum(
    (rates[rank] if rank < len(rates) else 0.0) * (1 + value(below, rates))
    for rank, below in enumerate(forest)
  )


def depth(forest):
  return max((1 + depth(below) for below in forest), default=0)


def widest(forest):
  return max([len(forest), *map(widest, forest)])


def parents_of(forest):
  """The forest in the house's arrays, depth first."""
  parents = []

  def visit(forest, parent):
    for below in forest:
      parents.append(parent)
      visit(below, len(parents) - 1)

  visit(forest, -1)
  return tuple(parents)


@pytest.mark.parametrize("rates", RATES)
def test_the_best_tree_is_the_best_of_all_trees(rates):
  for num_nodes in range(1, 8):
    for max_depth, max_children in ((None, None), (2, None), (3, 2), (None, 1)):
      allowed = [
        forest
        for forest in all_forests(num_nodes)
        if (max_depth is None or depth(forest) <= max_depth)
        and widest(forest) <= min(len(rates), max_children or num_nodes)
      ]
      if not allowed:
        with pytest.raises(ValueError, match=f"num_nodes must fit .* got {num_nodes}"):
          best_tree(num_nodes, rates, max_depth=max_depth, max_children=max_children)
        continue
      tree = best_tree(num_nodes, rates, max_depth=max_depth, max_children=max_children)
      best = 1 + max(value(forest, rates) for forest in allowed)
      assert tree.expected_tokens == pytest.approx(best)
      assert tree.expected_tokens == pytest.approx(expected_tree_tokens(tree.parents, rates))
      assert tree.num_nodes == num_nodes
      assert max_depth is None or tree.depth <= max_depth
      children = np.bincount(np.array(tree.parents) + 1)
      assert children.max() <= min(len(rates), max_children or num_nodes)


def test_expected_tokens_of_any_tree_are_its_sum_over_paths():
  for num_nodes in range(6):
    for forest in all_forests(num_nodes):
      for rates in RATES[:2]:
        assert expected_tree_tokens(parents_of(forest), rates) == (
          pytest.approx(1 + value(forest, rates))
        )


def test_a_simulated_walk_down_the_tree_commits_as_much():
  rates, random = (0.5, 0.3, 0.1), np.random.default_rng(0)
  parents = (-1, 0, -1, -1, 2, 2, 0, 4)
  children = {}
  for node, parent in enumerate(parents):
    children.setdefault(parent, []).append(node)
  total, rounds = 0, 40_000
  for _ in range(rounds):
    node = -1
    total += 1  # the target's own
    while True:
      accepted = random.choice(4, p=[*rates, 1 - sum(rates)])  # which child, or none
      if accepted >= len(children.get(node, [])):
        break
      node, total = children[node][accepted], total + 1
  assert expected_tree_tokens(parents, rates) == pytest.approx(total / rounds, rel=0.01)


def test_a_tree_with_one_child_a_node_is_a_chain():
  tree = best_tree(5, (0.7, 0.2), max_children=1)
  assert tree.parents == (-1, 0, 1, 2, 3)
  assert tree.expected_tokens == pytest.approx(expected_tokens(0.7, 5))


def test_the_tree_comes_in_the_arrays_of_the_house():
  tree = best_tree(9, (0.6, 0.2, 0.1), max_depth=3)
  parents = tree.parents_array(2)
  assert parents.shape == (2, 9) and parents.dtype == jnp.int32
  assert trees.check_parents(tree.parents) == tree.parents
  depths = trees.static_depths(tree.parents)
  assert list(depths) == sorted(depths) and max(depths) == tree.depth  # level by level
  np.testing.assert_array_equal(trees.depths(parents), [depths, depths])


def test_the_tree_by_cost_is_the_best_of_all_sizes_and_depths():
  rates, cost_ratio, call_cost = (0.6, 0.2, 0.1), 0.15, roofline(3)
  choice = best_tree_for_cost(
    rates, cost_ratio, call_cost=call_cost, batch_size=2, max_nodes=7, max_depth=4
  )
  everything = [
    (1 + value(forest, rates))
    / (depth(forest) * cost_ratio + call_cost(2 * (num_nodes + 1)) / call_cost(2))
    for num_nodes in range(8)
    for forest in all_forests(num_nodes)
    if depth(forest) <= 4
  ]
  assert choice.speed_up == pytest.approx(max(everything))
  assert choice.tree.expected_tokens > 1


def test_no_tree_is_chosen_where_none_pays():
  choice = best_tree_for_cost((0.1, 0.05), 0.5, max_nodes=8)
  assert choice.tree.parents == () and choice.speed_up == choice.tree.expected_tokens == 1


def test_geometric_rates_are_those_of_siblings_tried_one_after_the_other():
  rates = geometric_rank_rates(0.7, 3)
  assert rates == pytest.approx((0.7, 0.3 * 0.7, 0.3 * 0.3 * 0.7))


def test_a_really_decoded_tree_commits_what_the_theory_expects(fast_compilation):
  # Tables whose rows are all alike: what is accepted depends on nothing but the rank.
  random = np.random.default_rng(3)
  vocab_size, batch, num_tokens = 6, 64, 90
  target, draft = random.dirichlet(np.ones(vocab_size), size=2)
  # Siblings drawn from the draft's law one after the other; what one leaves is the next one's law.
  rates, law, reached = [], target, 1.0
  for _ in range(3):
    accepted = np.minimum(law, draft).sum()
    rates.append(reached * accepted)
    reached *= 1 - accepted
    law = np.maximum(law - draft, 0) / np.maximum(law - draft, 0).sum()
  tree = best_tree(7, rates)
  assert max(np.bincount(np.array(tree.parents) + 1)) > 1
  model = TableModel(vocab_size)
  tables = [jnp.log(jnp.tile(law, (vocab_size, 1))).astype(jnp.float32) for law in (target, draft)]
  generation = specjax.generate(
    model,
    {"table": tables[0]},
    [[0]] * batch,
    drafter=TableTree(tree.parents),
    drafter_params={"table": tables[1]},
    policy=specjax.SamplingPolicy(temperature=1.0),
    max_new_tokens=num_tokens,
    key=0,
  )
  measured = float(jnp.sum(generation.num_new_tokens) / jnp.sum(generation.target_calls))
  assert tree.expected_tokens == pytest.approx(measured, rel=0.05)
  # The test could tell: without the second and third children less is expected.
  assert expected_tree_tokens(tree.parents, rates[:1]) < 0.9 * measured


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: best_tree(0, (0.5,)), "num_nodes must be an integer >= 1, got 0"),
    (lambda: best_tree(3, ()), "rank_rates must have at least one rate"),
    (lambda: best_tree(3, (0.5, 1.5)), "rank_rates of rank 2 must be"),
    (lambda: best_tree(3, (0.8, 0.5)), "rank_rates must sum to at most 1 .* got 1.3"),
    (lambda: best_tree(3, (0.5,), max_depth=0), "max_depth must be an integer >= 1, got 0"),
    (lambda: best_tree(3, (0.5,), max_children=0), "max_children must be an integer >= 1, got 0"),
    (lambda: expected_tree_tokens((0,), (0.5,)), "topological order"),
    (lambda: best_tree_for_cost((0.5,), -1.0), "cost_ratio must be"),
    (lambda: geometric_rank_rates(0.5, 0), "num_ranks must be an integer >= 1, got 0"),
  ],
)
def test_bad_input_is_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()
