# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Greedy exact match: a drafted token is kept if it is the target's argmax.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), section 3, the exact rule; the greedy case
of Leviathan, Kalman, Matias (2023, arXiv 2211.17192).
"""

import dataclasses
from typing import Any

import jax.numpy as jnp

from specjax import sampling
from specjax.types import Array, Context, Draft, PolicyContext, Verdict
from specjax.verifiers.tree_scan import scan_tree


@dataclasses.dataclass(frozen=True)
class GreedyRule:
  """The law is the target's argmax, a single token id `[]` int32."""

  def law(
    self, policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, draw_key: Array
  ) -> Array:
    """The argmax of the target's logits after penalties and masks."""
    del draw_key
    return sampling.greedy(policy, logits, context).astype(jnp.int32)

  def judge(
    self, law: Array, token: Array, log_probs: Array | None, uniform: Array
  ) -> tuple[Array, Array]:
    """Accepts the argmax only; a rejection leaves it the argmax."""
    del log_probs, uniform
    return token == law, law

  def draw(self, law: Array, draw_key: Array) -> Array:
    """The argmax itself."""
    del draw_key
    return law


@dataclasses.dataclass(frozen=True)
class GreedyMatch:
  """Keeps the longest path of a draft that is the target's own greedy continuation."""

  @property
  def lossless(self) -> bool:
    """The output is the target's greedy output."""
    return True

  def check(self, policy: Any) -> None:
    """Raises ValueError for a policy that samples: this verifier would ignore it."""
    if policy.sampled:
      raise ValueError(
        "verifier GreedyMatch decodes greedily, got a policy with temperature > 0; "
        "use RejectionSampling, or temperature 0"
      )

  def verify(self, draft: Draft, logits: Array, context: Context, max_depth: int) -> Verdict:
    """See `specjax.types.Verifier.verify`."""
    return scan_tree(GreedyRule(), draft, logits, context, max_depth)
