# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The sampling policy: the law that it gives the next token, row by row."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from laws import chi_square_p_value

from specjax import sampling
from specjax.sampling import SamplingPolicy

V = 12
row_log_probs = jax.jit(jax.vmap(sampling.log_probs))
row_greedy = jax.jit(jax.vmap(sampling.greedy))
greedy = jax.jit(sampling.greedy)
draw_rows = jax.jit(jax.vmap(sampling.draw, (0, None)))


def random_logits(batch, seed=0, size=V):
  return jnp.asarray(np.random.default_rng(seed).normal(size=(batch, size)) * 2, jnp.float32)


@functools.partial(jax.jit, static_argnums=4)
def context_at(policy, tokens, length, prompt_length, size):
  lengths = jnp.full(tokens.shape[:1], length), jnp.full(tokens.shape[:1], prompt_length)
  return sampling.initial_context(policy, tokens, *lengths, size)


def context_of(policy, tokens, prompt_length=None, size=V):
  """The context of rows that have these tokens `[B, S]`, in a buffer with room to spare."""
  tokens = np.asarray(tokens, np.int32)
  length = tokens.shape[1]
  buffer = np.pad(tokens, ((0, 0), (0, 20 - length)))
  return context_at(
    policy, buffer, length, length if prompt_length is None else prompt_length, size
  )


def law(policy, logits, tokens=(1,), prompt_length=None, eos_ids=None):
  """The distribution `[V]` of one row."""
  resolved = policy.resolve(1, len(logits), eos_ids)
  context = context_of(resolved, [tokens], prompt_length, len(logits))
  return np.exp(row_log_probs(resolved, jnp.asarray(logits, jnp.float32)[None], context)[0])


def draws(log_probs, count, seed=0):
  """`count` draws of one law, as counts `[V]`."""
  keys = sampling.row_keys(jax.random.key(seed), count)
  tokens = draw_rows(keys, log_probs)
  return np.bincount(tokens, minlength=log_probs.shape[0])


def assert_law(counts, expected):
  """The counts fit the law (chi-square), and nothing of probability 0 came out."""
  found = collections.Counter({token: int(n) for token, n in enumerate(counts) if n})
  assert chi_square_p_value(found, dict(enumerate(np.float64(expected)))) > 1e-3


# --- the law -------------------------------------------------------------------------------


def reference_log_probs(logits, tokens, prompt_length, eos_ids, settings):
  """The same settings through the processors of `transformers`, in its order."""
  steps = [
    transformers.RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]),
    transformers.MinNewTokensLengthLogitsProcessor(
      prompt_length, settings["min_new_tokens"], eos_ids
    ),
    transformers.SuppressTokensLogitsProcessor(settings["forbidden_tokens"]),
    transformers.TemperatureLogitsWarper(settings["temperature"]),
    transformers.TopKLogitsWarper(settings["top_k"]),
    transformers.TopPLogitsWarper(settings["top_p"]),
    transformers.MinPLogitsWarper(settings["min_p"]),
  ]
  scores = torch.tensor(np.asarray(logits))[None]
  for step in steps:
    scores = step(torch.tensor([tokens]), scores)
  return torch.log_softmax(scores, dim=-1)[0].numpy()


@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4])
@pytest.mark.parametrize("seed", range(6))
def test_law_is_that_of_transformers_for_random_settings(seed, scale, monkeypatch):
  monkeypatch.setattr(torch, "sort", functools.partial(torch.sort, stable=True))
  rng = np.random.default_rng(seed)
  size, prompt_length = 200, 4
  logits = (rng.normal(size=size) * scale).astype(np.float32)
  if seed % 2:
    logits = np.round(logits)
  tokens = rng.integers(0, size, 9).tolist()
  settings = {
    "temperature": rng.uniform(0.2, 2),
    "top_k": int(rng.integers(1, 150)),
    "top_p": rng.uniform(0.3, 0.99),
    "min_p": rng.uniform(0, 0.2),
    "repetition_penalty": rng.uniform(0.7, 1.5),
    "min_new_tokens": int(rng.integers(4, 7)),
    "forbidden_tokens": rng.integers(0, size, 5).tolist(),
  }
  eos_ids = rng.integers(0, size, 2).tolist()
  policy = SamplingPolicy(**settings).resolve(1, size, eos_ids)
  context = context_of(policy, [tokens], prompt_length, size)
  ours = np.asarray(row_log_probs(policy, jnp.asarray(logits)[None], context)[0])
  theirs = reference_log_probs(logits, tokens, prompt_length, eos_ids, settings)
  np.testing.assert_array_equal(ours == -np.inf, theirs == -np.inf)
  np.testing.assert_allclose(np.exp(ours), np.exp(theirs), rtol=1e-4, atol=1e-7)


