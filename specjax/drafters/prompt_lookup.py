# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup: the draft is what followed the newest tokens the last time they occurred.

Prompt lookup decoding (Saxena 2023), n-gram speculation of vLLM and transformers: the longest
suffix of the row, of at most `max_ngram` tokens, that occurs earlier in the prompt or in the
generated text; its continuation there is the draft. Wholly on the device, O(S x max_ngram).
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.drafters.base import ChainDrafter, check_draft_length
from specjax.types import Array, Context, Draft, Params, PyTree


@dataclasses.dataclass(frozen=True)
class PromptLookup(ChainDrafter):
  """Drafts by looking the newest n-gram up in the row's own text.

  Attributes:
    draft_length: tokens to copy, at most.
    max_ngram: longest suffix to look for.
    min_ngram: shortest suffix that counts as a match; a row without one proposes nothing.
    occurrence: which of several longest matches to copy from: "latest" or "first".
    wrap: whether a copy that reaches the end of the text goes on with its own beginning, as
      text that repeats itself does. If not, the draft ends there.
  """

  draft_length: int = 10
  max_ngram: int = 3
  min_ngram: int = 2
  occurrence: str = "latest"
  wrap: bool = True

  def __post_init__(self):
    check_draft_length(self.draft_length)
    if not 1 <= self.min_ngram <= self.max_ngram:
      raise ValueError(
        "min_ngram and max_ngram must satisfy 1 <= min_ngram <= max_ngram, "
        f"got {self.min_ngram} and {self.max_ngram}"
      )
    if self.occurrence not in ("latest", "first"):
      raise ValueError(f"occurrence must be 'latest' or 'first', got {self.occurrence!r}")

  def draft(self, params: Params, state: PyTree, context: Context) -> tuple[Draft, PyTree]:
    """The continuation of the longest match, a point mass a node."""
    del params
    tokens, valid = jax.vmap(self._look_up)(context.tokens, context.length)
    return Draft.chain(tokens, valid), state

  def _look_up(self, tokens: Array, length: Array) -> tuple[Array, Array]:
    """One row: `tokens [S]`, `length []` to a draft `[N]` and its validity `[N]`."""
    end = jnp.arange(tokens.shape[0], dtype=jnp.int32)  # where a match ends, exclusive
    matched = jnp.zeros_like(end)  # how many tokens before `end` equal the row's newest
    agrees = end < length  # something must follow the match
    for back in range(1, self.max_ngram + 1):
      newest = tokens[jnp.maximum(length - back, 0)]
      agrees &= (end >= back) & (jnp.roll(tokens, back) == newest)
      matched += agrees
    longest = jnp.max(matched)
    best = matched == longest
    # argmax returns the first maximum: for the latest, look from the back.
    if self.occurrence == "first":
      start = jnp.argmax(best).astype(jnp.int32)
    else:
      start = (tokens.shape[0] - 1 - jnp.argmax(best[::-1])).astype(jnp.int32)
    found = longest >= self.min_ngram
    offset = jnp.arange(self.draft_length, dtype=jnp.int32)
    available = jnp.maximum(length - start, 1)
    within = offset < available
    if self.wrap:
      offset, within = offset % available, jnp.ones_like(within)
    source = jnp.clip(start + offset, 0, tokens.shape[0] - 1)
    return tokens[source], found & within
