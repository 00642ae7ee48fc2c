# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Blockwise parallel decoding against the paper's algorithm in plain Python."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import chi_square_p_value, sample_law
from toys import HistoryModel, TableModel, exact_law, random_table

import specjax
from specjax.drafters import Blockwise, Empty
from specjax.drafters.blockwise import head_outputs, init_heads
from specjax.models import Transformer, TransformerConfig
from specjax.sampling import SamplingPolicy
from specjax.training.objective import TrainedDrafter
from specjax.verifiers import GreedyMatch, TopKMatch

V, H = 4, 6
MODEL = HistoryModel(V)
PARAMS = MODEL.init(5)
PROMPTS = [[3, 0], [1, 2, 3, 1, 2], [0] * 9, [2, 1, 1]]


def random_heads(num_heads, hidden_size, width=H, seed=0, scale=0.7):
  """Heads in whose every parameter there is something to get wrong."""
  shapes = jax.eval_shape(lambda: init_heads(jax.random.key(0), num_heads, hidden_size, width))
  random = np.random.default_rng(seed)
  return jax.tree.map(
    lambda leaf: jnp.asarray(scale * random.standard_normal(leaf.shape), jnp.float32), shapes
  )


HEADS = random_heads(5, MODEL.hidden_size)


def generate(k, **options):
  options = {"capacity": 64, "max_new_tokens": 30, "verifier": GreedyMatch(), **options}
  drafter = Blockwise(MODEL, k - 1)
  return specjax.generate(
    MODEL, PARAMS, PROMPTS, drafter=drafter, drafter_params={"heads": HEADS}, **options
  )


# --- the oracle: section 3 of the paper ------------------------------------------------------


def hidden_after(sequence):
  total = np.zeros(MODEL.hidden_size)
  for position, token in enumerate(sequence):
    total += np.asarray(PARAMS["features"][token, position], np.float64)
  return np.sin(total)


def silu(x):
  return x / (1 + np.exp(-x))


def proposals(sequence, k):
  """p_1 .. p_k's tokens for the k places after `sequence`."""
  heads = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), HEADS)
  hidden, kernel = hidden_after(sequence), np.asarray(PARAMS["head"], np.float64)
  states = [hidden]
  inner = silu(hidden @ heads["hidden"]["kernel"] + heads["hidden"]["bias"])
  for i in range(k - 1):
    states.append(hidden + inner @ heads["output"]["kernel"][i] + heads["output"]["bias"][i])
  return [int(np.argmax(state @ kernel)) for state in states]


def blockwise_decoding(prompt, k, num_tokens):
  """Predict, verify, accept: two calls a block. Returns the new tokens and the calls.

  The last token of the prompt is the certain first token of the first block.
  """
  sequence, calls, first = list(prompt[:-1]), 0, prompt[-1]
  while True:
    block = proposals(sequence, k)
    calls += 1
    if first is not None:
      block[0], first = first, None
    accepted = 1
    while accepted < k:
      if block[accepted] != proposals(sequence + block[:accepted], 1)[0]:
        break
      accepted += 1
    calls += 1
    sequence += block[:accepted]
    # The first token of the next block is known already: p_1's, which is never rejected.
    known = sequence + proposals(sequence, 1)
    if len(known) >= len(prompt) + num_tokens:
      return known[len(prompt) : len(prompt) + num_tokens], calls


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_tokens_and_calls_are_those_of_the_papers_algorithm_with_merged_calls(k):
  generation = generate(k)
  expected = [blockwise_decoding(prompt, k, 30) for prompt in PROMPTS]
  assert generation.new_tokens() == [tokens for tokens, _ in expected]
  # Verification and the next prediction are one call: half as many.
  assert (2 * generation.target_calls).tolist() == [calls for _, calls in expected]
  if k > 1:
    assert 0 < float(generation.acceptance_rate.mean()) < 1


def test_one_head_is_plain_decoding():
  generation = generate(1)
  assert generation.target_calls.tolist() == [30] * len(PROMPTS)
  assert generation.drafted_tokens.tolist() == [0] * len(PROMPTS)


def test_a_prompt_of_one_token_has_no_state_to_draft_from():
  options = {"drafter": Blockwise(MODEL, 3), "drafter_params": {"heads": HEADS}}
  generation = specjax.generate(MODEL, PARAMS, [[2]], max_new_tokens=9, **options)
  assert generation.records.proposed[0, :3].tolist() == [0, 0, 3]
  assert generation.new_tokens() == [MODEL.reference_greedy(PARAMS, [2], 9)]