def test_temperature_comes_before_top_p():
  expected = [0.62245933, 0.37754067, 0]
  np.testing.assert_allclose(law(SamplingPolicy(2.0, top_p=0.6), [2, 1, 0]), expected, rtol=1e-5)


@pytest.mark.parametrize("top_p", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
def test_top_p_is_subtracted_from_one_before_it_is_rounded(top_p):
  # 1 - 0.8 is less than 0.2 when 0.8 is rounded to float32 first: of ten equally likely tokens
  # nine would be kept.
  warper = transformers.TopPLogitsWarper(top_p)
  expected = torch.softmax(warper(torch.tensor([[0]]), torch.zeros(1, 10)), dim=-1)[0]
  np.testing.assert_allclose(law(SamplingPolicy(1.0, top_p=top_p), np.zeros(10)), expected, 1e-5)


def test_law_after_all_warpers_is_the_one_worked_out_by_hand():
  # At temperature 0.5 the weights are 8, 4, 2, 1, 0.5; the best three have 8, 4 and 2 of 14;
  # the last 2/14 fit into the tail of 0.2; 4/8 passes min_p. What is left is 8 and 4 of 12.
  logits = np.log(np.sqrt([1, 8, 0.5, 2, 4]))
  policy = SamplingPolicy(0.5, top_k=3, top_p=0.8, min_p=0.05)
  np.testing.assert_allclose(law(policy, logits), [0, 8 / 12, 0, 0, 4 / 12], rtol=1e-5)


def test_penalties_are_those_of_their_documentation():
  logits = np.array([2.0, -2.0, 1.0, 0.5])
  tokens, prompt_length = [0, 1, 1, 2, 2, 1], 3  # the prompt is 0 1 1; generated are 2 2 1
  policy = SamplingPolicy(1.0, repetition_penalty=2.0, presence_penalty=0.25, frequency_penalty=0.5)
  scores = [2 / 2, -2 * 2 - 0.25 - 0.5, 1 / 2 - 0.25 - 2 * 0.5, 0.5]
  expected = np.exp(scores) / np.exp(scores).sum()
  np.testing.assert_allclose(law(policy, logits, tokens, prompt_length), expected, rtol=1e-5)


def test_bias_is_added_to_the_logits():
  logits = np.zeros(4)
  policy = SamplingPolicy(1.0, logit_bias={2: np.log(3), 0: float("-inf")})
  np.testing.assert_allclose(law(policy, logits), [0, 0.2, 0.6, 0.2], rtol=1e-5)


def test_forced_tokens_come_at_their_positions_whatever_the_logits():
  policy = SamplingPolicy([0.0, 1.0], forced_tokens=[3, -1, 5]).resolve(2, V, None)
  logits = random_logits(2).at[:, [3, 5]].set(-jnp.inf)
  free = row_log_probs(
    SamplingPolicy([0.0, 1.0]).resolve(2, V, None),
    logits,
    context_of(SamplingPolicy().resolve(2, V, None), [[1], [1]]),
  )
  for new_tokens, forced in enumerate([3, None, 5, None, None]):
    context = context_of(policy, [[1] * (2 + new_tokens)] * 2, 2)
    found = row_log_probs(policy, logits, context)
    if forced is None:
      np.testing.assert_array_equal(found, free)
    else:
      np.testing.assert_array_equal(jnp.exp(found), jax.nn.one_hot(jnp.full(2, forced), V))


def test_forbidden_tokens_have_probability_zero_in_every_row_that_forbids_them():
  policy = SamplingPolicy([0.0, 1.0, 1.0], forbidden_tokens=[[0, 1], [2], []]).resolve(3, V, None)
  logits = random_logits(3).at[:, :3].add(50.0)
  found = np.exp(row_log_probs(policy, logits, context_of(policy, [[1]] * 3)))
  assert found[0].argmax() == 2
  assert found[1, 2] == 0 and found[1, :2].sum() > 0.99
  assert found[2, :3].sum() > 0.99


# --- temperature ---------------------------------------------------------------------------


def test_the_default_policy_is_greedy_and_temperature_one_samples():
  logits = random_logits(1)[0]
  counts = draws(jnp.log(law(SamplingPolicy(), logits)), 200)
  assert counts[jnp.argmax(logits)] == 200
  assert np.count_nonzero(draws(jnp.log(law(SamplingPolicy(1.0), logits)), 200)) > 1


def test_greedy_rows_beside_sampled_ones_are_greedy_for_every_seed():
  policy = SamplingPolicy([0, 1, 0.3, 0, 0], top_k=[3, 0, 5, 0, 1]).resolve(5, V, None)
  logits = random_logits(5).at[4].set(0.0)  # the last row is padding
  log_probs = row_log_probs(policy, logits, context_of(policy, [[1]] * 5))
  keys = sampling.row_keys(jax.random.key(3), 500).reshape(100, 5)
  draw_batches = jax.jit(jax.vmap(jax.vmap(sampling.draw), (0, None)))
  tokens = np.asarray(draw_batches(keys, log_probs))
  for row in (0, 3, 4):
    assert set(tokens[:, row].tolist()) == {int(jnp.argmax(logits[row]))}
  assert len(set(tokens[:, 1].tolist())) > 1
  assert_law(draws(log_probs[1], 20_000), np.asarray(jax.nn.softmax(logits[1])))


@pytest.mark.parametrize("temperature", [1e-8, 1e-30, 1e-38, 1e-45, 1e-60])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4, 1e30])
def test_a_tiny_temperature_is_finite_and_greedy(temperature, scale):
  logits = np.float32([-3, 5, 4.9, -np.inf, 0]) * np.float32(scale)
  policy = SamplingPolicy([temperature], top_k=4, top_p=0.9, min_p=0.1)
  np.testing.assert_array_equal(law(policy, logits), [0, 1, 0, 0, 0])


