# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Distance match: for tokens that are numbers, a drafted one is kept if it is close enough.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), section 5.2 (distance-based selection) and
5.3 (minimum block size). The paper accepts intensities of an image that are at most 2 apart.
"""

import dataclasses

import jax.numpy as jnp

from specjax import processors, sampling
from specjax.arguments import check_integer
from specjax.types import Array
from specjax.verifiers.base import ApproximateRule, GreedyRule, GreedyVerifier
from specjax.verifiers.tree_scan import AcceptanceRule


@dataclasses.dataclass(frozen=True)
class DistanceRule(ApproximateRule):
  """Accepts |token - argmax| <= distance where both are numbers.

  Attributes: see `DistanceMatch`.
  """

  distance: int
  first_token: int
  last_token: int | None

  def near(self, law: Array, token: Array) -> Array:
    """The argmax itself, or a number close to it."""
    best = processors.first_argmax(law)
    close = jnp.abs(token - best) <= self.distance
    return (token == best) | (close & self._is_number(token) & self._is_number(best))

  def _is_number(self, token: Array) -> Array:
    inside = token >= self.first_token
    return inside if self.last_token is None else inside & (token <= self.last_token)


@dataclasses.dataclass(frozen=True)
class DistanceMatch(GreedyVerifier):
  """Keeps drafted tokens that are close to the target's argmax; the argmax follows them.

  Token ids `first_token .. last_token` stand for numbers in this order; a token outside of that
  range is kept only if it is the argmax. A distance of 0 with a minimum block size of 1 is greedy
  exact match, bit for bit.

  Attributes:
    distance: epsilon, in steps of the ordinal vocabulary.
    min_block_size: tokens that a call commits at least, as far as the draft, the budget and the
      end of the sequence permit; 1 asks for nothing.
    first_token: the id of the smallest number.
    last_token: the id of the largest; None is the last of the vocabulary.
  """

  distance: int = 2
  min_block_size: int = 1
  first_token: int = 0
  last_token: int | None = None

  def __post_init__(self):
    check_integer("distance", self.distance, 0)
    check_integer("min_block_size", self.min_block_size, 1)
    check_integer("first_token", self.first_token, 0)
    if self.last_token is not None:
      # A range of one token would have no distances: the rule would be exact in secret.
      check_integer("last_token", self.last_token, self.first_token + 1)

  @property
  def lossless(self) -> bool:
    """Whether only the argmax is accepted."""
    return self.distance == 0 and self.min_block_size == 1

  def acceptance_rule(self, policy: sampling.SamplingPolicy) -> AcceptanceRule:
    """The exact rule where it is that, for it costs less."""
    del policy
    if self.lossless:
      return GreedyRule()
    return DistanceRule(self.min_block_size, self.distance, self.first_token, self.last_token)
