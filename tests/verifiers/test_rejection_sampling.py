# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import chi_square_p_value, sample_law
from toys import TableModel, TableTree, exact_law, random_table

from specjax import generate, sampling
from specjax.drafters import DraftModel
from specjax.sampling import SamplingPolicy
from specjax.types import Context, Draft
from specjax.verifiers import RejectionSampling
from specjax.verifiers.rejection_sampling import (
  RejectionRule,
  acceptance_probability,
  residual,
)
from specjax.verifiers.tree_scan import scan_tree

V = 4
MODEL = TableModel(V)
NEG = -1e9  # a logit that leaves a token no mass


def table_of(rows):
  return jnp.log(jnp.asarray(rows, jnp.float32) + 1e-30)


PROPOSALS = {
  "another table": lambda p: random_table(7, V),
  "the target itself": lambda p: p,
  "one-hot": lambda p: jnp.full((V, V), NEG).at[:, 2].set(0.0),
  "uniform (ties)": lambda p: jnp.zeros((V, V)),
  "opposite": lambda p: -p,
}
POLICIES = {
  "T=1": SamplingPolicy(temperature=1.0),
  "T=0.5 top_p": SamplingPolicy(temperature=0.5, top_p=0.8),
  "T=2 top_k": SamplingPolicy(temperature=2.0, top_k=2),
  "min_p": SamplingPolicy(temperature=1.0, min_p=0.2),
  "penalties": SamplingPolicy(
    temperature=1.0, repetition_penalty=1.7, presence_penalty=0.5, frequency_penalty=0.4
  ),
  "everything": SamplingPolicy(temperature=0.5, top_k=3, top_p=0.8, min_p=0.05),
}
TREES = {
  "chain": (-1, 0, 1),
  "siblings": (-1, -1, -1),
  "two levels": (-1, -1, 0, 0, 1, 2),
}


# --- the rule, exactly ------------------------------------------------------------------------


def emitted_law(p, proposals):
  """The law of the token emitted after one position whose children are drawn independently.

  Enumerates every draw of the children and every accept/reject outcome with the rule's own
  acceptance probability and residual.
  """
  law = np.zeros(len(p))
  supports = [np.flatnonzero(q) for q in proposals]
  for tokens in itertools.product(*supports):
    weight = np.prod([q[t] for q, t in zip(proposals, tokens, strict=True)])
    remaining = p
    for q, token in zip(proposals, tokens, strict=True):
      accept = float(acceptance_probability(remaining, q, token))
      law[token] += weight * accept
      weight *= 1 - accept
      remaining = residual(remaining, q)
    law += weight * np.asarray(remaining)
  return law


def distributions(seed, count):
  random = np.random.default_rng(seed)
  for _ in range(count):
    p, q = random.dirichlet(np.full(3, 0.6), 2).astype(np.float32)
    yield jnp.asarray(p), jnp.asarray(q)


def test_emitted_token_has_exactly_the_target_law_for_one_and_for_three_siblings():
  for p, q in distributions(0, 10):
    for count in (1, 3):
      np.testing.assert_allclose(emitted_law(p, [q] * count), p, atol=1e-6)


def test_residual_is_target_when_supports_are_disjoint():
  p, q = jnp.array([0.25, 0.75, 0.0]), jnp.array([0.0, 0.0, 1.0])
  np.testing.assert_allclose(residual(p, q), p)
  np.testing.assert_allclose(emitted_law(p, [q]), p, atol=1e-6)


def test_residual_subtracts_the_whole_proposal_and_not_the_rejected_token_alone():
  p, q = jnp.array([0.5, 0.3, 0.2]), jnp.array([0.2, 0.7, 0.1])
  np.testing.assert_allclose(residual(p, q), [0.75, 0.0, 0.25], atol=1e-6)


