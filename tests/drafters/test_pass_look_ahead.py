# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""PaSS against its algorithm in plain Python, over forward passes without a cache."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import chi_square_p_value, sample_law
from toys import TableModel, exact_law, random_table

import specjax
from specjax.drafters import Empty, Fallback, PaSS, PromptLookup
from specjax.drafters.pass_look_ahead import from_trained
from specjax.models import Transformer, TransformerConfig
from specjax.sampling import SamplingPolicy
from specjax.training.objective import TrainedDrafter
from specjax.types import Block

pytestmark = pytest.mark.usefixtures("fast_compilation")

V, L, WIDEST = 5, 3, 48
CONFIG = TransformerConfig(
  vocab_size=V,
  hidden_size=16,
  intermediate_size=24,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  max_positions=WIDEST,
)
MODEL = Transformer(CONFIG, dtype="float32")
PROMPTS = [[3], [1, 2, 3, 1, 2], [4] * 9, [0, 1, 2, 3, 4, 4, 0, 1, 2, 3, 0]]


@functools.cache
def params():
  weights = MODEL.init(jax.random.key(4))
  # Sharper than at initialisation, so that neither ties nor one constant token come out.
  return jax.tree.map(lambda leaf: 2.0 * leaf if leaf.ndim == 2 else leaf, weights)


@functools.cache
def drafter_params():
  """Look-ahead embeddings near those of tokens: some of their drafts are right, some are not."""
  tokens = MODEL.embed(params(), jnp.array([[0, 2, 4]]))[0]
  noise = jax.random.normal(jax.random.key(1), tokens.shape)
  return {"look_ahead": tokens + 0.3 * noise}


# --- the oracle -----------------------------------------------------------------------------


@jax.jit
def _forward(weights, embeddings):
  cache = MODEL.init_cache(1, WIDEST)
  block = Block.chain(jnp.zeros((1,), jnp.int32), WIDEST)
  return MODEL.logits(weights, MODEL.apply(weights, embeddings, block, cache).hidden)


def forward(tokens, num_look_ahead=0):
  """The best token after each of the inputs, by one full pass."""
  embeddings = np.zeros((1, WIDEST, CONFIG.hidden_size), np.float32)
  embeddings[0, : len(tokens)] = MODEL.embed(params(), jnp.array([tokens]))[0]
  used = len(tokens) + num_look_ahead
  embeddings[0, len(tokens) : used] = drafter_params()["look_ahead"][:num_look_ahead]
  logits = np.asarray(_forward(params(), embeddings))[0, :used]
  return logits.argmax(-1).tolist()


def accepted_by(sequence, drafts):
  """How many drafts the target agrees with, and its token after them."""
  best = forward(sequence + drafts)[len(sequence) - 1 :]
  accepted = 0
  while accepted < len(drafts) and drafts[accepted] == best[accepted]:
    accepted += 1
  return accepted, best[accepted]


def oracle_two_calls(prompt, num_tokens, look_ahead=L, eos=None):
  """The new tokens, the number of target calls, and the look-ahead drafts accepted in each."""
  sequence, limit, calls, hits = list(prompt), len(prompt) + num_tokens, 0, []
  while len(sequence) < limit:
    room = limit - len(sequence)
    drafts = []
    if room > 2:
      calls += 1
      drafts = forward(sequence, look_ahead)[len(sequence) - 1 :][: room - 1]
    calls += 1
    accepted, following = accepted_by(sequence, drafts)
    new = [*drafts[:accepted], following]
    if eos in new:
      new = new[: new.index(eos) + 1]
    hits.append(min(max(accepted - 1, 0), len(new)))
    sequence += new
    if eos in new:
      break
  return sequence[len(prompt) :], calls, hits


def oracle_merged(prompt, num_tokens, look_ahead=L):
  sequence, limit, calls, hits, next_drafts = list(prompt), len(prompt) + num_tokens, 0, [], []
  while len(sequence) < limit:
    drafts = next_drafts[: limit - len(sequence) - 1]
    calls += 1
    accepted, following = accepted_by(sequence, drafts)
    seen = sequence + drafts[:accepted]
    # Off the last accepted node: the token that the target adds is not known to them.
    next_drafts = forward(seen, look_ahead)[len(seen) :]
    sequence = [*seen, following]
    hits.append(accepted)
  return sequence[len(prompt) :], calls, hits


# --- greedy ---------------------------------------------------------------------------------


def generate(drafter, prompts=PROMPTS, **options):
  options = {"capacity": WIDEST + 16, "drafter_params": drafter_params(), **options}
  return specjax.generate(MODEL, params(), prompts, drafter=drafter, **options)