def test_the_first_of_equally_good_tokens_is_the_greedy_one():
  np.testing.assert_array_equal(law(SamplingPolicy(), [1, 7, 7, 7]), [0, 1, 0, 0])
  np.testing.assert_allclose(law(SamplingPolicy(1e-8), [1, 7, 7, 7]), [0, 1 / 3, 1 / 3, 1 / 3])


def test_a_greedy_policy_has_the_law_of_its_own_greedy_token():
  policy = SamplingPolicy(1.0, forbidden_tokens=[4], repetition_penalty=3.0).resolve(4, V, None)
  logits = random_logits(4)
  context = context_of(policy, np.arange(12).reshape(4, 3))
  tokens = row_greedy(policy, logits, context)
  log_probs = row_log_probs(policy.as_greedy(), logits, context)
  np.testing.assert_array_equal(jnp.exp(log_probs), jax.nn.one_hot(tokens, V))
  assert not policy.as_greedy().sampled


# --- end of sequence -----------------------------------------------------------------------


def test_an_end_is_masked_until_that_many_new_tokens_stand():
  logits = np.zeros(5)
  policy = SamplingPolicy(1.0, min_new_tokens=5)
  for prompt_length in (1, 10):
    for new_tokens in range(8):
      tokens = [1] * (prompt_length + new_tokens)
      probs = law(policy, logits, tokens, prompt_length, eos_ids=[2, 4, -1])
      expected = [1 / 3, 1 / 3, 0, 1 / 3, 0] if new_tokens < 5 else [0.2] * 5
      np.testing.assert_allclose(probs, expected, rtol=1e-5)


