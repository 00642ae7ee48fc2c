# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Rejection sampling with residual correction: the output has exactly the target's law.

Leviathan, Kalman, Matias (2023, arXiv 2211.17192), Algorithm 1 and appendix A.1; Chen et al.
(2023, arXiv 2302.01318), Algorithm 2. Over the siblings of a token tree it becomes multi-step
speculative sampling (Miao et al. 2023, arXiv 2305.09781, Algorithm 2).
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.types import Array, PolicyContext
from specjax.verifiers.base import GreedyRule, RuleVerifier
from specjax.verifiers.tree_scan import AcceptanceRule


def acceptance_probability(p: Array, q: Array, token: Array) -> Array:
  """min(1, p(x) / q(x)), `[]` float32, for `p` and `q` `[V]`; 0 where p(x) is 0."""
  p_token, q_token = p[token], q[token]
  ratio = p_token / jnp.where(q_token > 0, q_token, 1.0)
  return jnp.where(p_token > 0, jnp.minimum(jnp.where(q_token > 0, ratio, 1.0), 1.0), 0.0)


def residual(p: Array, q: Array) -> Array:
  """The law after a rejection, norm((p - q)+), `[V]` float32.

  It keeps p's zeros: no token that the policy forbids gets any mass. Where p and q agree to
  the last bit there is nothing left, a rejection has probability zero, and p is returned.
  """
  positive = jnp.maximum(p - q, 0.0)
  total = jnp.sum(positive)
  return jnp.where(total > 0, positive / jnp.where(total > 0, total, 1.0), p)


@dataclasses.dataclass(frozen=True)
class RejectionRule:
  """The law is the next token's distribution, `[V]` float32 probabilities.

  A point mass (`log_probs` None) is the proposal q that is 1 at its token: it is accepted
  with p(x), and a rejection removes x from p. That is exact for any draft that is a
  deterministic function of the prefix, a tree's siblings included.
  """

  def law(
    self, policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, draw_key: Array
  ) -> Array:
    """The target's distribution under the policy."""
    del draw_key
    return jnp.exp(sampling.log_probs(policy, logits, context))

  def judge(
    self, law: Array, token: Array, log_probs: Array | None, uniform: Array, depth: Array
  ) -> tuple[Array, Array]:
    """Accepts with min(1, p/q). Strictly: a uniform of exactly 0 must not accept p(x) = 0."""
    del depth
    if log_probs is None:
      q = jax.nn.one_hot(token, law.shape[0], dtype=law.dtype)
    else:
      q = jnp.exp(log_probs)
    return uniform < acceptance_probability(law, q, token), residual(law, q)

  def draw(self, law: Array, draw_key: Array) -> Array:
    """A sample of what is left of the target's distribution."""
    return sampling.sample_from_weights(draw_key, law).astype(jnp.int32)


@dataclasses.dataclass(frozen=True)
class RejectionSampling(RuleVerifier):
  """Keeps drafted tokens so that the output has the target's distribution under the policy.

  Rows at temperature 0 have one-hot distributions, for which this is greedy exact match; a
  batch whose rows are all greedy runs that rule outright.
  """

  def acceptance_rule(self, policy: sampling.SamplingPolicy) -> AcceptanceRule:
    """Rejection with residual correction, or the greedy rule."""
    return RejectionRule() if policy.sampled else GreedyRule()
