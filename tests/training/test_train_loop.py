# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The training loop on a bigram objective, whose oracle is a Python loop over optax."""

import dataclasses
import itertools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from specjax.training.objective import Metrics
from specjax.training.optimizer import OptimizerOptions, make_optimizer
from specjax.training.token_data import TokenBatch
from specjax.training.train_loop import TrainOptions, first_state, make_update, train

V, T = 7, 12


@dataclasses.dataclass(frozen=True)
class Bigram:
  """The next token from the newest one; its key flips which half of the batch counts."""

  noisy: bool = False
  num_drafted: int = 1

  def init(self, key, target_params):
    del target_params
    return {"table": 0.1 * jax.random.normal(key, (V, V))}

  def loss(self, trainable, target_params, batch, key):
    del target_params
    scores = jax.nn.log_softmax(trainable["table"][batch.tokens])
    labels, valid = batch.ahead(1)
    losses = -jnp.take_along_axis(scores, labels[..., None], axis=-1)[..., 0]
    used = valid & jax.random.bernoulli(key, 0.5, valid.shape) if self.noisy else valid
    matched = jnp.argmax(scores, axis=-1) == labels
    weight = jnp.sum(used, dtype=jnp.float32)
    loss = jnp.sum(jnp.where(used, losses, 0))
    return Metrics.of_matches(loss, weight, matched[..., None], valid[..., None])

  def export(self, trainable, target_params):
    raise NotImplementedError


class Cycles:
  """Rows that go round by steps of 3: a language that a bigram table learns."""

  def __init__(self, rows=4):
    self.rows = rows
    self.asked = []

  def batch_at(self, step):
    self.asked.append(step)
    first = np.random.default_rng(step).integers(0, V, (self.rows, 1))
    tokens = ((first + 3 * np.arange(T)) % V).astype(np.int32)
    # Windows of different fullness, so that batches do not weigh alike.
    used = np.arange(T)[None] < np.random.default_rng(step + 10**6).integers(2, T, (self.rows, 1))
    positions = np.broadcast_to(np.arange(T, dtype=np.int32), tokens.shape)
    return TokenBatch(tokens, used.astype(np.int32), positions, used)

  def validation_batches(self):
    return [self.batch_at(10**7), self.batch_at(10**7 + 1)]


OPTIONS = TrainOptions(
  num_steps=20,
  save_every=5,
  log_every=1,
  validate_every=10,
  optimizer=OptimizerOptions(learning_rate=0.1, warmup_steps=3, weight_decay=0.01),
)


def same(first, second):
  """Whether two pytrees are equal bit by bit."""
  first, second = jax.tree.leaves(first), jax.tree.leaves(second)
  return len(first) == len(second) and all(
    np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(first, second, strict=True)
  )


def stop_after(steps):
  calls = []

  def should_stop():
    calls.append(1)
    return len(calls) == steps

  return should_stop


def test_steps_are_those_of_a_plain_loop_over_optax():
  result = train(Bigram(), {}, Cycles(), OPTIONS)
  objective, data = Bigram(), Cycles()
  optimizer = make_optimizer(OPTIONS.optimizer, OPTIONS.num_steps)
  table = first_state(objective, {}, OPTIONS).trainable
  state = optimizer.init(table)
  for step in range(OPTIONS.num_steps):
    batch = data.batch_at(step)

    def mean(table, batch=batch):
      metrics = objective.loss(table, {}, batch, jax.random.key(0))
      return metrics.loss / metrics.weight

    changes, state = optimizer.update(jax.grad(mean)(table), state, table)
    table = optax.apply_updates(table, changes)
  np.testing.assert_allclose(result.trainable["table"], table["table"], rtol=1e-5, atol=1e-6)


def test_the_loss_falls_and_agreement_rises():
  rows = train(Bigram(), {}, Cycles(), OPTIONS).rows
  validation = [row for row in rows if row["split"] == "validation"]
  assert [row["step"] for row in validation] == [10, 20]
  training = [row for row in rows if row["split"] == "train"]
  assert training[-1]["loss"] < 0.5 * training[0]["loss"]
  assert training[-1]["agreement"] == [1.0] and training[0]["agreement"][0] < 0.9
  assert validation[-1]["block_length"] == 2.0


def test_accumulated_batches_make_the_update_of_one_large_batch():
  data = Cycles()
  parts = [data.batch_at(step) for step in range(4)]
  large = jax.tree.map(lambda *leaves: np.concatenate(leaves)[None], *parts)
  small = jax.tree.map(lambda *leaves: np.stack(leaves), *parts)
  once, four = (dataclasses.replace(OPTIONS, accumulate=number) for number in (1, 4))
  one_state, one = make_update(Bigram(), once)(first_state(Bigram(), {}, once), {}, large)
  four_state, many = make_update(Bigram(), four)(first_state(Bigram(), {}, four), {}, small)
  assert many.weight == one.weight and many.weight > 0
  np.testing.assert_allclose(many.loss, one.loss, rtol=1e-6)
  np.testing.assert_allclose(
    one_state.optimizer[1][0].mu["table"], four_state.optimizer[1][0].mu["table"], atol=1e-7
  )


def test_every_step_has_its_own_batches_in_order():
  data = Cycles()
  train(Bigram(), {}, data, dataclasses.replace(OPTIONS, num_steps=3, accumulate=2))
  assert [step for step in data.asked if step < 10**6] == [0, 1, 2, 3, 4, 5]


