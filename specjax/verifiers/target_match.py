# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Target match: sample the target, keep a drafted token if it is that sample.

The rule of systems that compare drafts with the target's own sample (REST, He et al. 2023,
arXiv 2311.08252, among them). It is exact at any temperature *because the sample itself is
emitted on a mismatch*; drawing again after a mismatch would bias the output towards drafts. It
accepts with sum p q where rejection sampling accepts with sum min(p, q), so the drafts that
serve it best are argmax drafts.
"""

import dataclasses

import jax.numpy as jnp

from specjax import sampling
from specjax.types import Array, PolicyContext
from specjax.verifiers.base import RuleVerifier, TokenRule


@dataclasses.dataclass(frozen=True)
class MatchRule(TokenRule):
  """The token is the target's sample at that position."""

  def law(
    self, policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, draw_key: Array
  ) -> Array:
    """Draws the target's token; the one key of the position is used here, not in `draw`."""
    log_probs = sampling.log_probs(policy, logits, context)
    return sampling.draw(draw_key, log_probs).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class TargetMatch(RuleVerifier):
  """Keeps the longest path of a draft that is the target's own sampled continuation.

  With row keys fixed, the output does not depend on the drafter at all: every position's
  token is drawn by that position's key.
  """

  def acceptance_rule(self, policy: sampling.SamplingPolicy) -> MatchRule:
    """One rule for every temperature."""
    del policy
    return MatchRule()
