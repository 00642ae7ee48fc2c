# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What decoding returns: tokens, their log-probabilities and where each came from.

One record a token is the only source of every statistic, so that cutting a row short (end of
sequence, budget, a stop string found on the host) cuts its statistics at the same token.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array, pytree_dataclass

RUNNING, EOS, LENGTH, STOP = 0, 1, 2, 3
FINISH_REASONS = ("running", "eos", "length", "stop")


@pytree_dataclass
class Records:
  """What is recorded of each token when it is committed, all `[B, S]` and 0 in the prompt.

  Attributes:
    log_probs: float32, the log-probability that the target's own softmax (temperature 1, no
      policy) gives the token after the tokens before it.
    call: int32, which scoring call of the row committed it, from 0.
    drafted: bool, whether it is an accepted draft token (else the target's own).
    proposed: int32, at the first token of a call: how many nodes the draft had, without those
      that the target gave for certain (`Drafter.certain_nodes`); else 0.
    deviates: bool, whether a verifier that is not lossless accepted the token though the exact
      rule would have put another one in its place; None under a lossless verifier.
  """

  log_probs: Array
  call: Array
  drafted: Array
  proposed: Array
  deviates: Array | None = None

  @classmethod
  def zeros(cls, batch: int, capacity: int, *, lossless: bool = True) -> "Records":
    """Records of nothing yet, with or without room for deviations."""
    shape = (batch, capacity)
    return cls(
      log_probs=jnp.zeros(shape, jnp.float32),
      call=jnp.zeros(shape, jnp.int32),
      drafted=jnp.zeros(shape, bool),
      proposed=jnp.zeros(shape, jnp.int32),
      deviates=None if lossless else jnp.zeros(shape, bool),
    )


