# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The steps of a policy against those of `transformers` and against sorting."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from specjax import processors

INF = np.inf
LARGEST = np.finfo(np.float32).max


def _rows():
  rng = np.random.default_rng(0)

  def normal(size, scale):
    return rng.normal(size=size).astype(np.float32) * np.float32(scale)

  masked = normal(300, 3)
  masked[rng.random(300) < 0.9] = -INF
  return {
    "random": normal(1000, 3),
    "flat": normal(700, 0.01),
    "peaked": normal(520, 40),
    "ties": np.round(normal(777, 2)),
    "few_ties": np.float32([2, 2, 1, 1, 1, 0, 0, -1]),
    "all_equal": np.full(10, 1.5, np.float32),
    "all_equal_long": np.full(1000, -3, np.float32),
    "signed_zeros": np.float32([0, -0.0, 0, -0.0, -1, -0.0]),
    "neighbours": np.float32(1) + np.arange(8, -1, -1, dtype=np.float32) * np.float32(2**-23),
    "large": normal(100, 1) + np.float32(1e4),
    "very_negative": normal(100, 1) - np.float32(1e4),
    "huge_spread": np.float32([1e4, -1e4, 0, 1e4, 1e-30, -1e-30, 5, 9999]),
    "extremes": np.float32([LARGEST, -LARGEST, 0, 1]),
    "mostly_masked": masked,
    "one_left": np.float32([-INF, -INF, -7, -INF]),
    "single": np.float32([3]),
    "all_negative": -np.abs(normal(64, 5)) - 1,
  }


ROWS = _rows()
each_row = pytest.mark.parametrize("name", ROWS)


keep_top_k = jax.jit(processors.keep_top_k)
keep_top_p = jax.jit(processors.keep_top_p)
keep_min_p = jax.jit(processors.keep_min_p)


def both(step, number, warper, name):
  """Our step with its number and their warper on one row, each as NumPy."""
  row = ROWS[name]
  ours = np.asarray(step(jnp.asarray(row), number))
  tokens = torch.zeros((1, 1), dtype=torch.long)
  theirs = warper(tokens, torch.tensor(row[None])).numpy()[0]
  return ours, theirs


@each_row
@pytest.mark.parametrize("k", [1, 2, 5, 50, 10_000])
def test_top_k_keeps_what_transformers_keeps(name, k):
  ours, theirs = both(keep_top_k, jnp.int32(k), transformers.TopKLogitsWarper(k), name)
  np.testing.assert_array_equal(ours, theirs)


@each_row
@pytest.mark.parametrize("top_p", [1e-6, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.999])
def test_top_p_keeps_what_transformers_keeps(name, top_p, monkeypatch):
  arguments = keep_top_p, jnp.float32(1 - top_p), transformers.TopPLogitsWarper(top_p), name
  ours, theirs = both(*arguments)
  np.testing.assert_array_equal(np.sort(ours), np.sort(theirs))
  # Which of equal tokens stay depends on their sort, which promises no order. With a stable
  # one the same tokens stay.
  monkeypatch.setattr(torch, "sort", functools.partial(torch.sort, stable=True))
  ours, theirs = both(*arguments)
  np.testing.assert_array_equal(ours, theirs)


@each_row
@pytest.mark.parametrize("min_p", [0.0, 1e-3, 0.05, 0.5, 1.0])
def test_min_p_keeps_what_transformers_keeps(name, min_p):
  ours, theirs = both(keep_min_p, jnp.float32(min_p), transformers.MinPLogitsWarper(min_p), name)
  np.testing.assert_array_equal(ours, theirs)


@each_row
@pytest.mark.parametrize("temperature", [1e-3, 0.3, 1.0, 7.0])
def test_temperature_divides_as_in_transformers(name, temperature):
  warper = transformers.TemperatureLogitsWarper(temperature)
  ours, theirs = both(processors.divide_by_temperature, jnp.float32(temperature), warper, name)
  if np.isposinf(theirs).any():  # theirs overflows: the law would be NaN
    assert ours.argmax() == ROWS[name].argmax() and ours.max() == 0
  else:
    np.testing.assert_allclose(ours, theirs, rtol=2e-7)


