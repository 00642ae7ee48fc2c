# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import pytest

from specjax.training import train_meter
from specjax.training.objective import Metrics
from specjax.training.train_meter import TrainMeter


@pytest.fixture
def clock(monkeypatch):
  """A clock that stands still until a test moves it: `clock[0]` is the time."""
  now = [100.0]
  monkeypatch.setattr(train_meter.time, "perf_counter", lambda: now[0])
  return now


def metrics(loss, weight):
  one = jnp.ones((2,))
  return Metrics(jnp.float32(loss), jnp.float32(weight), one, 2 * one, jnp.ones(()), jnp.ones(()))


def test_a_row_sums_up_the_steps_since_the_row_before(clock):
  meter = TrainMeter([])
  meter.add(metrics(3.0, 1.0), 10)
  meter.add(metrics(1.0, 3.0), 30)
  clock[0] += 8
  row = meter.row()
  assert row["loss"] == 1.0 and row["agreement"] == [0.5, 0.5]
  assert (row["tokens"], row["tokens_per_second"], row["seconds"]) == (40, 5.0, 8.0)
  meter.add(metrics(6.0, 2.0), 20)
  clock[0] += 2
  row = meter.row()
  assert row["loss"] == 3.0
  assert (row["tokens"], row["tokens_per_second"], row["seconds"]) == (60, 10.0, 10.0)


def test_time_aside_is_the_runs_but_slows_no_step_down(clock):
  meter = TrainMeter([])
  meter.add(metrics(1.0, 1.0), 10)
  clock[0] += 1
  with meter.aside():
    clock[0] += 50
  clock[0] += 1
  assert meter.seconds == 51
  row = meter.row()
  assert (row["tokens_per_second"], row["seconds"]) == (5.0, 52.0)


def test_tokens_and_seconds_go_on_from_the_last_row_but_the_speed_does_not(clock):
  meter = TrainMeter([{"tokens": 5, "seconds": 1.0}, {"tokens": 1000, "seconds": 60.0}])
  meter.add(metrics(1.0, 1.0), 10)
  clock[0] += 2
  row = meter.row()
  assert (row["tokens"], row["tokens_per_second"], row["seconds"]) == (1010, 5.0, 62.0)


def test_a_row_of_no_step_is_refused(clock):
  with pytest.raises(ValueError, match="a row needs at least one step"):
    TrainMeter([]).row()
