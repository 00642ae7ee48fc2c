# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The speed-up that speculative decoding should have: chains of drafted tokens.

Leviathan, Kalman, Matias (2023, arXiv 2211.17192), section 3. Its letters: alpha, the probability
that a drafted token is kept if those before it were; gamma, the draft length; c, the seconds of a
draft step over those of a target call on one token. All functions are on Python numbers.

Two things that the paper leaves out are arguments here. alpha may be one rate *by position*: what
is kept is rarely as likely at the eighth drafted token as at the first. And a drafter may have
nothing to propose in some rounds (prompt lookup without a match), which cost one plain target call
and make one token: `drafting_share` is the share of rounds that have a draft.

Batches are in `theory_batching`, token trees in `theory_trees`, rows of results in `theory_rows`.
"""

import dataclasses
import itertools
import math
import numbers
import operator
from collections.abc import Callable, Sequence
from typing import Any

from specjax.arguments import check_integer

# One acceptance rate for all draft positions, or one for each: the first is that of the token
# after the pending one, each given that the tokens before it were kept.
Acceptance = float | Sequence[float]

# Where the search for the best draft length ends.
MAX_DRAFT_LENGTH = 128


@dataclasses.dataclass(frozen=True)
class DraftLengthChoice:
  """A draft length and what is expected of it.

  Attributes:
    draft_length: gamma; 0 where no draft pays.
    expected_tokens: tokens that a round makes.
    speed_up: over autoregressive decoding.
  """

  draft_length: int
  expected_tokens: float
  speed_up: float

  @property
  def pays(self) -> bool:
    """Whether speculation is faster than autoregressive decoding."""
    return self.draft_length > 0 and self.speed_up > 1


def expected_tokens(
  acceptance: Acceptance, draft_length: int, *, drafting_share: float = 1.0
) -> float:
  """Tokens that a round makes, the target's own included: Leviathan et al. (2023), equation 1.

  That equation, (1 - alpha^(gamma + 1)) / (1 - alpha), is the sum over j of the probability that
  at least j drafted tokens are kept. With rates by position, that is their product up to j.

  Args:
    acceptance: alpha, or one rate a position (at least `draft_length` of them).
    draft_length: gamma; 0 is autoregressive decoding.
    drafting_share: of rounds that have a draft; the others make one token.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_fraction("drafting_share", drafting_share)
  rates = _rates(acceptance, draft_length)
  return 1 + drafting_share * math.fsum(itertools.accumulate(rates, operator.mul))


def expected_speed_up(
  acceptance: Acceptance,
  draft_length: int,
  cost_ratio: float,
  block_cost: float = 1.0,
  *,
  drafting_share: float = 1.0,
) -> float:
  """The speed-up of Leviathan et al. (2023), Theorem 3.8, with the cost of a block in it.

  Args:
    acceptance: as in `expected_tokens`.
    draft_length: gamma.
    cost_ratio: c, seconds of a draft step over seconds of a target call on one token.
    block_cost: v, seconds of a target call on gamma + 1 tokens over those on one; 1 in the paper.
    drafting_share: of rounds that have a draft; the others cost one target call on one token.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  tokens = expected_tokens(acceptance, draft_length, drafting_share=drafting_share)
  check_not_negative("cost_ratio", cost_ratio)
  check_positive("block_cost", block_cost)
  return tokens / (1 + drafting_share * (draft_length * cost_ratio + block_cost - 1))


def best_draft_length(
  acceptance: Acceptance,
  cost_ratio: float,
  *,
  block_cost: Callable[[int], float] | None = None,
  drafting_share: float = 1.0,
  max_draft_length: int = MAX_DRAFT_LENGTH,
) -> DraftLengthChoice:
  """The draft length of the highest expected speed-up: Leviathan et al. (2023), section 3.5.

  Without a cost of blocks some draft pays exactly if alpha > c (Corollary 3.9).

  Args:
    acceptance: as in `expected_tokens`; rates by position also limit the draft length.
    cost_ratio: c.
    block_cost: v by draft length: seconds of a target call on gamma + 1 tokens over those on one
      (1 for gamma = 0). None is 1 everywhere.
    drafting_share: of rounds that have a draft.
    max_draft_length: the longest draft looked at.

  Returns:
    The shortest of the best draft lengths; 0, with a speed-up of 1, if none is above 1.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_integer("max_draft_length", max_draft_length, 1)
  max_draft_length = longest_draft(acceptance, max_draft_length)
  check_not_negative("cost_ratio", cost_ratio)
  check_fraction("drafting_share", drafting_share)
  best = DraftLengthChoice(0, 1.0, 1.0)
  kept, total = 1.0, 1.0
  for length, rate in enumerate(_rates(acceptance, max_draft_length), start=1):
    kept *= rate
    total += drafting_share * kept
    cost = 1.0 if block_cost is None else block_cost(length)
    check_positive(f"block_cost({length})", cost)
    speed_up = total / (1 + drafting_share * (length * cost_ratio + cost - 1))
    if speed_up > best.speed_up * (1 + 1e-12):
      best = DraftLengthChoice(length, total, speed_up)
  return best


