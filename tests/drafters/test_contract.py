# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""One contract for every drafter of the registry: its drafts and their laws agree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import HistoryModel, TableModel, random_table

from specjax import sampling, trees
from specjax.drafters import REGISTRY, Blockwise, DraftModel, Empty, Fallback, PaSS, PromptLookup
from specjax.drafters.blockwise import init_heads
from specjax.sampling import SamplingPolicy
from specjax.types import Context, TargetOutput, Verdict

V = 7
TARGET, SMALL = HistoryModel(V), HistoryModel(V, hidden_size=4)
TABLE = TableModel(V)
# A new drafter is added here with an instance and its parameters, or these tests fail.
EXAMPLES = {
  "autoregressive": lambda: (Empty(3), None),
  "blockwise": lambda: (
    Blockwise(TARGET, 3),
    {"heads": jax.tree.map(lambda x: x + 0.3, init_heads(jax.random.key(1), 3, 8, 4))},
  ),
  "draft_model": lambda: (DraftModel(SMALL, 3), SMALL.init(1)),
  "fallback": lambda: (
    Fallback(PromptLookup(4, min_ngram=2), DraftModel(SMALL, 3)),
    (None, SMALL.init(1)),
  ),
  "pass": lambda: (PaSS(TABLE, 3), {"look_ahead": random_table(2, V)[:3]}),
  "prompt_lookup": lambda: (PromptLookup(4), None),
}
POLICIES = {
  "greedy": SamplingPolicy(),
  "sampled": SamplingPolicy(temperature=1.3),
  "truncated": SamplingPolicy(temperature=0.8, top_p=0.7, top_k=4),
  "penalised": SamplingPolicy(temperature=1.0, repetition_penalty=1.5, frequency_penalty=0.5),
}
# A text with a repeated pair, one without, and a single token.
TEXTS = {"repeats": [1, 2, 3, 4, 1, 2], "does not": [0, 1, 2, 3, 4, 5], "one token": [6]}


def make_context(text, policy, batch, capacity=32):
  policy = policy.resolve(batch, V, np.full(4, -1, np.int32))
  tokens = np.zeros((batch, capacity), np.int32)
  tokens[:, : len(text)] = text
  tokens, length = jnp.asarray(tokens), jnp.full((batch,), len(text), jnp.int32)
  return Context(
    tokens=tokens,
    length=length,
    prompt_length=length,
    limit=length + 12,
    active=jnp.ones((batch,), bool),
    hidden=jnp.zeros((batch, TARGET.hidden_size)),
    cache=TARGET.init_cache(batch, capacity),
    params={**TARGET.init(0), "table": random_table(1, V)},
    row_keys=jax.random.split(jax.random.key(3), batch),
    policy=policy,
    policy_context=sampling.initial_context(policy, tokens, length, length, V),
    vocab_size=V,
  )


def draft_of(name, text, policy, batch):
  drafter, params = EXAMPLES[name]()
  context = make_context(text, policy, batch)

  @jax.jit
  def run(params, context):
    state = drafter.init(params, context, 8)
    return drafter.draft(params, state, context), state

  (draft, after), before = run(params, context)
  return drafter, params, context, draft, before, after


def test_every_registered_drafter_has_an_example():
  assert set(EXAMPLES) == set(REGISTRY)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_drafted_tokens_have_the_law_that_the_draft_carries(name, policy, text):
  samples = 20_000
  _, _, _, draft, _, _ = draft_of(name, text, policy, samples)
  tokens, valid = np.asarray(draft.tokens), np.asarray(draft.valid)
  if draft.log_probs is None:
    # A point mass is a function of the prefix: the key must not matter.
    assert (valid == valid[0]).all()
    assert (tokens == tokens[0])[:, valid[0]].all()
    return
  law = np.exp(np.asarray(draft.log_probs, np.float64))
  for node in range(tokens.shape[1]):
    rows = valid[:, node]
    if not rows.any():
      continue
    np.testing.assert_allclose(law[rows, node].sum(-1), 1.0, atol=1e-5)
    drawn = np.eye(V)[tokens[rows, node]]
    expected = law[rows, node]
    assert not drawn[expected == 0].any(), "a token of probability 0 was drafted"
    variance = (expected * (1 - expected)).sum(0)
    deviation = np.abs((drawn - expected).sum(0))
    # Under the law a count is normal: 5 sigma, with room for the rare tokens' skewness.
    assert (deviation <= 5 * np.sqrt(variance) + 5).all()


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_draft_has_the_shape_that_the_drafter_declares(name, text):
  drafter, _, _, draft, before, after = draft_of(name, text, POLICIES["sampled"], 3)
  nodes = drafter.num_nodes
  for leaf in (draft.tokens, draft.parents, draft.valid):
    assert leaf.shape == (3, nodes)
  assert draft.tokens.dtype == draft.parents.dtype == jnp.int32
  assert draft.valid.dtype == bool
  if draft.log_probs is not None:
    assert draft.log_probs.shape == (3, nodes, V)
    assert draft.log_probs.dtype == jnp.float32
  for parents in np.asarray(draft.parents):
    depths = trees.static_depths(parents.tolist())
    assert max(depths, default=0) <= drafter.max_depth
    if drafter.is_chain:
      assert parents.tolist() == list(range(-1, nodes - 1))
  assert ((np.asarray(draft.tokens) >= 0) & (np.asarray(draft.tokens) < V)).all()
  same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), before, after)
  assert all(jax.tree.leaves(same)), "the state must keep its shapes: the loop carries it"


@pytest.mark.parametrize("name", EXAMPLES)
def test_update_keeps_the_states_shapes(name):
  drafter, params, context, draft, _, state = draft_of(
    name, TEXTS["repeats"], POLICIES["sampled"], 2
  )
  num_scored = 1 + drafter.num_nodes + drafter.num_probes
  hidden = jnp.zeros((2, num_scored, TARGET.hidden_size))
  verdict = Verdict(
    path=jnp.zeros((2, drafter.max_depth + 1), jnp.int32),
    num_accepted=jnp.zeros((2,), jnp.int32),
    next_token=jnp.zeros((2,), jnp.int32),
  )
  output = TargetOutput(
    hidden=hidden,
    layer_hidden=(hidden,) * len(drafter.hidden_layers),
    block=trees.block_of(context.length - 1, draft.parents),
  )
  after = dataclasses.replace(context, length=context.length + 1)
  updated = drafter.update(params, state, after, verdict, output)
  assert jax.tree.structure(updated) == jax.tree.structure(state)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_drafter_is_static_and_hashable(name):
  first, second = EXAMPLES[name]()[0], EXAMPLES[name]()[0]
  assert first == second and hash(first) == hash(second)
