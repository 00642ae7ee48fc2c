# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""One training loop for every drafter.

  result = train(objective, target_params, data, TrainOptions(num_steps=200), folder="runs/heads")

Whatever a step uses is a function of (seed, step): its batch is `data.batch_at(step)` and its key
is folded from the seed and the step. A run that was stopped at any moment therefore goes on from
its newest checkpoint to the very bits of one that was not.
"""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh

from specjax.arguments import check_integer
from specjax.sharding.partitioning import Partitioning
from specjax.sharding.processes import any_process, is_first
from specjax.sharding.rules import Rules
from specjax.training.objective import Metrics, Objective
from specjax.training.optimizer import OptimizerOptions, make_optimizer
from specjax.training.token_data import TokenBatch
from specjax.training.train_checkpoints import TrainCheckpoints
from specjax.training.train_log import TrainLog
from specjax.training.train_meter import TrainMeter
from specjax.types import Array, Params, PyTree, pytree_dataclass


class Data(Protocol):
  """Batches as a function of the step: `specjax.training.packing.PackedData` for one."""

  def batch_at(self, step: int) -> TokenBatch:
    """The training batch of a micro-step, of NumPy arrays `[B, T]`."""
    ...

  def validation_batches(self) -> Iterable[TokenBatch]:
    """The batches held out; may be none."""
    ...


@dataclasses.dataclass(frozen=True)
class TrainOptions:
  """How long and how to train.

  Attributes:
    num_steps: optimiser updates in all.
    accumulate: batches whose gradients one update adds up, as if they were one large batch.
    seed: of everything that is drawn; the data has a seed of its own.
    optimizer: learning rate and the rest.
    log_every: steps between two rows of the log; a step that is saved has its row too.
    validate_every: steps between two validations; the last step is always validated.
    save_every: steps between two checkpoints; the last step is always saved.
    keep: how many checkpoints stay on the disk.
  """

  num_steps: int = 1000
  accumulate: int = 1
  seed: int = 0
  optimizer: OptimizerOptions = dataclasses.field(default_factory=OptimizerOptions)
  log_every: int = 10
  validate_every: int = 100
  save_every: int = 100
  keep: int = 2

  def __post_init__(self):
    names = ("num_steps", "accumulate", "log_every", "validate_every", "save_every", "keep")
    for name in names:
      check_integer(name, getattr(self, name), 1)


@pytree_dataclass
class TrainState:
  """What a checkpoint holds. The data's position and the step's key follow from `step`.

  Attributes:
    step: `[]` int32, updates made.
    trainable: the parameters.
    optimizer: optax's state.
  """

  step: Array
  trainable: Params
  optimizer: PyTree


@dataclasses.dataclass(frozen=True)
class TrainResult:
  """What training ended with.

  Attributes:
    trainable: the parameters.
    state: the whole state, the optimiser's included.
    rows: the log, one dictionary a logged step.
    finished: False if it was asked to stop before the last step.
  """

  trainable: Params
  state: TrainState
  rows: list[dict[str, Any]]
  finished: bool


def train(
  objective: Objective,
  target_params: Params,
  data: Data,
  options: TrainOptions,
  folder: str | Path | None = None,
  on_step: Callable[[dict[str, Any]], object] | None = None,
  should_stop: Callable[[], bool] | None = None,
  mesh: Mesh | str | None = None,
  rules: Rules | str | None = None,
) -> TrainResult:
  """Trains to the last step, from the newest checkpoint of `folder` if there is one.

  Args:
    objective: what is trained and towards what.
    target_params: the target's parameters; never changed.
    data: where batches come from.
    options: how long and how.
    folder: for checkpoints and `metrics.jsonl`; None keeps neither.
    on_step: is given each row of the log as it is made.
    should_stop: asked after every step; True saves and returns.
    mesh: trains on a mesh of devices, `specjax.sharding.make_mesh` or its text such as
      "data:2,model:4". Rows of a batch are cut by the axes data and fsdp, which must divide it;
      parameters and the optimiser's state by fsdp and model.
    rules: over `specjax.sharding.DEFAULT_RULES`; what is cut by which axis of the mesh.

  Raises:
    ValueError: if the loss is no longer finite, naming the step; for a mesh or rules that do not
      fit.
  """
  if mesh is None and rules is not None:
    raise ValueError("rules say how arrays lie on a mesh, got no mesh")
  partitioning = None
  if mesh is not None:
    partitioning = Partitioning.of(mesh, rules, objective)
    target_params = partitioning.shard(target_params)
  update = make_update(objective, options, partitioning)
  validate = make_validation(objective)
  schedule = options.optimizer.schedule(options.num_steps)
  checkpoints = None if folder is None else TrainCheckpoints(Path(folder), options.keep)
  stopped, newest = False, None
  try:
    state = first_state(objective, target_params, options)
    if partitioning is not None:
      state = partitioning.shard(state)
    if checkpoints is not None:
      state = checkpoints.restore(state)
    start = int(state.step)
    log = TrainLog(None if folder is None or not is_first() else Path(folder), start)
    meter = TrainMeter(log.rows)
    for step in range(start, options.num_steps):
      batches = stack_batches(
        [data.batch_at(step * options.accumulate + part) for part in range(options.accumulate)]
      )
      if partitioning is not None:
        partitioning.check_batch(batches.tokens.shape[1], "batch_size")
      state, metrics = update(state, target_params, batches)
      # One step runs while the next one's batch is made, and no more: a stop is answered soon.
      jax.block_until_ready(newest)
      newest = metrics
      meter.add(metrics, int(np.sum(batches.segments > 0)))
      done = step + 1
      # A signal may have reached one process only, or not all of them in the same step.
      stopped = should_stop is not None and done < options.num_steps and any_process(should_stop())
      last = stopped or done == options.num_steps
      saved = last or done % options.save_every == 0
      # Each checkpoint has its row, so that what follows it adds up the same steps after a resume.
      if saved or done % options.log_every == 0:
        row = meter.row()
        _check_finite(row, done)
        rate = float(schedule(step))
        _tell(log, {"step": done, "split": "train", **row, "learning_rate": rate}, on_step)
      if done == options.num_steps or done % options.validate_every == 0:
        with meter.aside():
          held_out = (place_batch(batch, partitioning) for batch in data.validation_batches())
          judged = validate(state, target_params, held_out)
        if judged is not None:
          judged |= {"tokens": meter.tokens, "seconds": meter.seconds}
          _tell(log, {"step": done, "split": "validation", **judged}, on_step)
      if checkpoints is not None and saved:
        with meter.aside():
          checkpoints.save(done, state)
      if stopped:
        break
  finally:
    if checkpoints is not None:
      checkpoints.close()
  return TrainResult(state.trainable, state, log.rows, finished=not stopped)


def first_state(objective: Objective, target_params: Params, options: TrainOptions) -> TrainState:
  """The state at step 0."""
  # Folded in as the steps' keys are, from 1 on: splitting the seed's own key would repeat theirs.
  key = jax.random.fold_in(jax.random.key(options.seed), 0)
  trainable = objective.init(key, target_params)
  optimizer = make_optimizer(options.optimizer, options.num_steps)
  return TrainState(
    step=jnp.zeros((), jnp.int32), trainable=trainable, optimizer=optimizer.init(trainable)
  )


def make_update(
  objective: Objective, options: TrainOptions, partitioning: Partitioning | None = None
) -> Callable[[TrainState, Params, TokenBatch], tuple[TrainState, Metrics]]:
  """The pure training step, compiled: one optimiser update from `accumulate` batches.

  It takes the state (donated), the target's parameters and batches stacked to `[A, B, T]`; under a
  partitioning, state and parameters that lie on its mesh.
  """
  optimizer = make_optimizer(options.optimizer, options.num_steps)

  def summed_loss(trainable, target_params, batch, key):
    metrics = objective.loss(trainable, target_params, batch, key)
    return metrics.loss, metrics

  def update(state: TrainState, target_params: Params, batches: TokenBatch):
    step_key = jax.random.fold_in(jax.random.key(options.seed), state.step + 1)

    def micro_step(carry, part):
      index, batch = part
      batch = place_batch(batch, partitioning)
      key = jax.random.fold_in(step_key, index)
      gradient, metrics = jax.grad(summed_loss, has_aux=True)(
        state.trainable, target_params, batch, key
      )
      return jax.tree.map(jnp.add, carry, (gradient, metrics)), None

    first = jax.tree.map(lambda leaf: leaf[0], batches)
    shapes = jax.eval_shape(
      jax.grad(summed_loss, has_aux=True), state.trainable, target_params, first, step_key
    )
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    indices = jnp.arange(options.accumulate)
    (gradient, metrics), _ = jax.lax.scan(micro_step, zeros, (indices, batches))
    # The sums of all parts over the weight of all parts: what one large batch would give.
    weight = jnp.maximum(metrics.weight, 1e-9)
    gradient = jax.tree.map(lambda leaf: (leaf / weight).astype(leaf.dtype), gradient)
    changes, optimizer_state = optimizer.update(gradient, state.optimizer, state.trainable)
    trainable = optax.apply_updates(state.trainable, changes)
    state = TrainState(state.step + 1, trainable, optimizer_state)
    return state if partitioning is None else partitioning.constrain_tree(state), metrics

  return jax.jit(update, donate_argnums=0)


def make_validation(
  objective: Objective,
) -> Callable[[TrainState, Params, Iterable[TokenBatch]], dict[str, Any] | None]:
  """Metrics over the batches held out; None if there are none.

  An objective whose loss looks at a part of the heads only has a method `metrics` of the same
  signature, which looks at all of them.
  """
  judge = getattr(objective, "metrics", objective.loss)

  @jax.jit
  def evaluate(trainable, target_params, batch):
    return judge(trainable, target_params, batch, jax.random.key(0))

  def validate(state, target_params, batches):
    total = None
    for batch in batches:
      metrics = evaluate(state.trainable, target_params, batch)
      total = metrics if total is None else total + metrics
    return None if total is None else total.summary()

  return validate


def stack_batches(batches: list[TokenBatch]) -> TokenBatch:
  """Batches `[B, T]` as one of a leading axis `[A, B, T]`."""
  return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)


def place_batch(batch: TokenBatch, partitioning: Partitioning | None) -> TokenBatch:
  """A batch `[B, T]` with its rows cut by the mesh, if there is one; also traceable."""
  return batch if partitioning is None else partitioning.shard(batch, batch.tokens.shape[0])


def _tell(log: TrainLog, row: dict[str, Any], on_step: Callable | None) -> None:
  log.append(row)
  if on_step is not None:
    on_step(row)


def _check_finite(row: dict[str, Any], step: int) -> None:
  if not np.isfinite(row["loss"]):
    raise ValueError(
      f"the loss is {row['loss']} at step {step}: lower learning_rate or raise warmup_steps"
    )
