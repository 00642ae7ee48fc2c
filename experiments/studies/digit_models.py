# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The models of the super-resolution study: a small target, and heads for it, trained in turn."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from configs import train_base
from experiments.studies import digits
from experiments.studies.bench import Bench
from experiments.train import StopRequest
from experiments.train_display import make_train_display
from experiments.train_flags import loop_options
from specjax.models import Transformer, TransformerConfig
from specjax.training import losses
from specjax.training.blockwise_objective import BlockwiseObjective
from specjax.training.objective import Metrics, Objective, TrainedDrafter
from specjax.training.packing import PackedData
from specjax.training.teacher import hidden_states
from specjax.training.token_data import TokenBatch
from specjax.training.token_files import TokenFolder
from specjax.training.train_loop import TrainResult, train
from specjax.types import Array, Model, Params

# What is trained, in this order: a key each of the option `training`.
TARGET, FROZEN, FINE_TUNED = "target", "frozen", "fine_tuned"


@dataclasses.dataclass(frozen=True)
class NextToken:
  """Cross-entropy of the next token: training of a target, in the loop that drafters have.

  Attributes:
    model: what is trained.
  """

  model: Model

  @property
  def num_drafted(self) -> int:
    """1: the agreement that the loop reports is the model's accuracy."""
    return 1

  def init(self, key: Array, target_params: Params) -> Params:
    """The model's own parameters; there is no target before it."""
    del target_params
    return self.model.init(key)  # type: ignore[attr-defined]

  def loss(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    """See `specjax.training.objective.Objective.loss`."""
    del target_params, key
    hidden = hidden_states(self.model, trainable, batch.tokens, batch.block())
    logits = self.model.logits(trainable, hidden)
    labels, valid = batch.ahead(1)
    labels = jnp.where(valid, labels, -1)
    return Metrics.of_matches(
      jnp.sum(losses.cross_entropy(logits, labels)),
      jnp.sum(valid, dtype=jnp.float32),
      losses.is_best(logits, labels)[..., None],
      valid[..., None],
    )

  def export(self, trainable: Params, target_params: Params) -> TrainedDrafter:
    """Raises ValueError: this is no drafter."""
    raise ValueError("NextToken trains a target: there is no drafter to export")


@dataclasses.dataclass(frozen=True)
class TargetWithHeads:
  """A target and the heads of blockwise decoding that were trained for it.

  Attributes:
    model: the target.
    params: its parameters.
    heads: as of `specjax.drafters.blockwise.init_heads`.
    agreement: of each head, how often it proposes the true token of a held-out image.
  """

  model: Transformer
  params: Params
  heads: Params
  agreement: list[float]


def train_models(
  bench: Bench,
  images: np.ndarray,
  *,
  held_out: int,
  architecture: Mapping[str, int],
  draft_length: int,
  head_width: int,
  head_loss: str,
  training: Mapping[str, Mapping[str, Any]],
) -> dict[str, TargetWithHeads]:
  """Trains whatever an earlier run with the same settings did not.

  Everything goes to folders of `bench.work` that are named after a checksum of the settings: a run
  that was stopped goes on, and one with other settings trains anew beside it.

  Args:
    bench: the run.
    images: `[N, 8, 8]`.
    held_out: the last images, that no training sees.
    architecture: of the target: `hidden_size`, `intermediate_size`, `num_layers`, `num_heads`.
    draft_length: heads beside p_1.
    head_width: of their hidden layer.
    head_loss: of `BlockwiseObjective`.
    training: settings of each training, over `bench.train_settings` and `configs/train_base.py`.

  Returns:
    The target as it was, with heads, and the one that was trained along with its heads: under
    `FROZEN` and `FINE_TUNED`.

  Raises:
    ValueError: for settings that do not fit.
    KeyboardInterrupt: if it was stopped.
  """
  model = make_model(architecture)
  data = digits.token_folder(bench.work / f"digits-{held_out}", images, held_out)
  run = _Runs(bench, data, training)
  described = {"architecture": model.config.to_dict(), "held_out": held_out}
  target_name, target = run(TARGET, NextToken(model), {}, described)
  objective = BlockwiseObjective(
    model, draft_length=draft_length, head_width=head_width, head_loss=head_loss
  )
  described = {"target": target_name, "heads": [draft_length, head_width, head_loss]}
  _, frozen = run(FROZEN, objective, target.trainable, described)
  tuning = dataclasses.replace(objective, fine_tune=True)
  _, tuned = run(FINE_TUNED, tuning, target.trainable, described)
  params = {FROZEN: target.trainable, FINE_TUNED: tuning.tuned_target(tuned.trainable)}
  return {
    name: TargetWithHeads(model, params[name], result.trainable["heads"], _agreement(result))
    for name, result in ((FROZEN, frozen), (FINE_TUNED, tuned))
  }


def make_model(architecture: Mapping[str, int]) -> Transformer:
  """The target's architecture, in float32 on every device.

  Raises:
    ValueError: for sizes that are missing, unknown, or do not fit each other.
  """
  names = ("hidden_size", "intermediate_size", "num_layers", "num_heads")
  if set(architecture) != set(names):
    raise ValueError(f"model must have {', '.join(names)}; got {', '.join(architecture)}")
  heads = architecture["num_heads"]
  config = TransformerConfig(
    hidden_size=architecture["hidden_size"],
    intermediate_size=architecture["intermediate_size"],
    num_layers=architecture["num_layers"],
    num_heads=heads,
    vocab_size=digits.VOCABULARY_SIZE,
    num_kv_heads=heads,
    head_dim=architecture["hidden_size"] // max(heads, 1),
    max_positions=digits.SEQUENCE_LENGTH,
  )
  return Transformer(config, dtype="float32")


@dataclasses.dataclass(frozen=True)
class _Runs:
  """Trainings of one study."""

  bench: Bench
  data: TokenFolder
  training: Mapping[str, Mapping[str, Any]]

  def __call__(
    self, name: str, objective: Objective, target_params: Params, described: Mapping[str, Any]
  ) -> tuple[str, TrainResult]:
    """The name of the run's folder and what it ended with; `described` is what it depends on."""
    known = train_base.get_config().to_dict()
    settings = {**known, **self.bench.train_settings, **self.training[name]}
    for key in settings:
      if key not in known:
        raise ValueError(f"unknown setting {key!r} of the training {name!r}")
    text = json.dumps({**described, "settings": settings}, sort_keys=True)
    folder = f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    data = PackedData(
      self.data,
      window=digits.SEQUENCE_LENGTH,
      batch_size=settings["batch_size"],
      seed=settings["seed"],
      max_rows=settings["max_rows"],
    )
    options = loop_options(settings)
    self.bench.display.note(f"training {name}: {options.num_steps} steps in {folder}")
    path = Path(self.bench.work) / "trained" / folder
    with StopRequest() as stop, make_train_display(options.num_steps) as display:
      result = train(objective, target_params, data, options, path, display.show, stop)
    if not result.finished:
      raise KeyboardInterrupt
    return folder, result


def _agreement(result: TrainResult) -> list[float]:
  """At each draft position, from the last validation."""
  return [row for row in result.rows if row["split"] == "validation"][-1]["agreement"]
