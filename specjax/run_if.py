# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A conditional that updates a cache in place."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.types import Array, Cache, PyTree


def run_if(
  condition: Array,
  call: Callable[[Cache], tuple[PyTree, Cache]],
  cache: Cache,
  otherwise: PyTree | None = None,
) -> tuple[PyTree, Cache]:
  """`call(cache)` if the condition holds, else `otherwise` and the cache as it is.

  XLA copies a buffer into and out of the branches of a conditional, but not into and out of the
  body of a while loop: this is a loop that runs once or never.

  Args:
    condition: `[]` bool.
    call: returns its results and the cache with what it wrote.
    cache: the cache.
    otherwise: results of the same shapes; None stands for zeros.
  """
  if otherwise is None:
    shapes, _ = jax.eval_shape(call, cache)
    otherwise = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

  def once(carry):
    return jnp.zeros((), bool), *call(carry[2])

  _, results, cache = jax.lax.while_loop(
    lambda carry: carry[0], once, (condition, otherwise, cache)
  )
  return results, cache
