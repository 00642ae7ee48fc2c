# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The types that the whole library speaks: read this file first.

Shapes use these letters throughout specjax:

  B  rows of the batch           S  capacity of a cache or token buffer (slots)
  N  nodes of a draft            T  tokens of the block that one target call scores
  M  probes of a draft           D  width of the model's hidden state
  K  longest path, root included V  vocabulary size

Static choices live in frozen, hashable dataclasses (models, drafters, verifiers): `jax.jit`
is specialised on them. Everything that changes is an array in one of the pytrees below.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, dataclass_transform, runtime_checkable

import jax
import jax.numpy as jnp

Array = jax.Array
PyTree = Any
# A target's or drafter's cache: any pytree of arrays that its model knows how to read.
Cache = Any
Params = Any

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True)
def pytree_dataclass(cls: type[_T]) -> type[_T]:
  """Makes `cls` a frozen dataclass whose fields are all children of a JAX pytree."""
  frozen = dataclasses.dataclass(frozen=True)(cls)
  return jax.tree_util.register_dataclass(frozen)


@pytree_dataclass
class Block:
  """Where T new tokens of each row stand, and what each of them may see.

  A token sees the row's committed cache slots `0 .. start - 1`, and those tokens of the block
  that `mask` shows it. Token t is written to cache slot `start + t`. Slots past that are
  garbage by definition, so a rejected token is undone by not moving `start` past it.

  Attributes:
    start: `[B]` int32, committed slots before the block. Slots below 0 or past the capacity
      are dropped, never wrapped or clamped.
    positions: `[B, T]` int32, the position that each token has in its sequence (its number of
      ancestors). In decoding, slot j of the committed cache always holds position j.
    mask: `[B or 1, T, T]` bool; `mask[b, t, s]` lets token t see token s. Includes `t == s`.
    committed_mask: `[B, T, S]` bool, which of the committed slots each token sees; None: all of
      them. Decoding never needs it. Training does, where blocks hang off many places of one
      written context, or of one window that several rows were packed into.
    committed_positions: `[B, S]` int32, the position that the entry in each committed slot was
      written with, for attention windows; None: slot j holds position j.
  """

  start: Array
  positions: Array
  mask: Array
  committed_mask: Array | None = None
  committed_positions: Array | None = None

  @classmethod
  def chain(cls, start: Array, num_tokens: int) -> "Block":
    """T tokens in a row, each seeing all before it: `start [B]` int32."""
    offsets = jnp.arange(num_tokens, dtype=jnp.int32)
    return cls(
      start=start,
      positions=jnp.maximum(start[:, None] + offsets[None, :], 0),
      mask=jnp.tril(jnp.ones((num_tokens, num_tokens), bool))[None],
    )

  @property
  def num_tokens(self) -> int:
    """T, static."""
    return int(self.positions.shape[1])

  def leading(self, num_tokens: int) -> "Block":
    """The block of the first `num_tokens` (static) tokens."""
    shown = self.committed_mask
    return dataclasses.replace(
      self,
      positions=self.positions[:, :num_tokens],
      mask=self.mask[:, :num_tokens, :num_tokens],
      committed_mask=None if shown is None else shown[:, :num_tokens],
    )

  def slots(self, capacity: int) -> Array:
    """`[B, T]` int32: the slot of each token; `capacity` (out of range) where there is none."""
    offsets = jnp.arange(self.num_tokens, dtype=jnp.int32)
    slots = self.start[:, None] + offsets[None, :]
    # JAX wraps a negative index to the buffer's end: send it out of range, where it is dropped.
    return jnp.where(slots < 0, capacity, slots)


@pytree_dataclass
class ModelOutput:
  """What one forward pass of a model returns.

  Attributes:
    hidden: `[B, T, D]`, the last hidden state, ready for `Model.logits`.
    cache: the cache with the block's tokens written.
    layer_hidden: one `[B, T, D]` per layer asked for with `hidden_layers`, in that order.
  """

  hidden: Array
  cache: Cache
  layer_hidden: tuple[Array, ...] = ()


