# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Two processes on this machine, joined over loopback, give what one process gives."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tiny_checkpoint
from safetensors.numpy import load_file

from experiments import decode, train
from experiments.process_flags import ProcessOptions
from specjax.training.token_files import TokenFolder

pytestmark = pytest.mark.usefixtures("fast_compilation")

PROMPTS = ("hello", "b", "some more text")

# Runs a command; with `dies`, until the process is about to draft for the last batch.
WORKER = """
import importlib, os, signal, sys
from experiments.runner import Runner

command, dies, *arguments = sys.argv[1:]
run_batch = Runner._run_batch

def die_in_the_last_batch(self, method, batch):
  if method.name == "prompt_lookup" and 2 in batch:
    os.kill(os.getpid(), signal.SIGKILL)
  run_batch(self, method, batch)

if dies == "dies":
  Runner._run_batch = die_in_the_last_batch
sys.exit(importlib.import_module("experiments." + command).main([command, *arguments]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tiny")
  return tiny_checkpoint.write(folder, num_layers=1, hidden_size=32)


def run_pair(command, arguments, *, dies=(False, False)):
  """Exit codes and what both processes wrote to standard error."""
  with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
  environment = {
    **os.environ,
    "XLA_FLAGS": "--xla_force_host_platform_device_count=1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
  }
  started = []
  for index in range(2):
    joined = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2", f"--process_id={index}"]
    started.append(
      subprocess.Popen(
        [sys.executable, "-c", WORKER, command, "dies" if dies[index] else "", *arguments, *joined],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
      )
    )
  try:
    outputs = [process.communicate(timeout=180) for process in started]
  finally:
    for process in started:
      process.kill()
  return [process.returncode for process in started], outputs


def decode_arguments(model, output):
  prompts = [f"--prompt={prompt}" for prompt in PROMPTS]
  common = [f"--model={model}", f"--output={output}", "--compilation_cache_dir=", "--batch_size=2"]
  return [*common, *prompts, "--max_new_tokens=40"]


def read_rows(folder):
  lines = (folder / "results.jsonl").read_text().splitlines()
  rows = [json.loads(line) for line in lines]
  return {(row["method"], row["prompt_index"]): row for row in rows}, len(rows)


def newest_checkpoint(folder):
  with ocp.CheckpointManager((folder / "checkpoints").absolute()) as manager:
    step = manager.latest_step()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    metadata = manager.item_metadata(step) or ocp.StandardCheckpointer().metadata(
      folder.absolute() / "checkpoints" / str(step) / "default"
    )
    tree = getattr(metadata, "item_metadata", metadata)
    wanted = {
      name: jax.ShapeDtypeStruct(tree[name].shape, tree[name].dtype, sharding=here) for name in tree
    }
    restored = manager.restore(step, args=ocp.args.StandardRestore(wanted))
    return [np.asarray(restored[name]) for name in sorted(restored)]


@pytest.mark.slow
def test_a_killed_process_is_reported_and_the_rerun_completes_the_rows_of_one_process(
  model, tmp_path
):
  codes, outputs = run_pair(
    "decode", decode_arguments(model, tmp_path / "pair"), dies=(False, True)
  )
  assert codes == [1, -signal.SIGKILL], outputs
  errors = [line for line in outputs[0][1].splitlines() if line.startswith("error: ")]
  assert len(errors) == 1
  assert "another process of this run ended" in errors[0]
  # The last batch is uneven; its rows of the first method were written before.
  before, _ = read_rows(tmp_path / "pair")
  assert len(before) == 5 and ("prompt_lookup", 2) not in before

  assert decode.main(["decode", *decode_arguments(model, tmp_path / "pair")]) == 0
  assert decode.main(["decode", *decode_arguments(model, tmp_path / "one")]) == 0
  ours, number = read_rows(tmp_path / "pair")
  theirs, _ = read_rows(tmp_path / "one")
  assert number == len(ours) == 6
  assert ours.keys() == theirs.keys()
  for key, row in ours.items():
    for name in ("token_ids", "text", "tokens_per_call", "finish_reason", "prompt_tokens"):
      assert row[name] == theirs[key][name], (key, name)
  assert {row["mesh"] for row in before.values()} == {"data:2"}
  assert {key: ours[key] for key in before} == before


@pytest.mark.slow
def test_two_processes_train_to_the_parameters_of_one(model, tmp_path):
  data = TokenFolder(tmp_path / "data", {"model": "toy", "vocab_size": 259})
  rng = np.random.default_rng(0)
  for index in range(12):
    ids = rng.integers(0, 259, 14).tolist()
    split = "validation" if index % 4 == 0 else "train"
    data.append(ids, 4, {"prompt": str(index), "split": split})

  def arguments(output):
    return [
      f"--model={model}",
      f"--data={tmp_path / 'data'}",
      f"--output={output}",
      "--config=configs/train_blockwise.py",
      "--config.objective.draft_length=1",
      "--config.objective.head_width=8",
      "--config.objective.draft_vocabulary=40",
      "--config.warmup_steps=0",
      "--config.log_every=1",
      "--config.save_every=2",
      "--window=32",
      "--batch_size=2",
      "--steps=3",
    ]

  codes, outputs = run_pair("train", arguments(tmp_path / "pair"))
  assert codes == [0, 0], outputs
  assert train.main(["train", *arguments(tmp_path / "one"), "--mesh=data:2"]) == 0
  ours = load_file(tmp_path / "pair" / "drafter.safetensors")
  theirs = load_file(tmp_path / "one" / "drafter.safetensors")
  assert ours.keys() == theirs.keys()
  # The drafter is in bfloat16; the checkpoint has the parameters and moments as they were trained.
  ours, theirs = newest_checkpoint(tmp_path / "pair"), newest_checkpoint(tmp_path / "one")
  assert len(ours) == len(theirs) > 3
  for mine, wanted in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(mine, wanted, rtol=0, atol=1e-5)
  logs = [
    [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    for name in ("pair", "one")
  ]
  assert [row["step"] for row in logs[0]] == [row["step"] for row in logs[1]]
  np.testing.assert_allclose(
    [row["loss"] for row in logs[0]], [row["loss"] for row in logs[1]], rtol=0, atol=1e-5
  )


@pytest.mark.parametrize(
  ("flags", "words"),
  [
    ({"coordinator": "localhost:8476"}, "needs --num_processes too"),
    ({"coordinator": "localhost:8476", "num_processes": 2}, "needs --process_id too"),
    ({"num_processes": 2}, "give --coordinator=HOST:PORT too"),
    ({"process_id": 0}, "give --coordinator=HOST:PORT too"),
    ({"coordinator": "localhost:http", "num_processes": 2, "process_id": 0}, "got 'http'"),
    ({"coordinator": "localhost", "num_processes": 2, "process_id": 0}, "must be HOST:PORT"),
    ({"coordinator": "localhost:80", "num_processes": 2, "process_id": 2}, "process_id must be in"),
    (
      {"coordinator": "localhost:80", "num_processes": 2, "process_id": -1},
      "process_id must be in",
    ),
    ({"coordinator": "localhost:80", "num_processes": 0, "process_id": 0}, "num_processes must be"),
    ({"coordinator": "auto", "process_id": 0}, "leave --process_id out"),
  ],
)
def test_flags_that_do_not_fit_are_one_line(flags, words, capsys):
  with pytest.raises(ValueError, match=words):
    ProcessOptions(**flags)
  for command in (decode, train):
    given = [f"--{name}={value}" for name, value in flags.items()]
    given += ["--data=nowhere"] if command is train else []
    assert command.main(["command", *given]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_options_of_one_process_are_the_default():
  assert not ProcessOptions().several
  assert dataclasses.astuple(ProcessOptions()) == (None, None, None)
