# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What verifiers have in common: each is an acceptance rule that scans the draft's nodes."""

import dataclasses
from typing import Any

from specjax import processors, sampling
from specjax.types import Array, Context, Draft, PolicyContext, Verdict
from specjax.verifiers.tree_scan import AcceptanceRule, scan_tree


class RuleVerifier:
  """Defaults of `specjax.types.Verifier` for one that judges a draft node by node.

  A subclass is a frozen dataclass with an `acceptance_rule` method.
  """

  @property
  def lossless(self) -> bool:
    """The output has exactly the target's law under the policy."""
    return True

  def check(self, policy: Any) -> None:
    """Every policy is served."""
    del policy

  def acceptance_rule(self, policy: sampling.SamplingPolicy) -> AcceptanceRule:
    """The rule for a resolved policy; what it is chosen by is static."""
    raise NotImplementedError

  def verify(self, draft: Draft, logits: Array, context: Context, max_depth: int) -> Verdict:
    """See `specjax.types.Verifier.verify`."""
    rule = self.acceptance_rule(context.policy)
    return scan_tree(rule, draft, logits, context, max_depth, lossless=self.lossless)


class GreedyVerifier(RuleVerifier):
  """A `RuleVerifier` that compares drafted tokens with the target's argmax."""

  def check(self, policy: Any) -> None:
    """Raises ValueError for a policy that samples: this verifier would ignore it."""
    if policy.sampled:
      raise ValueError(
        f"verifier {type(self).__name__} decodes greedily, got a policy with temperature > 0; "
        "use RejectionSampling, or temperature 0"
      )


@dataclasses.dataclass(frozen=True)
class TokenRule:
  """The law is a single token, its id `[]` int32. A subclass says which: `law`."""

  def law(
    self, policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, draw_key: Array
  ) -> Array:
    """The one token that is accepted after a node."""
    raise NotImplementedError

  def judge(
    self, law: Array, token: Array, log_probs: Array | None, uniform: Array, depth: Array
  ) -> tuple[Array, Array]:
    """Accepts that token only, and keeps it after a mismatch."""
    del log_probs, uniform, depth
    return token == law, law

  def draw(self, law: Array, draw_key: Array) -> Array:
    """The token that the drafts were compared with."""
    del draw_key
    return law


@dataclasses.dataclass(frozen=True)
class GreedyRule(TokenRule):
  """The token is the target's argmax."""

  def law(
    self, policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, draw_key: Array
  ) -> Array:
    """The argmax of the target's logits after penalties and masks."""
    del draw_key
    return sampling.greedy(policy, logits, context)


@dataclasses.dataclass(frozen=True)
class ApproximateRule:
  """Accepts some tokens beside the target's argmax; lossy. A subclass says which: `near`.

  The law is what the target makes of each token, its scores after penalties and masks, `[V]`
  float32. A token that the policy forbids is never accepted, and what follows a rejection is
  the argmax.

  Attributes:
    min_block_size: m; the first m - 1 drafted tokens are accepted whatever the target thinks of
      them, so that a call commits at least m tokens. Those after them are judged given them.
  """

  min_block_size: int

  def near(self, law: Array, token: Array) -> Array:
    """`[]` bool: whether `token` (`[]` int32) is good enough, given the scores `law [V]`."""
    raise NotImplementedError

  def law(
    self, policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, draw_key: Array
  ) -> Array:
    """The target's scores."""
    del draw_key
    return sampling.scores(policy, logits, context)

  def judge(
    self, law: Array, token: Array, log_probs: Array | None, uniform: Array, depth: Array
  ) -> tuple[Array, Array]:
    """Accepts what is near enough, and what the minimum block size asks for."""
    del log_probs, uniform
    accept = self.near(law, token) | (depth < self.min_block_size - 1)
    return accept & (law[token] > processors.MASKED), law

  def draw(self, law: Array, draw_key: Array) -> Array:
    """The argmax."""
    del draw_key
    return processors.first_argmax(law)
