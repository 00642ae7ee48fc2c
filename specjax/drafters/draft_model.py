# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""An independent draft model: speculative decoding's and speculative sampling's drafter.

Leviathan, Kalman, Matias (2023, arXiv 2211.17192), Algorithm 1; Chen et al. (2023, arXiv
2302.01318), Algorithm 2. The draft model has parameters and a cache of its own.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.drafters.base import ChainDrafter, check_draft_length
from specjax.models.prefill import prefill
from specjax.types import (
  Array,
  Block,
  Cache,
  Context,
  Draft,
  Model,
  Params,
  PolicyContext,
  TargetOutput,
  Verdict,
  pytree_dataclass,
)


@pytree_dataclass
class DraftModelState:
  """Attributes: the draft model's `cache` and what is known of it.

  Attributes:
    cache: the draft model's cache.
    cached: `[B]` int32, leading positions whose entries belong to committed tokens.
    base: `[B]` int32, the row's length when it was last drafted for.
  """

  cache: Cache
  cached: Array
  base: Array


@dataclasses.dataclass(frozen=True)
class DraftModel(ChainDrafter):
  """Drafts a chain with a smaller model, under the target's own sampling policy.

  Attributes:
    model: the draft model.
    draft_length: tokens to draft a round (the papers' gamma, K).
    temperature: temperature to draft at, where it should differ from the policy's. It changes
      how much is accepted, never the law of the output. 0 drafts greedily.
    pad_vocabulary: accept a draft model whose vocabulary is shorter or longer than the
      target's. Ids that either of them lacks are never proposed. Only sound if both share
      their tokenizer (`specjax.models.tokenizer.check_compatible`).
  """

  model: Model
  draft_length: int = 5
  temperature: float | None = None
  pad_vocabulary: bool = False

  def __post_init__(self):
    check_draft_length(self.draft_length)
    if not self.model.position_addressed:
      raise ValueError(
        "model of a DraftModel must have a cache that is undone by length (position_addressed); "
        "recurrent draft models are not supported"
      )
    if self.temperature is not None and not self.temperature >= 0:
      raise ValueError(f"temperature must be >= 0 or None, got {self.temperature!r}")

  def check(self, model: Model) -> None:
    """Raises ValueError if the vocabularies differ and `pad_vocabulary` is off."""
    if self.model.vocab_size != model.vocab_size and not self.pad_vocabulary:
      raise ValueError(
        f"the draft model's vocabulary has {self.model.vocab_size} tokens, the target's "
        f"{model.vocab_size}; they must be the same (pad_vocabulary=True accepts other lengths "
        "of one tokenizer)"
      )

  def init(self, params: Params, context: Context, prompt_width: int) -> DraftModelState:
    """Reads the prompt."""
    batch, capacity = context.tokens.shape
    cache, _ = prefill(
      self.model,
      params,
      self.model.init_cache(batch, capacity),
      self._known(context.tokens[:, :prompt_width]),
      context.length,
    )
    return DraftModelState(cache=cache, cached=context.length - 1, base=context.length)

  def draft(
    self, params: Params, state: DraftModelState, context: Context
  ) -> tuple[Draft, DraftModelState]:
    """Draws `draft_length` tokens one after another, each with the law it was drawn from."""
    policy = self._policy(context)
    state = self._catch_up(params, state, context)
    # The two newest tokens are fed together: after a full acceptance the last drafted token is
    # not in the cache yet. Where it is, writing it again changes nothing.
    logits, cache = self._run(
      params, context.newest(2), Block.chain(context.length - 2, 2), state.cache
    )
    step_context = context.policy_context
    token, log_probs = self._propose(policy, logits, context, step_context)
    batch = token.shape[0]
    tokens = jnp.zeros((batch, self.draft_length), jnp.int32).at[:, 0].set(token)
    laws = None
    if log_probs is not None:
      laws = jnp.zeros((batch, self.draft_length, context.vocab_size), jnp.float32)
      laws = laws.at[:, 0].set(log_probs)

    def draft_next(index, carry):
      tokens, laws, cache, step_context, token = carry
      step_context = jax.vmap(PolicyContext.advance)(step_context, token)
      block = Block.chain(context.length - 1 + index, 1)
      logits, cache = self._run(params, token[:, None], block, cache)
      token, log_probs = self._propose(policy, logits, context, step_context)
      tokens = tokens.at[:, index].set(token)
      laws = None if laws is None else laws.at[:, index].set(log_probs)
      return tokens, laws, cache, step_context, token

    carry = (tokens, laws, cache, step_context, token)
    tokens, laws, cache, _, _ = jax.lax.fori_loop(1, self.draft_length, draft_next, carry)
    state = DraftModelState(
      cache=cache, cached=context.length + self.draft_length - 1, base=context.length
    )
    valid = jnp.broadcast_to(self._reaches(context)[:, None], tokens.shape)
    return Draft.chain(tokens, valid, laws), state

  def update(
    self,
    params: Params,
    state: DraftModelState,
    context: Context,
    verdict: Verdict,
    output: TargetOutput,
  ) -> DraftModelState:
    """Forgets the cache entries of rejected tokens, by length."""
    del params, context, output
    cached = jnp.minimum(state.cached, state.base + verdict.num_accepted)
    return dataclasses.replace(state, cached=cached)

  def _catch_up(self, params: Params, state: DraftModelState, context: Context) -> DraftModelState:
    """Reads committed tokens that another drafter proposed (all but the two newest)."""
    width = self.draft_length + 1

    def missing(state):
      return context.length - 2 - state.cached

    def read(state):
      index = state.cached[:, None] + jnp.arange(width, dtype=jnp.int32)[None, :]
      last = context.tokens.shape[1] - 1
      tokens = jnp.take_along_axis(context.tokens, jnp.clip(index, 0, last), axis=1)
      block = Block.chain(state.cached, width)
      output = self.model.apply(params, self._known(tokens), block, state.cache)
      read_now = jnp.clip(missing(state), 0, width)
      return dataclasses.replace(state, cache=output.cache, cached=state.cached + read_now)

    def behind(state):
      return jnp.any(context.active & self._reaches(context) & (missing(state) > 0))

    return jax.lax.while_loop(behind, read, state)

  def _run(self, params: Params, tokens: Array, block: Block, cache: Cache) -> tuple[Array, Cache]:
    """One forward pass: the logits `[B, V]` after the last token of the block."""
    output = self.model.apply(params, self._known(tokens), block, cache)
    return self.model.logits(params, output.hidden[:, -1]), output.cache

  def _propose(
    self,
    policy: sampling.SamplingPolicy,
    logits: Array,
    context: Context,
    step_context: PolicyContext,
  ) -> tuple[Array, Array | None]:
    """Draws a token `[B]` and returns it with its law `[B, V]`."""
    logits = self._fit(logits, context)
    return jax.vmap(sampling.propose)(policy, logits, step_context, context.row_keys)

  def _policy(self, context: Context) -> sampling.SamplingPolicy:
    """The policy to draft under."""
    policy = context.policy
    if self.temperature is None or not policy.sampled:
      return policy
    if self.temperature == 0:
      return policy.as_greedy()
    temperature = jnp.full(context.length.shape, self.temperature, jnp.float32)
    return dataclasses.replace(policy, temperature=temperature)

  def _known(self, tokens: Array) -> Array:
    """Token ids that the draft model has; one that it lacks becomes its last id."""
    return jnp.minimum(tokens, self.model.vocab_size - 1)

  def _fit(self, logits: Array, context: Context) -> Array:
    """Draft logits over the target's vocabulary: -inf for ids that either model lacks."""
    missing = context.vocab_size - logits.shape[-1]
    if missing <= 0:
      return logits[:, : context.vocab_size]
    padding = ((0, 0), (0, missing))
    return jnp.pad(logits, padding, constant_values=-jnp.inf)

  def _reaches(self, context: Context) -> Array:
    """`[B]` bool: rows short enough for the draft model's longest sequence."""
    if self.model.max_positions is None:
      return jnp.ones_like(context.active)
    return context.length + self.draft_length <= self.model.max_positions
