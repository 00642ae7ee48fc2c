# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Toy models and drafters whose exact behaviour can be computed by hand."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from specjax import sampling, trees
from specjax.types import Block, Draft, ModelOutput, PolicyContext


@dataclasses.dataclass(frozen=True)
class TableModel:
  """A first-order table: the next token's logits are `params["table"][token]` `[V, V]`."""

  vocab_size: int
  max_positions: int | None = None
  position_addressed: bool = True

  @property
  def hidden_size(self):
    return self.vocab_size

  def init_cache(self, batch, capacity):
    del batch, capacity
    return ()

  def embed(self, params, tokens):
    del params
    return jax.nn.one_hot(tokens, self.vocab_size)

  def apply(self, params, inputs, block, cache, *, hidden_layers=()):
    del block, hidden_layers
    if not jnp.issubdtype(inputs.dtype, jnp.integer):
      return ModelOutput(hidden=inputs @ params["table"], cache=cache)
    return ModelOutput(hidden=params["table"][inputs], cache=cache)

  def logits(self, params, hidden):
    del params
    return hidden

  def keep(self, cache, block, path, kept):
    del block, path, kept
    return cache


@dataclasses.dataclass(frozen=True)
class HistoryModel:
  """A model that needs its cache, its positions and its mask to be right.

  The cache holds token ids; the hidden state is a sum over the visible slots of a random
  vector for (token, position), so any slot, position or mask that is off changes the logits.
  """

  vocab_size: int
  hidden_size: int = 8
  max_positions: int | None = None
  position_addressed: bool = True

  def init(self, seed=0, num_positions=256):
    random = np.random.default_rng(seed)
    shape = (self.vocab_size, num_positions, self.hidden_size)
    return {
      "features": jnp.asarray(random.standard_normal(shape), jnp.float32),
      "head": jnp.asarray(random.standard_normal((self.hidden_size, self.vocab_size)), jnp.float32),
    }

  def init_cache(self, batch, capacity):
    return {"tokens": jnp.zeros((batch, capacity), jnp.int32)}

  def embed(self, params, tokens):
    raise NotImplementedError

  def apply(self, params, inputs, block, cache, *, hidden_layers=()):
    batch, capacity = cache["tokens"].shape
    rows = jnp.arange(batch)[:, None]
    tokens = cache["tokens"].at[rows, block.slots(capacity)].set(inputs, mode="drop")
    slot = jnp.arange(capacity)[None, None, :]
    relative = slot - block.start[:, None, None]
    width = block.num_tokens
    mask = jnp.broadcast_to(block.mask, (batch, width, width))
    in_block = jnp.take_along_axis(
      mask, jnp.broadcast_to(jnp.clip(relative, 0, width - 1), (batch, width, capacity)), axis=2
    )
    visible = jnp.where(relative < 0, True, in_block & (relative < width)) & (slot >= 0)
    block_position = jnp.take_along_axis(
      block.positions, jnp.clip(relative[:, 0], 0, width - 1), axis=1
    )
    position = jnp.where(relative[:, 0] < 0, slot[:, 0], block_position)
    features = params["features"][tokens, position]
    hidden = jnp.einsum("bts,bsd->btd", visible.astype(jnp.float32), features)
    hidden = jnp.sin(hidden)
    return ModelOutput(
      hidden=hidden, cache={"tokens": tokens}, layer_hidden=(hidden,) * len(hidden_layers)
    )

  def logits(self, params, hidden):
    return 3 * hidden @ params["head"]

  def keep(self, cache, block, path, kept):
    tokens = cache["tokens"]
    batch, capacity = tokens.shape
    rows = jnp.arange(batch)[:, None]
    offset = jnp.arange(path.shape[1])[None, :]
    source = jnp.clip(block.start[:, None] + path, 0, capacity - 1)
    target = jnp.where(offset < kept[:, None], block.start[:, None] + offset, capacity)
    moved = jnp.take_along_axis(tokens, source, axis=1)
    return {"tokens": tokens.at[rows, target].set(moved, mode="drop")}

  def reference_logits(self, params, sequence):
    """The same without a cache: logits `[V]` after `sequence`, by a Python loop."""
    total = np.zeros(self.hidden_size)
    for position, token in enumerate(sequence):
      total += np.asarray(params["features"][token, position], np.float64)
    return 3 * np.sin(total) @ np.asarray(params["head"], np.float64)

  def reference_greedy(self, params, prompt, num_tokens):
    sequence = list(prompt)
    for _ in range(num_tokens):
      sequence.append(int(np.argmax(self.reference_logits(params, sequence))))
    return sequence[len(prompt) :]


class _TestDrafter:
  """What the toy drafters below share."""

  num_probes = 0
  certain_nodes = 0
  hidden_layers = ()
  is_chain = False

  def check(self, model):
    del model

  def init(self, params, context, prompt_width):
    del params, context, prompt_width
    return ()

  def update(self, params, state, context, verdict, output):
    del params, context, verdict, output
    return state


