# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A training process that is killed, again and again, without a chance to clean up."""

import collections
import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np
from test_train_loop import Bigram, Cycles, same

from specjax.training.train_loop import TrainOptions, train

# A checkpoint at each step, so that the signal finds one being written.
OPTIONS = TrainOptions(num_steps=30, log_every=4, validate_every=9, save_every=1)


class Heavy(Bigram):
  """With parameters beside the table that take a while to write."""

  def init(self, key, target_params):
    shape = (64, 1024)
    return {**super().init(key, target_params), "more": jax.random.normal(key, shape)}


def run_and_be_killed(folder, step):
  """What the child process does: kills itself while step `step` is logged."""

  def kill(row):
    if row["step"] >= step:
      os.kill(os.getpid(), signal.SIGKILL)

  train(Heavy(noisy=True), {}, Cycles(), OPTIONS, folder, on_step=kill)


def test_a_run_killed_again_and_again_ends_with_the_bytes_of_an_uninterrupted_one(tmp_path):
  here = pathlib.Path(__file__).resolve()
  paths = os.pathsep.join(map(str, (here.parent, here.parent.parent, here.parent.parent.parent)))
  for step in (7, 16):
    code = f"import test_killed_run as t; t.run_and_be_killed({str(tmp_path)!r}, {step})"
    child = subprocess.run(
      [sys.executable, "-c", code],
      env={**os.environ, "PYTHONPATH": paths},
      capture_output=True,
      text=True,
      check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
  data = Cycles()
  rest = train(Heavy(noisy=True), {}, data, OPTIONS, tmp_path)
  # The save of step 15 may have been cut off; the one before it was whole when that one began.
  assert min(data.asked) in (14, 15)
  whole = train(Heavy(noisy=True), {}, Cycles(), OPTIONS)
  assert same(rest.state, whole.state)
  written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  steps = collections.Counter((row["split"], row["step"]) for row in written)
  assert set(steps.values()) == {1}
  assert [step for split, step in steps if split == "train"] == list(range(1, 31))
  assert [step for split, step in steps if split == "validation"] == [9, 18, 27, 30]
  losses = [row["loss"] for row in whole.rows]
  np.testing.assert_array_equal([row["loss"] for row in written], losses)
  assert written[-1]["tokens"] == whole.rows[-1]["tokens"]
