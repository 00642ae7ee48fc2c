# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import HistoryModel, ScriptedDrafter, TableModel, TableTree, random_table

import specjax
from specjax import tracing
from specjax.drafters import REGISTRY, Blockwise, DraftModel, Empty, Fallback, PaSS, PromptLookup
from specjax.drafters.blockwise import init_heads
from specjax.sampling import SamplingPolicy
from specjax.verifiers import TopKMatch

pytestmark = pytest.mark.usefixtures("fast_compilation")

V = 7
TABLE = TableModel(V)
PARAMS = {"table": random_table(1, V)}
DRAFT_PARAMS = {"table": random_table(1, V) + random_table(4, V, scale=0.7)}
TARGET, SMALL = np.asarray(PARAMS["table"]), np.asarray(DRAFT_PARAMS["table"])
PROMPTS = [[1, 2, 3, 1, 2], [5], [0, 1, 2, 3, 4, 5, 6, 0, 1]]
TREE = TableTree((-1, -1, 0, 0, 1), "without_replacement")
FEW = TableTree((-1, -1, 0), "top")
# Every drafter of the registry; those with two ways to draft, both; and token trees.
DRAFTERS = {
  "autoregressive": lambda: (Empty(), None),
  "blockwise": lambda: (
    Blockwise(TABLE, 3),
    {"heads": jax.tree.map(lambda x: x + 0.3, init_heads(jax.random.key(1), 3, V, 4))},
  ),
  "draft_model": lambda: (DraftModel(TABLE, 3), DRAFT_PARAMS),
  "fallback": lambda: (
    Fallback(PromptLookup(4), DraftModel(TABLE, 3)),
    (None, DRAFT_PARAMS),
  ),
  "pass": lambda: (PaSS(TABLE, 2), {"look_ahead": jnp.eye(V)[:2]}),
  "pass, merged": lambda: (PaSS(TABLE, 2, merged=True), {"look_ahead": jnp.eye(V)[:2]}),
  "prompt_lookup": lambda: (PromptLookup(3), None),
  "tree of draws": lambda: (TREE, DRAFT_PARAMS),
}
# Compiling is what takes time: the others have greedy rows only, and of those only one is generated
# too. What greedy rows must hold is known without.
SAMPLED = ("draft_model", "tree of draws")
GENERATED = ("draft_model", "pass, merged", "tree of draws")


@pytest.fixture(scope="module")
def traces():
  """By drafter: three rows, the second and third sampled for `SAMPLED`, traced and generated."""
  made = {}

  def make(name):
    if name not in made:
      drafter, params = DRAFTERS[name]()
      options = {
        "drafter": drafter,
        "drafter_params": params,
        "policy": SamplingPolicy(temperature=[0.0, 1.0, 0.7] if name in SAMPLED else 0.0),
        "max_new_tokens": [16, 11, 1],
        "capacity": 64,
        "key": 5,
      }
      session = tracing.open_trace(TABLE, PARAMS, PROMPTS, **options)
      rounds = list(session.rounds())
      generated = specjax.generate(TABLE, PARAMS, PROMPTS, **options) if name in GENERATED else None
      made[name] = (drafter, rounds, session.generation(), jax.device_get(generated))
    return made[name]

  return make


def probabilities(logits):
  weights = np.exp(np.asarray(logits, np.float64))
  return weights / weights.sum()


def likeliest(token):
  return int(np.argmax(TARGET[token]))


def steps_of(rounds, row):
  return [one.steps[row] for one in rounds if one.steps[row] is not None]


def walk(step, newest, next_of):
  """The slow verifier: outcomes of a draft and the own token's, where `next_of` decides."""
  outcomes, current, last = ["unreached"] * len(step.nodes), -1, newest
  refused = False
  for index, node in enumerate(step.nodes):
    if node.parent == current:
      if node.token == next_of(last):
        outcomes[index], current, last, refused = "accepted", index, node.token, False
      else:
        outcomes[index], refused = "rejected", True
  own = "corrected" if refused else "bonus" if current >= 0 else "undrafted"
  return outcomes, own, next_of(last)