# --- a perfect drafter -----------------------------------------------------------------------


def cycle(k, scale=5.0):
  """A target that counts round 0 .. V - 1 and heads that know: hidden states are one-hot."""
  size = 7
  step = np.roll(np.eye(size), 1, axis=1)
  heads = {
    "hidden": {"kernel": np.eye(size), "bias": np.zeros(size)},
    "output": {
      "kernel": np.stack(
        [np.linalg.matrix_power(step, i) - np.eye(size) for i in range(1, k)]
        or np.zeros((0, size, size))
      ),
      "bias": np.zeros((k - 1, size)),
    },
  }
  heads = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), heads)
  model, params = TableModel(size), {"table": jnp.asarray(scale * step, jnp.float32)}
  return model, params, Blockwise(model, k - 1, "relu"), {"heads": heads}


@pytest.mark.parametrize("k", [2, 5])
def test_heads_that_are_right_commit_k_tokens_a_call(k):
  model, params, drafter, heads = cycle(k)
  generation = specjax.generate(
    model,
    params,
    [[0, 1], [5, 6, 0]],
    drafter=drafter,
    drafter_params=heads,
    max_new_tokens=6 * k,
  )
  assert generation.new_tokens()[0] == [(2 + i) % 7 for i in range(6 * k)]
  assert generation.target_calls.tolist() == [6, 6]
  assert generation.accepted_by_depth.tolist() == [[6] * (k - 1)] * 2


def test_the_minimum_block_counts_the_targets_own_token():
  model, params, drafter, heads = cycle(4)
  wrong = {"heads": jax.tree.map(jnp.zeros_like, heads["heads"])}
  generation = specjax.generate(
    model,
    params,
    [[0, 1]],
    drafter=drafter,
    drafter_params=wrong,
    verifier=TopKMatch(1, min_block_size=3),
    max_new_tokens=12,
  )
  assert generation.target_calls.tolist() == [4]
  assert generation.deviations.tolist() == [8]


# --- against a transformer --------------------------------------------------------------------

CONFIG = TransformerConfig(
  vocab_size=13,
  hidden_size=16,
  intermediate_size=24,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  max_positions=128,
  final_soft_cap=2.0,
)
TARGET = Transformer(CONFIG, dtype="float32")
TARGET_PARAMS = TARGET.init(jax.random.key(2))


def trained(num_heads=4, kept=None, **changes):
  """A trained file's content."""
  heads = random_heads(num_heads, CONFIG.hidden_size, scale=0.1)
  arrays = {
    f"{layer}/{name}": leaf.astype(jnp.bfloat16)
    for layer, leaves in heads.items()
    for name, leaf in leaves.items()
  }
  if kept is not None:
    arrays["kept"] = np.asarray(kept, np.int32)
  settings = {"draft_length": num_heads, "activation": "gelu"}
  drafter = TrainedDrafter(scheme="blockwise", settings=settings, arrays=arrays)
  return dataclasses.replace(drafter, **changes)


@pytest.mark.parametrize("kept", [None, [12, 3, 7, 5]], ids=["whole", "draft vocabulary"])
def test_exact_acceptance_gives_the_targets_own_greedy_output_bit_for_bit(kept):
  drafter, params = Blockwise.from_trained(trained(kept=kept), TARGET, TARGET_PARAMS)
  options = {"max_new_tokens": 24, "narrow": False, "verifier": GreedyMatch()}
  prompts = [[1, 5, 2], [7, 7, 7, 7, 0, 3]]
  ours = specjax.generate(
    TARGET, TARGET_PARAMS, prompts, drafter=drafter, drafter_params=params, **options
  )
  plain = specjax.generate(TARGET, TARGET_PARAMS, prompts, drafter=Empty(4), **options)
  assert ours.new_tokens() == plain.new_tokens()
  assert ours.new_log_probs() == plain.new_log_probs()
  assert int(ours.accepted_tokens.sum()) > 0


def drafts_of(drafter, params, hidden):
  """What is drafted from hidden states `[B, D]`."""
  batch = hidden.shape[0]
  session = specjax.open_session(
    TARGET, TARGET_PARAMS, [[1, 2]] * batch, drafter=Empty(), max_new_tokens=4
  )
  scheme, target_params, _, fixed = session._arguments
  context = session._state.context(scheme, target_params, fixed)
  return drafter.draft(params, (), dataclasses.replace(context, hidden=hidden))[0].tokens