@dataclasses.dataclass(frozen=True)
class TableTree(_TestDrafter):
  """Drafts a static tree from a table `params["table"]` `[V, V]`.

  kind: "independent" draws siblings i.i.d.; "without_replacement" removes drawn siblings and
  renormalises; "top" takes the most probable ones, a point mass each.
  """

  parents: tuple[int, ...]
  kind: str = "independent"

  @property
  def num_nodes(self):
    return len(self.parents)

  @property
  def max_depth(self):
    return max(trees.static_depths(self.parents))

  def draft(self, params, state, context):
    draw = jax.vmap(self._draft_row, in_axes=(None, 0, 0, 0, 0))
    tokens, laws = draw(
      params["table"],
      context.newest(1)[:, 0],
      context.policy,
      context.policy_context,
      context.row_keys,
    )
    batch = tokens.shape[0]
    return Draft(
      tokens=tokens,
      parents=jnp.broadcast_to(jnp.array(self.parents, jnp.int32), (batch, self.num_nodes)),
      valid=jnp.ones((batch, self.num_nodes), bool),
      log_probs=None if self.kind == "top" else laws,
    ), state

  def _draft_row(self, table, pending, policy, context, row_key):
    tokens, laws, contexts, taken = [], [], [], {}
    for node, parent in enumerate(self.parents):
      base = context if parent < 0 else contexts[parent]
      last = pending if parent < 0 else tokens[parent]
      law = sampling.log_probs(policy, table[last], base)
      if self.kind != "independent":
        for sibling in taken.get(parent, []):
          law = law.at[tokens[sibling]].set(-jnp.inf)
        law = jnp.where(jnp.any(jnp.isfinite(law)), law, 0.0)
        law = law - jax.nn.logsumexp(law)
      key = sampling.position_key(row_key, base.length, sampling.DRAFT)
      drawn = sampling.draw(jax.random.fold_in(key, node), law)
      token = jnp.argmax(law) if self.kind == "top" else drawn
      tokens.append(token.astype(jnp.int32))
      laws.append(law)
      contexts.append(base.advance(tokens[-1]))
      taken.setdefault(parent, []).append(node)
    return jnp.stack(tokens), jnp.stack(laws)


@dataclasses.dataclass(frozen=True)
class ScriptedDrafter(_TestDrafter):
  """Proposes the tokens of a script, `params [B, S]`, at each row's own length.

  `accept [period]`: how many of the draft tokens are left right in each round; the rest are
  shifted by one, so that a target that follows the script rejects them.
  """

  draft_length: int
  accept: tuple[int, ...] = ()
  is_chain = True

  @property
  def num_nodes(self):
    return self.draft_length

  @property
  def max_depth(self):
    return self.draft_length

  def init(self, params, context, prompt_width):
    return jnp.zeros((), jnp.int32)

  def draft(self, params, state, context):
    index = context.length[:, None] + jnp.arange(self.draft_length)[None, :]
    tokens = jnp.take_along_axis(params, jnp.clip(index, 0, params.shape[1] - 1), axis=1)
    if self.accept:
      right = jnp.array(self.accept)[state % len(self.accept)]
      wrong = jnp.arange(self.draft_length)[None, :] >= right
      tokens = jnp.where(wrong, (tokens + 1) % context.vocab_size, tokens)
    return Draft.chain(tokens, jnp.ones_like(tokens, bool)), state + 1


def random_table(seed, vocab_size, scale=2.0):
  """Logits `[V, V]` with no two alike."""
  random = np.random.default_rng(seed)
  return jnp.asarray(scale * random.standard_normal((vocab_size, vocab_size)), jnp.float32)


def exact_law(policy, table, prompt, num_tokens):
  """The law of the next `num_tokens` tokens of plain sampling, by enumeration: a dict."""
  vocab_size = table.shape[0]
  resolved = policy.resolve(1, vocab_size, np.full(4, -1, np.int32))
  row = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], resolved)

  @jax.jit
  def next_law(tokens, length):
    context = sampling.initial_context(
      resolved, tokens[None], length[None], jnp.full((1,), len(prompt)), vocab_size
    )
    context = jax.tree.map(lambda leaf: leaf[0], context)
    return jnp.exp(sampling.log_probs(row, table[tokens[length - 1]], context))

  law = {(): 1.0}
  for _ in range(num_tokens):
    longer = {}
    for suffix, probability in law.items():
      tokens = np.zeros(len(prompt) + num_tokens, np.int32)
      sequence = [*prompt, *suffix]
      tokens[: len(sequence)] = sequence
      conditional = np.asarray(next_law(tokens, jnp.int32(len(sequence))), np.float64)
      for token in range(vocab_size):
        longer[(*suffix, token)] = probability * conditional[token]
    law = longer
  assert len(law) == vocab_size**num_tokens
  return law


def all_sequences(vocab_size, num_tokens):
  return list(itertools.product(range(vocab_size), repeat=num_tokens))


__all__ = [
  "Block",
  "HistoryModel",
  "PolicyContext",
  "ScriptedDrafter",
  "TableModel",
  "TableTree",
  "all_sequences",
  "exact_law",
  "random_table",
]
