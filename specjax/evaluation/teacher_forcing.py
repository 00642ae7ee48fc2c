# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Teacher forcing: is every token of a text the target's argmax, or how far from it?

In float32 greedy speculative decoding gives the tokens of plain decoding. In bfloat16 a block of
another width rounds differently, and two nearly equal logits can swap: from there on the texts
differ although nothing is wrong. What can be promised, and is checked here, is that each token
is the argmax of the target *given the tokens before it*, or within an epsilon of it.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from specjax import buckets
from specjax.types import Array, Block, Model, Params


@dataclasses.dataclass(frozen=True)
class GreedyCheck:
  """What `check_greedy` found, one entry a checked token.

  Attributes:
    tokens: `[N]` int32, the tokens checked.
    best: `[N]` int32, the target's argmax at each place.
    gap: `[N]` float32, best logit minus the token's logit; 0 where the token is the argmax.
    margin: `[N]` float32, best logit minus the second best: how close a tie the place is.
    log_probs: `[N]` float32, the target's log-probability of each token.
    epsilon: the largest gap that passes.
  """

  tokens: np.ndarray
  best: np.ndarray
  gap: np.ndarray
  margin: np.ndarray
  log_probs: np.ndarray
  epsilon: float

  @property
  def is_argmax(self) -> np.ndarray:
    """`[N]` bool: tokens whose logit no other exceeds."""
    return self.gap == 0

  @property
  def within_epsilon(self) -> np.ndarray:
    """`[N]` bool: tokens that pass."""
    return self.gap <= self.epsilon

  @property
  def passed(self) -> bool:
    """Whether every token passes."""
    return bool(self.within_epsilon.all())

  @property
  def first_divergence(self) -> int | None:
    """Index of the first token that is not the argmax; None if all are."""
    wrong = np.flatnonzero(~self.is_argmax)
    return int(wrong[0]) if wrong.size else None

  def report(self) -> str:
    """One line for people."""
    total = len(self.tokens)
    if self.first_divergence is None:
      return f"all {total} tokens are the target's argmax"
    at = self.first_divergence
    verdict = "all within" if self.passed else f"{int((~self.within_epsilon).sum())} beyond"
    return (
      f"{int(self.is_argmax.sum())} of {total} tokens are the target's argmax, {verdict} "
      f"{self.epsilon:g} of it; first difference at token {at}: {self.tokens[at]} in place of "
      f"{self.best[at]}, {self.gap[at]:.3g} below it (two best logits {self.margin[at]:.3g} apart)"
    )


def check_greedy(
  model: Model,
  params: Params,
  prompt: Sequence[int],
  tokens: Sequence[int],
  *,
  epsilon: float = 0.0,
  chunk: int = 32,
) -> GreedyCheck:
  """Feeds a text to the target and compares each token with the target's best one.

  Args:
    model: the target.
    params: its parameters; in float32 for a judgement that is finer than what is judged.
    prompt: token ids before the checked ones; at least one.
    tokens: the token ids to check; at least one.
    epsilon: the largest gap to the best logit that passes.
    chunk: tokens a forward pass; the logits `[chunk, V]` are the largest buffer.

  Raises:
    ValueError: for an empty prompt or text, a negative epsilon, or ids outside the vocabulary.
  """
  sequence = np.asarray([*prompt, *tokens], np.int32)
  if not len(prompt) or not len(tokens):
    raise ValueError(
      f"prompt and tokens must hold at least one id each, got {len(prompt)} and {len(tokens)}"
    )
  if not epsilon >= 0:
    raise ValueError(f"epsilon must be >= 0, got {epsilon}")
  if sequence.min() < 0 or sequence.max() >= model.vocab_size:
    raise ValueError(
      f"token ids must be within 0 .. {model.vocab_size - 1}, got {sequence.min()} .. "
      f"{sequence.max()}"
    )
  capacity = buckets.capacity_bucket(len(sequence) + chunk)
  padded = np.zeros(capacity + 1, np.int32)
  padded[: len(sequence)] = sequence
  cache = model.init_cache(1, capacity)
  parts = []
  for start in range(0, len(sequence) - 1, chunk):
    cache, part = _judge(model, chunk, params, cache, padded, np.int32(start))
    parts.append(part)
  merged = [np.concatenate(values)[: len(sequence) - 1] for values in zip(*parts, strict=True)]
  best, gap, margin, log_probs = (values[len(prompt) - 1 :] for values in merged)
  return GreedyCheck(
    tokens=sequence[len(prompt) :],
    best=best,
    gap=gap,
    margin=margin,
    log_probs=log_probs,
    epsilon=epsilon,
  )


@partial(jax.jit, static_argnums=(0, 1))
def _judge(
  model: Model, chunk: int, params: Params, cache: Array, padded: Array, start: Array
) -> tuple[Array, tuple[Array, ...]]:
  """One chunk: what stands after each of its tokens, against the token that follows it."""
  inputs = jax.lax.dynamic_slice_in_dim(padded, start, chunk)
  following = jax.lax.dynamic_slice_in_dim(padded, start + 1, chunk)
  output = model.apply(params, inputs[None], Block.chain(start[None], chunk), cache)
  logits = model.logits(params, output.hidden)[0]
  two_best, _ = jax.lax.top_k(logits, 2)
  chosen = jnp.take_along_axis(logits, following[:, None], axis=1)[:, 0]
  return output.cache, (
    jnp.argmax(logits, axis=1).astype(jnp.int32),
    two_best[:, 0] - chosen,
    two_best[:, 0] - two_best[:, 1],
    chosen - jax.nn.logsumexp(logits, axis=1),
  )