def test_min_new_tokens_counts_within_a_block():
  # Four tokens accepted in one step leave the fifth as the first that may end the row.
  policy = SamplingPolicy(min_new_tokens=4).resolve(1, V, [0])
  context = jax.tree.map(lambda leaf: leaf[0], context_of(policy, [[1, 2, 3]]))
  policy = jax.tree.map(lambda leaf: leaf[0], policy)
  logits = jnp.zeros(V).at[0].set(9.0)
  ends = []
  for token in (3, 4, 5, 6, 7):
    ends.append(int(greedy(policy, logits, context)) == 0)
    context = context.advance(jnp.int32(token))
  assert ends == [False, False, False, False, True]


@pytest.mark.parametrize("eos_ids", [None, [], [-1], np.array([-1, -1])])
def test_without_an_end_token_the_last_of_the_vocabulary_stays_usable(eos_ids):
  policy = SamplingPolicy(1.0, min_new_tokens=3)
  np.testing.assert_allclose(law(policy, np.zeros(5), [1] * 10, 10, eos_ids), [0.2] * 5, rtol=1e-5)
  traced = jax.jit(lambda eos_ids: policy.resolve(1, 5, eos_ids))(jnp.array([-1, -1]))
  probs = jnp.exp(row_log_probs(traced, jnp.zeros((1, 5)), context_of(traced, [[1]], size=5)))
  np.testing.assert_allclose(probs[0], [0.2] * 5, rtol=1e-5)


# --- the context ---------------------------------------------------------------------------

COUNTING = SamplingPolicy(repetition_penalty=1.5, presence_penalty=0.1, frequency_penalty=0.2)


def test_counts_are_of_the_tokens_before_the_length_only():
  policy = COUNTING.resolve(2, 6, None)
  tokens = jnp.array([[3, 3, 1, 5, 5, 5], [0, 1, 2, 9, -1, 0]])
  context = sampling.initial_context(policy, tokens, jnp.array([3, 5]), jnp.array([2, 1]), 6)
  np.testing.assert_array_equal(context.counts, [[0, 1, 0, 2, 0, 0], [1, 1, 1, 0, 0, 0]])
  np.testing.assert_array_equal(context.prompt_counts, [[0, 0, 0, 2, 0, 0], [1, 0, 0, 0, 0, 0]])


def test_counts_after_each_token_of_a_block_are_those_of_a_fresh_start():
  policy = COUNTING.resolve(1, V, None)
  tokens = jnp.array([[4, 4, 2, 2, 2, 7, 4, 0]])
  advanced = jax.tree.map(lambda leaf: leaf[0], context_of(policy, tokens[:, :3]))
  for length in range(3, 9):
    fresh = sampling.initial_context(policy, tokens, jnp.array([length]), jnp.array([3]), V)
    for name in ("length", "prompt_length", "counts", "prompt_counts"):
      np.testing.assert_array_equal(getattr(advanced, name), getattr(fresh, name)[0])
    if length < 8:
      advanced = advanced.advance(tokens[0, length])


def test_a_rejected_draft_leaves_no_trace_in_the_counts():
  policy = COUNTING.resolve(1, V, None)
  context = jax.tree.map(lambda leaf: leaf[0], context_of(policy, [[4, 4, 2]]))
  before = np.asarray(context.counts).copy()
  context.advance(jnp.int32(7)).advance(jnp.int32(7))
  np.testing.assert_array_equal(context.counts, before)
  assert context.length == 3


def test_greedy_along_a_block_with_penalties_is_greedy_token_by_token():
  size, steps = 6, 12
  table = random_logits(size, seed=5, size=size)
  policy = COUNTING.resolve(1, size, None)
  tokens = [2]
  for _ in range(steps):  # plain: everything counted anew at each token
    context = context_of(policy, [tokens], 1, size)
    token = row_greedy(policy, table[jnp.array([tokens[-1]])], context)
    tokens.append(int(token[0]))

  def step(carry, _):
    token, context = carry
    token = sampling.greedy(jax.tree.map(lambda leaf: leaf[0], policy), table[token], context)
    return (token, context.advance(token)), token

  start = jax.tree.map(lambda leaf: leaf[0], context_of(policy, [[2]], 1, size))
  _, along = jax.lax.scan(step, (jnp.int32(2), start), None, length=steps)
  assert along.tolist() == tokens[1:]
  assert len(set(tokens)) > 2


