# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A training command that is told to stop, on a tiny checkpoint and random data."""

import contextlib
import json
import signal

import numpy as np
import pytest
import tiny_checkpoint

from experiments import train, train_display
from specjax.training.token_files import TokenFolder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  path = tmp_path_factory.mktemp("data")
  folder = TokenFolder(path, {"vocab_size": tiny_checkpoint.CONFIG.vocab_size})
  rng = np.random.default_rng(0)
  for index in range(20):
    split = "validation" if index % 5 == 0 else "train"
    folder.append(rng.integers(97, 123, 24), 6, {"prompt": str(index), "split": split})
  return path


@pytest.fixture
def command(model, data, capsys):
  """Runs the command in this process; returns exit code and what it wrote to standard error."""

  def run(output, *arguments):
    flags = ["--config=configs/train_pass.py", f"--model={model}", f"--data={data}"]
    flags += [f"--output={output}", "--steps=6", "--window=48", "--batch_size=2", "--dtype=float32"]
    flags += ["--config.log_every=1", "--config.validate_every=4", "--config.save_every=100"]
    code = train.main(["train", *flags, *arguments])
    return code, capsys.readouterr().err

  return run


@contextlib.contextmanager
def at_step(step, act):
  """Has something done as soon as a step's row is shown."""
  show = train_display.TrainDisplay.show

  def shown(self, row):
    show(self, row)
    if row["step"] == step:
      act()

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train_display.TrainDisplay, "show", shown)
    yield


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
  """The folder of a run that nothing stopped; see `finished`."""
  return tmp_path_factory.mktemp("whole")


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_the_next_step_says_how_to_go_on_and_the_result_is_the_same(
  command, whole, tmp_path, number, expected
):
  before = signal.getsignal(number)
  with at_step(2, lambda: signal.raise_signal(number)):
    code, error = command(tmp_path)
  assert code == expected
  assert error.splitlines()[-1] == (
    f"stopped after step 3; to go on, run the same command with --output={tmp_path}"
  )
  assert signal.getsignal(number) is before
  assert not (tmp_path / "drafter.safetensors").exists()
  assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]
  assert command(tmp_path) == (0, "")
  if not (whole / "drafter.safetensors").exists():
    assert command(whole) == (0, "")
  drafter = "drafter.safetensors"
  assert (tmp_path / drafter).read_bytes() == (whole / drafter).read_bytes()
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  trained = [row["step"] for row in rows if row["split"] == "train"]
  assert trained == [1, 2, 3, 4, 5, 6]
  assert [row["step"] for row in rows if row["split"] == "validation"] == [4, 6]


def test_a_second_signal_stops_at_once(command, tmp_path):
  def twice():
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)

  with at_step(2, twice):
    code, error = command(tmp_path)
  assert code == 130 and not list((tmp_path / "checkpoints").iterdir())
  assert error.splitlines()[-1].startswith("interrupted; the same command goes on")


def test_a_setting_of_the_objective_that_differs_is_named(command, tmp_path):
  assert command(tmp_path, "--steps=1") == (0, "")
  code, error = command(tmp_path, "--steps=1", "--config.objective.look_ahead=3")
  assert code == 2 and error == (
    f"error: {tmp_path} was begun with objective.look_ahead 6, this run has 3; take another "
    "--output\n"
  )


@pytest.mark.parametrize("content", ["{", "[1, 2]", "7"])
def test_settings_that_cannot_be_read_are_named(command, tmp_path, content):
  (tmp_path / "config.json").write_text(content)
  code, error = command(tmp_path)
  assert code == 2 and error.count("\n") == 1
  assert f"{tmp_path / 'config.json'} is not the settings of a run" in error
