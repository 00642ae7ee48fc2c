# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings (Su et al. 2021), halves rotated against each other."""

import math

import jax.numpy as jnp
import numpy as np

from specjax.models.config import RopeScaling
from specjax.types import Array


def inverse_frequencies(
  head_dim: int, theta: float, scaling: RopeScaling | None = None
) -> np.ndarray:
  """Radians per position of each pair of dimensions: `[head_dim / 2]` float32."""
  exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
  frequencies = (1.0 / np.float32(theta) ** exponents).astype(np.float32)
  if scaling is None:
    return frequencies
  if scaling.kind == "linear":
    return (frequencies / np.float32(scaling.factor)).astype(np.float32)
  return _llama3(frequencies, scaling)


def _llama3(frequencies: np.ndarray, scaling: RopeScaling) -> np.ndarray:
  """Llama 3.1's rule: long waves are stretched, short ones kept, those between blended."""
  turns = scaling.original_max_positions * frequencies / (2 * math.pi)
  kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
  kept = np.clip(kept, 0.0, 1.0)
  return (kept * frequencies + (1 - kept) * frequencies / scaling.factor).astype(np.float32)


def rotation(positions: Array, frequencies: np.ndarray) -> tuple[Array, Array]:
  """Cosines and sines for `positions [B, T]`: two `[B, T, 1, head_dim / 2]` float32."""
  angles = positions.astype(jnp.float32)[:, :, None, None] * frequencies
  return jnp.cos(angles), jnp.sin(angles)


def rotate(heads: Array, cosines: Array, sines: Array) -> Array:
  """Rotates `heads [B, T, heads, head_dim]` by what `rotation` returned; keeps their dtype."""
  first, second = jnp.split(heads.astype(jnp.float32), 2, axis=-1)
  rotated = jnp.concatenate(
    [first * cosines - second * sines, second * cosines + first * sines], axis=-1
  )
  return rotated.astype(heads.dtype)
