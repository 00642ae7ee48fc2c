# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Top-k match: a drafted token is kept if it is among the target's k best.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), section 5.1 (top-k selection) and 5.3
(minimum block size). The paper tries k = 2 and 3.
"""

import dataclasses

import jax.numpy as jnp

from specjax import sampling
from specjax.arguments import check_integer
from specjax.types import Array
from specjax.verifiers.base import ApproximateRule, GreedyRule, GreedyVerifier
from specjax.verifiers.tree_scan import AcceptanceRule


@dataclasses.dataclass(frozen=True)
class TopKRule(ApproximateRule):
  """Attributes: `k`, how many of the target's best tokens are good enough.

  Attributes:
    k: at least 1.
  """

  k: int

  def near(self, law: Array, token: Array) -> Array:
    """Whether fewer than k tokens are better; of equals the first is better, as for argmax."""
    better = law > law[token]
    equal_before = (law == law[token]) & (jnp.arange(law.shape[0], dtype=jnp.int32) < token)
    return jnp.sum(better | equal_before, dtype=jnp.int32) < self.k


@dataclasses.dataclass(frozen=True)
class TopKMatch(GreedyVerifier):
  """Keeps drafted tokens that are among the target's k best; the target's argmax follows them.

  k = 1 with a minimum block size of 1 is greedy exact match, bit for bit.

  Attributes:
    k: how many of the target's tokens are good enough, at least 1.
    min_block_size: tokens that a call commits at least, as far as the draft, the budget and the
      end of the sequence permit; 1 asks for nothing.
  """

  k: int = 2
  min_block_size: int = 1

  def __post_init__(self):
    check_integer("k", self.k, 1)
    check_integer("min_block_size", self.min_block_size, 1)

  @property
  def lossless(self) -> bool:
    """Whether only the argmax is accepted."""
    return self.k == 1 and self.min_block_size == 1

  def acceptance_rule(self, policy: sampling.SamplingPolicy) -> AcceptanceRule:
    """The exact rule where it is that, for it costs less."""
    del policy
    return GreedyRule() if self.lossless else TopKRule(self.min_block_size, self.k)