def test_the_context_holds_only_what_the_policy_asks_for():
  plain = context_of(SamplingPolicy(0.7, top_p=0.9, min_new_tokens=2).resolve(1, V, [1]), [[1]])
  assert plain.counts is None and plain.prompt_counts is None and plain.tokens is None
  repeats = context_of(SamplingPolicy(repetition_penalty=2).resolve(1, V, None), [[1]])
  assert repeats.counts is not None and repeats.prompt_counts is None


def test_a_context_without_the_counts_that_a_penalty_needs_is_refused():
  policy = COUNTING.resolve(1, V, None)
  context = context_of(SamplingPolicy().resolve(1, V, None), [[1]])
  with pytest.raises(ValueError, match="context must hold counts"):
    row_log_probs(policy, random_logits(1), context)


def test_a_policy_that_is_not_resolved_is_refused():
  context = context_of(SamplingPolicy().resolve(1, V, None), [[1]])
  with pytest.raises(ValueError, match="policy must be resolved"):
    sampling.log_probs(SamplingPolicy(1.0), random_logits(1)[0], context)
  with pytest.raises(ValueError, match="must be one row"):
    sampling.log_probs(SamplingPolicy(1.0).resolve(1, V, None), random_logits(1), context)


# --- a user's function ---------------------------------------------------------------------


def only_even(scores, context):
  del context
  return jnp.where(jnp.arange(scores.shape[0]) % 2 == 0, scores, -jnp.inf)


def alternate(scores, context):
  """The regular language (ab)*: 0 after anything but 0, and 1 after 0."""
  last = context.tokens[context.length - 1]
  return jnp.where(jnp.arange(scores.shape[0]) == jnp.where(last == 0, 1, 0), scores, -jnp.inf)


def wrong_shape(scores, context):
  del context
  return scores[:-1]


def mask_all(scores, context):
  del context
  return jnp.full_like(scores, -jnp.inf)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_users_function_is_applied_at_every_position_of_a_block(temperature):
  policy = SamplingPolicy(temperature, processor=only_even).resolve(3, V, None)
  context = context_of(policy, [[1]] * 3)
  blocks = random_logits(15).reshape(3, 5, V)
  over_positions = jax.vmap(sampling.log_probs, (None, 0, None))
  probs = np.exp(jax.vmap(over_positions)(policy, blocks, context))
  assert (probs[..., 1::2] == 0).all()
  np.testing.assert_allclose(probs.sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_that_reads_the_context_keeps_a_block_in_a_regular_language(temperature):
  policy = SamplingPolicy(temperature, processor=alternate).resolve(1, V, None)
  tokens = jnp.zeros((1, 12), jnp.int32).at[0, 0].set(1)
  context = sampling.initial_context(policy, tokens, jnp.array([1]), jnp.array([1]), V)
  context, policy = jax.tree.map(lambda leaf: leaf[0], (context, policy))
  for position in range(1, 12):
    key = sampling.position_key(jax.random.key(0), context.length, sampling.DRAFT)
    logits = random_logits(1, seed=position)[0]
    context = context.advance(sampling.draw(key, sampling.log_probs(policy, logits, context)))
  assert context.tokens.tolist() == [1] + [0, 1] * 5 + [0]


def test_a_users_function_of_the_wrong_shape_is_refused():
  with pytest.raises(ValueError, match=r"processor must return scores of shape \(12,\), got \(11,"):
    law(SamplingPolicy(processor=wrong_shape), random_logits(1)[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_token_left_is_token_zero_and_never_a_nan(temperature):
  policy = SamplingPolicy(temperature, top_k=3, top_p=0.9, min_p=0.1, processor=mask_all)
  np.testing.assert_array_equal(law(policy, np.zeros(4)), [1, 0, 0, 0])
