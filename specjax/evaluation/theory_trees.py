# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a token tree should commit, and the best static tree for a budget of nodes.

Chen et al. (2024, Sequoia, arXiv 2402.12374), tree construction: a verifier that goes down the tree
accepts the k-th child of an accepted node with a probability p_k that depends on nothing but k (the
*positional acceptance assumption*; at most one child is accepted, so the p_k of all ranks sum to
at most 1). A node is then accepted with the product of the p_k on its path, and the tokens that a
call commits are the sum over all nodes, the root standing for the target's own token. The best
tree is found by dynamic programming over nodes, depth and rank.

Trees are `parents` as in `specjax.trees`: nodes in topological order, -1 for the last committed
token, which is not one of the nodes. A node's rank is its place among the children of its parent.
"""

import dataclasses
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from specjax import trees
from specjax.arguments import check_integer
from specjax.evaluation.theory_batching import CallCost
from specjax.evaluation.theory_chains import check_fraction, check_not_negative
from specjax.types import Array


@dataclasses.dataclass(frozen=True)
class StaticTree:
  """A token tree that is the same in every round.

  Attributes:
    parents: of N nodes, level by level, the children of a node beside each other in the order of
      their ranks.
    expected_tokens: tokens that a round makes with it, the target's own included.
  """

  parents: tuple[int, ...]
  expected_tokens: float

  @property
  def num_nodes(self) -> int:
    """N."""
    return len(self.parents)

  @property
  def depth(self) -> int:
    """Nodes on the longest path: the draft steps that a tree takes, level by level."""
    return max(trees.static_depths(self.parents), default=0)

  def parents_array(self, batch_size: int) -> Array:
    """`[B, N]` int32, as `specjax.types.Draft` takes the parents."""
    check_integer("batch_size", batch_size, 1)
    parents = jnp.asarray(self.parents, jnp.int32)
    return jnp.broadcast_to(parents, (batch_size, self.num_nodes))


@dataclasses.dataclass(frozen=True)
class TreeChoice:
  """A tree chosen by its cost.

  Attributes:
    tree: the tree; without nodes where none pays.
    speed_up: what is expected of it, over autoregressive decoding.
  """

  tree: StaticTree
  speed_up: float


def geometric_rank_rates(acceptance: float, num_ranks: int) -> tuple[float, ...]:
  """Rates by rank if every sibling were kept as often as the first, once those before it failed.

  p_k = alpha (1 - alpha)^(k - 1). A measured p falls faster: Chen et al. (2024) find the rejection
  of all k siblings to follow a power law in k. For want of measured rates only.

  Args:
    acceptance: alpha, the rate of the first rank.
    num_ranks: K.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_fraction("acceptance", acceptance)
  check_integer("num_ranks", num_ranks, 1)
  return tuple(acceptance * (1 - acceptance) ** rank for rank in range(num_ranks))


def expected_tree_tokens(parents: Sequence[int], rank_rates: Sequence[float]) -> float:
  """Tokens that a round makes with a tree, the target's own included: Chen et al. (2024), F(T).

  Args:
    parents: N of them, in topological order.
    rank_rates: p_1, p_2, ...: how often the k-th child of an accepted node is the accepted one.
      Further children are never accepted.

  Raises:
    ValueError: for parents that are not in topological order, or rates that are no probabilities.
  """
  rates = _check_rank_rates(rank_rates)
  accepted: list[float] = []
  children: dict[int, int] = {}
  for parent in trees.check_parents(parents):
    rank = children.get(parent, 0)
    children[parent] = rank + 1
    above = 1.0 if parent < 0 else accepted[parent]
    accepted.append(above * (rates[rank] if rank < len(rates) else 0.0))
  return 1 + math.fsum(accepted)


def best_tree(
  num_nodes: int,
  rank_rates: Sequence[float],
  *,
  max_depth: int | None = None,
  max_children: int | None = None,
) -> StaticTree:
  """The static tree of N nodes that commits most: the tree construction of Chen et al. (2024).

  Args:
    num_nodes: N, the last committed token not counted.
    rank_rates: p_1, p_2, ...; a node has at most as many children as there are rates.
    max_depth: nodes on the longest path; None is no limit.
    max_children: of a node; None is no limit but the number of rates.

  Raises:
    ValueError: naming the argument, what it got and what it takes; also where the limits leave no
      room for N nodes.
  """
  tables = _Tables(num_nodes, rank_rates, max_depth, max_children)
  if not np.isfinite(tables.forests[-1][0, num_nodes]):
    raise ValueError(
      f"num_nodes must fit max_depth {max_depth} and {len(tables.rates)} children a node, got "
      f"{num_nodes}"
    )
  return tables.tree(num_nodes, len(tables.forests) - 1)


