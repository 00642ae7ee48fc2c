# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The single steps of a sampling policy, each a pure function on one row of scores `[V]`.

A masked token has the score -inf. The semantics, ties included, are those of the processors
of Hugging Face's `transformers`; the presence and frequency penalties are vLLM's. Nothing here
sorts: a vocabulary is long and XLA's sort on a CPU is twenty times slower than the bisections
below. The neutral number of a step leaves the scores as they are, bit by bit.
"""

import jax
import jax.numpy as jnp

from specjax.types import Array

MASKED = -jnp.inf
# Vectors over the vocabulary are searched block by block, then within the block found.
_BLOCK = 256


# --- what changes the scores ---------------------------------------------------------------


def repetition_penalty(scores: Array, counts: Array, penalty: Array) -> Array:
  """Divides the positive scores of tokens seen before and multiplies the negative ones.

  Keskar et al. 2019 (CTRL, arXiv 1909.05858), section 4.1.

  Args:
    scores: `[V]` float32.
    counts: `[V]` int32, how often each token stands in prompt and generated text.
    penalty: `[]` float32 > 0; 1 is neutral, above it repeats less.
  """
  penalised = jnp.where(scores < 0, scores * penalty, scores / penalty)
  return jnp.where(counts > 0, penalised, scores)


def presence_penalty(scores: Array, generated: Array, penalty: Array) -> Array:
  """Subtracts `penalty` (`[]`) from each token with `generated > 0` (`[V]` int32)."""
  return jnp.where(generated > 0, scores - penalty, scores)


def frequency_penalty(scores: Array, generated: Array, penalty: Array) -> Array:
  """Subtracts `penalty` (`[]`) from each token once for each time in `generated` (`[V]`)."""
  return scores - generated.astype(scores.dtype) * penalty


def add_bias(scores: Array, ids: Array, biases: Array) -> Array:
  """Adds `biases` (`[L]` float32) to the scores of `ids` (`[L]` int32; negative: no token)."""
  return scores.at[_in_range(scores, ids)].add(biases, mode="drop")


def mask_tokens(scores: Array, ids: Array, active: Array | bool = True) -> Array:
  """Masks `ids` (`[L]` int32; negative: no token) where `active` (`[]` bool)."""
  ids = _in_range(scores, ids)
  found = scores.at[ids].get(mode="fill", fill_value=MASKED)
  return scores.at[ids].set(jnp.where(active, MASKED, found), mode="drop")


def force_token(scores: Array, token: Array) -> Array:
  """Masks all but `token` (`[]` int32; negative: leaves the scores as they are)."""
  forced = jnp.where(jnp.arange(scores.shape[0]) == token, jnp.zeros_like(scores), MASKED)
  return jnp.where(token < 0, scores, forced)


def divide_by_temperature(scores: Array, temperature: Array) -> Array:
  """The scores over `temperature` (`[]` float32 > 0).

  Where that would overflow, the maximum is subtracted first: the law is the same, and the
  order of the best tokens is not lost in infinity.
  """
  top = jax.lax.stop_gradient(jnp.max(scores))
  overflows = jnp.isfinite(top) & jnp.isinf(top / temperature)
  masked = scores == MASKED
  # Masked scores are replaced first: the derivative of -inf / t would be a NaN.
  shifted = jnp.where(masked, 0.0, scores) - jnp.where(overflows, top, 0.0)
  return jnp.where(masked, MASKED, shifted / temperature)


# --- what cuts the tail off ----------------------------------------------------------------


def keep_top_k(scores: Array, k: Array) -> Array:
  """Masks what is less than the k-th largest score; ties with it stay.

  Args:
    scores: `[V]` float32.
    k: `[]` int32; 0 or at least V is neutral.
  """
  size = scores.shape[0]
  k = jnp.where(k <= 0, size, jnp.minimum(k, size))
  fixed = jax.lax.stop_gradient(scores)

  # The largest threshold that at least k scores reach lies in [low, high).
  def unfinished(carry):
    low, high, reached = carry
    return (high - low != 1) & (reached != k)

  def halve(carry):
    low, high, reached = carry
    middle = _midpoint(low, high)
    count = jnp.sum(fixed >= _float_of(middle), dtype=jnp.int32)
    enough = count >= k
    return (
      jnp.where(enough, middle, low),
      jnp.where(enough, high, middle),
      jnp.where(enough, count, reached),
    )

  start = (
    _order_of(jnp.array(MASKED, jnp.float32)),
    _order_of(jnp.max(fixed)) + 1,
    jnp.array(size, jnp.int32),
  )
  low, _, _ = jax.lax.while_loop(unfinished, halve, start)
  return jnp.where(fixed >= _float_of(low), scores, MASKED)


def keep_top_p(scores: Array, tail: Array) -> Array:
  """Masks the least likely tokens whose probabilities add up to at most `tail`.

  Nucleus sampling, Holtzman et al. 2019 (arXiv 1904.09751). In the order of rising score, among
  equals of rising index, a token goes while the sum up to and including it is <= `tail`. The
  last one always stays.

  Args:
    scores: `[V]` float32.
    tail: `[]` float32, 1 - top_p; 0 is neutral.
  """
  fixed = jax.lax.stop_gradient(scores)
  probs = softmax(fixed)
  edge = _nucleus_edge(fixed, probs, tail)
  tied = fixed == edge
  below = jnp.sum(jnp.where(fixed < edge, probs, 0.0))
  ranks = jnp.arange(1, scores.shape[0] + 1, dtype=jnp.int32)
  num_tied = jnp.sum(tied, dtype=jnp.int32)
  tied_prob = jnp.max(jnp.where(tied, probs, 0.0))
  # Rounding may leave the whole sum below the tail: one token stays all the same.
  num_masked = _count_fitting(below, tied_prob, tail, num_tied - 1)
  first_kept = _find_nth(tied, num_masked)
  kept = (fixed > edge) | (tied & (ranks - 1 >= first_kept))
  return jnp.where(kept | (tail <= 0), scores, MASKED)


def _count_fitting(total: Array, each: Array, tail: Array, most: Array) -> Array:
  """The largest n of 0 .. `most` with `total + n * each <= tail`, 0 if there is none: `[]` int32.

  By bisection: a comparison for every n at once would be a vector as long as the vocabulary, which
  every device of a mesh would hold whole.
  """

  def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = carry
    middle = low + (high - low + 1) // 2
    fits = total + middle.astype(total.dtype) * each <= tail
    return jnp.where(fits, middle, low), jnp.where(fits, high, middle - 1)

  start = jnp.zeros_like(most), jnp.maximum(most, 0)
  low, _ = jax.lax.while_loop(lambda carry: carry[0] < carry[1], halve, start)
  return low


def _nucleus_edge(scores: Array, probs: Array, tail: Array) -> Array:
  """The smallest score whose tokens, with all below, sum to more than `tail`: `[]`."""
  top = jnp.max(scores)
  # Tokens less likely than tail / V can only sum to less than the tail: start above them. No
  # float32 probability is above 0 at 128 below the maximum.
  reach = jnp.log(jnp.maximum(tail, 0) / (2 * scores.shape[0] * jnp.max(probs)))
  start = _order_of(top + jnp.maximum(reach, -128.0)), _order_of(top)

  def unfinished(carry):
    low, high = carry
    # Never high - low < 2, which may overflow between the ends of the float range.
    return (high > low) & (high - low != 1)

  def halve(carry):
    low, high = carry
    middle = _midpoint(low, high)
    mass = jnp.sum(jnp.where(scores <= _float_of(middle), probs, 0.0))
    within = mass <= tail
    return jnp.where(within, middle, low), jnp.where(within, high, middle)

  _, high = jax.lax.while_loop(unfinished, halve, start)
  return _float_of(high)


def keep_min_p(scores: Array, min_p: Array) -> Array:
  """Masks tokens less likely than `min_p` (`[]` float32; 0 is neutral) times the likeliest.

  Nguyen et al. 2024 (arXiv 2407.01082).
  """
  probs = softmax(jax.lax.stop_gradient(scores))
  return jnp.where(probs < min_p * jnp.max(probs), MASKED, scores)


# --- distributions -------------------------------------------------------------------------


def softmax(scores: Array) -> Array:
  """Probabilities `[V]`; exactly 0 for masked tokens. Scores of +inf share everything."""
  weights = jnp.exp(_below_top(scores))
  return weights / jnp.sum(weights)


def log_softmax(scores: Array) -> Array:
  """Log-probabilities `[V]`; exactly -inf for masked tokens. See `softmax`."""
  below = _below_top(scores)
  return below - jnp.log(jnp.sum(jnp.exp(below)))


def _below_top(scores: Array) -> Array:
  """The scores minus their maximum; 0 at the maximum even if that is infinite."""
  top = jax.lax.stop_gradient(jnp.max(scores))
  return jnp.where(jnp.isinf(top) & (scores == top), 0.0, scores - top)


# --- searching a long vector ---------------------------------------------------------------


def first_argmax(values: Array) -> Array:
  """`[]` int32, the first index of the maximum of `values [V]`, as `jnp.argmax`.

  Maxima of blocks first: XLA's CPU backend vectorises those, but not an argmax.
  """
  blocks = _blocks(values, MASKED)
  block = jnp.argmax(jnp.max(blocks, axis=1)).astype(jnp.int32)
  return block * blocks.shape[1] + jnp.argmax(blocks[block]).astype(jnp.int32)


def find_by_mass(weights: Array, uniforms: Array) -> Array:
  """The index at which the running sum of non-negative `weights [V]` passes a random level.

  The first of two uniforms picks a block, the second a token of it. That resolves smaller
  probabilities than one float32 uniform, and costs one pass over the vector. An index of
  weight 0 is never returned, whatever the uniforms and the rounding, unless all are 0.

  Args:
    weights: `[V]` float32, unnormalised.
    uniforms: `[2]` float32 in [0, 1).

  Returns:
    `[]` int32.
  """
  blocks = _blocks(weights, 0.0)
  block = _pass_level(jnp.sum(blocks, axis=1), uniforms[0])
  return block * blocks.shape[1] + _pass_level(blocks[block], uniforms[1])


def _pass_level(weights: Array, uniform: Array) -> Array:
  """The first index of positive weight whose running sum exceeds `uniform` of the total."""
  sums = jnp.cumsum(weights)
  positive = weights > 0
  passed = positive & (sums > uniform * sums[-1])
  last = weights.shape[0] - 1 - jnp.argmax(positive[::-1])
  found = jnp.where(jnp.any(passed), jnp.argmax(passed), last)
  return jnp.where(jnp.any(positive), found, 0).astype(jnp.int32)


def _find_nth(mask: Array, n: Array) -> Array:
  """`[]` int32, the index of the n-th True (from 0) of `mask [V]`; it must exist."""
  blocks = _blocks(mask, False)
  sums = jnp.cumsum(jnp.sum(blocks, axis=1, dtype=jnp.int32))
  block = jnp.argmax(sums > n).astype(jnp.int32)
  before = jnp.where(block > 0, sums[jnp.maximum(block - 1, 0)], 0)
  within = before + jnp.cumsum(blocks[block].astype(jnp.int32))
  return block * blocks.shape[1] + jnp.argmax(within > n).astype(jnp.int32)


def _blocks(values: Array, fill: float | bool) -> Array:
  """`[V]` as `[V / block, block]`, padded with `fill`."""
  block = min(_BLOCK, values.shape[0])
  padding = -values.shape[0] % block
  if padding:
    values = jnp.pad(values, (0, padding), constant_values=fill)
  return values.reshape(-1, block)


# --- floats as integers of the same order --------------------------------------------------
# A bisection over these integers ends at an exact float32 after at most 32 halvings.

_SIGN_BIT = 0x7FFFFFFF


def _order_of(value: Array) -> Array:
  """The int32 that stands to other floats' integers as float32 `value` stands to them."""
  bits = jax.lax.bitcast_convert_type(value, jnp.int32)
  return jnp.where(bits < 0, bits ^ _SIGN_BIT, bits)


def _float_of(order: Array) -> Array:
  """The inverse of `_order_of`."""
  bits = jnp.where(order < 0, order ^ _SIGN_BIT, order)
  return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _midpoint(low: Array, high: Array) -> Array:
  """The mean of two int32, rounded down, without overflow."""
  return (low & high) + ((low ^ high) >> 1)


def _in_range(scores: Array, ids: Array) -> Array:
  """Sends negative ids past the end, where JAX drops them: it would wrap them around."""
  return jnp.where(ids < 0, scores.shape[0], ids)