def memory_bound_speed_up(
  block_efficiency: float, draft_length: int, draft_parameters: float, target_parameters: float
) -> float:
  """MBSU: the speed-up if reading weights were all that takes time.

  Goel et al. (2024, arXiv 2403.00858): a call costs in proportion to the parameters
  that it reads, however many tokens it reads them for. So c is the draft model's share of the
  target's parameters, and the block efficiency is measured rather than expected.

  Args:
    block_efficiency: tau, tokens a target call, the target's own included.
    draft_length: gamma, draft steps a round.
    draft_parameters: how many the draft model reads a step.
    target_parameters: how many the target reads a call.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_positive("block_efficiency", block_efficiency)
  check_integer("draft_length", draft_length, 0)
  check_not_negative("draft_parameters", draft_parameters)
  check_positive("target_parameters", target_parameters)
  return block_efficiency / (1 + draft_length * draft_parameters / target_parameters)


def longest_draft(acceptance: Any, limit: int) -> int:
  """The longest draft up to `limit` that an `Acceptance` has rates for."""
  return limit if _is_number(acceptance) else min(limit, len(acceptance))


def _rates(acceptance: Any, draft_length: int) -> list[float]:
  """The rates of the first `draft_length` positions, checked."""
  check_integer("draft_length", draft_length, 0)
  if _is_number(acceptance):
    check_fraction("acceptance", acceptance)
    return [float(acceptance)] * draft_length
  rates = list(acceptance)
  for position, rate in enumerate(rates, start=1):
    check_fraction(f"acceptance at position {position}", rate)
  if len(rates) < draft_length:
    raise ValueError(
      f"acceptance must have a rate for each of {draft_length} draft positions, got {len(rates)}"
    )
  return [float(rate) for rate in rates[:draft_length]]


# --- checks that the theory modules share ----------------------------------------------------


def check_fraction(name: str, value: Any) -> None:
  """Raises ValueError unless `value` is a number in [0, 1]."""
  if not _is_number(value) or not 0 <= value <= 1:
    raise ValueError(f"{name} must be a number in [0, 1], got {value!r}")


def check_not_negative(name: str, value: Any) -> None:
  """Raises ValueError unless `value` is a finite number of at least 0."""
  if not _is_number(value) or not 0 <= value < math.inf:
    raise ValueError(f"{name} must be a finite number >= 0, got {value!r}")


def check_positive(name: str, value: Any) -> None:
  """Raises ValueError unless `value` is a finite number above 0."""
  if not _is_number(value) or not 0 < value < math.inf:
    raise ValueError(f"{name} must be a finite number > 0, got {value!r}")


def _is_number(value: Any) -> bool:
  """Whether it is a real number, NumPy's included."""
  return isinstance(value, numbers.Real)