def test_a_point_mass_is_accepted_with_its_probability_and_removed_when_rejected():
  p = jnp.array([0.5, 0.3, 0.2])
  rule = RejectionRule()
  for uniform, expected in ((0.29, True), (0.31, False)):
    accept, rest = rule.judge(p, jnp.int32(1), None, jnp.float32(uniform), jnp.int32(0))
    assert bool(accept) is expected
    np.testing.assert_allclose(rest, [5 / 7, 0, 2 / 7], atol=1e-6)


def test_a_uniform_of_zero_does_not_accept_a_token_of_probability_zero():
  p = jnp.array([0.6, 0.4, 0.0])
  for log_q in (None, jnp.log(jnp.array([0.1, 0.1, 0.8]))):
    accept, _ = RejectionRule().judge(p, jnp.int32(2), log_q, jnp.float32(0.0), jnp.int32(0))
    assert not bool(accept)


def test_ratio_is_exactly_one_when_proposal_is_the_target():
  for p, _ in distributions(1, 20):
    for token in range(3):
      if p[token] > 0:
        assert float(acceptance_probability(p, p, token)) == 1.0


def test_replacement_after_three_rejected_siblings_comes_from_the_updated_residual():
  p, q = jnp.array([0.1, 0.2, 0.7]), jnp.array([0.5, 0.4, 0.1])
  rest = p
  for _ in range(3):
    rest = residual(rest, q)
  np.testing.assert_allclose(rest, [0.0, 0.0, 1.0], atol=1e-6)
  np.testing.assert_allclose(emitted_law(p, [q, q, q]), p, atol=1e-6)


# --- the scan against a Python loop --------------------------------------------------------------


def make_context(batch, vocab_size, policy, length, keys):
  policy = policy.resolve(batch, vocab_size, np.full(4, -1, np.int32))
  lengths = jnp.full((batch,), length, jnp.int32)
  tokens = jnp.zeros((batch, 32), jnp.int32)
  return Context(
    tokens=tokens,
    length=lengths,
    prompt_length=lengths,
    limit=lengths + 20,
    active=jnp.ones((batch,), bool),
    hidden=jnp.zeros((batch, 1)),
    cache=(),
    params=None,
    row_keys=keys,
    policy=policy,
    policy_context=sampling.initial_context(policy, tokens, lengths, lengths, vocab_size),
    vocab_size=vocab_size,
  )


def walk(tokens, parents, valid, q, p, uniforms):
  """The same decisions in plain Python: accepted nodes and the final distribution."""
  current, law, accepted = -1, np.asarray(p[0], np.float64), []
  for node, token in enumerate(tokens):
    if not valid[node] or parents[node] != current:
      continue
    if uniforms[len(accepted)][node] < min(1.0, law[token] / q[node][token]):
      accepted.append(node)
      current, law = node, np.asarray(p[node + 1], np.float64)
    else:
      law = np.maximum(law - q[node], 0)
      law /= law.sum()
  return accepted, law


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
def test_scan_takes_the_decisions_of_a_python_loop(parents):
  random = np.random.default_rng(3)
  batch, nodes, length = 40, len(parents), 5
  keys = jax.random.split(jax.random.key(1), batch)
  q = random.dirichlet(np.ones(V), (batch, nodes)).astype(np.float32)
  p = random.dirichlet(np.ones(V), (batch, nodes + 1)).astype(np.float32)
  tokens = random.integers(0, V, (batch, nodes)).astype(np.int32)
  valid = random.random((batch, nodes)) < 0.9
  context = make_context(batch, V, SamplingPolicy(temperature=1.0), length, keys)
  draft = Draft(
    tokens=jnp.asarray(tokens),
    parents=jnp.broadcast_to(jnp.array(parents), (batch, nodes)),
    valid=jnp.asarray(valid),
    log_probs=jnp.log(q),
  )
  verdict = scan_tree(RejectionRule(), draft, jnp.log(p), context, max_depth=3)
  for row in range(batch):
    uniforms = [
      [
        float(
          jax.random.uniform(
            jax.random.fold_in(
              sampling.position_key(keys[row], length + depth, sampling.ACCEPT), node
            )
          )
        )
        for node in range(nodes)
      ]
      for depth in range(3)
    ]
    accepted, law = walk(tokens[row], parents, valid[row], q[row], p[row], uniforms)
    count = int(verdict.num_accepted[row])
    assert count == len(accepted)
    assert [int(i) - 1 for i in verdict.path[row, 1 : count + 1]] == accepted
    assert law[int(verdict.next_token[row])] > 0


