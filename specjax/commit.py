# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The commit step: the one place where tokens are appended and rows end."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax.generation import EOS, LENGTH, RUNNING, STOP, Records
from specjax.loop_state import Fixed, LoopState
from specjax.types import Array, Draft, PolicyContext, TargetOutput, Verdict


def commit(
  fixed: Fixed,
  state: LoopState,
  draft: Draft,
  logits: Array,
  verdict: Verdict,
  output: TargetOutput,
  certain_nodes: int = 0,
) -> tuple[LoopState, Verdict]:
  """Appends what was accepted and the target's own token: the one place where rows end.

  End of sequence and budget are applied in token order; tokens, records, statistics, cache
  length (which is `length - 1`) and the verdict that the drafter hears of are all cut at the
  same token. Finished rows stay as they are. The records show the first `certain_nodes` nodes as
  the target's own tokens (`Drafter.certain_nodes`).
  """
  emitted = _emitted_tokens(draft, verdict)
  offset = jnp.arange(emitted.shape[1], dtype=jnp.int32)[None, :]
  count = jnp.minimum(verdict.num_accepted + 1, fixed.limit - state.length)
  ends = jnp.any(emitted[:, :, None] == fixed.eos_ids[None, None, :], axis=-1)
  ends &= offset < count[:, None]
  hit = jnp.any(ends, axis=1)
  count = jnp.where(hit, jnp.argmax(ends, axis=1).astype(jnp.int32) + 1, count)
  count = jnp.where(state.active, count, 0)
  length = state.length + count
  finish = jnp.where(hit, EOS, jnp.where(length >= fixed.limit, LENGTH, RUNNING))

  written = offset < count[:, None]
  slots = jnp.where(written, state.length[:, None] + offset, state.tokens.shape[1])

  def write(buffer, values):
    # With the rows as a batch dimension, devices of a mesh need not know each other's.
    return jax.vmap(lambda row, new, at: row.at[at].set(new, mode="drop"))(
      buffer, values.astype(buffer.dtype), slots
    )

  records = Records(
    log_probs=write(state.records.log_probs, _log_probs(logits, verdict, emitted)),
    call=write(state.records.call, jnp.broadcast_to(state.calls[:, None], emitted.shape)),
    drafted=write(
      state.records.drafted,
      (offset >= certain_nodes) & (offset < verdict.num_accepted[:, None]),
    ),
    proposed=write(
      state.records.proposed,
      jnp.where(
        offset == 0, jnp.sum(draft.valid[:, certain_nodes:], axis=1, dtype=jnp.int32)[:, None], 0
      ),
    ),
    deviates=_deviations(state.records, verdict, write),
  )
  verdict = dataclasses.replace(verdict, num_accepted=jnp.minimum(verdict.num_accepted, count))
  last = jnp.take_along_axis(verdict.path, verdict.num_accepted[:, None], axis=1)
  hidden = jnp.take_along_axis(output.hidden, last[:, :, None], axis=1)[:, 0]
  state = dataclasses.replace(
    state,
    tokens=write(state.tokens, emitted),
    length=length,
    finish=jnp.where(state.active, finish, state.finish).astype(jnp.int32),
    calls=state.calls + state.active,
    hidden=jnp.where(state.active[:, None], hidden, state.hidden),
    records=records,
    policy_context=_count(state.policy_context, emitted, written),
  )
  return state, verdict


def _emitted_tokens(draft: Draft, verdict: Verdict) -> Array:
  """`[B, K]` int32: the accepted tokens in order, then the target's; rest unspecified."""
  next_token = verdict.next_token[:, None]
  if draft.num_nodes == 0:
    return next_token
  nodes = jnp.maximum(verdict.path[:, 1:] - 1, 0)
  accepted = jnp.take_along_axis(draft.tokens, nodes, axis=1)
  padded = jnp.concatenate([accepted, next_token], axis=1)
  offset = jnp.arange(padded.shape[1], dtype=jnp.int32)[None, :]
  return jnp.where(offset == verdict.num_accepted[:, None], next_token, padded)


def _log_probs(logits: Array, verdict: Verdict, emitted: Array) -> Array:
  """`[B, K]` float32: log-probabilities of `emitted` under the raw target."""
  # One token of the block after the other: at once, the exponentials would be a second buffer
  # as large as the logits.
  total = jax.lax.map(
    lambda index: jax.nn.logsumexp(logits[:, index], axis=-1), jnp.arange(logits.shape[1])
  ).T
  chosen = jax.vmap(lambda row, path, ids: row[path, ids])(logits, verdict.path, emitted)
  return chosen - jnp.take_along_axis(total, verdict.path, axis=1)


def _deviations(
  records: Records, verdict: Verdict, write: Callable[[Array, Array], Array]
) -> Array | None:
  """The record of deviations after the commit; None under a lossless verifier."""
  if records.deviates is None:
    return None
  if verdict.deviates is None:
    raise ValueError(
      "Verdict.deviates must be [B, K] bool for a verifier that is not lossless, got None"
    )
  return write(records.deviates, verdict.deviates)


def _count(context: PolicyContext, emitted: Array, written: Array) -> PolicyContext:
  """The policy's token counts after the commit."""
  if context.counts is None:
    return context
  added = written.astype(context.counts.dtype)
  counts = jax.vmap(lambda row, ids, new: row.at[ids].add(new))(context.counts, emitted, added)
  return dataclasses.replace(context, counts=counts)


def end_rows(state: LoopState, length: Array, ends: Array) -> LoopState:
  """Ends rows at a length that the host found (a stop string): `length [B]`, `ends [B]` bool."""
  return dataclasses.replace(
    state,
    length=jnp.where(ends, jnp.minimum(length, state.length), state.length),
    finish=jnp.where(ends, STOP, state.finish).astype(jnp.int32),
  )
