# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101) with warm-up and cosine decay, by optax."""

import dataclasses

import jax
import jax.numpy as jnp
import optax

from specjax.types import PyTree


@dataclasses.dataclass(frozen=True)
class OptimizerOptions:
  """How parameters follow their gradients.

  Attributes:
    learning_rate: its highest value, after the warm-up.
    warmup_steps: steps over which it rises linearly from 0.
    final_share: what is left of it at the last step, after a cosine decay.
    weight_decay: of AdamW.
    beta1: decay of the mean of gradients.
    beta2: decay of the mean of their squares.
    clip_norm: gradients are scaled down to this global norm; None leaves them.
  """

  learning_rate: float = 1e-3
  warmup_steps: int = 20
  final_share: float = 0.1
  weight_decay: float = 0.0
  beta1: float = 0.9
  beta2: float = 0.95
  clip_norm: float | None = 1.0

  def __post_init__(self):
    checks = {
      "learning_rate": (self.learning_rate > 0, "a number > 0"),
      "warmup_steps": (self.warmup_steps >= 0, "an integer >= 0"),
      "final_share": (0 <= self.final_share <= 1, "in 0 .. 1"),
      "weight_decay": (self.weight_decay >= 0, "a number >= 0"),
      "beta1": (0 <= self.beta1 < 1, "in [0, 1)"),
      "beta2": (0 <= self.beta2 < 1, "in [0, 1)"),
      "clip_norm": (self.clip_norm is None or self.clip_norm > 0, "a number > 0, or None"),
    }
    for name, (fits, words) in checks.items():
      if not fits:
        raise ValueError(f"{name} must be {words}, got {getattr(self, name)!r}")

  def schedule(self, num_steps: int) -> optax.Schedule:
    """The learning rate of each step, over `num_steps` in all."""
    warmup = min(self.warmup_steps, num_steps - 1)
    return optax.warmup_cosine_decay_schedule(
      init_value=0.0 if warmup else self.learning_rate,
      peak_value=self.learning_rate,
      warmup_steps=warmup,
      decay_steps=num_steps,
      end_value=self.final_share * self.learning_rate,
    )


def make_optimizer(options: OptimizerOptions, num_steps: int) -> optax.GradientTransformation:
  """The optimiser of a run of `num_steps`; weight decay spares vectors (biases, norms)."""
  steps = [] if options.clip_norm is None else [optax.clip_by_global_norm(options.clip_norm)]

  def is_matrix(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.ndim(leaf) > 1, tree)

  steps.append(
    optax.adamw(
      options.schedule(num_steps),
      b1=options.beta1,
      b2=options.beta2,
      weight_decay=options.weight_decay,
      mask=is_matrix,
    )
  )
  return optax.chain(*steps)
