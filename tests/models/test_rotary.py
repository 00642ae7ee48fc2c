# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary embeddings against rotation by complex numbers, and scaling against its definition."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models.config import RopeScaling
from specjax.models.rotary import inverse_frequencies, rotate, rotation


def test_rotation_multiplies_complex_pairs_by_a_unit_number():
  random = np.random.default_rng(0)
  heads = random.standard_normal((2, 3, 4, 8)).astype(np.float32)
  positions = np.array([[0, 7, 3], [1, 100, 5]], np.int32)
  frequencies = inverse_frequencies(8, 50.0)
  got = rotate(jnp.asarray(heads), *rotation(jnp.asarray(positions), frequencies))
  pairs = heads[..., :4] + 1j * heads[..., 4:]
  turned = pairs * np.exp(1j * positions[:, :, None, None] * frequencies)
  np.testing.assert_allclose(got[..., :4], turned.real, atol=1e-5)
  np.testing.assert_allclose(got[..., 4:], turned.imag, atol=1e-5)


def test_frequencies_fall_geometrically():
  np.testing.assert_allclose(inverse_frequencies(4, 100.0), [1.0, 0.1], rtol=1e-6)


def test_linear_scaling_is_the_same_as_dividing_positions():
  scaled = inverse_frequencies(8, 50.0, RopeScaling("linear", 4.0))
  np.testing.assert_allclose(scaled * 8, inverse_frequencies(8, 50.0) * 2, rtol=1e-6)


def test_llama3_scaling_stretches_long_waves_only():
  scaling = RopeScaling("llama3", 8.0, 1.0, 4.0, original_max_positions=64)
  plain, scaled = inverse_frequencies(64, 1e4), inverse_frequencies(64, 1e4, scaling)
  waves = 2 * math.pi / plain
  short, long = waves < 64 / 4, waves > 64 / 1
  between = ~short & ~long
  assert short.any() and long.any() and between.any()
  np.testing.assert_allclose(scaled[short], plain[short], rtol=1e-6)
  np.testing.assert_allclose(scaled[long], plain[long] / 8, rtol=1e-6)
  assert np.all((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8))
  assert np.all(np.diff(scaled) < 0)


def test_positions_past_the_integers_of_bfloat16_are_exact():
  """Angles are in float32 whatever the model's dtype: int32 positions at 2^17 (PITFALLS)."""
  positions = jnp.array([[2**17, 2**17 + 1]], jnp.int32)
  cosines, _ = rotation(positions, np.array([1.0], np.float32))
  expected = np.cos(np.array([2.0**17, 2.0**17 + 1]))
  np.testing.assert_allclose(cosines[0, :, 0, 0], expected, atol=1e-3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rotation_keeps_the_dtype_of_the_heads(dtype):
  heads = jnp.ones((1, 1, 1, 4), dtype)
  turned = rotate(heads, *rotation(jnp.zeros((1, 1), jnp.int32), inverse_frequencies(4, 10.0)))
  assert turned.dtype == dtype
  np.testing.assert_array_equal(turned, heads)
