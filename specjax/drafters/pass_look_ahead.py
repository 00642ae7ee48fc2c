# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""PaSS: the target drafts for itself, in one call, over learned look-ahead embeddings.

Monea, Joulin, Grave (2023, arXiv 2311.13581). Everywhere in specjax, training included, look-ahead
embedding i (from 1) that is inserted after token t stands at position t + i, sees the text up to
token t and the look-ahead embeddings before it, and predicts token t + i + 1: one token further on
than the token t itself predicts, for i = 1.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.arguments import check_integer
from specjax.drafters.base import ChainDrafter, distance_to_limit
from specjax.run_if import run_if
from specjax.training.objective import TrainedDrafter
from specjax.types import (
  Array,
  Block,
  Cache,
  Context,
  Draft,
  Model,
  Params,
  PolicyContext,
  Probes,
  PyTree,
  TargetOutput,
  Verdict,
  pytree_dataclass,
)

SCHEME = "pass"


@pytree_dataclass
class MergedState:
  """What the merged variant keeps from one scoring call to the next draft.

  Attributes:
    hidden: `[B, L, D]`, the hidden states of the look-ahead embeddings that hung off the last
      committed node.
    ready: `[B]` bool, whether there are any: false until the first scoring call.
  """

  hidden: Array
  ready: Array


@dataclasses.dataclass(frozen=True)
class PaSS(ChainDrafter):
  """Parallel speculative sampling. Parameters are `{"look_ahead": [L or more, D]}`.

  As in the paper an iteration makes two target calls. The first reads the pending token and L
  look-ahead embeddings over the target's own cache. The pending token's output gives the next
  token with certainty: it is drawn from the target's own law, so that the verifier keeps it (up
  to the rounding of calls of different width; either way the output has the target's law). The
  outputs of the look-ahead embeddings give L drafts. The second call scores all 1 + L nodes, so an
  iteration commits at least two tokens. It reads the pending token once more, as every scoring
  call does: one column more than in the paper, no call more. The look-ahead entries of the cache
  stand past the committed slots and are overwritten or ignored.

  The merged variant, which is ours, makes one target call an iteration: the scoring call carries
  the L look-ahead embeddings once for every node that may turn out to be the last one accepted,
  the pending token included, as probes that are never accepted. The next draft is read off those
  that hung off the last node that was. Its L nodes follow the target's own token, which makes the
  block `(1 + L)^2` wide. The first round after the prompt has nothing to propose.

  Attributes:
    model: the target model itself.
    look_ahead: L, at most as many as were trained.
    merged: whether to draft and verify in one target call.
  """

  model: Model
  look_ahead: int = 4
  merged: bool = False

  def __post_init__(self):
    check_integer("look_ahead", self.look_ahead, 1)

  @property
  def draft_length(self) -> int:  # type: ignore[override]  # it follows from the variant
    """L, and the certain token before them where the drafter calls the target itself."""
    return self.look_ahead + self.certain_nodes

  @property
  def certain_nodes(self) -> int:
    """With two calls, the first node is the target's own token."""
    return 0 if self.merged else 1

  @property
  def num_probes(self) -> int:
    """M: merged, L for the pending token and for each node."""
    return self.look_ahead * (1 + self.look_ahead) if self.merged else 0

  def check(self, model: Model) -> None:
    """Raises ValueError for another target than `model`, or a cache not undone by length."""
    if model != self.model:
      raise ValueError(f"model of PaSS must be the target {model!r}, got {self.model!r}")
    if not self.merged and not model.position_addressed:
      raise ValueError(
        "PaSS with two calls writes to the target's cache, which must be undone by length "
        "(position_addressed); this one is not, use merged=True"
      )

  def init(self, params: Params, context: Context, prompt_width: int) -> PyTree:
    """No state with two calls; merged, nothing to propose yet."""
    del prompt_width
    self._check_params(params)
    if not self.merged:
      return ()
    batch = context.tokens.shape[0]
    shape = (batch, self.look_ahead, self.model.hidden_size)
    return MergedState(
      hidden=jnp.zeros(shape, context.hidden.dtype), ready=jnp.zeros((batch,), bool)
    )

  def draft(self, params: Params, state: PyTree, context: Context) -> tuple[Draft, PyTree]:
    """Draws every node from the law that its look-ahead position has under the policy."""
    look_ahead = params["look_ahead"][: self.look_ahead]
    if self.merged:
      tokens, laws = self._draw(state.hidden, context)
      valid = jnp.broadcast_to(state.ready[:, None], tokens.shape)
      draft = Draft.chain(tokens, valid, laws)
      return dataclasses.replace(draft, probes=self._probes(look_ahead, tokens.shape[0])), state
    # With room for the certain token alone, a call to find it would save none.
    useful = context.active & (distance_to_limit(context) > 1)
    hidden, cache = self._read_ahead(look_ahead, context, jnp.any(useful))
    tokens, laws = self._draw(hidden, context)
    draft = Draft.chain(tokens, jnp.broadcast_to(useful[:, None], tokens.shape), laws)
    return dataclasses.replace(draft, target_cache=cache), state

  def update(
    self, params: Params, state: PyTree, context: Context, verdict: Verdict, output: TargetOutput
  ) -> PyTree:
    """Merged: keeps the probes that hung off the last accepted node."""
    del params, context
    if not self.merged:
      return state
    last = jnp.take_along_axis(verdict.path, verdict.num_accepted[:, None], axis=1)
    index = jnp.arange(self.look_ahead, dtype=jnp.int32)[None, :]
    index = 1 + self.num_nodes + last * self.look_ahead + index
    hidden = jnp.take_along_axis(output.hidden, index[:, :, None], axis=1)
    return MergedState(hidden=hidden, ready=jnp.ones_like(state.ready))

  def _read_ahead(self, look_ahead: Array, context: Context, needed: Array) -> tuple[Array, Cache]:
    """The first call: the hidden states `[B, 1 + L, D]` and the cache that it wrote to.

    Where it is not `needed` (`[]` bool) no call is made and the states are zeros.
    """
    model = self.model
    pending = model.embed(context.params, context.newest(1))
    shape = (pending.shape[0], *look_ahead.shape)
    look_ahead = jnp.broadcast_to(look_ahead.astype(pending.dtype), shape)
    inputs = jnp.concatenate([pending, look_ahead], axis=1)
    block = Block.chain(context.length - 1, inputs.shape[1])

    def call(cache):
      output = model.apply(context.params, inputs, block, cache)
      return output.hidden, output.cache

    return run_if(needed, call, context.cache)

  def _draw(self, hidden: Array, context: Context) -> tuple[Array, Array | None]:
    """Tokens `[B, N]` from hidden states `[B, N, D]`, and the laws `[B, N, V]` drawn from."""
    logits = self.model.logits(context.params, hidden)
    return jax.vmap(_draw_row)(context.policy, logits, context.policy_context, context.row_keys)

  def _probes(self, look_ahead: Array, batch: int) -> Probes:
    """L look-ahead embeddings in a row, off the pending token and off each node."""
    length, places = self.look_ahead, 1 + self.num_nodes
    parents = [
      place - 1 if index == 0 else self.num_nodes + place * length + index - 1
      for place in range(places)
      for index in range(length)
    ]
    embeddings = jnp.tile(look_ahead, (places, 1))
    return Probes(
      embeddings=jnp.broadcast_to(embeddings, (batch, *embeddings.shape)),
      parents=jnp.broadcast_to(jnp.array(parents, jnp.int32), (batch, len(parents))),
    )

  def _check_params(self, params: Params) -> None:
    try:
      shape = jnp.shape(params["look_ahead"])
    except (TypeError, KeyError):
      shape = ()
    width = self.model.hidden_size
    if len(shape) != 2 or shape[0] < self.look_ahead or shape[1] != width:
      raise ValueError(
        f'drafter_params of PaSS must be {{"look_ahead": [at least {self.look_ahead}, {width}]}}, '
        f"got {jax.tree.map(jnp.shape, params)!r}"
      )


