# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from laws import chi_square_p_value, sample_law
from toys import TableModel, exact_law, random_table

from specjax import sampling
from specjax.drafters import DraftModel
from specjax.sampling import SamplingPolicy
from specjax.verifiers import TargetMatch
from specjax.verifiers.target_match import MatchRule
from specjax.verifiers.tree_scan import scan_tree

V = 4
MODEL, TARGET, PROPOSAL = TableModel(V), random_table(1, V), random_table(7, V)
POLICY = SamplingPolicy(temperature=1.0)


def sample(verifier, temperature, num_tokens=3, samples=60_000):
  return sample_law(
    MODEL,
    {"table": TARGET},
    [0, 1],
    num_tokens,
    samples=samples,
    policy=POLICY,
    verifier=verifier,
    drafter=DraftModel(MODEL, draft_length=2, temperature=temperature),
    drafter_params={"table": PROPOSAL},
  )


def test_output_has_the_target_law_with_argmax_and_with_sampled_drafts():
  law = exact_law(POLICY, TARGET, [0, 1], 3)
  for temperature in (0.0, None):
    assert chi_square_p_value(sample(TargetMatch(), temperature), law) > 1e-3


@dataclasses.dataclass(frozen=True)
class RedrawsOnMismatch(MatchRule):
  """The bias that reports warn of: a fresh token after a mismatch favours the draft."""

  def law(self, policy, logits, context, draw_key):
    log_probs = sampling.log_probs(policy, logits, context)
    tokens = [
      sampling.draw(jax.random.fold_in(draw_key, index), log_probs).astype(jnp.int32)
      for index in (0, 1)
    ]
    return tuple(tokens)

  def judge(self, law, token, log_probs, uniform, depth):
    return token == law[0], (law[1], law[1])

  def draw(self, law, draw_key):
    return law[0]


@dataclasses.dataclass(frozen=True)
class Mutant(TargetMatch):
  def verify(self, draft, logits, context, max_depth):
    return scan_tree(RedrawsOnMismatch(), draft, logits, context, max_depth)


def test_a_rule_that_draws_again_after_a_mismatch_fails_the_same_test():
  law = exact_law(POLICY, TARGET, [0, 1], 3)
  assert chi_square_p_value(sample(Mutant(), 0.0), law) < 1e-6


def test_argmax_drafts_match_at_least_as_often_as_sampled_ones():
  q = p = np.asarray(jax.nn.softmax(TARGET, axis=-1))
  assert (p.max(axis=1) >= (p * q).sum(axis=1)).all()