@each_row
@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.3])
def test_repetition_penalty_is_that_of_transformers(name, penalty):
  row = ROWS[name]
  tokens = np.random.default_rng(1).integers(0, len(row), (1, 7))
  counts = jnp.asarray(np.bincount(tokens[0], minlength=len(row)), jnp.int32)
  ours = processors.repetition_penalty(jnp.asarray(row), counts, jnp.float32(penalty))
  warper = transformers.RepetitionPenaltyLogitsProcessor(penalty)
  theirs = warper(torch.tensor(tokens), torch.tensor(row[None])).numpy()[0]
  np.testing.assert_allclose(ours, theirs, rtol=2e-7)


def test_forbidden_tokens_are_those_that_transformers_suppresses():
  ids = jnp.array([0, 9, 9, 999, -1])
  warper = transformers.SuppressTokensLogitsProcessor([0, 9, 9, 999])
  ours, theirs = both(processors.mask_tokens, ids, warper, "random")
  np.testing.assert_array_equal(ours, theirs)


def sorted_top_p(row, tail):
  """The definition: walk up the sorted tokens until their probabilities exceed the tail."""
  row = row.astype(np.float64)
  probs = np.exp(row - row.max())
  probs /= probs.sum()
  kept = np.ones(len(row), bool)
  order = np.argsort(row, kind="stable")
  kept[order[:-1]] = np.cumsum(probs[order[:-1]]) > tail
  return kept


@pytest.mark.parametrize("seed", range(20))
def test_top_p_is_the_walk_over_sorted_tokens(seed):
  rng = np.random.default_rng(seed)
  size = [7, 300, 2999][seed % 3]
  row = (rng.normal(size=size) * rng.choice([0.5, 3, 20])).astype(np.float32)
  if seed % 2:  # many ties
    row = np.round(row)
  tail = rng.uniform(0.001, 0.999)
  ours = keep_top_p(jnp.asarray(row), jnp.float32(tail))
  np.testing.assert_array_equal(np.asarray(ours) > -INF, sorted_top_p(row, tail))


@pytest.mark.parametrize("size", [49_152, 100_003])
def test_top_k_and_top_p_are_exact_on_a_long_vocabulary(size):
  row = (np.random.default_rng(size).normal(size=size) * 3).astype(np.float32)
  by_k = keep_top_k(jnp.asarray(row), jnp.int32(50))
  np.testing.assert_array_equal(np.flatnonzero(by_k > -INF), np.sort(np.argsort(row)[-50:]))
  by_p = keep_top_p(jnp.asarray(row), jnp.float32(0.1))
  np.testing.assert_array_equal(np.asarray(by_p) > -INF, sorted_top_p(row, 0.1))


NEUTRAL = {
  "temperature": lambda row: processors.divide_by_temperature(row, jnp.float32(1)),
  "top_k_zero": lambda row: keep_top_k(row, jnp.int32(0)),
  "top_k_vocabulary": lambda row: keep_top_k(row, jnp.int32(row.shape[0])),
  "top_p": lambda row: keep_top_p(row, jnp.float32(0)),
  "min_p": lambda row: keep_min_p(row, jnp.float32(0)),
  "repetition": lambda row: processors.repetition_penalty(row, ones(row), jnp.float32(1)),
  "presence": lambda row: processors.presence_penalty(row, ones(row), jnp.float32(0)),
  "frequency": lambda row: processors.frequency_penalty(row, ones(row), jnp.float32(0)),
  "bias": lambda row: processors.add_bias(row, jnp.array([-1]), jnp.array([5.0])),
  "mask_none": lambda row: processors.mask_tokens(row, jnp.array([-1, -1])),
  "mask_inactive": lambda row: processors.mask_tokens(row, jnp.array([0]), jnp.array(False)),
  "force_none": lambda row: processors.force_token(row, jnp.int32(-1)),
}