def from_trained(
  trained: TrainedDrafter,
  model: Model,
  params: Params,
  *,
  look_ahead: int | None = None,
  merged: bool = False,
) -> tuple[PaSS, Params]:
  """The drafter of a training run and its parameters.

  Args:
    trained: what the run exported.
    model: the target.
    params: the target's parameters, which PaSS needs no copy of.
    look_ahead: L; None takes all that were trained.
    merged: which variant to decode with: both use the same embeddings.

  Raises:
    ValueError: for another scheme's drafter, another target's, or more look-ahead than trained.
  """
  del params
  if trained.scheme != SCHEME:
    raise ValueError(f"a PaSS drafter has the scheme {SCHEME!r}, this one has {trained.scheme!r}")
  embeddings = jnp.asarray(trained.arrays["look_ahead"])
  width = model.hidden_size
  if embeddings.ndim != 2 or embeddings.shape[1] != width:
    raise ValueError(
      f"look_ahead must be embeddings [L, {width}], as wide as the target's hidden states, got "
      f"shape {embeddings.shape}"
    )
  trained_length = embeddings.shape[0]
  length = trained_length if look_ahead is None else look_ahead
  if length > trained_length:
    raise ValueError(f"look_ahead must be at most {trained_length}, what was trained, got {length}")
  return PaSS(model, length, merged), {"look_ahead": embeddings}


def _draw_row(
  policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, row_key: Array
) -> tuple[Array, Array | None]:
  """One row: N tokens in order, each known to the policy of those after it."""
  num_nodes, vocab_size = logits.shape
  tokens = jnp.zeros((num_nodes,), jnp.int32)
  laws = jnp.zeros((num_nodes, vocab_size), jnp.float32) if policy.sampled else None

  def draw_next(index, carry):
    context, tokens, laws = carry
    token, law = sampling.propose(policy, logits[index], context, row_key)
    if laws is not None:
      laws = laws.at[index].set(law)
    return context.advance(token), tokens.at[index].set(token), laws

  _, tokens, laws = jax.lax.fori_loop(0, num_nodes, draw_next, (context, tokens, laws))
  return tokens, laws
