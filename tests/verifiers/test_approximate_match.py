# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Top-k and distance acceptance against the same decisions in plain Python."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import HistoryModel, TableTree, random_table

import specjax
from specjax import sampling
from specjax.drafters import Empty
from specjax.sampling import SamplingPolicy
from specjax.types import Context, Draft
from specjax.verifiers import DistanceMatch, GreedyMatch, RejectionSampling, TopKMatch
from specjax.verifiers.distance_match import DistanceRule
from specjax.verifiers.top_k_match import TopKRule
from specjax.verifiers.tree_scan import scan_tree

V, N = 9, 5
MODEL = HistoryModel(V)
PARAMS = MODEL.init(3)
PROMPTS = [[1], [4, 0, 8], [2] * 6]
LOSSY = {
  "top 2": TopKMatch(2),
  "top 3, at least 2": TopKMatch(3, min_block_size=2),
  "top 1, at least 3": TopKMatch(1, min_block_size=3),
  "distance 1": DistanceMatch(1),
  "distance 2 of some tokens": DistanceMatch(2, first_token=2, last_token=6),
  "distance 1, at least 4": DistanceMatch(1, min_block_size=4, first_token=3),
}
TREES = {
  "chain": tuple(range(-1, N - 1)),
  "tree": (-1, -1, 0, 0, 2),
}


def depth_of(parents):
  depths = []
  for parent in parents:
    depths.append(1 if parent < 0 else depths[parent] + 1)
  return max(depths)


# --- the oracle -----------------------------------------------------------------------------


def near(verifier, scores, token):
  """Whether a token is good enough beside the best one."""
  if isinstance(verifier, TopKMatch):
    return token in np.argsort(-scores, kind="stable")[: verifier.k]
  best = int(np.argmax(scores))
  last = len(scores) - 1 if verifier.last_token is None else verifier.last_token
  numbers = range(verifier.first_token, last + 1)
  both = token in numbers and best in numbers
  return token == best or (both and abs(token - best) <= verifier.distance)


def judge(verifier, scores, tokens, parents, valid):
  """One call: accepted nodes in order, which of them deviate, and the token after them.

  `scores [1 + N, V]`: after the pending token, then after each node.
  """
  accepted, deviates, current = [], [], -1
  for node, token in enumerate(tokens):
    law = scores[current + 1]
    if not valid[node] or parents[node] != current or law[token] == -np.inf:
      continue
    if near(verifier, law, token) or len(accepted) + 1 < verifier.min_block_size:
      accepted.append(node)
      deviates.append(bool(token != np.argmax(law)))
      current = node
  return accepted, deviates, int(np.argmax(scores[current + 1]))


def decode(verifier, drafted, prompt, num_tokens, eos):
  """The whole text in plain Python: new tokens, calls and deviations."""
  sequence, calls, deviations = list(prompt), 0, 0
  limit = len(prompt) + num_tokens
  while len(sequence) < limit:
    tokens = drafted(len(sequence))
    room = limit - len(sequence) - 1
    scores = [
      MODEL.reference_logits(PARAMS, sequence + tokens[:index]) for index in range(len(tokens) + 1)
    ]
    chain = range(-1, len(tokens) - 1)
    valid = [node < room for node in range(len(tokens))]
    accepted, deviates, following = judge(verifier, scores, tokens, chain, valid)
    calls += 1
    emitted = [tokens[node] for node in accepted] + [following]
    for token, deviation in zip(emitted, [*deviates, False], strict=True):
      sequence.append(token)
      deviations += deviation
      if token == eos:
        return sequence[len(prompt) :], calls, deviations
  return sequence[len(prompt) :], calls, deviations


@dataclasses.dataclass(frozen=True)
class Formula(Empty):
  """Drafts that are a function of the row's length alone."""

  @property
  def is_chain(self):
    return True

  def draft(self, params, state, context):
    index = context.length[:, None] + jnp.arange(self.num_nodes)[None, :]
    tokens = (index * index + 3 * index) % context.vocab_size
    return Draft.chain(tokens, jnp.ones_like(tokens, bool)), state


def formula(length):
  return [(i * i + 3 * i) % V for i in range(length, length + N)]


def generate(verifier, drafter=None, **options):
  drafter = Formula(N) if drafter is None else drafter
  return specjax.generate(
    MODEL, PARAMS, PROMPTS, verifier=verifier, drafter=drafter, capacity=64, **options
  )


@pytest.mark.parametrize("verifier", LOSSY.values(), ids=LOSSY)
def test_text_calls_and_deviations_are_those_of_a_python_loop(verifier):
  found = 0
  for eos in (0, 5, 7):
    generation = generate(verifier, max_new_tokens=23, eos_ids=[eos])
    expected = [decode(verifier, formula, prompt, 23, eos) for prompt in PROMPTS]
    assert generation.new_tokens() == [tokens for tokens, _, _ in expected]
    assert generation.target_calls.tolist() == [calls for _, calls, _ in expected]
    assert generation.deviations.tolist() == [deviations for _, _, deviations in expected]
    found += sum(deviations for _, _, deviations in expected)
  assert found > 0