def test_every_batch_has_a_key_of_its_own_and_none_is_the_initial_values():
  class Draw(Bigram):
    def init(self, key, target_params):
      return {**super().init(key, target_params), "drawn": jax.random.uniform(key)}

    def loss(self, trainable, target_params, batch, key):
      metrics = super().loss(trainable, target_params, batch, key)
      return dataclasses.replace(metrics, loss=jax.random.uniform(key), weight=jnp.ones(()))

  options = dataclasses.replace(OPTIONS, num_steps=4, accumulate=2, seed=5)
  rows = train(Draw(), {}, Cycles(), options).rows
  seed = jax.random.key(5)
  drawn = [
    [jax.random.uniform(jax.random.fold_in(jax.random.fold_in(seed, step), i)) for i in (0, 1)]
    for step in (1, 2, 3, 4)
  ]
  losses = [row["loss"] for row in rows if row["split"] == "train"]
  np.testing.assert_allclose(losses, np.mean(drawn, axis=1), rtol=1e-6)
  initial = first_state(Draw(), {}, options).trainable["drawn"]
  assert len({float(value) for value in [*np.ravel(drawn), initial]}) == 9


@pytest.mark.parametrize("steps", [1, 5, 13])
def test_a_stopped_run_goes_on_to_the_bits_of_an_uninterrupted_one(tmp_path, steps):
  objective = Bigram(noisy=True)
  whole = train(objective, {}, Cycles(), OPTIONS, tmp_path / "whole")
  part = train(objective, {}, Cycles(), OPTIONS, tmp_path / "part", should_stop=stop_after(steps))
  assert not part.finished and int(part.state.step) == steps
  rest = train(objective, {}, Cycles(), OPTIONS, tmp_path / "part")
  assert rest.finished
  assert same(rest.state, whole.state)
  assert not same(part.trainable, whole.trainable)

  def decided(rows):
    return [
      {key: value for key, value in row.items() if key not in ("seconds", "tokens_per_second")}
      for row in rows
    ]

  assert decided(rest.rows) == decided(whole.rows)
  written = (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()
  assert decided(map(json.loads, written)) == decided(whole.rows)


def test_a_killed_run_goes_on_from_its_newest_whole_checkpoint(tmp_path):
  class Killed(Exception):  # noqa: N818
    pass

  def die(row):
    if row["step"] == 13:
      raise Killed

  whole = train(Bigram(), {}, Cycles(), OPTIONS)
  with pytest.raises(Killed):
    train(Bigram(), {}, Cycles(), OPTIONS, tmp_path, on_step=die)
  # What a write that was cut off leaves: a folder without Orbax's mark of completion, and half a
  # line of the log.
  checkpoints = tmp_path / "checkpoints"
  assert sorted(path.name for path in checkpoints.iterdir()) == ["10", "5"]
  shutil.copytree(checkpoints / "10", checkpoints / "12.orbax-checkpoint-tmp")
  with open(tmp_path / "metrics.jsonl", "a") as file:
    file.write('{"step": 13, "lo')
  data = Cycles()
  rest = train(Bigram(), {}, data, OPTIONS, tmp_path)
  assert data.asked[0] == 10
  assert same(rest.state, whole.state)
  assert [row["step"] for row in rest.rows if row["split"] == "train"] == list(range(1, 21))


def test_a_finished_run_is_not_trained_again(tmp_path):
  first = train(Bigram(), {}, Cycles(), OPTIONS, tmp_path)
  data = Cycles()
  again = train(Bigram(), {}, data, OPTIONS, tmp_path)
  assert again.finished and same(first.state, again.state) and not data.asked
  assert len(again.rows) == len(first.rows)


def test_only_the_newest_checkpoints_are_kept(tmp_path):
  train(Bigram(), {}, Cycles(), dataclasses.replace(OPTIONS, keep=3), tmp_path)
  assert sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir()) == [10, 15, 20]


def test_a_checkpoint_of_another_structure_is_refused_in_one_line(tmp_path):
  train(Bigram(), {}, Cycles(), OPTIONS, tmp_path)

  class Larger(Bigram):
    def init(self, key, target_params):
      return {**super().init(key, target_params), "more": jnp.zeros((3,))}

  with pytest.raises(ValueError, match=r"checkpoint 20 in .* does not fit this run") as error:
    train(Larger(), {}, Cycles(), OPTIONS, tmp_path)
  assert "\n" not in str(error.value)


def test_a_loss_that_is_not_finite_ends_the_run_by_its_step():
  class Broken(Bigram):
    def loss(self, trainable, target_params, batch, key):
      metrics = super().loss(trainable, target_params, batch, key)
      return dataclasses.replace(metrics, loss=metrics.loss / 0.0)

  with pytest.raises(ValueError, match="the loss is inf at step 1: lower learning_rate"):
    train(Broken(), {}, Cycles(), OPTIONS)


def test_the_learning_rate_rises_then_falls_to_its_share():
  options = OptimizerOptions(learning_rate=0.2, warmup_steps=10, final_share=0.25)
  schedule = options.schedule(100)
  rates = [float(schedule(step)) for step in range(101)]
  assert rates[0] == 0 and rates[5] == pytest.approx(0.1) and rates[10] == pytest.approx(0.2)
  assert rates[100] == pytest.approx(0.05)
  assert all(a >= b for a, b in itertools.pairwise(rates[10:]))


@pytest.mark.parametrize(
  ("kind", "name", "value"),
  [
    (TrainOptions, "num_steps", 0),
    (TrainOptions, "accumulate", 0),
    (TrainOptions, "keep", 1.5),
    (OptimizerOptions, "learning_rate", 0.0),
    (OptimizerOptions, "beta2", 1.0),
    (OptimizerOptions, "clip_norm", -1.0),
    (OptimizerOptions, "final_share", 2),
  ],
)
def test_options_out_of_range_are_refused_by_name(kind, name, value):
  with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
    kind(**{name: value})