def test_a_draft_vocabulary_proposes_the_best_token_that_it_holds():
  kept = [12, 3, 7, 5]
  hidden = jax.random.normal(jax.random.key(0), (32, CONFIG.hidden_size))
  whole, whole_params = Blockwise.from_trained(trained(), TARGET, TARGET_PARAMS)
  logits = TARGET.logits(TARGET_PARAMS, head_outputs(whole_params["heads"], hidden, "gelu"))
  restricted = np.asarray(kept)[np.asarray(logits)[..., kept].argmax(-1)]
  drafter, params = Blockwise.from_trained(trained(kept=kept), TARGET, TARGET_PARAMS)
  np.testing.assert_array_equal(drafts_of(drafter, params, hidden), restricted)
  np.testing.assert_array_equal(drafts_of(whole, whole_params, hidden), logits.argmax(-1))
  assert params["head"].shape == (CONFIG.hidden_size, 4)


def test_fewer_heads_of_a_file_are_its_nearest_ones():
  hidden = jax.random.normal(jax.random.key(1), (8, CONFIG.hidden_size))
  every, some = (
    Blockwise.from_trained(trained(), TARGET, TARGET_PARAMS, draft_length=length)
    for length in (None, 2)
  )
  assert every[0].draft_length == 4 and some[0].draft_length == 2
  np.testing.assert_array_equal(drafts_of(*every, hidden)[:, :2], drafts_of(*some, hidden))


def test_untrained_heads_are_the_target_itself():
  heads = init_heads(jax.random.key(0), 3, CONFIG.hidden_size, 8)
  hidden = jax.random.normal(jax.random.key(1), (2, 5, CONFIG.hidden_size))
  outputs = head_outputs(heads, hidden, "silu")
  np.testing.assert_array_equal(outputs, jnp.repeat(hidden[:, :, None], 3, axis=2))


def test_sampled_output_keeps_the_targets_law_under_rejection_sampling():
  model, table = TableModel(V), random_table(1, V)
  policy = SamplingPolicy(temperature=1.0)
  counts = sample_law(
    model,
    {"table": table},
    [0, 1],
    3,
    samples=60_000,
    policy=policy,
    drafter=Blockwise(model, 2),
    drafter_params={"heads": random_heads(2, V)},
  )
  assert chi_square_p_value(counts, exact_law(policy, table, [0, 1], 3)) > 1e-3


# --- what it refuses --------------------------------------------------------------------------


def without(name):
  full = trained()
  return dataclasses.replace(full, arrays={k: v for k, v in full.arrays.items() if k != name})


def with_array(name, value):
  full = trained()
  return dataclasses.replace(full, arrays={**full.arrays, name: value})


@pytest.mark.parametrize(
  ("broken", "match"),
  [
    (lambda: trained(scheme="pass"), "'blockwise'.*'pass'"),
    (lambda: without("hidden/kernel"), "'hidden/kernel' is missing"),
    (lambda: without("output/bias"), "'output/bias'.*missing"),
    (lambda: with_array("hidden/kernel", np.zeros((9, H))), "'hidden/kernel' has shape .9, 6."),
    (lambda: with_array("output/kernel", np.zeros((3, H, 16))), "'output/kernel' has shape"),
    (lambda: with_array("other", np.zeros(3)), "no array 'other'"),
    (lambda: trained(kept=[3, 3]), "once|twice"),
    (lambda: trained(kept=[3, 13]), "13"),
    (lambda: trained(settings={"activation": "tanh"}), "activation must be one of relu"),
  ],
)
def test_a_file_that_does_not_fit_the_target_is_refused_with_its_reason(broken, match):
  with pytest.raises(ValueError, match=match):
    Blockwise.from_trained(broken(), TARGET, TARGET_PARAMS)


def test_more_heads_than_the_file_has_are_refused():
  with pytest.raises(ValueError, match=r"draft_length must be at most 4.*got 5"):
    Blockwise.from_trained(trained(), TARGET, TARGET_PARAMS, draft_length=5)


def test_another_target_is_refused():
  with pytest.raises(ValueError, match="hidden_size 16, got 8"):
    Blockwise(TARGET, 2).check(HistoryModel(13))
  with pytest.raises(ValueError, match="vocab_size 13, got 5"):
    Blockwise(TARGET, 2).check(HistoryModel(5, hidden_size=16))


@pytest.mark.parametrize(
  ("arguments", "match"), [((-1,), "draft_length"), ((2, "sine"), "activation")]
)
def test_an_argument_out_of_range_is_named(arguments, match):
  with pytest.raises(ValueError, match=f"^{match} must be"):
    Blockwise(TARGET, *arguments)