def test_the_drafters_here_are_all_of_the_registry():
  assert set(REGISTRY) <= set(DRAFTERS)


@pytest.mark.parametrize("name", GENERATED)
def test_a_trace_has_the_tokens_and_the_records_that_generate_has(traces, name):
  _, _, traced, generated = traces(name)
  assert traced.new_tokens() == generated.new_tokens()
  for a, b in zip(jax.tree.leaves(traced), jax.tree.leaves(generated), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_steps_of_a_row_join_to_its_tokens(traces, name):
  _, rounds, generation, _ = traces(name)
  for row, tokens in enumerate(generation.new_tokens()):
    steps = steps_of(rounds, row)
    assert [token for step in steps for token in step.tokens] == tokens
    if row == 0 or name not in SAMPLED:
      before = [PROMPTS[row][-1], *tokens[:-1]]
      assert tokens == [likeliest(token) for token in before]
    lengths = np.cumsum([len(PROMPTS[row])] + [len(step.tokens) for step in steps])
    assert [step.length for step in steps] == lengths[:-1].tolist()
    assert [step.finish_reason for step in steps] == ["running"] * (len(steps) - 1) + ["length"]
  assert [one.index for one in rounds] == list(range(len(rounds)))
  assert all(one.seconds > 0 for one in rounds)


@pytest.mark.parametrize("name", DRAFTERS)
def test_the_steps_add_up_to_the_statistics(traces, name):
  drafter, rounds, generation, _ = traces(name)
  for row in range(len(PROMPTS)):
    steps = steps_of(rounds, row)
    outcomes = [node.outcome for step in steps for node in step.nodes]
    assert len(steps) == generation.scoring_calls[row]
    assert outcomes.count("accepted") == generation.accepted_tokens[row]
    if not drafter.certain_nodes:
      assert len(outcomes) == generation.drafted_tokens[row]
    for step in steps:
      kept = [step.nodes[index].token for index in step.path]
      own = [] if step.own is None else [step.own.token]
      assert step.tokens == (*kept, *own)
      assert [step.nodes[index].parent for index in step.path] == [-1, *step.path][: len(kept)]


@pytest.mark.parametrize("name", DRAFTERS)
def test_outcomes_of_a_greedy_row_are_those_of_a_walk_through_the_draft(traces, name):
  drafter, rounds, _, _ = traces(name)
  newest, seen = PROMPTS[0][-1], set()
  for step in steps_of(rounds, 0):
    outcomes, own, token = walk(step, newest, likeliest)
    found = [node.outcome for node in step.nodes]
    if drafter.certain_nodes and found:
      assert (found[0], outcomes[0]) == ("certain", "accepted")
      found[0] = "accepted"
    assert found == outcomes
    assert (step.own.outcome, step.own.token) == (own, token)
    seen |= {*found, own}
    newest = step.tokens[-1]
  if name == "tree of draws":
    assert seen == {"accepted", "rejected", "unreached", "corrected", "bonus", "undrafted"}
  if name == "autoregressive":
    assert seen == {"undrafted"}


@pytest.mark.parametrize("name", [*SAMPLED, "prompt_lookup"])
def test_probabilities_are_those_that_target_and_drafter_gave(traces, name):
  _, rounds, _, _ = traces(name)
  temperature = {0: 1.0, 1: 1.0, 2: 0.7 if name in SAMPLED else 1.0}
  for row in range(len(PROMPTS)):
    sampled = row > 0 and name in SAMPLED
    newest = PROMPTS[row][-1]
    for step in steps_of(rounds, row):
      taken = {}
      for node in step.nodes:
        last = newest if node.parent < 0 else step.nodes[node.parent].token
        law = probabilities(TARGET[last] / temperature[row])
        assert np.exp(node.target_log_prob) == pytest.approx(law[node.token], abs=1e-5)
        if name == "prompt_lookup":
          assert node.draft_log_prob is None
        elif sampled:
          q = probabilities(SMALL[last] / temperature[row])
          q[taken.get(node.parent, [])] = 0  # of siblings: drawn without replacement
          expected = q[node.token] / q.sum()
          assert np.exp(node.draft_log_prob) == pytest.approx(expected, abs=1e-5)
        taken.setdefault(node.parent, []).append(node.token)
      if step.own is not None:
        last = step.nodes[step.path[-1]].token if step.path else newest
        law = probabilities(TARGET[last] / temperature[row])
        assert np.exp(step.own.target_log_prob) == pytest.approx(law[step.own.token], abs=1e-5)
      newest = step.tokens[-1]


def test_a_penalty_is_in_the_targets_probability():
  policy = SamplingPolicy(temperature=1.0, frequency_penalty=2.0)
  options = {"policy": policy, "max_new_tokens": 6, "capacity": 64}
  session = tracing.open_trace(
    TABLE, PARAMS, [[2]], **options, drafter=FEW, drafter_params=DRAFT_PARAMS
  )
  text = [2]
  for one in session.rounds():
    (step,) = one.steps
    for node in step.nodes:
      above, place = [], node.parent
      while place >= 0:
        above, place = [step.nodes[place].token, *above], step.nodes[place].parent
      sequence = [*text, *above]
      counts = np.bincount(sequence[1:], minlength=V)
      law = probabilities(TARGET[sequence[-1]] - 2.0 * counts)
      assert np.exp(node.target_log_prob) == pytest.approx(law[node.token], abs=1e-5)
    text += step.tokens


def test_tokens_after_the_end_of_sequence_are_cut_and_there_is_no_own_token():
  script = jnp.asarray([[0, 3, 4, 5, 6, 0, 1, 2, 3, 4]], jnp.int32)
  follows = {"table": 9.0 * jnp.eye(V)[(jnp.arange(V) + 1) % V]}
  session = tracing.open_trace(
    TABLE,
    follows,
    [[2]],
    drafter=ScriptedDrafter(4),
    drafter_params=script,
    eos_ids=[5],
    max_new_tokens=9,
    capacity=64,
  )
  (only,) = session.rounds()
  (step,) = only.steps
  assert [node.outcome for node in step.nodes] == ["accepted", "accepted", "accepted", "cut"]
  assert (step.tokens, step.own, step.finish_reason) == ((3, 4, 5), None, "eos")
  assert not session.running
  with pytest.raises(ValueError, match="every row has ended"):
    session.run_round()


def test_a_row_that_has_ended_has_no_step(traces):
  _, rounds, _, _ = traces("draft_model")
  assert len(rounds) > 1
  assert [one.steps[2] is None for one in rounds] == [False] + [True] * (len(rounds) - 1)


def test_a_lossy_verifier_says_which_accepted_tokens_deviate():
  session = tracing.open_trace(
    TABLE,
    PARAMS,
    [[1]],
    drafter=FEW,
    drafter_params=DRAFT_PARAMS,
    verifier=TopKMatch(3),
    max_new_tokens=24,
    capacity=64,
  )
  newest, found = 1, []
  for one in session.rounds():
    (step,) = one.steps
    for node in step.nodes:
      last = newest if node.parent < 0 else step.nodes[node.parent].token
      other = node.token != likeliest(last)
      assert node.deviates == (other and node.outcome == "accepted")
      found.append(node.deviates)
    newest = step.tokens[-1]
  assert 0 < sum(found) == int(session.generation().deviations[0])


def test_a_model_that_reads_its_cache_is_traced_right_with_a_tree():
  model = HistoryModel(V)
  params = model.init(0)
  session = tracing.open_trace(
    model,
    params,
    [[3, 1]],
    drafter=FEW,
    drafter_params=DRAFT_PARAMS,
    max_new_tokens=12,
    capacity=64,
  )
  for _ in session.rounds():
    pass
  assert session.generation().new_tokens() == [model.reference_greedy(params, [3, 1], 12)]


def test_nothing_to_decode_has_no_round():
  session = tracing.open_trace(TABLE, PARAMS, [[1]], max_new_tokens=0, capacity=64)
  assert list(session.rounds()) == []