# --- one call -------------------------------------------------------------------------------


def one_call(seed, parents, policy=None, batch=60):
  """Random drafts and logits, with ties, and the context to judge them in."""
  random = np.random.default_rng(seed)
  nodes = len(parents)
  tokens = random.integers(0, V, (batch, nodes)).astype(np.int32)
  # Few distinct values: ties at the top are common.
  logits = random.integers(0, 12, (batch, 1 + nodes, V)).astype(np.float32)
  valid = random.random((batch, nodes)) < 0.9
  policy = (SamplingPolicy() if policy is None else policy).resolve(batch, V, [])
  length = jnp.full((batch,), 4, jnp.int32)
  history = jnp.ones((batch, 16), jnp.int32)
  context = Context(
    tokens=history,
    length=length,
    prompt_length=length,
    limit=length + 9,
    active=jnp.ones((batch,), bool),
    hidden=jnp.zeros((batch, 1)),
    cache=(),
    params=(),
    row_keys=jax.random.split(jax.random.key(0), batch),
    policy=policy,
    policy_context=sampling.initial_context(policy, history, length, length, V),
    vocab_size=V,
  )
  draft = Draft(
    tokens=jnp.asarray(tokens),
    parents=jnp.broadcast_to(jnp.array(parents, jnp.int32), tokens.shape),
    valid=jnp.asarray(valid),
  )
  return draft, jnp.asarray(logits), context


@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
@pytest.mark.parametrize("verifier", LOSSY.values(), ids=LOSSY)
def test_one_call_on_a_tree_takes_the_decisions_of_a_python_loop(verifier, parents):
  policy = SamplingPolicy(forbidden_tokens=[4])
  draft, logits, context = one_call(1, parents, policy)
  verdict = jax.jit(verifier.verify, static_argnums=3)(draft, logits, context, depth_of(parents))
  scores = np.asarray(logits).copy()
  scores[:, :, 4] = -np.inf
  for row in range(scores.shape[0]):
    accepted, deviates, following = judge(
      verifier, scores[row], np.asarray(draft.tokens[row]), parents, np.asarray(draft.valid[row])
    )
    count = int(verdict.num_accepted[row])
    assert (np.asarray(verdict.path[row, 1 : count + 1]) - 1).tolist() == accepted
    assert verdict.deviates[row].tolist()[:count] == deviates
    assert not verdict.deviates[row, count:].any()
    assert int(verdict.next_token[row]) == following


def accepted_by(verifier, seed=2):
  draft, logits, context = one_call(seed, TREES["chain"])
  verify = jax.jit(verifier.verify, static_argnums=3)
  return np.asarray(verify(draft, logits, context, N).num_accepted)


@pytest.mark.parametrize(
  "rising",
  [
    [TopKMatch(k) for k in (1, 2, 3, 5, V)],
    [DistanceMatch(distance) for distance in (0, 1, 2, 4, V)],
    [TopKMatch(2, min_block_size=m) for m in (1, 2, 3, N + 1)],
    [DistanceMatch(1, min_block_size=m) for m in (1, 2, 3, N + 1)],
  ],
  ids=["k", "distance", "minimum, top-k", "minimum, distance"],
)
def test_one_call_accepts_no_less_under_a_looser_rule(rising):
  counts = [accepted_by(verifier) for verifier in rising]
  for tighter, looser in itertools.pairwise(counts):
    assert (tighter <= looser).all()
  assert (counts[0] < counts[-1]).any()


