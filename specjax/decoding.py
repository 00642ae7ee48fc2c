# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The only decoding loop: prefill, then draft -> score -> verify -> commit until all rows end.

`generate` runs the compiled loop to its end; `Session` and `stream` run the same compiled loop
in slices of a few rounds. Plain autoregressive decoding is this loop with the empty drafter.

Invariants, for every row at the top of the loop:

  * `tokens[:length]` are committed; the newest, at `length - 1`, is pending: not cached yet;
  * the target's cache holds positions `0 .. length - 2`; slots beyond are garbage;
  * what is drawn for position p depends on the row's key and p alone.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from specjax import sampling, trees
from specjax.commit import commit, end_rows
from specjax.drafters.empty import Empty
from specjax.generation import LENGTH, RUNNING, Generation, Records
from specjax.loop_state import Fixed, LoopState, Scheme
from specjax.models.prefill import prefill
from specjax.requests import Prompts, make_request
from specjax.run_if import run_if
from specjax.sharding.partitioning import Partitioning
from specjax.sharding.processes import fetch
from specjax.sharding.rules import Rules
from specjax.types import (
  Array,
  Block,
  Cache,
  Context,
  Draft,
  Drafter,
  Model,
  Params,
  TargetOutput,
  Verifier,
)
from specjax.verifiers.rejection_sampling import RejectionSampling

# More rounds than any row can take: every round commits at least one token.
UNLIMITED = np.int32(np.iinfo(np.int32).max)


# --- prefill -------------------------------------------------------------------------------


def start(
  scheme: Scheme,
  params: Params,
  drafter_params: Params,
  fixed: Fixed,
  prompts: Array,
  capacity: int,
) -> LoopState:
  """Reads right-padded `prompts [B, P]`: the state at the top of the first round."""
  batch, width = prompts.shape
  model, lengths = scheme.model, jnp.asarray(fixed.prompt_length)
  tokens = jnp.zeros((batch, capacity), jnp.int32).at[:, :width].set(prompts)
  used = jnp.arange(capacity)[None, :] < lengths[:, None]
  tokens = jnp.where(used, tokens, 0)
  cache, hidden = prefill(
    model, params, model.init_cache(batch, capacity), tokens[:, :width], lengths
  )
  policy_context = sampling.initial_context(
    fixed.policy, tokens, lengths, lengths, model.vocab_size
  )
  state = LoopState(
    tokens=tokens,
    length=lengths,
    finish=jnp.where(lengths >= fixed.limit, LENGTH, RUNNING).astype(jnp.int32),
    calls=jnp.zeros((batch,), jnp.int32),
    hidden=hidden,
    records=Records.zeros(batch, capacity, lossless=scheme.verifier.lossless),
    cache=cache,
    drafter_state=(),
    policy_context=dataclasses.replace(policy_context, tokens=None),
  )
  state = scheme.constrain_state(state)
  drafter_state = scheme.drafter.init(drafter_params, state.context(scheme, params, fixed), width)
  return scheme.constrain_state(dataclasses.replace(state, drafter_state=drafter_state))


# --- the loop ------------------------------------------------------------------------------


def decode(
  scheme: Scheme,
  params: Params,
  drafter_params: Params,
  fixed: Fixed,
  state: LoopState,
  max_rounds: Array,
) -> LoopState:
  """Runs rounds until every row has ended, or `max_rounds` (`[]` int32) of them."""

  def unfinished(carry):
    rounds, state = carry
    return (rounds < max_rounds) & jnp.any(state.active)

  def body(carry):
    rounds, state = carry
    return rounds + 1, decode_round(scheme, params, drafter_params, fixed, state)

  _, state = jax.lax.while_loop(unfinished, body, (jnp.zeros((), jnp.int32), state))
  return state


def decode_round(
  scheme: Scheme, params: Params, drafter_params: Params, fixed: Fixed, state: LoopState
) -> LoopState:
  """One round: draft -> score -> verify -> commit."""
  context = state.context(scheme, params, fixed)
  draft, drafter_state = scheme.drafter.draft(drafter_params, state.drafter_state, context)
  draft = _within_limit(scheme, draft, context)
  output, logits, cache = score(scheme, params, draft, context)
  verdict = scheme.verifier.verify(draft, logits, context, scheme.drafter.max_depth)
  state, verdict = commit(
    fixed, state, draft, logits, verdict, output, scheme.drafter.certain_nodes
  )
  if not (scheme.drafter.is_chain and scheme.model.position_addressed):
    kept = jnp.where(context.active, verdict.num_accepted + 1, 0)
    cache = scheme.model.keep(cache, output.block, verdict.path, kept)
  state = dataclasses.replace(state, cache=cache)
  drafter_state = scheme.drafter.update(
    drafter_params, drafter_state, state.context(scheme, params, fixed), verdict, output
  )
  return scheme.constrain_state(dataclasses.replace(state, drafter_state=drafter_state))


