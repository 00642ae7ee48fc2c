# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The sampling policy in batches: rows, keys, draws, compilation, derivatives."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import chi_square_p_value

from specjax import sampling
from specjax.sampling import SamplingPolicy

pytestmark = pytest.mark.usefixtures("fast_compilation")

V = 12
NEUTRAL, EXAMPLES = 0, slice(1, None)


def prefer_low(scores, context):
  del context
  return scores - 0.3 * jnp.arange(scores.shape[0], dtype=jnp.float32)


END = 3


# For each field its neutral value, and values that change the law of `LOGITS` after `TOKENS`.
FIELDS = {
  "temperature": [1.0, 0.0, 0.4, 3.0],
  "top_k": [0, 1, 4],
  "top_p": [1.0, 0.3, 0.8],
  "min_p": [0.0, 0.2, 1.0],
  "repetition_penalty": [1.0, 0.6, 1.7],
  "presence_penalty": [0.0, -0.5, 1.5],
  "frequency_penalty": [0.0, -0.5, 1.5],
  "min_new_tokens": [0, 3],
  "forbidden_tokens": [[], [0, 3], [7]],
  "forced_tokens": [[], [-1, -1, 5], [1, 2, 8, 9]],
  "logit_bias": [{}, {3: 2.0}, {3: -1.0, 8: 0.5}],
  "processor": [None, prefer_low],
}
SET_BY_RESOLVE = {"tail", "eos_ids", "sampled"}
PER_ROW = [name for name in FIELDS if name not in ("logit_bias", "processor")]
TOKENS = [5, 0, 3, 3, 7]
PROMPT_LENGTH = 3
LOGITS = jnp.asarray(np.random.default_rng(0).normal(size=V) * 2, jnp.float32)


@jax.jit
def laws_of(policy, context, logits):
  return jnp.exp(jax.vmap(sampling.log_probs)(policy, logits, context))


def laws(policy, batch, logits=LOGITS):
  """The distributions `[B, V]` of rows that differ in the policy alone."""
  policy = policy.resolve(batch, V, [END])
  tokens = jnp.broadcast_to(jnp.array(TOKENS), (batch, len(TOKENS)))
  lengths = jnp.full((batch,), len(TOKENS)), jnp.full((batch,), PROMPT_LENGTH)
  context = sampling.initial_context(policy, tokens, *lengths, V)
  return np.asarray(laws_of(policy, context, jnp.broadcast_to(logits, (batch, V))))


def with_field(name, value):
  return SamplingPolicy(**{"temperature": 1.0, name: value})