@runtime_checkable
class Model(Protocol):
  """A causal language model as pure functions. Instances are hashable and hold no arrays.

  `specjax.models.Transformer` is the ready one; `specjax.models.FunctionModel` makes one of
  a user's pure function.
  """

  @property
  def vocab_size(self) -> int:
    """V, the number of logits."""
    ...

  @property
  def hidden_size(self) -> int:
    """D, the width of `ModelOutput.hidden`."""
    ...

  @property
  def max_positions(self) -> int | None:
    """The longest sequence that the model can read; None where there is no limit."""
    ...

  @property
  def position_addressed(self) -> bool:
    """Whether the cache is undone by length alone. If not, the loop calls `keep` every time."""
    ...

  def init_cache(self, batch: int, capacity: int) -> Cache:
    """An empty cache for `batch` rows of `capacity` slots."""
    ...

  def embed(self, params: Params, tokens: Array) -> Array:
    """Token ids `[B, T]` int32 to input embeddings `[B, T, D]`, as `apply` takes them."""
    ...

  def apply(
    self,
    params: Params,
    inputs: Array,
    block: Block,
    cache: Cache,
    *,
    hidden_layers: tuple[int, ...] = (),
  ) -> ModelOutput:
    """Runs the model on a block: token ids `[B, T]` int32 or embeddings `[B, T, D]` float."""
    ...

  def logits(self, params: Params, hidden: Array) -> Array:
    """Hidden states `[..., D]` to float32 logits `[..., V]`."""
    ...

  def keep(self, cache: Cache, block: Block, path: Array, kept: Array) -> Cache:
    """The cache after each row kept only a path of the block just written.

    Args:
      cache: the cache that `apply` returned for `block`.
      block: that block.
      path: `[B, K]` int32, block indices in the order of the sequence.
      kept: `[B]` int32, how many entries of `path` the row keeps (0: none of the block).
    """
    ...


@pytree_dataclass
class Probes:
  """Input embeddings that the target scores in the same call and that are never accepted.

  Attributes:
    embeddings: `[B, M, D]`, in place of token embeddings.
    parents: `[B, M]` int32: -1 is the last committed token, 0 .. N-1 a node of the draft,
      N + m an earlier probe.
  """

  embeddings: Array
  parents: Array


@pytree_dataclass
class Draft:
  """A token tree in arrays, together with the law that its tokens were drawn from.

  A chain is the tree whose parents are -1, 0, 1, ... The type of the proposal decides how a
  verifier treats it: there is no flag that could contradict it.

  Attributes:
    tokens: `[B, N]` int32.
    parents: `[B, N]` int32 in topological order (`parents[n] < n`); -1 is the last committed
      token. Siblings are tried in the order in which they stand.
    valid: `[B, N]` bool; an invalid node and all below it are never considered.
    log_probs: `[B, N, V]` float32, the log of the distribution that node n's token was drawn
      from (for draws without replacement: renormalised over what was left). None says that the
      draft is a deterministic function of the prefix: each node is a point mass.
    probes: look-ahead inputs to score along, or None.
    target_cache: the target's cache as the drafter left it, for drafters that run the target
      itself (they may write past the committed slots only); None when it was not touched.
  """

  tokens: Array
  parents: Array
  valid: Array
  log_probs: Array | None = None
  probes: Probes | None = None
  target_cache: Cache | None = None

  @property
  def num_nodes(self) -> int:
    """N, static."""
    return int(self.tokens.shape[1])

  @classmethod
  def chain(cls, tokens: Array, valid: Array, log_probs: Array | None = None) -> "Draft":
    """A chain of `tokens [B, N]`; a token after an invalid one is invalid too."""
    batch, num_nodes = tokens.shape
    parents = jnp.arange(num_nodes, dtype=jnp.int32) - 1
    return cls(
      tokens=tokens.astype(jnp.int32),
      parents=jnp.broadcast_to(parents, (batch, num_nodes)),
      valid=jnp.cumprod(valid.astype(jnp.int32), axis=1).astype(bool),
      log_probs=log_probs,
    )


@pytree_dataclass
class Verdict:
  """What a verifier decided on one draft.

  Attributes:
    path: `[B, K]` int32 *block* indices of the committed tokens' parents: entry 0 is 0 (the
      last committed token), entry k is 1 + the node index of the k-th accepted node. Entries
      past `num_accepted` are unspecified but in range.
    num_accepted: `[B]` int32, accepted draft nodes.
    next_token: `[B]` int32, the target's own token after the last accepted node (the
      correction after a rejection, the bonus token after full acceptance).
    deviates: `[B, K]` bool, for each accepted node in order whether the exact rule would have
      put another token in its place; False past them. None for a lossless verifier.
  """

  path: Array
  num_accepted: Array
  next_token: Array
  deviates: Array | None = None


@pytree_dataclass
class PolicyContext:
  """What a sampling policy may look at beside the logits. One row; vmapped over B.

  Attributes:
    length: `[]` int32, tokens before the one to be chosen (prompt and generated).
    prompt_length: `[]` int32.
    counts: `[V]` int32, how often each token stands before it; None if no processor asks.
    prompt_counts: `[V]` int32, the same over the prompt alone; None if no processor asks.
    tokens: `[S]` int32, the sequence itself, garbage from `length` on; None if no one asks.
  """

  length: Array
  prompt_length: Array
  counts: Array | None = None
  prompt_counts: Array | None = None
  tokens: Array | None = None

  def advance(self, token: Array) -> "PolicyContext":
    """The context one token later: `token` is `[]` int32."""
    counts, tokens = self.counts, self.tokens
    if counts is not None:
      counts = counts.at[token].add(1, mode="drop")
    if tokens is not None:
      tokens = tokens.at[self.length].set(token, mode="drop")
    return dataclasses.replace(self, length=self.length + 1, counts=counts, tokens=tokens)


