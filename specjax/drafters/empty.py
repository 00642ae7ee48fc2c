# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The empty drafter: plain autoregressive decoding through the same loop."""

import dataclasses

import jax.numpy as jnp

from specjax.drafters.base import ChainDrafter, check_draft_length
from specjax.types import Context, Draft, Params, PyTree


@dataclasses.dataclass(frozen=True)
class Empty(ChainDrafter):
  """Proposes nothing. Every target call commits one token.

  Attributes:
    draft_length: width of the (always invalid) draft. 0 is autoregressive decoding. A wider
      one scores blocks as wide as another drafter's, for comparing outputs bit by bit: a
      matrix product of another width rounds differently.
  """

  draft_length: int = 0

  def __post_init__(self):
    check_draft_length(self.draft_length, minimum=0)

  def draft(self, params: Params, state: PyTree, context: Context) -> tuple[Draft, PyTree]:
    """An invalid draft of the width asked for."""
    del params
    shape = (context.tokens.shape[0], self.draft_length)
    return Draft.chain(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, bool)), state