def ones(row):
  return jnp.ones(row.shape, jnp.int32)


@each_row
@pytest.mark.parametrize("step", NEUTRAL)
def test_a_neutral_number_changes_no_bit(name, step):
  row = jnp.asarray(ROWS[name])
  np.testing.assert_array_equal(NEUTRAL[step](row), row)


@each_row
def test_softmax_and_log_softmax_agree_with_torch(name):
  row = ROWS[name]
  expected = torch.log_softmax(torch.tensor(row), dim=0).numpy()
  np.testing.assert_allclose(processors.log_softmax(jnp.asarray(row)), expected, rtol=1e-5)
  probs = processors.softmax(jnp.asarray(row))
  np.testing.assert_allclose(probs, np.exp(expected), rtol=3e-5, atol=1e-37)


def test_a_score_of_infinity_takes_all_probability():
  row = jnp.array([1.0, INF, -INF, INF])
  np.testing.assert_array_equal(processors.softmax(row), [0, 0.5, 0, 0.5])
  np.testing.assert_allclose(
    processors.log_softmax(row), [-INF, np.log(0.5), -INF, np.log(0.5)], rtol=1e-6
  )


@each_row
def test_first_argmax_is_argmax(name):
  row = jnp.asarray(ROWS[name])
  assert processors.first_argmax(row) == jnp.argmax(row)


def test_first_argmax_takes_the_first_of_equals_in_different_blocks():
  row = jnp.zeros(1000).at[jnp.array([400, 700, 999])].set(1.0)
  assert processors.first_argmax(row) == 400


@pytest.mark.parametrize("size", [1, 3, 4, 5, 10, 16])
def test_find_by_mass_gives_each_index_its_share_of_the_unit_square(size, monkeypatch):
  monkeypatch.setattr(processors, "_BLOCK", 4)
  weights = np.random.default_rng(size).exponential(size=size).astype(np.float32)
  weights[1::3] = 0
  side = 300
  grid = (np.arange(side, dtype=np.float32) + 0.5) / side
  uniforms = jnp.asarray(np.stack(np.meshgrid(grid, grid), axis=-1).reshape(-1, 2))
  found = jax.vmap(processors.find_by_mass, (None, 0))(jnp.asarray(weights), uniforms)
  share = np.bincount(found, minlength=size) / len(uniforms)
  np.testing.assert_allclose(share, weights / weights.sum(), atol=2 / side)
  assert share[weights == 0].sum() == 0


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])
def test_an_index_of_weight_zero_is_not_found_by_an_extreme_uniform(uniform):
  weights = np.zeros(1000, np.float32)
  find = jax.jit(processors.find_by_mass)
  for positive in ([500], [256, 700], [255, 256], [1, 998]):
    row = weights.copy()
    row[positive] = [1e-30, 1.0][: len(positive)]
    assert int(find(jnp.asarray(row), jnp.full((2,), uniform))) in positive


def test_forced_token_of_a_masked_score_is_the_only_one_left():
  row = processors.force_token(jnp.array([1.0, -INF, 2.0]), jnp.int32(1))
  np.testing.assert_array_equal(processors.softmax(row), [0, 1, 0])


def test_steps_give_the_same_under_vmap_as_alone():
  rows = jnp.asarray(np.random.default_rng(2).normal(size=(6, 500)).astype(np.float32) * 3)
  k = jnp.array([0, 1, 5, 50, 499, 500])
  tail = jnp.array([0.0, 0.9, 0.5, 0.1, 0.01, 0.999])

  def step(row, k, tail):
    row = processors.keep_top_p(processors.keep_top_k(row, k), tail)
    return processors.keep_min_p(row, jnp.float32(0.01))

  together = jax.jit(jax.vmap(step))(rows, k, tail)
  step = jax.jit(step)
  alone = [step(rows[index], k[index], tail[index]) for index in range(6)]
  np.testing.assert_array_equal(together, jnp.stack(alone))
