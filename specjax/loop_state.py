# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What the decoding loop carries, what it is compiled for, and what stays fixed meanwhile."""

import dataclasses

from specjax import sampling
from specjax.generation import RUNNING, Records
from specjax.sharding.partitioning import Partitioning
from specjax.types import (
  Array,
  Cache,
  Context,
  Drafter,
  Model,
  Params,
  PolicyContext,
  PyTree,
  Verifier,
  pytree_dataclass,
)


@dataclasses.dataclass(frozen=True)
class Scheme:
  """The static part of decoding: what a program is compiled for, beside shapes.

  Attributes:
    model: the target model.
    drafter: proposes drafts.
    verifier: keeps what the target would have produced.
    narrow: whether a round in which no row proposes anything scores the pending token alone
      instead of a block of full width. It saves time for drafters that are often silent. A
      narrower matrix product rounds differently, so turn it off to compare bit by bit.
    partitioning: how the target's arrays and the loop's lie on a mesh of devices; None is one
      device, or whatever the compiler makes of the arrays that it is given.
    drafter_partitioning: the same of the drafter's arrays; given together with `partitioning`.
  """

  model: Model
  drafter: Drafter
  verifier: Verifier
  narrow: bool = True
  partitioning: Partitioning | None = None
  drafter_partitioning: Partitioning | None = None

  @property
  def block_width(self) -> int:
    """N + M: slots that a block needs beside the pending token's."""
    return self.drafter.num_nodes + self.drafter.num_probes

  def constrain(self, array: Array, *axes: str | None) -> Array:
    """Has an intermediate result of the target lie on the mesh, if there is one."""
    return array if self.partitioning is None else self.partitioning.constrain(array, *axes)

  def constrain_state(self, state: "LoopState") -> "LoopState":
    """Has the loop's carry lie on the mesh, if there is one: the drafter's part by its rules."""
    if self.partitioning is None or self.drafter_partitioning is None:
      return state
    batch = state.length.shape[0]
    bare = dataclasses.replace(state, drafter_state=())
    return dataclasses.replace(
      self.partitioning.constrain_tree(bare, batch),
      drafter_state=self.drafter_partitioning.constrain_tree(state.drafter_state, batch),
    )


@pytree_dataclass
class Fixed:
  """What does not change while a batch is decoded.

  Attributes:
    prompt_length: `[B]` int32.
    limit: `[B]` int32, length at which a row ends.
    eos_ids: `[E]` int32, -1 for padding.
    row_keys: `[B]` typed keys.
    policy: the resolved policy.
  """

  prompt_length: Array
  limit: Array
  eos_ids: Array
  row_keys: Array
  policy: sampling.SamplingPolicy


@pytree_dataclass
class LoopState:
  """The carry of the loop. Its buffers are donated from slice to slice.

  Attributes:
    tokens: `[B, S]` int32.
    length: `[B]` int32, committed tokens.
    finish: `[B]` int32, `RUNNING` or why the row ended.
    calls: `[B]` int32, target calls that the row has had.
    hidden: `[B, D]`, see `Context.hidden`.
    records: of each token.
    cache: the target's cache.
    drafter_state: the drafter's.
    policy_context: `PolicyContext` with a leading B, without its tokens.
  """

  tokens: Array
  length: Array
  finish: Array
  calls: Array
  hidden: Array
  records: Records
  cache: Cache
  drafter_state: PyTree
  policy_context: PolicyContext

  @property
  def active(self) -> Array:
    """`[B]` bool: rows that go on."""
    return self.finish == RUNNING

  def context(self, scheme: Scheme, params: Params, fixed: Fixed) -> Context:
    """What the drafter and the verifier may look at."""
    tokens = self.tokens if fixed.policy.needs_tokens else None
    return Context(
      tokens=self.tokens,
      length=self.length,
      prompt_length=fixed.prompt_length,
      limit=fixed.limit,
      active=self.active,
      hidden=self.hidden,
      cache=self.cache,
      params=params,
      row_keys=fixed.row_keys,
      policy=fixed.policy,
      policy_context=dataclasses.replace(
        self.policy_context,
        length=self.length,
        prompt_length=fixed.prompt_length,
        tokens=tokens,
      ),
      vocab_size=scheme.model.vocab_size,
    )
