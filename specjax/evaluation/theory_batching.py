# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""When batching kills the gain of speculation.

Su, Giannoula, Pekhimenko (2023, arXiv 2310.18813): the cost of a target call grows with the tokens
that it scores, rows times tokens a row, once the device's arithmetic is busy. A batch fills it
without any drafts; what a draft adds is then paid in full, and the best draft length falls as the
batch grows, to 0. The paper fits a line in the tokens a row to each batch size; here a call costs
any function of the number of its tokens, by default the roofline.

What is left out: the cache of each row, which a call reads for all tokens of the row together.
With long contexts it outweighs the weights, and speculation pays in larger batches than here.
"""

from collections.abc import Callable

from specjax.arguments import check_integer
from specjax.evaluation.theory_chains import (
  Acceptance,
  DraftLengthChoice,
  check_not_negative,
  check_positive,
  expected_tokens,
  longest_draft,
)

# Tokens of a call, over all rows, to its cost in any unit.
CallCost = Callable[[int], float]


def roofline(saturation_tokens: float) -> CallCost:
  """The cost of a call by its tokens: 1 while reading the weights takes longer, then in proportion.

  Args:
    saturation_tokens: tokens for which computing takes as long as reading the weights. For weights
      of 2 bytes it is the device's operations a second over its bytes a second
      (`hardware.Hardware.saturation_flops_per_byte`): 240 on a TPU v5e; a handful on a CPU.

  Raises:
    ValueError: unless it is a finite number > 0.
  """
  check_positive("saturation_tokens", saturation_tokens)
  return lambda num_tokens: max(1.0, num_tokens / saturation_tokens)


def batched_speed_up(
  acceptance: Acceptance,
  draft_length: int,
  cost_ratio: float,
  batch_size: int,
  call_cost: CallCost,
  *,
  drafting_share: float = 1.0,
) -> float:
  """Tokens a second of speculation over those of autoregressive decoding in the same batch.

  The target scores `batch_size * (draft_length + 1)` tokens in place of `batch_size`. A draft step
  costs c of a target call on one token a row, in every batch: the draft model is as busy as the
  target. Rows go on without waiting for each other.

  Args:
    acceptance: as in `theory.expected_tokens`.
    draft_length: gamma.
    cost_ratio: c.
    batch_size: rows decoded together.
    call_cost: cost of a target call by the number of its tokens, in any unit.
    drafting_share: of rounds of a row that have a draft, independently of other rows. One row with
      a draft makes the call of all of them wide.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  tokens = expected_tokens(acceptance, draft_length, drafting_share=drafting_share)
  check_not_negative("cost_ratio", cost_ratio)
  wide = _wide_share(drafting_share, batch_size)
  block_cost = _block_cost(call_cost, batch_size, draft_length)
  return tokens / (1 + wide * (draft_length * cost_ratio + block_cost - 1))


def best_batched_draft_length(
  acceptance: Acceptance,
  cost_ratio: float,
  batch_size: int,
  call_cost: CallCost,
  *,
  drafting_share: float = 1.0,
  max_draft_length: int = 16,
) -> DraftLengthChoice:
  """The best draft length for a batch; 0 where speculation does not pay.

  Takes what `batched_speed_up` takes; `max_draft_length` is the longest draft looked at.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_integer("max_draft_length", max_draft_length, 1)
  max_draft_length = longest_draft(acceptance, max_draft_length)
  best = DraftLengthChoice(0, 1.0, 1.0)
  for length in range(1, max_draft_length + 1):
    speed_up = batched_speed_up(
      acceptance, length, cost_ratio, batch_size, call_cost, drafting_share=drafting_share
    )
    if speed_up > best.speed_up * (1 + 1e-12):
      tokens = expected_tokens(acceptance, length, drafting_share=drafting_share)
      best = DraftLengthChoice(length, tokens, speed_up)
  return best


def smallest_losing_batch(
  acceptance: Acceptance,
  cost_ratio: float,
  call_cost: CallCost,
  *,
  drafting_share: float = 1.0,
  max_draft_length: int = 16,
  max_batch_size: int = 4096,
) -> int | None:
  """The batch at which the gain is gone: the smallest one for which no draft length pays.

  Args:
    acceptance: as in `theory.expected_tokens`.
    cost_ratio: c.
    call_cost: cost of a target call by the number of its tokens; if a wider block does not get
      relatively cheaper as the batch grows, speculation does not pay in any larger batch either.
    drafting_share: of rounds that have a draft.
    max_draft_length: the longest draft looked at.
    max_batch_size: the largest batch looked at.

  Returns:
    None where speculation pays in all batches up to `max_batch_size`.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_integer("max_batch_size", max_batch_size, 1)
  for batch_size in range(1, max_batch_size + 1):
    choice = best_batched_draft_length(
      acceptance,
      cost_ratio,
      batch_size,
      call_cost,
      drafting_share=drafting_share,
      max_draft_length=max_draft_length,
    )
    if not choice.pays:
      return batch_size
  return None


def _wide_share(drafting_share: float, batch_size: int) -> float:
  """The share of calls of a batch in which at least one row has a draft."""
  check_integer("batch_size", batch_size, 1)
  return 1 - (1 - drafting_share) ** batch_size


def _block_cost(call_cost: CallCost, batch_size: int, draft_length: int) -> float:
  """v: a call on `draft_length + 1` tokens a row over one on a single token a row."""
  costs = [call_cost(batch_size), call_cost(batch_size * (draft_length + 1))]
  for cost in costs:
    check_positive("call_cost", cost)
  return costs[1] / costs[0]