def test_every_field_of_the_policy_has_its_examples_here():
  names = {field.name for field in dataclasses.fields(SamplingPolicy)}
  assert names - SET_BY_RESOLVE == set(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_changes_the_law_and_none_is_ignored(name):
  plain = laws(SamplingPolicy(1.0), 1)[0]
  np.testing.assert_array_equal(laws(with_field(name, FIELDS[name][NEUTRAL]), 1)[0], plain)
  found = [laws(with_field(name, value), 1)[0] for value in FIELDS[name][EXAMPLES]]
  for row in found:
    assert np.abs(row - plain).max() > 1e-3
    np.testing.assert_allclose(row.sum(), 1, rtol=1e-5)
  if len(found) > 1:
    assert np.abs(found[0] - found[1]).max() > 1e-3


@pytest.mark.parametrize("name", PER_ROW)
def test_a_row_has_its_own_value_of_every_field(name):
  values = FIELDS[name]
  together = laws(with_field(name, values), len(values))
  alone = [laws(with_field(name, value), 1)[0] for value in values]
  np.testing.assert_allclose(together, alone, rtol=1e-6)
  np.testing.assert_array_equal(together == 0, np.array(alone) == 0)


def test_a_bias_may_differ_from_row_to_row():
  together = laws(SamplingPolicy(1.0, logit_bias={3: [2.0, 0.0], 8: -1.0}), 2)
  alone = [laws(SamplingPolicy(1.0, logit_bias={3: b, 8: -1.0}), 1)[0] for b in (2.0, 0.0)]
  np.testing.assert_allclose(together, alone, rtol=1e-6)


def test_settings_follow_their_row_when_rows_are_shuffled_and_padded():
  rng = np.random.default_rng(1)
  batch, padded = 4, 6
  numbers = {name: FIELDS[name] for name in PER_ROW}
  rows = [
    {name: values[rng.integers(len(values))] for name, values in numbers.items()}
    for _ in range(batch)
  ]
  for row in rows:  # a token must not be both
    row["forbidden_tokens"] = [t for t in row["forbidden_tokens"] if t not in row["forced_tokens"]]
  logits = jnp.asarray(rng.normal(size=(batch, V)) * 2, jnp.float32)
  alone = [laws(SamplingPolicy(**row), 1, logits[i])[0] for i, row in enumerate(rows)]
  order = rng.permutation(batch)
  padding = {name: values[NEUTRAL] for name, values in numbers.items()} | {"temperature": 0.0}
  shuffled = [rows[i] for i in order] + [padding] * (padded - batch)
  policy = SamplingPolicy(**{name: [row[name] for row in shuffled] for name in numbers})
  everything = jnp.zeros((padded, V)).at[:batch].set(logits[order])
  found = laws(policy, padded, everything)
  np.testing.assert_allclose(found[:batch], np.array(alone)[order], rtol=1e-6)
  assert np.isfinite(found).all()


def test_new_numbers_compile_nothing():
  traces = []

  @jax.jit
  def step(policy, context, logits):
    traces.append(1)
    return jax.vmap(sampling.log_probs)(policy, logits, context)

  def run(seed):
    rng = np.random.default_rng(seed)
    policy = SamplingPolicy(
      rng.uniform(0, 2, 3) * (np.arange(3) != seed % 3),
      top_k=rng.integers(1, V, 3),
      top_p=rng.uniform(0.1, 0.9),
      min_p=float(rng.uniform(0.1, 0.9)),
      repetition_penalty=rng.uniform(0.5, 2, 3).tolist(),
      frequency_penalty=jnp.float32(rng.uniform(0.5, 1)),
      min_new_tokens=int(rng.integers(1, 9)),
      forbidden_tokens=rng.integers(0, V, 1 + seed % 3),
      logit_bias={int(rng.integers(V)): 0.5},
    ).resolve(3, V, [END] if seed % 2 else [0, 1, -1])
    context = sampling.initial_context(
      policy, jnp.ones((3, 4), jnp.int32), jnp.full((3,), 4), jnp.full((3,), 2), V
    )
    assert np.isfinite(np.exp(step(policy, context, jnp.zeros((3, V))))).all()

  for seed in range(6):
    run(seed)
  assert len(traces) == 1


def test_numbers_traced_from_outside_give_the_same_law():
  values = {name: FIELDS[name][1] for name in PER_ROW if name != "forced_tokens"}
  values["temperature"] = 0.7
  values = {name: np.asarray(value) for name, value in values.items()}
  values = {k: v.astype(np.float32) if v.dtype == float else v for k, v in values.items()}
  traced = jax.jit(lambda values: SamplingPolicy(**values).resolve(1, V, [END]))(values)
  expected = laws(SamplingPolicy(**values), 1)
  np.testing.assert_allclose(laws(traced, 1), expected, rtol=1e-5)


def test_derivatives_of_the_law_are_finite():
  policy = SamplingPolicy(
    [0.0, 0.7],
    top_k=5,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    forbidden_tokens=[2],
    min_new_tokens=9,
  ).resolve(2, V, [END])
  tokens = jnp.broadcast_to(jnp.array(TOKENS), (2, 5))
  context = sampling.initial_context(policy, tokens, jnp.full((2,), 5), jnp.full((2,), 3), V)

  def loss(numbers, logits):
    log_probs = jax.vmap(sampling.log_probs)(
      dataclasses.replace(policy, **numbers), logits, context
    )
    return jnp.sum(jnp.where(log_probs > -jnp.inf, log_probs, 0.0) ** 2)

  names = ("temperature", "repetition_penalty", "frequency_penalty", "min_p", "tail")
  numbers = {name: jnp.asarray(getattr(policy, name)) for name in names}
  gradients = jax.jit(jax.grad(loss, (0, 1)))(numbers, jnp.stack([LOGITS, LOGITS]))
  for leaf in jax.tree.leaves(gradients):
    assert np.isfinite(leaf).all()
  np.testing.assert_array_equal(gradients[1][0], 0)  # the greedy row
  assert np.abs(gradients[1][1]).max() > 0


# --- draws ---------------------------------------------------------------------------------


def counts_of(draw, argument, samples, seed=0):
  keys = sampling.row_keys(jax.random.key(seed), samples)
  tokens = jax.jit(jax.vmap(draw, (0, None)))(keys, argument)
  return np.bincount(tokens, minlength=argument.shape[0])


@pytest.mark.parametrize("size", [2, 7, 300, 1000])
def test_draws_have_the_law(size):
  rng = np.random.default_rng(size)
  weights = rng.exponential(size=size).astype(np.float32)
  weights[rng.random(size) < 0.3] = 0
  weights[:2] = 1
  law = np.float64(weights) / np.float64(weights).sum()
  for draw, argument in (
    (sampling.sample_from_weights, weights * 7),
    (sampling.draw, np.log(np.where(law > 0, law, 1)) + np.where(law > 0, 0, -np.inf)),
  ):
    counts = counts_of(draw, jnp.asarray(argument, jnp.float32), 20_000)
    found = collections.Counter({token: int(n) for token, n in enumerate(counts) if n})
    assert chi_square_p_value(found, dict(enumerate(law))) > 1e-3


def test_tokens_that_top_k_masked_never_come_out():
  policy = SamplingPolicy(5.0, top_k=4)
  law = laws(policy, 1)[0]
  counts = counts_of(sampling.draw, jnp.log(law), 100_000)
  kept = np.argsort(LOGITS)[-4:]
  assert counts[kept].sum() == 100_000
  # After a rejection too: the residual keeps the zeros.
  residual = np.maximum(law - 0.2, 0) * 1e-20
  counts = counts_of(sampling.sample_from_weights, jnp.asarray(residual, jnp.float32), 100_000)
  assert counts[residual > 0].sum() == 100_000


def test_a_point_mass_always_gives_its_token():
  log_probs = jnp.full((700,), -jnp.inf).at[600].set(0.0)
  assert counts_of(sampling.draw, log_probs, 1000)[600] == 1000


def test_a_row_has_the_same_key_in_a_batch_of_any_size():
  key = jax.random.key(5)
  data = jax.random.key_data(sampling.row_keys(key, 8))
  np.testing.assert_array_equal(jax.random.key_data(sampling.row_keys(key, 3)), data[:3])
  assert len({tuple(row) for row in data.tolist()}) == 8


def test_positions_and_streams_have_keys_of_their_own():
  keys = {
    tuple(jax.random.key_data(sampling.position_key(row_key, position, stream)).tolist())
    for row_key in sampling.row_keys(jax.random.key(0), 2)
    for position in (0, 1, 1000)
    for stream in (sampling.DRAFT, sampling.ACCEPT, sampling.NEXT)
  }
  assert len(keys) == 2 * 3 * 3