@pytree_dataclass
class Context:
  """What a drafter may look at.

  Attributes:
    tokens: `[B, S]` int32, prompt and committed tokens; garbage from `length` on.
    length: `[B]` int32, committed tokens. The newest, at `length - 1`, is *pending*: it is not
      yet in the target's cache, which holds positions `0 .. length - 2`.
    prompt_length: `[B]` int32.
    limit: `[B]` int32, the length at which the row ends.
    active: `[B]` bool, rows that are not finished.
    hidden: `[B, D]`, the target's last hidden state at position `length - 2`, the state that
      predicted the pending token (zeros after a prompt of one token).
    cache: the target's cache.
    params: the target's parameters.
    row_keys: `[B]` typed keys, one a row.
    policy: the sampling policy (`specjax.sampling.SamplingPolicy`) with `[B]` numbers.
    policy_context: `PolicyContext` with a leading B, before the first draft token.
    vocab_size: V of the target, static.
  """

  tokens: Array
  length: Array
  prompt_length: Array
  limit: Array
  active: Array
  hidden: Array
  cache: Cache
  params: Params
  row_keys: Array
  policy: Any
  policy_context: PolicyContext
  vocab_size: int = dataclasses.field(metadata={"static": True})

  def newest(self, count: int) -> Array:
    """`[B, count]` int32: the newest committed tokens, 0 where the row has fewer."""
    index = self.length[:, None] - count + jnp.arange(count, dtype=jnp.int32)[None, :]
    found = jnp.take_along_axis(self.tokens, jnp.maximum(index, 0), axis=1)
    return jnp.where(index >= 0, found, 0)


@pytree_dataclass
class TargetOutput:
  """What the target's scoring call gives back to the drafter. Index 0 is the pending token.

  Attributes:
    hidden: `[B, 1 + N + M, D]`: the pending token, the draft's nodes, then the probes.
    layer_hidden: the layers that the drafter asked for, each shaped like `hidden`.
    block: the block that was scored.
  """

  hidden: Array
  layer_hidden: tuple[Array, ...]
  block: Block


class Drafter(Protocol):
  """Proposes a block of tokens. Instances are frozen dataclasses, hashable, without arrays."""

  @property
  def num_nodes(self) -> int:
    """N, the number of nodes of every draft."""
    ...

  @property
  def num_probes(self) -> int:
    """M, the number of probes of every draft."""
    ...

  @property
  def max_depth(self) -> int:
    """The longest chain of nodes from the root to a leaf."""
    ...

  @property
  def is_chain(self) -> bool:
    """Whether every draft is a chain, so that an accepted path needs no compaction."""
    ...

  @property
  def hidden_layers(self) -> tuple[int, ...]:
    """Target layers whose hidden states `update` wants."""
    ...

  @property
  def certain_nodes(self) -> int:
    """Leading nodes that the target itself gave the drafter, each in one target call of its own.

    Statistics count them as the target's tokens and those calls as target calls, in every round
    in which more is proposed than them. 0 for a drafter that leaves the target to the scoring
    call.
    """
    ...

  def check(self, model: Model) -> None:
    """Raises ValueError when the drafter cannot serve this target."""
    ...

  def init(self, params: Params, context: Context, prompt_width: int) -> PyTree:
    """The drafter's state after the prompt, which lies in `context.tokens[:, :prompt_width]`."""
    ...

  def draft(self, params: Params, state: PyTree, context: Context) -> tuple[Draft, PyTree]:
    """Proposes a draft for every row (finished rows too: what they get is ignored)."""
    ...

  def update(
    self,
    params: Params,
    state: PyTree,
    context: Context,
    verdict: Verdict,
    output: TargetOutput,
  ) -> PyTree:
    """The state after the commit. `context` is the one *after* it."""
    ...


class Verifier(Protocol):
  """Keeps the part of a draft that the target would have produced. Frozen and hashable."""

  @property
  def lossless(self) -> bool:
    """Whether the output has exactly the law of decoding without drafts.

    If not, the verdicts must say which tokens deviate.
    """
    ...

  def check(self, policy: Any) -> None:
    """Raises ValueError when the policy asks for what this verifier does not do."""
    ...

  def verify(self, draft: Draft, logits: Array, context: Context, max_depth: int) -> Verdict:
    """Judges a draft.

    Args:
      draft: the draft.
      logits: `[B, 1 + N, V]` float32, the target's raw logits; index 0 follows the pending
        token, index 1 + n follows node n.
      context: the context before the draft (keys, policy and its context).
      max_depth: the longest path of the draft, static.
    """
    ...


def check_sequence(name: str, values: Sequence[int]) -> tuple[int, ...]:
  """`values` as a tuple of ints, for static fields that must be hashable."""
  try:
    return tuple(int(v) for v in values)
  except (TypeError, ValueError):
    raise ValueError(f"{name} must be a sequence of integers, got {values!r}") from None
