# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Token rows packed into windows: what every objective is trained on."""

import jax.numpy as jnp

from specjax.types import Array, Block, pytree_dataclass


@pytree_dataclass
class TokenBatch:
  """B windows of T tokens, each packed with whole or cut rows (a prompt and its answer).

  Attributes:
    tokens: `[B, T]` int32.
    segments: `[B, T]` int32, which row of its window a token belongs to, from 1; 0 is padding.
    positions: `[B, T]` int32, the token's position in its own row.
    answer: `[B, T]` bool, tokens of an answer: those that a drafter learns to predict. (Those of
      the prompt instead where a run trains on prompts, `PackedData(part="prompts")`.)
    top_ids: `[B, T, R]` int32, the R likeliest tokens after token t under the target, or None
      where the data was made without them.
    top_log_probs: `[B, T, R]` float32, their log-probabilities at temperature 1.
  """

  tokens: Array
  segments: Array
  positions: Array
  answer: Array
  top_ids: Array | None = None
  top_log_probs: Array | None = None

  def block(self) -> Block:
    """The windows as blocks over an empty cache: a token sees its own row up to itself."""
    same_row = self.segments[:, :, None] == self.segments[:, None, :]
    length = self.tokens.shape[1]
    causal = jnp.tril(jnp.ones((length, length), bool))
    start = jnp.zeros(self.tokens.shape[:1], jnp.int32)
    return Block(start=start, positions=self.positions, mask=same_row & causal[None])

  def ahead(self, distance: int) -> tuple[Array, Array]:
    """The token `distance` places further on in the same row.

    Args:
      distance: static, at least 0.

    Returns:
      tokens: `[B, T]` int32, unspecified where there is none.
      valid: `[B, T]` bool, whether that token exists and belongs to an answer.
    """
    if distance == 0:
      return self.tokens, self.answer
    pad = ((0, 0), (0, distance))

    def shift(values):
      return jnp.pad(values, pad)[:, distance:]

    same_row = (shift(self.segments) == self.segments) & (self.segments > 0)
    return shift(self.tokens), same_row & shift(self.answer)
