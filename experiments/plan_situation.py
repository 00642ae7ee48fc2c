# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What experiments.plan gives advice for, and what the theory expects there."""

import dataclasses
import functools

from specjax.evaluation.theory import (
  Acceptance,
  CallCost,
  DraftLengthChoice,
  TreeChoice,
  best_batched_draft_length,
  best_draft_length,
  best_tree_for_cost,
  expected_speed_up,
  expected_tokens,
  roofline,
  smallest_losing_batch,
)


@dataclasses.dataclass(frozen=True)
class Situation:
  """What advice is given for.

  Attributes:
    alpha: acceptance rate.
    acceptance: what chains are reckoned with: alpha, or measured rates by position.
    cost_ratio: c.
    drafting_share: of rounds that have a draft.
    rank_rates: p_1, p_2, ... of a token tree.
    saturation_tokens: tokens of a call from which on its cost grows.
    batch_sizes: to show.
    max_draft_length: the longest draft looked at.
    max_nodes: of the largest tree looked at.
    rank_rates_assumed: whether they follow from alpha, for want of measured ones.
  """

  alpha: float
  acceptance: Acceptance
  cost_ratio: float
  drafting_share: float
  rank_rates: tuple[float, ...]
  saturation_tokens: float
  batch_sizes: tuple[int, ...]
  max_draft_length: int
  max_nodes: int
  rank_rates_assumed: bool

  @property
  def call_cost(self) -> CallCost:
    """Of a target call by its tokens."""
    return roofline(self.saturation_tokens)

  def block_cost(self, draft_length: int) -> float:
    """v: a call on a draft and one token more, over a call on one token; of one row."""
    return self.call_cost(draft_length + 1) / self.call_cost(1)

  @functools.cached_property
  def best(self) -> DraftLengthChoice:
    """The draft length for one row."""
    return best_draft_length(
      self.acceptance,
      self.cost_ratio,
      block_cost=self.block_cost,
      drafting_share=self.drafting_share,
      max_draft_length=self.max_draft_length,
    )

  def expected(self, draft_length: int) -> tuple[float, float]:
    """Tokens a call and speed-up of one row."""
    share = self.drafting_share
    return (
      expected_tokens(self.acceptance, draft_length, drafting_share=share),
      expected_speed_up(
        self.acceptance,
        draft_length,
        self.cost_ratio,
        self.block_cost(draft_length),
        drafting_share=share,
      ),
    )

  def in_batch(self, batch_size: int) -> DraftLengthChoice:
    """The draft length for a batch."""
    return best_batched_draft_length(
      self.acceptance,
      self.cost_ratio,
      batch_size,
      self.call_cost,
      drafting_share=self.drafting_share,
      max_draft_length=self.max_draft_length,
    )

  @property
  def smallest_losing_batch(self) -> int | None:
    """Rows from which on no draft length is faster; None where it always pays."""
    return smallest_losing_batch(
      self.acceptance,
      self.cost_ratio,
      self.call_cost,
      drafting_share=self.drafting_share,
      max_draft_length=self.max_draft_length,
    )

  @functools.cached_property
  def tree(self) -> TreeChoice:
    """The tree for one row. Only where all rounds draft: a tree's silent rounds are not known."""
    return self._best_tree(self.rank_rates, self.max_nodes)

  @property
  def chain(self) -> TreeChoice:
    """The best tree that does not branch, by the same rates."""
    return self._best_tree(self.rank_rates[:1], self.max_draft_length)

  def _best_tree(self, rank_rates: tuple[float, ...], max_nodes: int) -> TreeChoice:
    return best_tree_for_cost(
      rank_rates,
      self.cost_ratio,
      call_cost=self.call_cost,
      max_nodes=max_nodes,
      max_depth=self.max_draft_length,
    )
