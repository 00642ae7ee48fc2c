# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Losses over a large vocabulary, for a frozen output head: without keeping its logits.

A text's logits are hundreds of times larger than its hidden states. Here they exist for a few
hundred places at a time, and the gradient of a place's loss is taken together with the loss.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from specjax.types import Array, PyTree

# Few enough places for their logits to stay in a processor's caches.
_CHUNK = 256

Judge = Callable[[PyTree, Array, PyTree], tuple[Array, Array]]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def score_in_chunks(
  judge: Judge, frozen: PyTree, hidden: Array, teacher: PyTree
) -> tuple[Array, Array]:
  """`judge` over n places, some at a time, with a gradient for `hidden` alone.

  Args:
    judge: static and hashable, `(frozen, hidden [c, D], teacher [c, ...]) -> (values, matched)`,
      where entry i of either `[c]` result depends on entry i of the arrays alone.
    frozen: parameters of the head. Nothing in them gets a gradient.
    hidden: `[n, D]`.
    teacher: a pytree of `[n, ...]`; without a gradient.

  Returns:
    `values [n]` float32 and `matched [n]`, as `judge` gives them.
  """
  return _in_chunks(partial(judge, frozen), hidden, teacher)


def _score_forward(
  judge: Judge, frozen: PyTree, hidden: Array, teacher: PyTree
) -> tuple[tuple[Array, Array], Array]:
  def with_slope(hidden, teacher):
    values, pullback, matched = jax.vjp(lambda x: judge(frozen, x, teacher), hidden, has_aux=True)
    # The loss of a place depends on its own state only: one pullback of ones has all slopes.
    (slope,) = pullback(jnp.ones_like(values))
    return values, matched, slope

  values, matched, slope = _in_chunks(with_slope, hidden, teacher)
  return (values, matched), slope


def _score_backward(
  judge: Judge, slope: Array, cotangents: tuple[Array, Array]
) -> tuple[None, Array, None]:
  del judge
  return None, slope * cotangents[0][:, None].astype(slope.dtype), None


score_in_chunks.defvjp(_score_forward, _score_backward)


def _in_chunks(function: Callable[..., PyTree], *arrays: PyTree) -> PyTree:
  """`function` over the leading axis of `arrays`, `_CHUNK` entries at a time."""
  count = jax.tree.leaves(arrays)[0].shape[0]
  if count <= _CHUNK:
    return function(*arrays)
  num_chunks = -(-count // _CHUNK)

  def split(leaf):
    padding = [(0, num_chunks * _CHUNK - count)] + [(0, 0)] * (leaf.ndim - 1)
    return jnp.pad(leaf, padding).reshape(num_chunks, _CHUNK, *leaf.shape[1:])

  results = jax.lax.map(lambda chunk: function(*chunk), jax.tree.map(split, arrays))
  return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)
