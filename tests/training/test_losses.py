# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The losses of distillation against their definitions, written out in NumPy."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.training import losses

V = 7
NAMES = ("forward_kl", "reverse_kl", "jensen_shannon", "total_variation")
DIVERGENCES = {name: getattr(losses, name) for name in NAMES}
DIVERGENCES["jensen_shannon 0.1"] = lambda q, p: losses.jensen_shannon(q, p, beta=0.1)


def softmax(values):
  weights = np.exp(values - np.max(values))
  return weights / weights.sum()


def kl(p, q):
  return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def oracle(name, p, q):
  """The definitions, term by term, of laws with all probabilities positive."""
  if name == "forward_kl":
    return kl(p, q)
  if name == "reverse_kl":
    return kl(q, p)
  if name.startswith("jensen_shannon"):
    beta = 0.1 if name.endswith("0.1") else 0.5
    m = [beta * a + (1 - beta) * b for a, b in zip(p, q, strict=True)]
    return beta * kl(p, m) + (1 - beta) * kl(q, m)
  return 1 - sum(min(a, b) for a, b in zip(p, q, strict=True))


def random_laws(seed, shape=(V,), scale=2.0):
  """A student's logits and a teacher's log-probabilities, NumPy float64."""
  random = np.random.default_rng(seed)
  logits = scale * random.standard_normal(shape)
  teacher = scale * random.standard_normal(shape)
  return logits, np.apply_along_axis(lambda row: np.log(softmax(row)), -1, teacher)


def as_jax(*arrays):
  return tuple(jnp.asarray(array, jnp.float32) for array in arrays)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_is_what_its_definition_says(name):
  logits, log_p = random_laws(0, (3, 4, V))
  found = DIVERGENCES[name](*as_jax(logits, log_p))
  assert found.shape == (3, 4) and found.dtype == jnp.float32
  for index in np.ndindex(3, 4):
    expected = oracle(name, np.exp(log_p[index]), softmax(logits[index]))
    np.testing.assert_allclose(found[index], expected, rtol=2e-5)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_draft_vocabulary_renormalises_the_teacher_except_for_the_total_variation(name):
  logits, log_p = random_laws(1)
  kept = np.array([0, 2, 3, 6])
  outside = np.setdiff1d(np.arange(V), kept)
  p, q = np.exp(log_p), softmax(logits[kept])
  if name == "total_variation":
    whole = np.zeros(V)
    whole[kept] = q
    expected = oracle(name, p, whole)
  else:
    expected = oracle(name, p[kept] / p[kept].sum(), q)
  masked = logits.copy()
  masked[outside] = -np.inf
  np.testing.assert_allclose(DIVERGENCES[name](*as_jax(masked, log_p)), expected, rtol=2e-5)
  # The same from the laws over the draft vocabulary alone.
  compact = DIVERGENCES[name](*as_jax(logits[kept], log_p[kept]))
  np.testing.assert_allclose(compact, expected, rtol=2e-5)


@pytest.mark.parametrize("name", DIVERGENCES)
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.1, 3.0, 30.0]))
def test_a_divergence_is_never_negative_and_zero_between_equals(name, seed, scale):
  logits, log_p = random_laws(seed, scale=scale)
  divergence = DIVERGENCES[name]
  assert float(divergence(*as_jax(logits, log_p))) > (0 if scale < 30 else -1e-6)
  (equal,) = as_jax(log_p)
  np.testing.assert_allclose(divergence(equal + 3.0, equal), 0.0, atol=1e-6)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_the_gradient_is_zero_between_equals(name):
  # Powers of two, which float32 holds exactly: the total variation has a kink at equality.
  (log_p,) = as_jax(np.log([0.5, 0.25, 0.125, 0.125]))
  gradient = jax.grad(DIVERGENCES[name])(jnp.log(jnp.exp(log_p)), jax.nn.log_softmax(log_p))
  np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "draft_vocabulary"])
@pytest.mark.parametrize("name", [*DIVERGENCES, "cross_entropy", "lumped"])
def test_gradients_are_those_of_finite_differences(name, masked):
  def loss(logits, log_p):
    if masked:
      logits = logits.at[jnp.array([1, 4])].set(-jnp.inf)
    if name == "cross_entropy":
      return losses.cross_entropy(logits, jnp.int32(3))
    if name == "lumped":
      ids = jnp.array([5, 1, 0], jnp.int32)
      return losses.forward_kl(*losses.lump_others(logits, ids, log_p[ids]))
    return DIVERGENCES[name](logits, log_p)

  with jax.enable_x64(True):
    logits, log_p = (jnp.asarray(array, jnp.float64) for array in random_laws(3))
    gradient = np.asarray(jax.grad(loss)(logits, log_p))
    expected = np.zeros(V)
    for index in range(V):
      step = np.zeros(V)
      step[index] = 1e-6
      expected[index] = (loss(logits + step, log_p) - loss(logits - step, log_p)) / 2e-6
  assert np.abs(expected).max() > 1e-3
  np.testing.assert_allclose(gradient, expected, atol=1e-8)