def _within_limit(scheme: Scheme, draft: Draft, context: Context) -> Draft:
  """Invalidates nodes that no budget is left for: the target adds one token of its own."""
  if scheme.drafter.is_chain:
    depth = jnp.arange(draft.num_nodes, dtype=jnp.int32)[None, :] + 1
  else:
    depth = trees.depths(draft.parents)
  room = jnp.where(context.active, context.limit - context.length - 1, 0)
  return dataclasses.replace(draft, valid=draft.valid & (depth <= room[:, None]))


def score(
  scheme: Scheme, params: Params, draft: Draft, context: Context
) -> tuple[TargetOutput, Array, Cache]:
  """One target call over `[pending token, nodes, probes]`.

  Returns:
    The target's output, the logits `[B, 1 + N, V]` of the pending token and the nodes (probes
    get none here: a drafter takes them from their hidden states), and the target's cache.
  """
  model, num_scored = scheme.model, 1 + draft.num_nodes
  cache = context.cache if draft.target_cache is None else draft.target_cache
  inputs = jnp.concatenate([context.newest(1), draft.tokens], axis=1)
  block = _block(scheme, draft, context)
  if draft.probes is not None:
    embedded = model.embed(params, inputs)
    probes = draft.probes.embeddings.astype(embedded.dtype)
    inputs = jnp.concatenate([embedded, probes], axis=1)

  def call(width, cache):
    output = model.apply(
      params,
      inputs[:, :width],
      block.leading(width),
      cache,
      hidden_layers=scheme.drafter.hidden_layers,
    )
    logits = model.logits(params, output.hidden[:, :num_scored])
    logits = scheme.constrain(logits, "batch", None, "vocab")
    return (output.hidden, output.layer_hidden, logits), output.cache

  def call_full(cache):
    return call(inputs.shape[1], cache)

  def call_narrow(cache):
    (hidden, layer_hidden, logits), cache = call(1, cache)
    hidden, layer_hidden = jax.tree.map(
      lambda x: _pad_tokens(x, inputs.shape[1]), (hidden, layer_hidden)
    )
    logits = scheme.constrain(_pad_tokens(logits, num_scored), "batch", None, "vocab")
    return (hidden, layer_hidden, logits), cache

  if scheme.narrow and draft.probes is None and draft.num_nodes > 0:
    drafted = jnp.any(draft.valid)
    scored, cache = run_if(drafted, call_full, cache)
    scored, cache = run_if(~drafted, call_narrow, cache, otherwise=scored)
  else:
    scored, cache = call_full(cache)
  hidden, layer_hidden, logits = scored
  return TargetOutput(hidden, layer_hidden, block), logits, cache


def _block(scheme: Scheme, draft: Draft, context: Context) -> Block:
  """The block that scores a draft and its probes."""
  base = context.length - 1
  if draft.probes is not None:
    return trees.block_of(base, jnp.concatenate([draft.parents, draft.probes.parents], axis=1))
  if scheme.drafter.is_chain:
    return Block.chain(base, 1 + draft.num_nodes)
  return trees.block_of(base, draft.parents)


def _pad_tokens(values: Array, num_tokens: int) -> Array:
  """`[B, 1, ...]` to `[B, num_tokens, ...]` with zeros, which no one looks at."""
  pad = [(0, 0)] * values.ndim
  pad[1] = (0, num_tokens - values.shape[1])
  return jnp.pad(values, pad)


# --- what a user calls ---------------------------------------------------------------------

_start = jax.jit(start, static_argnums=(0, 5))
_decode = jax.jit(decode, static_argnums=0, donate_argnums=4)
_end_rows = jax.jit(end_rows, donate_argnums=0)
_row_keys = jax.jit(sampling.row_keys, static_argnums=1)


