# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a drafter is trained for: the interface between the training loop and each scheme."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol

import jax.numpy as jnp

from specjax.training.token_data import TokenBatch
from specjax.types import Array, Params, pytree_dataclass


@pytree_dataclass
class Metrics:
  """Sums over a batch; batches are added up and divided at the end, so no batch weighs more.

  Attributes:
    loss: `[]` float32, the summed loss: what is differentiated.
    weight: `[]` float32, what `loss` is divided by for its mean.
    matches: `[K]` float32, at each draft position (the first is 1 place past what the target
      itself gives for certain): how many drafted tokens were the target's.
    drafted: `[K]` float32, how many were drafted there.
    committed: `[]` float32, the summed length of the blocks that greedy verification would commit,
      the target's own token included.
    blocks: `[]` float32, how many blocks that is.
  """

  loss: Array
  weight: Array
  matches: Array
  drafted: Array
  committed: Array
  blocks: Array

  @classmethod
  def of_matches(cls, loss: Array, weight: Array, matched: Array, valid: Array) -> "Metrics":
    """From what each place of a text would have drafted.

    Args:
      loss: `[]`, summed.
      weight: `[]`.
      matched: `[..., K]` bool, whether the token drafted at position k is the target's.
      valid: `[..., K]` bool, whether the text is long enough to tell.
    """
    matched = (matched & valid).astype(jnp.float32).reshape(-1, matched.shape[-1])
    counted = valid.astype(jnp.float32).reshape(-1, valid.shape[-1])
    # Only places where the whole draft can be judged count for the block length.
    whole = jnp.prod(counted, axis=-1)
    accepted = jnp.sum(jnp.cumprod(matched, axis=-1), axis=-1)
    return cls(
      loss=loss,
      weight=weight,
      matches=jnp.sum(matched, axis=0),
      drafted=jnp.sum(counted, axis=0),
      committed=jnp.sum(whole * (1 + accepted)),
      blocks=jnp.sum(whole),
    )

  def __add__(self, other: "Metrics") -> "Metrics":
    """The metrics of both batches together."""
    values = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
    return Metrics(*(a + b for a, b in values))

  def summary(self) -> dict[str, Any]:
    """Means as plain numbers: `loss`, `agreement` (one a draft position), `block_length`.

    None where there was nothing to count: a step that trains one head out of several judges no
    other draft position and no whole block.
    """

    def mean(total: Array, count: Array) -> float | None:
      return float(total) / float(count) if float(count) > 0 else None

    return {
      "loss": float(self.loss) / max(float(self.weight), 1e-9),
      "agreement": [mean(m, d) for m, d in zip(self.matches, self.drafted, strict=True)],
      "block_length": mean(self.committed, self.blocks),
    }


@dataclasses.dataclass(frozen=True)
class TrainedDrafter:
  """What a trained drafter's file holds: enough to build the drafter again for its target.

  Attributes:
    scheme: the name of the drafter in `specjax.drafters.REGISTRY`, such as "blockwise".
    settings: JSON values that its static fields are built from.
    arrays: flat names to arrays (numpy or JAX; bfloat16 is fine). What it shares with the
      target is not among them.
  """

  scheme: str
  settings: Mapping[str, Any]
  arrays: Mapping[str, Any]


class Objective(Protocol):
  """One scheme's training. Instances are frozen dataclasses, hashable, without arrays."""

  @property
  def num_drafted(self) -> int:
    """K, the draft positions that `Metrics.matches` tells apart."""
    ...

  def init(self, key: Array, target_params: Params) -> Params:
    """The trainable parameters at step 0, from a typed key."""
    ...

  def loss(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    """The summed loss of a batch and what it says of the drafts. Pure and jittable.

    Args:
      trainable: what gradients are taken of.
      target_params: the frozen target.
      batch: packed token rows.
      key: a typed key of this step's own (heads drawn at random, on-policy samples).
    """
    ...

  def export(self, trainable: Params, target_params: Params) -> TrainedDrafter:
    """What to write to the drafter's file."""
    ...