@pytest.mark.parametrize("minimum", [3, 6])
def test_a_call_commits_the_minimum_block_as_far_as_the_draft_goes(minimum):
  draft, logits, context = one_call(5, TREES["chain"])
  verify = jax.jit(TopKMatch(1, min_block_size=minimum).verify, static_argnums=3)
  verdict = verify(draft, logits, context, N)
  # `valid` of a chain that this draft did not make itself: up to the first invalid node.
  drafted = np.cumprod(np.asarray(draft.valid), axis=1).sum(axis=1)
  assert (np.asarray(verdict.num_accepted) >= np.minimum(drafted, minimum - 1)).all()
  generation = generate(TopKMatch(1, min_block_size=minimum), max_new_tokens=24)
  np.testing.assert_array_less(generation.target_calls, 24 // minimum + 1)


def test_the_minimum_block_ends_with_the_budget_and_with_the_text():
  verifier = TopKMatch(1, min_block_size=N + 1)
  assert generate(verifier, max_new_tokens=4).num_new_tokens.tolist() == [4, 4, 4]
  # The second drafted token of the first call ends each row.
  ends = [formula(len(prompt))[1] for prompt in PROMPTS]
  for row, eos in enumerate(ends):
    generation = generate(verifier, max_new_tokens=20, eos_ids=[eos])
    assert len(generation.new_tokens()[row]) <= 2
    assert generation.finish_reasons[row] == "eos"


# --- the exact members of the family ---------------------------------------------------------


EXACT = [TopKMatch(1), DistanceMatch(0), DistanceMatch(0, first_token=3)]


@pytest.mark.parametrize(
  ("exact", "parents"),
  [(EXACT[0], TREES["tree"]), (EXACT[1], TREES["chain"]), (EXACT[2], (-1, -1, -1))],
  ids=["top 1", "distance 0", "distance 0 of some"],
)
def test_top_1_and_distance_0_give_the_exact_rules_output_bit_for_bit(exact, parents):
  drafter = TableTree(parents, "top")
  options = {"drafter_params": {"table": random_table(3, V)}, "max_new_tokens": 23}
  ours = generate(exact, drafter, **options)
  theirs = generate(GreedyMatch(), drafter, **options)
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_array_equal(a, b)
  assert exact.lossless


@pytest.mark.parametrize(
  "rule", [TopKRule(1, 1), DistanceRule(1, 0, 0, None), DistanceRule(1, 5, 4, 4)], ids=str
)
@pytest.mark.parametrize("parents", TREES.values(), ids=TREES)
def test_the_lossy_rules_themselves_are_exact_at_their_tightest(rule, parents):
  """Ties included: the rules that stand in for one another must not differ."""
  draft, logits, context = one_call(7, parents)
  depth = depth_of(parents)

  @jax.jit
  def both(draft, logits, context):
    ours = scan_tree(rule, draft, logits, context, depth, lossless=False)
    return ours, GreedyMatch().verify(draft, logits, context, depth)

  ours, theirs = both(draft, logits, context)
  np.testing.assert_array_equal(ours.path, theirs.path)
  np.testing.assert_array_equal(ours.num_accepted, theirs.num_accepted)
  np.testing.assert_array_equal(ours.next_token, theirs.next_token)
  assert not ours.deviates.any()


def test_only_the_exact_members_are_lossless():
  assert [verifier.lossless for verifier in LOSSY.values()] == [False] * len(LOSSY)


@pytest.mark.parametrize("verifier", [TopKMatch(1), RejectionSampling()], ids=str)
def test_a_lossless_verifier_keeps_no_record_of_deviations(verifier):
  generation = generate(verifier, max_new_tokens=6)
  assert generation.records.deviates is None
  assert generation.deviations.tolist() == [0, 0, 0]


def test_a_lossy_verifier_without_drafts_deviates_nowhere():
  generation = generate(TopKMatch(3), Empty(), max_new_tokens=6)
  plain = generate(GreedyMatch(), Empty(), max_new_tokens=6)
  assert generation.new_tokens() == plain.new_tokens()
  assert generation.deviations.tolist() == [0, 0, 0]


def test_deviations_are_cut_where_the_row_is_cut():
  session = specjax.open_session(
    MODEL, PARAMS, PROMPTS, verifier=TopKMatch(V), drafter=Formula(N), max_new_tokens=20
  )
  session.advance()
  whole = session.generation().deviations
  session.stop({0: len(PROMPTS[0]) + 1})
  cut = session.generation().deviations
  assert whole[0] > 1 >= cut[0]
  assert cut[1:].tolist() == whole[1:].tolist()


def test_a_lossy_verifier_that_does_not_say_where_it_deviates_is_refused():
  @dataclasses.dataclass(frozen=True)
  class Silent(TopKMatch):
    def verify(self, draft, logits, context, max_depth):
      return GreedyMatch().verify(draft, logits, context, max_depth)

  with pytest.raises(ValueError, match="deviates"):
    generate(Silent(2), max_new_tokens=3)


# --- what they refuse ------------------------------------------------------------------------


@pytest.mark.parametrize("verifier", [TopKMatch(), DistanceMatch()], ids=str)
def test_a_policy_that_samples_is_refused(verifier):
  with pytest.raises(ValueError, match=type(verifier).__name__):
    generate(verifier, policy=SamplingPolicy(temperature=1.0), max_new_tokens=3)


@pytest.mark.parametrize(
  ("make", "name"),
  [
    (lambda: TopKMatch(0), "k"),
    (lambda: TopKMatch(2, min_block_size=0), "min_block_size"),
    (lambda: DistanceMatch(-1), "distance"),
    (lambda: DistanceMatch(1.5), "distance"),
    (lambda: DistanceMatch(first_token=-1), "first_token"),
    (lambda: DistanceMatch(first_token=3, last_token=3), "last_token"),
  ],
)
def test_an_argument_out_of_range_is_named(make, name):
  with pytest.raises(ValueError, match=f"^{name} must be"):
    make()


def test_top_k_goes_by_rank_and_distance_by_number():
  scores = jnp.array([0.0, 3.0, 1.0, 1.0, 2.0])  # best first: 1, 4, 2, 3, 0
  tokens = jnp.arange(5, dtype=jnp.int32)

  def near(rule):
    return [int(token) for token in tokens if rule.near(scores, token)]

  assert near(TopKRule(1, 2)) == [1, 4]
  assert near(TopKRule(1, 3)) == [1, 2, 4]
  assert near(DistanceRule(1, 2, 0, None)) == [0, 1, 2, 3]
  assert near(DistanceRule(1, 2, 1, 2)) == [1, 2]
  assert near(DistanceRule(1, 2, 2, 4)) == [1]