@pytest.mark.parametrize("rejected_at", range(5))
def test_accepted_count_and_correction_at_each_rejection_position(rejected_at):
  """Block of 4: the target is certain of 1, 2, 3, 0 in turn; the draft errs at one place."""
  certain = [1, 2, 3, 0, 2]
  logits = jnp.full((1, 5, V), -jnp.inf).at[0, jnp.arange(5), jnp.array(certain)].set(0.0)
  tokens = np.array([certain[:4]], np.int32)
  if rejected_at < 4:
    tokens[0, rejected_at] = (certain[rejected_at] + 1) % V
  draft = Draft.chain(jnp.asarray(tokens), jnp.ones((1, 4), bool), jnp.full((1, 4, V), -jnp.log(V)))
  keys = jax.random.split(jax.random.key(0), 1)
  context = make_context(1, V, SamplingPolicy(temperature=1.0), 3, keys)
  verdict = RejectionSampling().verify(draft, logits, context, 4)
  assert int(verdict.num_accepted[0]) == rejected_at
  assert int(verdict.next_token[0]) == certain[rejected_at]


def test_tokens_after_the_first_rejection_do_not_count():
  """Acceptance mask [1, 0, 1, 1]: one accepted, two emitted."""
  logits = jnp.full((1, 5, V), -jnp.inf).at[0, :, 1].set(0.0)
  draft = Draft.chain(jnp.array([[1, 2, 1, 1]]), jnp.ones((1, 4), bool))
  context = make_context(1, V, SamplingPolicy(), 3, jax.random.split(jax.random.key(0), 1))
  verdict = RejectionSampling().verify(draft, logits, context, 4)
  assert int(verdict.num_accepted[0]) == 1


# --- the law of whole generations ----------------------------------------------------------------


def law_p_value(policy, drafter, drafter_params, *, verifier=None, samples=100_000, seed=0):
  target = random_table(1, V)
  prompt, num_tokens = [0, 1], 3
  counts = sample_law(
    MODEL,
    {"table": target},
    prompt,
    num_tokens,
    samples=samples,
    seed=seed,
    policy=policy,
    drafter=drafter,
    drafter_params=drafter_params,
    verifier=verifier or RejectionSampling(),
  )
  return chi_square_p_value(counts, exact_law(policy, target, prompt, num_tokens))


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_chain_output_has_the_law_of_plain_sampling_under_every_policy(policy):
  drafter = DraftModel(MODEL, draft_length=3)
  assert law_p_value(policy, drafter, {"table": random_table(7, V)}) > 1e-3


@pytest.mark.parametrize("proposal", PROPOSALS.values(), ids=PROPOSALS)
def test_chain_output_has_the_target_law_for_adversarial_proposals(proposal):
  table = proposal(random_table(1, V))
  drafter = DraftModel(MODEL, draft_length=2)
  assert law_p_value(SamplingPolicy(temperature=1.0), drafter, {"table": table}) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["independent", "without_replacement", "top"])
@pytest.mark.parametrize(
  ("parents", "name"),
  [(TREES["siblings"], "everything"), (TREES["two levels"], "penalties")],
  ids=["wide", "deep"],
)
def test_tree_output_has_the_law_of_plain_sampling(kind, parents, name):
  drafter = TableTree(parents, kind)
  assert law_p_value(POLICIES[name], drafter, {"table": random_table(7, V)}) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.3, 3.0])
def test_draft_temperature_changes_acceptance_and_never_the_law(temperature):
  drafter = DraftModel(MODEL, draft_length=3, temperature=temperature)
  policy = SamplingPolicy(temperature=1.0)
  assert law_p_value(policy, drafter, {"table": random_table(7, V)}) > 1e-3


