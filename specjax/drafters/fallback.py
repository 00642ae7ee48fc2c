# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A cheap drafter in front of another one, row by row.

The staging of Spector and Re (2023, arXiv 2308.04623) in its simplest form: text that can be
copied is copied; only rows where nothing is found pay for the second drafter.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.drafters.base import ChainDrafter
from specjax.types import (
  Array,
  Context,
  Draft,
  Drafter,
  Model,
  Params,
  PyTree,
  TargetOutput,
  Verdict,
  pytree_dataclass,
)


@pytree_dataclass
class FallbackState:
  """The states of the two stages.

  Attributes:
    first: the first drafter's state.
    second: the second drafter's state.
    used_first: `[B]` bool, rows whose last draft was the first drafter's.
  """

  first: PyTree
  second: PyTree
  used_first: Array


@dataclasses.dataclass(frozen=True)
class Fallback(ChainDrafter):
  """Takes the first drafter's chain where it has one, and the second's elsewhere.

  While every live row has a draft of the first, the second does not run at all. Parameters are
  the pair `(first's, second's)`.

  Attributes:
    first: the cheap drafter, `PromptLookup` for one.
    second: the drafter to fall back to.
    min_tokens: how many tokens the first must propose for its draft to be taken.
  """

  first: Drafter
  second: Drafter
  min_tokens: int = 1

  def __post_init__(self):
    for name in ("first", "second"):
      drafter = getattr(self, name)
      if not drafter.is_chain or drafter.num_probes or drafter.certain_nodes:
        raise ValueError(f"{name} of a Fallback must draft plain chains, got {drafter!r}")
    if self.min_tokens < 1:
      raise ValueError(f"min_tokens must be >= 1, got {self.min_tokens}")

  @property
  def draft_length(self) -> int:  # type: ignore[override]  # it follows from the two stages
    """The longer of the two."""
    return max(self.first.num_nodes, self.second.num_nodes)

  @property
  def hidden_layers(self) -> tuple[int, ...]:
    """What either asks for."""
    return tuple(sorted({*self.first.hidden_layers, *self.second.hidden_layers}))

  def check(self, model: Model) -> None:
    """Both must serve the target."""
    self.first.check(model)
    self.second.check(model)

  def init(self, params: Params, context: Context, prompt_width: int) -> FallbackState:
    """Both read the prompt."""
    first_params, second_params = self._params(params)
    return FallbackState(
      first=self.first.init(first_params, context, prompt_width),
      second=self.second.init(second_params, context, prompt_width),
      used_first=jnp.zeros_like(context.active),
    )

  def draft(
    self, params: Params, state: FallbackState, context: Context
  ) -> tuple[Draft, FallbackState]:
    """The first's draft where it proposes enough, else the second's."""
    first_params, second_params = self._params(params)
    first, first_state = self.first.draft(first_params, state.first, context)
    found = jnp.sum(first.valid, axis=1) >= self.min_tokens
    needed = jnp.any(context.active & ~found)

    def run(state):
      return self.second.draft(second_params, state, context)

    def skip(state):
      draft, _ = jax.eval_shape(run, state)
      return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), draft), state

    second, second_state = jax.lax.cond(needed, run, skip, state.second)
    draft = self._merge(found, first, second, context.vocab_size)
    return draft, FallbackState(first=first_state, second=second_state, used_first=found)

  def update(
    self,
    params: Params,
    state: FallbackState,
    context: Context,
    verdict: Verdict,
    output: TargetOutput,
  ) -> FallbackState:
    """Each stage hears of its own accepted tokens; the other's count as none of its own."""
    first_params, second_params = self._params(params)
    accepted = verdict.num_accepted
    for_first = dataclasses.replace(verdict, num_accepted=jnp.where(state.used_first, accepted, 0))
    for_second = dataclasses.replace(verdict, num_accepted=jnp.where(state.used_first, 0, accepted))
    return dataclasses.replace(
      state,
      first=self.first.update(first_params, state.first, context, for_first, output),
      second=self.second.update(second_params, state.second, context, for_second, output),
    )

  def _params(self, params: Params) -> tuple[Params, Params]:
    """Splits the parameters; None stands for two drafters without any."""
    if params is None:
      return None, None
    if not isinstance(params, tuple) or len(params) != 2:
      raise ValueError(
        f"drafter_params of a Fallback must be a pair (first's, second's), got {type(params)}"
      )
    return params

  def _merge(self, found: Array, first: Draft, second: Draft, vocab_size: int) -> Draft:
    """Row by row; a point mass beside a sampled draft becomes a one-hot law."""
    first, second = (_widen(draft, self.draft_length) for draft in (first, second))
    pick = found[:, None]
    log_probs = None
    if first.log_probs is not None or second.log_probs is not None:
      log_probs = jnp.where(
        found[:, None, None], _dense(first, vocab_size), _dense(second, vocab_size)
      )
    return Draft.chain(
      jnp.where(pick, first.tokens, second.tokens),
      jnp.where(pick, first.valid, second.valid),
      log_probs,
    )


def _widen(draft: Draft, num_nodes: int) -> Draft:
  """The same chain with invalid nodes behind it."""
  missing = num_nodes - draft.num_nodes
  pad = ((0, 0), (0, missing))
  log_probs = draft.log_probs
  if log_probs is not None:
    log_probs = jnp.pad(log_probs, (*pad, (0, 0)))
  return Draft.chain(jnp.pad(draft.tokens, pad), jnp.pad(draft.valid, pad), log_probs)


def _dense(draft: Draft, vocab_size: int) -> Array:
  """`[B, N, V]`: the law of each node, one-hot for a point mass."""
  if draft.log_probs is not None:
    return draft.log_probs
  return jnp.log(jax.nn.one_hot(draft.tokens, vocab_size, dtype=jnp.float32))
