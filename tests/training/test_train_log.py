# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The log and the checkpoints of a training run, apart from the loop."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.training.train_checkpoints import TrainCheckpoints
from specjax.training.train_log import TrainLog

# --- the log -----------------------------------------------------------------------------------


def test_rows_past_the_step_that_a_run_goes_on_from_are_dropped(tmp_path):
  log = TrainLog(tmp_path, 0)
  for step in (1, 2, 3):
    log.append({"step": step})
  assert TrainLog(tmp_path, 2).rows == [{"step": 1}, {"step": 2}]
  assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("end", range(1, 13))
def test_a_line_that_was_cut_off_anywhere_is_dropped_and_written_anew(tmp_path, end):
  line = '{"step": 2}\n'
  (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n' + line[:end])
  log = TrainLog(tmp_path, 5)
  whole = end >= len(line) - 1
  assert log.rows == [{"step": 1}] + [{"step": 2}] * whole
  log.append({"step": 3})
  text = (tmp_path / "metrics.jsonl").read_text()
  assert [json.loads(row) for row in text.splitlines()] == log.rows


def test_without_a_folder_rows_are_in_memory_alone(tmp_path):
  log = TrainLog(None, 0)
  log.append({"step": 1})
  assert log.rows == [{"step": 1}] and not list(tmp_path.iterdir())


# --- checkpoints -------------------------------------------------------------------------------


def state(value):
  return {"a": jnp.full((2, 3), value, jnp.bfloat16), "b": (jnp.int32(value), jnp.ones((4,)))}


def saved(folder, *steps, keep=2):
  checkpoints = TrainCheckpoints(folder, keep)
  for step in steps:
    checkpoints.save(step, state(step))
  checkpoints.close()


def restored(folder):
  checkpoints = TrainCheckpoints(folder, 2)
  try:
    return checkpoints.newest_step, checkpoints.restore(state(0))
  finally:
    checkpoints.close()


def test_the_newest_state_comes_back_with_its_structure_and_dtypes(tmp_path):
  saved(tmp_path, 3, 10, 20)
  step, found = restored(tmp_path)
  assert step == 20
  assert jax.tree.structure(found) == jax.tree.structure(state(20))
  for value, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(state(20)), strict=True):
    assert value.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(value), np.asarray(wanted))


def test_without_a_checkpoint_the_state_is_the_one_given(tmp_path):
  step, found = restored(tmp_path)
  assert step is None and found["b"][0] == 0


def test_a_checkpoint_that_was_being_written_is_ignored(tmp_path):
  saved(tmp_path, 10, 20)
  folder = tmp_path / "checkpoints"
  shutil.copytree(folder / "20", folder / "30.orbax-checkpoint-tmp")
  shutil.rmtree(folder / "30.orbax-checkpoint-tmp" / "default")
  step, found = restored(tmp_path)
  assert step == 20 and found["b"][0] == 20


@pytest.mark.parametrize("files", ["**/manifest.ocdbt", "**/d/*", "default/_METADATA"])
def test_a_damaged_checkpoint_is_named_in_one_line_and_the_one_before_it_is_whole(tmp_path, files):
  saved(tmp_path, 10, 20)
  folder = tmp_path / "checkpoints"
  for path in (folder / "20").glob(files):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
  with pytest.raises(ValueError, match=r"checkpoint 20 in .* is damaged") as error:
    restored(tmp_path)
  assert "\n" not in str(error.value)
  shutil.rmtree(folder / "20")  # what the message says
  step, found = restored(tmp_path)
  assert step == 10 and found["b"][0] == 10
