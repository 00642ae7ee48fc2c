# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Greedy exact match: a drafted token is kept if it is the target's argmax.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), section 3, the exact rule; the greedy case
of Leviathan, Kalman, Matias (2023, arXiv 2211.17192).
"""

import dataclasses

from specjax import sampling
from specjax.verifiers.base import GreedyRule, GreedyVerifier


@dataclasses.dataclass(frozen=True)
class GreedyMatch(GreedyVerifier):
  """Keeps the longest path of a draft that is the target's own greedy continuation."""

  def acceptance_rule(self, policy: sampling.SamplingPolicy) -> GreedyRule:
    """The exact rule."""
    del policy
    return GreedyRule()