def test_measured_acceptance_is_the_overlap_of_the_two_laws():
  target, proposal = random_table(1, V), random_table(7, V)
  generation = generate(
    MODEL,
    {"table": target},
    np.zeros((40_000, 1), np.int32),
    max_new_tokens=2,
    policy=SamplingPolicy(temperature=1.0),
    drafter=DraftModel(MODEL, draft_length=1),
    drafter_params={"table": proposal},
  )
  overlap = jnp.minimum(jax.nn.softmax(target[0]), jax.nn.softmax(proposal[0])).sum()
  first_call = np.asarray(generation.records.drafted)[:, 1]
  error = 3 * np.sqrt(0.25 / len(first_call))
  assert abs(first_call.mean() - float(overlap)) < error


# --- mutants: the tests above must be able to fail -----------------------------------------------


@dataclasses.dataclass(frozen=True)
class ZeroesOnlyTheRejectedToken(RejectionRule):
  def judge(self, law, token, log_probs, uniform, depth):
    accept, _ = super().judge(law, token, log_probs, uniform, depth)
    rest = law.at[token].set(0.0)
    return accept, rest / jnp.maximum(rest.sum(), 1e-9)


@dataclasses.dataclass(frozen=True)
class AcceptsAsIfTheDraftWereCertain(RejectionRule):
  def judge(self, law, token, log_probs, uniform, depth):
    _, rest = super().judge(law, token, log_probs, uniform, depth)
    return uniform < law[token], rest


@dataclasses.dataclass(frozen=True)
class ForgetsTheResidual(RejectionRule):
  def judge(self, law, token, log_probs, uniform, depth):
    accept, _ = super().judge(law, token, log_probs, uniform, depth)
    return accept, law


@dataclasses.dataclass(frozen=True)
class Mutant(RejectionSampling):
  rule: RejectionRule

  def verify(self, draft, logits, context, max_depth):
    return scan_tree(self.rule, draft, logits, context, max_depth)


@pytest.mark.parametrize(
  "rule", [ZeroesOnlyTheRejectedToken(), AcceptsAsIfTheDraftWereCertain(), ForgetsTheResidual()]
)
def test_a_wrong_rule_fails_the_same_test(rule):
  drafter = DraftModel(MODEL, draft_length=3)
  policy = SamplingPolicy(temperature=1.0)
  table = {"table": random_table(7, V)}
  assert law_p_value(policy, drafter, table, verifier=Mutant(rule)) < 1e-6


def test_a_sampled_draft_taken_for_a_point_mass_loses_acceptance_and_not_the_law():
  """Accept x with p(x), else draw from p without x: exact whatever x was drawn from."""

  @dataclasses.dataclass(frozen=True)
  class PointMass(RejectionRule):
    def judge(self, law, token, log_probs, uniform, depth):
      return super().judge(law, token, None, uniform, depth)

  drafter = DraftModel(MODEL, draft_length=3)
  policy = SamplingPolicy(temperature=1.0)
  table = {"table": random_table(7, V)}
  assert law_p_value(policy, drafter, table, verifier=Mutant(PointMass())) > 1e-3


def test_ratio_rule_on_deterministic_top_children_would_be_biased():
  """The trap in SpecInfer's text: the type of the proposal, not the user, must decide."""

  @dataclasses.dataclass(frozen=True)
  class Dishonest(TableTree):
    def draft(self, params, state, context):
      draft, state = super().draft(params, state, context)
      laws = jax.nn.log_softmax(params["table"][context.newest(1)[:, 0]])
      return dataclasses.replace(draft, log_probs=jnp.repeat(laws[:, None], 3, axis=1)), state

  drafter = Dishonest(TREES["siblings"], "top")
  policy = SamplingPolicy(temperature=1.0)
  assert law_p_value(policy, drafter, {"table": random_table(7, V)}) < 1e-6