@pytest.mark.parametrize("look_ahead", [1, L], ids=["fewer than trained", "all"])
@pytest.mark.parametrize("merged", [False, True], ids=["two calls", "merged"])
def test_the_loop_does_what_the_algorithm_in_plain_python_does(merged, look_ahead):
  generation = generate(PaSS(MODEL, look_ahead, merged), max_new_tokens=24)
  oracle = oracle_merged if merged else oracle_two_calls
  seen = []
  for row, prompt in enumerate(PROMPTS):
    tokens, calls, hits = oracle(prompt, 24, look_ahead)
    assert generation.new_tokens()[row] == tokens
    assert int(generation.target_calls[row]) == calls
    assert int(generation.scoring_calls[row]) == len(hits)
    histogram = np.bincount(hits, minlength=look_ahead + 1)
    np.testing.assert_array_equal(generation.accepted_histogram[row], histogram)
    assert calls + sum(hits) == 24
    seen += hits
  assert {0, look_ahead} <= set(seen), "the example must show rejections and full acceptance"


@pytest.mark.parametrize("merged", [False, True], ids=["two calls", "merged"])
def test_greedy_text_is_the_empty_drafters_at_the_same_width(merged):
  drafter = PaSS(MODEL, L, merged)
  options = {"max_new_tokens": 30, "narrow": False}
  plain = generate(Empty(drafter.num_nodes + drafter.num_probes), drafter_params=None, **options)
  ours = generate(drafter, **options)
  assert ours.new_tokens() == plain.new_tokens()
  for a, b in zip(ours.new_log_probs(), plain.new_log_probs(), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("merged", [False, True], ids=["two calls", "merged"])
def test_rows_end_at_their_own_limit_and_at_the_end_of_sequence(merged):
  new = [0, 1, 2, 3, 17, 18]
  prompts = [PROMPTS[1]] * 6
  full, _, _ = oracle_two_calls(PROMPTS[1], 18)
  generation = generate(PaSS(MODEL, L, merged), prompts, max_new_tokens=new)
  assert generation.new_tokens() == [full[:n] for n in new]
  if not merged:
    calls = [oracle_two_calls(PROMPTS[1], n)[1] for n in new]
    assert calls[:4] == [0, 1, 2, 2]
    np.testing.assert_array_equal(generation.target_calls, calls)
  for eos in set(full):
    ended = full[: full.index(eos) + 1]
    generation = generate(PaSS(MODEL, L, merged), prompts, max_new_tokens=18, eos_ids=[eos])
    assert generation.new_tokens() == [ended] * 6
    if not merged:
      assert int(generation.target_calls[0]) == oracle_two_calls(PROMPTS[1], 18, eos=eos)[1]


def test_with_two_calls_every_iteration_with_room_commits_two_tokens_at_least():
  generation = generate(
    PaSS(MODEL, L),
    PROMPTS * 8,
    drafter_params=random_look_ahead(16),
    policy=SamplingPolicy(temperature=1.0),
    max_new_tokens=30,
  )
  rejections = 0
  for row, calls in enumerate(np.asarray(generation.scoring_calls)):
    call = np.asarray(generation.records.call)[row][np.asarray(generation.is_new)[row]]
    committed = np.bincount(call, minlength=calls)
    room = 30 - np.cumsum(committed) + committed
    assert (committed[room > 2] >= 2).all()
    rejections += (committed[room > 2] == 2).sum()
  assert rejections > 20
  # Tokens that the target gave for certain are its own, each paid with one of its calls.
  np.testing.assert_array_equal(
    generation.accepted_tokens + generation.target_calls, generation.num_new_tokens
  )


def test_look_ahead_entries_leave_no_trace_in_the_cache():
  def cache_after(drafter, weights):
    session = specjax.open_session(
      MODEL,
      params(),
      PROMPTS,
      drafter=drafter,
      drafter_params=weights,
      max_new_tokens=20,
      capacity=WIDEST + 16,
    )
    session.advance()
    return session._state.cache, np.asarray(session._state.length)

  plain, length = cache_after(Empty(), None)
  for merged in (False, True):
    ours, _ = cache_after(PaSS(MODEL, L, merged), drafter_params())
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
      for row, end in enumerate(length - 1):
        np.testing.assert_allclose(a[row, :, :end], b[row, :, :end], atol=1e-5)


# --- sampled --------------------------------------------------------------------------------


def random_look_ahead(width, seed=2):
  random = np.random.default_rng(seed)
  return {"look_ahead": jnp.asarray(random.standard_normal((L, width)), jnp.float32)}


POLICIES = {
  "plain": SamplingPolicy(temperature=1.0),
  "truncated": SamplingPolicy(temperature=0.8, top_k=2),
  "penalised": SamplingPolicy(temperature=1.0, repetition_penalty=1.7, frequency_penalty=0.5),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("merged", [False, True], ids=["two calls", "merged"])
def test_sampled_output_has_the_targets_law(merged, policy):
  model, table = TableModel(3), random_table(1, 3, scale=1.0)
  counts = sample_law(
    model,
    {"table": table},
    [1, 0],
    5,
    samples=20_000,
    drafter=PaSS(model, 2, merged),
    drafter_params=random_look_ahead(3),
    policy=policy,
  )
  assert chi_square_p_value(counts, exact_law(policy, table, [1, 0], 5)) > 1e-4


@pytest.mark.parametrize("merged", [False, True], ids=["two calls", "merged"])
def test_sampled_output_has_the_targets_law_on_a_model_with_a_cache(merged):
  prompt, num_tokens = [2, 0, 1], 4
  endings = np.array(list(itertools.product(range(V), repeat=num_tokens)))
  sequences = np.concatenate([np.tile(prompt, (len(endings), 1)), endings], axis=1)
  sequences = jnp.asarray(sequences, jnp.int32)
  batch, width = sequences.shape
  block = Block.chain(jnp.zeros((batch,), jnp.int32), width)
  output = MODEL.apply(params(), sequences, block, MODEL.init_cache(batch, width))
  logs = jax.nn.log_softmax(MODEL.logits(params(), output.hidden))
  logs = np.take_along_axis(np.asarray(logs)[:, :-1], np.asarray(sequences)[:, 1:, None], 2)
  law = np.exp(logs[:, len(prompt) - 1 :, 0].astype(np.float64).sum(1))
  counts = sample_law(
    MODEL,
    params(),
    prompt,
    num_tokens,
    samples=8_000,
    capacity=16 + num_tokens,
    drafter=PaSS(MODEL, 2, merged),
    drafter_params=drafter_params(),
    policy=POLICIES["plain"],
  )
  law = dict(zip(map(tuple, endings.tolist()), (law / law.sum()).tolist(), strict=True))
  assert chi_square_p_value(counts, law) > 1e-4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("merged", [False, True], ids=["two calls", "merged"])
def test_the_policy_knows_the_drafted_tokens_before_each_other_one(merged, temperature):
  """A target that says the same after every input: only penalties tell its tokens apart."""
  model = TableModel(6)
  generation = specjax.generate(
    model,
    {"table": jnp.tile(random_table(0, 6)[:1], (6, 1))},
    [[1], [2, 2, 0]],
    drafter=PaSS(model, L, merged),
    drafter_params={"look_ahead": jnp.eye(6)[:L]},
    policy=SamplingPolicy(temperature, frequency_penalty=1.3, presence_penalty=0.4),
    max_new_tokens=25,
  )
  assert len(set(generation.new_tokens()[0])) > 2
  np.testing.assert_array_equal(generation.acceptance_rate, [1.0, 1.0])


# --- what it refuses ------------------------------------------------------------------------


def test_another_target_than_its_own_is_refused():
  other = Transformer(CONFIG, dtype="bfloat16")
  with pytest.raises(ValueError, match="model of PaSS must be the target"):
    PaSS(MODEL, L).check(other)


def test_two_calls_need_a_cache_that_is_undone_by_length():
  model = TableModel(3, position_addressed=False)
  PaSS(model, L, merged=True).check(model)
  with pytest.raises(ValueError, match="merged=True"):
    PaSS(model, L).check(model)


def test_parameters_of_another_shape_are_refused():
  for shape in ((2, 16), (L, 15), (16,)):
    with pytest.raises(ValueError, match=r"at least 3, 16"):
      generate(PaSS(MODEL, L), drafter_params={"look_ahead": jnp.zeros(shape)}, max_new_tokens=3)
  with pytest.raises(ValueError, match="drafter_params of PaSS"):
    generate(PaSS(MODEL, L), drafter_params=None, max_new_tokens=3)


def test_a_fallback_takes_no_drafter_that_calls_the_target():
  with pytest.raises(ValueError, match="plain chains"):
    Fallback(PromptLookup(), PaSS(MODEL, L))


@pytest.mark.parametrize("length", [0, 2.0])
def test_a_look_ahead_below_one_is_refused(length):
  with pytest.raises(ValueError, match="look_ahead must be an integer >= 1"):
    PaSS(MODEL, length)


def trained(scheme="pass", width=16):
  return TrainedDrafter(scheme, {}, {"look_ahead": np.ones((L, width), np.float32)})


def test_a_trained_drafter_is_built_for_its_target():
  drafter, weights = from_trained(trained(), MODEL, None)
  assert drafter == PaSS(MODEL, L) and weights["look_ahead"].shape == (L, 16)
  drafter, _ = from_trained(trained(), MODEL, None, look_ahead=2, merged=True)
  assert drafter == PaSS(MODEL, 2, merged=True)


def test_a_trained_drafter_that_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="scheme"):
    from_trained(trained("blockwise"), MODEL, None)
  with pytest.raises(ValueError, match=r"\[L, 16\].*\(3, 17\)"):
    from_trained(trained(width=17), MODEL, None)
  with pytest.raises(ValueError, match="at most 3"):
    from_trained(trained(), MODEL, None, look_ahead=4)