def test_jensen_shannon_at_one_half_is_symmetric():
  logits, log_p = random_laws(4)
  log_q = np.log(softmax(logits))
  one, other = as_jax(log_q, log_p)
  np.testing.assert_allclose(
    losses.jensen_shannon(one, other), losses.jensen_shannon(other, one), rtol=1e-6
  )
  skewed = losses.jensen_shannon(one, other, beta=0.1)
  assert abs(float(skewed - losses.jensen_shannon(other, one, beta=0.1))) > 1e-3


def test_jensen_shannon_has_the_two_divergences_as_its_limits():
  logits, log_p = random_laws(5)
  with jax.enable_x64(True):
    arrays = (jnp.asarray(logits, jnp.float64), jnp.asarray(log_p, jnp.float64))
    beta = 1e-6
    np.testing.assert_allclose(
      losses.jensen_shannon(*arrays, beta=beta) / beta, losses.forward_kl(*arrays), rtol=1e-4
    )
    np.testing.assert_allclose(
      losses.jensen_shannon(*arrays, beta=1 - beta) / beta, losses.reverse_kl(*arrays), rtol=1e-4
    )


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5, float("nan")])
def test_a_beta_outside_its_range_is_named(beta):
  with pytest.raises(ValueError, match=r"beta must be in \(0, 1\), got"):
    losses.jensen_shannon(jnp.zeros(3), jnp.zeros(3), beta=beta)


def test_cross_entropy_is_the_forward_divergence_from_a_point_mass():
  logits, _ = random_laws(6)
  for label in range(V):
    point_mass = np.full(V, -np.inf)
    point_mass[label] = 0.0
    expected = -math.log(softmax(logits)[label])
    (q, p) = as_jax(logits, point_mass)
    np.testing.assert_allclose(losses.cross_entropy(q, jnp.int32(label)), expected, rtol=1e-5)
    np.testing.assert_allclose(losses.forward_kl(q, p), expected, rtol=1e-4)


@pytest.mark.parametrize("label", [2, -1, V])
def test_a_label_outside_the_draft_vocabulary_costs_nothing(label):
  logits = jnp.zeros(V).at[2].set(-jnp.inf)
  value, gradient = jax.value_and_grad(losses.cross_entropy)(logits, jnp.int32(label))
  assert value == 0
  np.testing.assert_array_equal(gradient, 0.0)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_impossible_tokens_never_make_a_nan(name):
  """The student cannot draft what the teacher wants; the teacher excludes what it drafts."""
  logits = jnp.array([0.0, 90.0, -jnp.inf, -jnp.inf, -300.0, 1.0, -jnp.inf])
  teachers = {
    "another token": jnp.full(V, -jnp.inf).at[4].set(0.0),
    "outside": jnp.full(V, -jnp.inf).at[2].set(0.0),
  }
  for log_p in teachers.values():
    value, gradient = jax.value_and_grad(DIVERGENCES[name])(logits, log_p)
    assert np.isfinite(value) and value >= 0
    assert np.isfinite(np.asarray(gradient)).all()


@pytest.mark.parametrize("name", DIVERGENCES)
def test_lumping_no_token_changes_nothing(name):
  logits, log_p = random_laws(7)
  order = np.argsort(-log_p)
  student, teacher = losses.lump_others(
    *as_jax(logits), jnp.asarray(order, jnp.int32), *as_jax(log_p[order])
  )
  expected = DIVERGENCES[name](*as_jax(logits, log_p))
  np.testing.assert_allclose(DIVERGENCES[name](student, teacher), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_compressed_teacher_is_the_law_of_its_events(name):
  """Top 3, one of them outside the draft vocabulary; the others are one event."""
  logits, log_p = random_laws(8)
  top = np.argsort(-log_p)[:3]
  logits[top[1]] = -np.inf
  p, q = np.exp(log_p), softmax(logits)
  p_events = np.array([p[top[0]], p[top[2]], 1 - p[top].sum()])
  q_events = np.array([q[top[0]], q[top[2]], 1 - q[top].sum()])
  ids = np.where(np.arange(3) == 1, -1, top).astype(np.int32)
  found = DIVERGENCES[name](
    *losses.lump_others(*as_jax(logits), jnp.asarray(ids), *as_jax(log_p[top]))
  )
  if name == "total_variation":
    expected = np.maximum(q_events - p_events, 0).sum()
  else:
    expected = oracle(name, p_events / p_events.sum(), q_events)
  np.testing.assert_allclose(found, expected, rtol=1e-4)
  whole = DIVERGENCES[name](*as_jax(logits, log_p))
  if name == "total_variation":
    assert found <= whole + 1e-6, "lumping can only lose"