def best_tree_for_cost(
  rank_rates: Sequence[float],
  cost_ratio: float,
  *,
  call_cost: CallCost | None = None,
  batch_size: int = 1,
  max_nodes: int = 64,
  max_depth: int = 16,
  max_children: int | None = None,
) -> TreeChoice:
  """The tree of the highest expected speed-up: Chen et al. (2024), hardware-aware optimizer.

  A tree of n nodes and depth d takes d draft steps and a target call on n + 1 tokens a row.

  Args:
    rank_rates: p_1, p_2, ...
    cost_ratio: c, seconds of a draft step (a whole level of the tree) over seconds of a target
      call on one token a row.
    call_cost: cost of a target call by the number of its tokens, in any unit
      (`theory_batching.roofline`); None is the same for all.
    batch_size: rows decoded together.
    max_nodes: the largest tree looked at.
    max_depth: the deepest tree looked at.
    max_children: of a node; None is no limit but the number of rates.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_not_negative("cost_ratio", cost_ratio)
  check_integer("batch_size", batch_size, 1)
  check_integer("max_depth", max_depth, 1)
  cost = call_cost or (lambda num_tokens: 1.0)
  tables = _Tables(max_nodes, rank_rates, max_depth, max_children)
  best = (1.0, 0, 0)
  for depth, forests in enumerate(tables.forests):
    for num_nodes in range(1, max_nodes + 1):
      block_cost = cost(batch_size * (num_nodes + 1)) / cost(batch_size)
      speed_up = (1 + forests[0, num_nodes]) / (depth * cost_ratio + block_cost)
      if speed_up > best[0] * (1 + 1e-12):
        best = (float(speed_up), num_nodes, depth)
  return TreeChoice(tables.tree(*best[1:]), best[0])


class _Tables:
  """The dynamic programme: the best forests of every size, depth and first rank.

  Attributes:
    rates: p_1 .. p_K, cut to the limit on children.
    forests: by depth d from 0, `[K + 1, N + 1]`: at (k, n) what n nodes add at most as children of
      an accepted node, at ranks from k on without a gap, and their descendants, d levels in all.
  """

  def __init__(
    self,
    num_nodes: int,
    rank_rates: Sequence[float],
    max_depth: int | None,
    max_children: int | None,
  ):
    check_integer("num_nodes", num_nodes, 1)
    for name, value in (("max_depth", max_depth), ("max_children", max_children)):
      if value is not None:
        check_integer(name, value, 1)
    self.rates = _check_rank_rates(rank_rates)[:max_children]
    empty = np.full((len(self.rates) + 1, num_nodes + 1), -np.inf)
    empty[:, 0] = 0.0
    self.forests = [empty]
    # By depth: at (k, n) the nodes of the subtree at rank k in the best forest.
    self._first_sizes: list[np.ndarray] = [np.zeros(empty.shape, np.int32)]
    for _ in range(num_nodes if max_depth is None else min(max_depth, num_nodes)):
      forests, sizes = self._deeper(self.forests[-1])
      self.forests.append(forests)
      self._first_sizes.append(sizes)
      if np.array_equal(forests, self.forests[-2]):
        break  # more depth changes nothing

  def _deeper(self, shallower: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The table of one more level."""
    num_nodes = shallower.shape[1] - 1
    forests = np.full(shallower.shape, -np.inf)
    forests[:, 0] = 0.0
    sizes = np.zeros(shallower.shape, np.int32)
    # [n, m]: a first subtree of m + 1 nodes leaves n + 1 - (m + 1) for the ranks after it.
    left = np.arange(num_nodes)[:, None] - np.arange(num_nodes)[None, :]
    subtree = 1 + shallower[0, :num_nodes]  # by m: a root and a forest of m nodes below
    for rank in reversed(range(len(self.rates))):
      first = np.where(np.isfinite(subtree), self.rates[rank] * np.maximum(subtree, 0), -np.inf)
      rest = np.where(left >= 0, forests[rank + 1, np.maximum(left, 0)], -np.inf)
      value = first[None, :] + rest
      choice = np.argmax(value, axis=1)
      forests[rank, 1:] = np.take_along_axis(value, choice[:, None], axis=1)[:, 0]
      sizes[rank, 1:] = choice + 1
    return forests, sizes

  def tree(self, num_nodes: int, depth: int) -> StaticTree:
    """The best tree of so many nodes and levels."""
    parents: list[int] = []
    # Forests to be placed: their parent, nodes, levels. First in, first out: level by level.
    waiting = [(-1, num_nodes, depth)]
    for parent, left, levels in waiting:
      rank = 0
      while left:
        size = int(self._first_sizes[levels][rank, left])
        parents.append(parent)
        waiting.append((len(parents) - 1, size - 1, levels - 1))
        left, rank = left - size, rank + 1
    return StaticTree(tuple(parents), expected_tree_tokens(parents, self.rates))


def _check_rank_rates(rank_rates: Sequence[float]) -> tuple[float, ...]:
  rates = tuple(rank_rates)
  if not rates:
    raise ValueError("rank_rates must have at least one rate, got none")
  for rank, rate in enumerate(rates, start=1):
    check_fraction(f"rank_rates of rank {rank}", rate)
  if math.fsum(rates) > 1 + 1e-6:
    raise ValueError(
      "rank_rates must sum to at most 1 (at most one child of a node is accepted), got "
      f"{math.fsum(rates):g}"
    )
  return tuple(float(rate) for rate in rates)