class Session:
  """Decoding in slices, driven from the host: streaming, progress, stop strings.

  The state lives on the device and is donated from slice to slice.
  """

  def __init__(
    self,
    scheme: Scheme,
    params: Params,
    drafter_params: Params,
    fixed: Fixed,
    state: LoopState,
  ):
    self._arguments = (scheme, params, drafter_params, fixed)
    self._state = state

  def advance(self, max_rounds: int | None = None) -> bool:
    """Runs up to `max_rounds` rounds (None: to the end); returns whether rows go on."""
    self.advance_async(max_rounds)
    return bool(np.any(fetch(self._state.finish) == RUNNING))

  def advance_async(self, max_rounds: int | None = None) -> None:
    """The same without waiting for the device (and so traceable)."""
    rounds = UNLIMITED if max_rounds is None else np.int32(max_rounds)
    # Put there explicitly, so that a slice can run under jax.transfer_guard("disallow").
    rounds = _put(self._arguments[0], rounds)
    self._state = _decode(*self._arguments, self._state, rounds)

  def stop(self, lengths: dict[int, int]) -> None:
    """Ends rows: `{row: length}`, prompt included; records beyond it no longer count."""
    batch = self._state.length.shape[0]
    length, ends = np.zeros(batch, np.int32), np.zeros(batch, bool)
    for row, value in lengths.items():
      length[row], ends[row] = value, True
    self._state = _end_rows(self._state, length, ends)

  def block_until_ready(self) -> "Session":
    """Waits for the device."""
    jax.block_until_ready(self._state.length)
    return self

  def snapshot(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Host copies of `tokens [B, S]`, `length [B]` and `finish [B]`."""
    state = self._state
    return fetch((state.tokens, state.length, state.finish))

  def generation(self) -> Generation:
    """What has been decoded so far, copied to the host (the state itself is donated on)."""
    return fetch(self.device_generation())

  def device_generation(self) -> Generation:
    """What has been decoded so far, as new arrays on the device."""
    scheme, _, _, fixed = self._arguments
    return _to_generation(scheme, fixed.prompt_length, self._state)


def _generation(scheme: Scheme, prompt_lengths: Array, state: LoopState) -> Generation:
  written = jnp.arange(state.tokens.shape[1])[None, :] < state.length[:, None]
  return Generation(
    tokens=jnp.where(written, state.tokens, 0),
    prompt_lengths=jnp.asarray(prompt_lengths),
    lengths=state.length,
    finish=state.finish,
    records=state.records,
    max_depth=scheme.drafter.max_depth - scheme.drafter.certain_nodes,
    certain_nodes=scheme.drafter.certain_nodes,
  )


_to_generation = jax.jit(_generation, static_argnums=0)


def open_session(
  model: Model,
  params: Params,
  prompts: Prompts,
  *,
  drafter: Drafter | None = None,
  drafter_params: Params = None,
  verifier: Verifier | None = None,
  policy: sampling.SamplingPolicy | None = None,
  max_new_tokens: int | Sequence[int] | Array = 128,
  eos_ids: Sequence[int] | Array = (),
  key: Array | int | None = None,
  row_keys: Array | None = None,
  prompt_lengths: Array | Sequence[int] | None = None,
  capacity: int | None = None,
  prompt_width: int | None = None,
  narrow: bool = True,
  mesh: Mesh | str | None = None,
  rules: Rules | str | None = None,
  drafter_rules: Rules | str | None = None,
) -> Session:
  """Checks the arguments, reads the prompts and returns a `Session`. See `generate`."""
  scheme = make_scheme(
    model,
    drafter,
    verifier,
    narrow=narrow,
    mesh=mesh,
    rules=rules,
    drafter_rules=drafter_rules,
  )
  request = make_request(
    prompts,
    prompt_lengths=prompt_lengths,
    max_new_tokens=max_new_tokens,
    eos_ids=eos_ids,
    capacity=capacity,
    prompt_width=prompt_width,
    block_width=scheme.block_width,
    vocab_size=model.vocab_size,
    max_positions=model.max_positions,
  )
  batch = request.tokens.shape[0]
  policy = sampling.SamplingPolicy() if policy is None else policy
  policy = policy.resolve(batch, model.vocab_size, request.eos_ids)
  scheme.verifier.check(policy)
  if row_keys is None:
    key = jax.random.key(0 if key is None else key) if isinstance(key, int | None) else key
    row_keys = _row_keys(key, batch)
  elif row_keys.shape != (batch,):
    raise ValueError(f"row_keys must be typed keys [{batch}], got shape {row_keys.shape}")
  fixed = Fixed(
    prompt_length=request.prompt_lengths,
    limit=request.limit,
    eos_ids=request.eos_ids,
    row_keys=row_keys,
    policy=policy,
  )
  tokens = request.tokens
  if scheme.partitioning is not None and scheme.drafter_partitioning is not None:
    scheme.partitioning.check_batch(batch, "the number of prompts")
    params = scheme.partitioning.shard(params)
    drafter_params = scheme.drafter_partitioning.shard(drafter_params)
  # As host arrays they would be sent to the devices again with every slice.
  fixed, tokens = _put(scheme, (fixed, tokens), batch)
  state = _start(scheme, params, drafter_params, fixed, tokens, request.capacity)
  return Session(scheme, params, drafter_params, fixed, state)


def _put(scheme: Scheme, tree: Any, batch: int | None = None) -> Any:
  """Host arrays on the device, or on those of the mesh."""
  if scheme.partitioning is None:
    return jax.device_put(tree)
  return scheme.partitioning.shard(tree, batch)


def make_scheme(
  model: Model,
  drafter: Drafter | None,
  verifier: Verifier | None,
  *,
  narrow: bool = True,
  mesh: Mesh | AbstractMesh | str | None = None,
  rules: Rules | str | None = None,
  drafter_rules: Rules | str | None = None,
) -> Scheme:
  """Fills defaults in and checks that the parts fit each other. See `generate`."""
  drafter = Empty() if drafter is None else drafter
  verifier = RejectionSampling() if verifier is None else verifier
  drafter.check(model)
  partitioning, drafter_partitioning = None, None
  if mesh is not None:
    partitioning = Partitioning.of(mesh, rules, model)
    drafter_partitioning = Partitioning.of(
      partitioning.mesh, rules if drafter_rules is None else drafter_rules, drafter
    )
  elif rules is not None or drafter_rules is not None:
    raise ValueError("rules and drafter_rules say how arrays lie on a mesh, got no mesh")
  return Scheme(
    model=model,
    drafter=drafter,
    verifier=verifier,
    narrow=narrow,
    partitioning=partitioning,
    drafter_partitioning=drafter_partitioning,
  )


def generate(model: Model, params: Params, prompts: Prompts, **options: Any) -> Generation:
  """Decodes a batch of prompts to the end. Also traceable: call it under your own `jax.jit`.

  Args:
    model: the target model.
    params: its parameters.
    prompts: one list of token ids a row, or right-padded `[B, P]` with `prompt_lengths`.
    **options: the same as `open_session` takes:
      drafter, drafter_params: who drafts; None decodes autoregressively.
      verifier: who decides; `RejectionSampling()` by default.
      policy: `SamplingPolicy`; greedy by default.
      max_new_tokens: one number or one a row.
      eos_ids: ids that end a row.
      key: a typed key or a seed, from which every row gets its own; or `row_keys [B]`.
      capacity: slots of cache and token buffer; the smallest bucket that fits by default.
      prompt_width: shorter prompts are padded to so many tokens, so that prompts of many lengths
        share a compiled program; by default to the smallest bucket that fits.
      narrow: see `Scheme`.
      mesh: decodes on a mesh of devices, `specjax.sharding.make_mesh` or its text, such as
        "data:2,model:4". Parameters that lie on it already (`specjax.sharding.shard`) are not
        copied.
      rules: over `specjax.sharding.DEFAULT_RULES`, which say what is cut by which axis.
      drafter_rules: the same for the drafter's arrays; as `rules` by default.
        `specjax.sharding.REPLICATED` gives every device the whole of a small drafter.

  Returns:
    `Generation`, on the device.

  Raises:
    ValueError: before anything is compiled, naming the argument, what it got and what it takes.
  """
  session = open_session(model, params, prompts, **options)
  session.advance_async()
  return session.device_generation()


def stream(
  model: Model,
  params: Params,
  prompts: Prompts,
  *,
  rounds_per_slice: int = 1,
  **options: Any,
) -> Iterator[list[list[int]]]:
  """Yields the tokens of each row as they are committed: `list` of B lists, empty where none.

  Takes what `generate` takes; `rounds_per_slice` target calls are made between two yields.
  Their concatenation is what `generate` returns.
  """
  if rounds_per_slice < 1:
    raise ValueError(f"rounds_per_slice must be >= 1, got {rounds_per_slice}")
  session = open_session(model, params, prompts, **options)
  _, seen, _ = session.snapshot()
  running = True
  while running:
    running = session.advance(rounds_per_slice)
    tokens, length, _ = session.snapshot()
    yield [row[a:b].tolist() for row, a, b in zip(tokens, seen, length, strict=True)]
    seen = length