@pytree_dataclass
class Generation:
  """The result of decoding a batch. Statistics are `[B]` and can be read under jit too.

  Attributes:
    tokens: `[B, S]` int32, prompt and new tokens; 0 from `lengths` on.
    prompt_lengths: `[B]` int32.
    lengths: `[B]` int32, prompt and new tokens together.
    finish: `[B]` int32, an index into `FINISH_REASONS`.
    records: what is known of each token.
    max_depth: longest path of a draft, certain nodes not counted, static.
    certain_nodes: target calls that the drafter makes itself for a draft, static: see
      `Drafter.certain_nodes`.
  """

  tokens: Array
  prompt_lengths: Array
  lengths: Array
  finish: Array
  records: Records
  max_depth: int = dataclasses.field(metadata={"static": True})
  certain_nodes: int = dataclasses.field(default=0, metadata={"static": True})

  @property
  def num_new_tokens(self) -> Array:
    """`[B]` int32."""
    return self.lengths - self.prompt_lengths

  @property
  def is_new(self) -> Array:
    """`[B, S]` bool: where the new tokens stand."""
    index = jnp.arange(self.tokens.shape[1], dtype=jnp.int32)[None, :]
    return (index >= self.prompt_lengths[:, None]) & (index < self.lengths[:, None])

  @property
  def target_calls(self) -> Array:
    """`[B]` int32: target calls for the new tokens (the prefill is not one).

    Those that scored drafts, and those that a drafter made itself to propose them.
    """
    return self.scoring_calls + self.certain_nodes * self.draft_calls

  @property
  def scoring_calls(self) -> Array:
    """`[B]` int32: target calls that scored a draft and committed something, one a round."""
    return jnp.max(jnp.where(self.is_new, self.records.call + 1, 0), axis=1)

  @property
  def draft_calls(self) -> Array:
    """`[B]` int32: rounds in which the drafter proposed at least one token."""
    return jnp.sum(self.is_new & (self.records.proposed > 0), axis=1, dtype=jnp.int32)

  @property
  def drafted_tokens(self) -> Array:
    """`[B]` int32: proposed nodes, those past the first rejection included."""
    return jnp.sum(jnp.where(self.is_new, self.records.proposed, 0), axis=1)

  @property
  def accepted_tokens(self) -> Array:
    """`[B]` int32: new tokens that were drafted."""
    return jnp.sum(self.is_new & self.records.drafted, axis=1, dtype=jnp.int32)

  @property
  def deviations(self) -> Array:
    """`[B]` int32: new tokens that are not the target's own choice given the tokens before them.

    Only a verifier that is not lossless makes any. Under a greedy policy the target's choice is
    its argmax.
    """
    if self.records.deviates is None:
      return jnp.zeros_like(self.lengths)
    return jnp.sum(self.is_new & self.records.deviates, axis=1, dtype=jnp.int32)

  @property
  def accepted_histogram(self) -> Array:
    """`[B, 1 + max_depth]` int32: scoring calls by how many drafted tokens they committed.

    Each row sums to `scoring_calls`.
    """
    return jax.vmap(self._histogram_row)(
      self.records.call, self.is_new & self.records.drafted, self.scoring_calls
    )

  def _histogram_row(self, call: Array, accepted: Array, num_calls: Array) -> Array:
    per_call = jnp.zeros(call.shape, jnp.int32).at[call].add(accepted.astype(jnp.int32))
    happened = jnp.arange(call.shape[0]) < num_calls
    histogram = jnp.zeros((self.max_depth + 1,), jnp.int32)
    return histogram.at[per_call].add(happened.astype(jnp.int32), mode="drop")

  @property
  def accepted_by_depth(self) -> Array:
    """`[B, max_depth]` int32: calls that committed at least 1, 2, ... drafted tokens.

    Divided by `draft_calls` it is the unconditional acceptance at each draft position.
    """
    at_least = jnp.cumsum(self.accepted_histogram[:, ::-1], axis=1)[:, ::-1]
    return at_least[:, 1:]

  @property
  def acceptance_rate(self) -> Array:
    """`[B]` float32: accepted over drafted tokens; 0 where nothing was drafted."""
    return self.accepted_tokens / jnp.maximum(self.drafted_tokens, 1)

  @property
  def block_efficiency(self) -> Array:
    """`[B]` float32: new tokens a target call, the target's own token included."""
    return self.num_new_tokens / jnp.maximum(self.target_calls, 1)

  @property
  def finish_reasons(self) -> list[str]:
    """Why each row ended: "eos", "length", "stop", or "running" for one that has not."""
    return [FINISH_REASONS[code] for code in np.asarray(self.finish)]

  def new_tokens(self) -> list[list[int]]:
    """The new tokens of each row, on the host."""
    return [row.tolist() for row in self._new(self.tokens)]

  def new_log_probs(self) -> list[list[float]]:
    """The log-probabilities of the new tokens of each row, on the host."""
    return [row.tolist() for row in self._new(self.records.log_probs)]

  def tokens_per_call(self) -> list[list[int]]:
    """The new tokens of every target call of each row, in order, on the host.

    As many as `target_calls`, and together the new tokens, so that their mean is the block
    efficiency. A target call that the drafter made itself gave the certain node of its draft.
    """
    calls, proposed = self._new(self.records.call), self._new(self.records.proposed)
    rows = []
    for call, drafted in zip(calls, proposed, strict=True):
      lengths = np.bincount(call).tolist()
      has_draft = np.bincount(call, weights=drafted > 0) > 0
      row = []
      for length, own_call in zip(lengths, self.certain_nodes * has_draft, strict=True):
        # Each certain node is the first token that is left of its round.
        certain = min(int(own_call), length)
        row += [1] * certain + [0] * (int(own_call) - certain) + [length - certain]
      rows.append(row)
    return rows

  def _new(self, values: Array) -> list[np.ndarray]:
    host, start, end = jax.device_get((values, self.prompt_lengths, self.lengths))
    return [row[first:last] for row, first, last in zip(host, start, end, strict=True)]
