# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Data generation and training as commands, on a tiny checkpoint."""

import json
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tiny_checkpoint

from experiments import decode, generate_data, train
from specjax.decoding import generate
from specjax.drafters.drafter_file import load_drafter
from specjax.models import checkpoint
from specjax.training.token_files import TokenFolder

PROMPTS = [f"say {word} " + "x" * (index % 5) for index, word in enumerate("abcdefghijklmnop")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
  # One prompt comes twice.
  lines = [json.dumps({"prompt": prompt}) for prompt in [*PROMPTS, PROMPTS[3]]]
  path.write_text("\n".join(lines))
  return path


def data_command(model, prompts, output, *arguments):
  flags = [f"--prompts={prompts}", f"--output={output}", f"--model={model}"]
  flags += ["--batch_size=4", "--max_new_tokens=24", "--validation_share=0.2", *arguments]
  return generate_data.main(["generate_data", *flags])


@pytest.fixture(scope="module")
def data(model, prompts, tmp_path_factory):
  folder = tmp_path_factory.mktemp("data") / "data"
  assert data_command(model, prompts, folder, "--top_targets=4") == 0
  return folder


def train_arguments(model, data, output, *arguments, scheme="blockwise"):
  sizes = ["--steps=12", "--window=96", "--batch_size=2", "--config.save_every=3"]
  return [
    f"--config=configs/train_{scheme}.py",
    f"--data={data}",
    f"--output={output}",
    f"--model={model}",
    *sizes,
    *(["--config.objective.draft_vocabulary=40"] if scheme != "pass" else []),
    *arguments,
  ]


@pytest.fixture
def handlers():
  """Puts back what the command does to signals."""
  before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def run_train(*arguments, **options):
  return train.main(["train", *train_arguments(*arguments, **options)])


def newest_checkpoint(folder):
  with ocp.CheckpointManager((folder / "checkpoints").absolute()) as manager:
    step = manager.latest_step()
    return step, manager.restore(step, args=ocp.args.StandardRestore())


# --- data --------------------------------------------------------------------------------------


def test_data_is_the_targets_own_greedy_answers(model, data):
  target = checkpoint.load(model)
  folder = TokenFolder(data)
  assert len(folder.rows) == len(PROMPTS)
  tokens, offsets = folder.tokens(), folder.offsets()
  wanted = {tuple(target.tokenizer.encode_chat([{"role": "user", "content": p}])) for p in PROMPTS}
  found = set()
  for index, row in enumerate(folder.rows):
    ids = tokens[offsets[index] : offsets[index + 1]].tolist()
    prompt = ids[: row["prompt_length"]]
    found.add(tuple(prompt))
    alone = generate(
      target.model, target.params, [prompt], max_new_tokens=24, eos_ids=target.eos_ids
    )
    assert jax.device_get(alone).new_tokens()[0] == ids[len(prompt) :]
  assert found == wanted
  splits = [row["split"] for row in folder.rows]
  assert 0 < splits.count("validation") < splits.count("train")


def test_stored_targets_are_the_targets_likeliest_tokens(data):
  folder = TokenFolder(data)
  ids, log_probs = folder.top_targets()
  answers = [
    token
    for index, row in enumerate(folder.rows)
    for token in folder.tokens()[folder.offsets()[index] : folder.offsets()[index + 1]][
      row["prompt_length"] :
    ]
  ]
  # The answers are greedy: each of their tokens is the likeliest one.
  assert ids[:, 0].tolist() == answers
  assert np.all(np.diff(log_probs.astype(np.float32), axis=1) <= 0)


def test_a_run_that_was_cut_off_gives_the_rows_of_a_whole_one(model, prompts, data, tmp_path):
  assert data_command(model, prompts, tmp_path, "--limit=6") == 0
  with open(tmp_path / "tokens.bin", "ab") as file:
    file.write(b"\1\2\3\4\5\6")
  assert data_command(model, prompts, tmp_path, "--top_targets=4") == 0

  def content(folder):
    folder = TokenFolder(folder)
    cuts = folder.offsets()
    return {
      row["prompt"]: folder.tokens()[cuts[index] : cuts[index + 1]].tolist()
      for index, row in enumerate(folder.rows)
    }

  assert content(tmp_path) == content(data)


def test_original_text_is_the_files_own(model, tmp_path):
  path = tmp_path / "prompts.jsonl"
  path.write_text('{"prompt": "hello", "answer": "you"}\n{"prompt": "some text"}\n')
  assert data_command(model, path, tmp_path / "data", "--source=original") == 0
  tokenizer = checkpoint.load(model).tokenizer
  folder = TokenFolder(tmp_path / "data")
  tokens, cuts = folder.tokens().tolist(), folder.offsets()
  answers = {
    tokenizer.decode(tokens[cuts[i] + row["prompt_length"] : cuts[i + 1] - 1])
    for i, row in enumerate(folder.rows)
  }
  assert answers == {"you", "ome text"}


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--prompts="], "--prompts must be given"),
    (["--output="], "--output must be given"),
    (["--prompts=nowhere.jsonl"], "prompts file nowhere.jsonl does not exist"),
    (["--temperature=-1"], "temperature"),
    (["--batch_size=0"], "batch_size"),
    (["--source=mine"], "source"),
    (["--nonsense"], "nonsense"),
    (["--seed=1"], "made with seed 0, this run has 1; take another folder"),
  ],
)
def test_bad_data_flags_are_one_line(model, prompts, data, capsys, arguments, message):
  assert data_command(model, prompts, data, *arguments) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1 and error.startswith("error: ")


# --- training ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("scheme", ["blockwise", "pass", "draft_model"])
def test_each_scheme_trains_and_its_drafter_decodes(model, data, tmp_path, scheme, capsys):
  arguments = ["--config.objective.layers=(0, 2)"] if scheme == "draft_model" else []
  assert run_train(model, data, tmp_path, *arguments, scheme=scheme) == 0
  printed = capsys.readouterr().out
  assert "step 12/12" in printed and "validation" in printed
  rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert rows[-1]["step"] == 12
  assert (tmp_path / "metrics.png").read_bytes()[:4] == b"\x89PNG"
  target = checkpoint.load(model)
  drafter, _ = load_drafter(tmp_path / "drafter.safetensors", target.model, target.params)
  assert len(rows[-1]["agreement"]) == drafter.draft_length - (scheme == "pass")
  output = tmp_path / "decoded"
  code = decode.main(
    [
      "decode",
      f"--model={model}",
      f"--output={output}",
      "--compilation_cache_dir=",
      f"--drafter={tmp_path / 'drafter.safetensors'}",
      f"--methods=autoregressive,{scheme}",
      "--prompt=say k xx",
      "--max_new_tokens=16",
    ]
  )
  assert code == 0
  plain, drafted = (
    json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()
  )
  assert drafted["token_ids"] == plain["token_ids"]


def test_how_often_a_run_tells_and_saves_may_change_when_it_goes_on(model, data, tmp_path):
  whole, part = tmp_path / "whole", tmp_path / "part"
  assert run_train(model, data, whole) == 0
  assert run_train(model, data, part, "--steps=12") == 0
  shutil.rmtree(part / "checkpoints" / "12")
  others = ("log_every=2", "validate_every=7", "save_every=5", "keep=1")
  assert run_train(model, data, part, *(f"--config.{value}" for value in others)) == 0
  ours, theirs = (newest_checkpoint(folder)[1] for folder in (part, whole))
  for name, value in theirs.items():
    assert np.asarray(ours[name]).tobytes() == np.asarray(value).tobytes(), name


# A checkpoint soon, and then more steps than are made before a signal arrives.
LONG = ("--steps=150", "--config.save_every=50")


@pytest.fixture(scope="module")
def whole(model, data, tmp_path_factory):
  folder = tmp_path_factory.mktemp("whole") / "run"
  before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
  assert run_train(model, data, folder, *LONG) == 0
  for number, handler in before.items():
    signal.signal(number, handler)
  return folder


@pytest.mark.slow
@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_run_ended_by_a_signal_goes_on_to_the_same_bytes(model, data, whole, tmp_path, number):
  part = tmp_path / "part"
  command = [sys.executable, "-m", "experiments.train"]
  process = subprocess.Popen(
    [*command, *train_arguments(model, data, part, *LONG)], stdout=subprocess.DEVNULL
  )
  while not any((part / "checkpoints").glob("[0-9]*")):
    assert process.poll() is None, "the run ended before the signal"
    time.sleep(0.002)
  process.send_signal(number)
  code = process.wait()
  ended = {signal.SIGKILL: -9, signal.SIGINT: 130, signal.SIGTERM: 143}[number]
  assert code == ended
  assert run_train(model, data, part, *LONG) == 0
  step, state = newest_checkpoint(part)
  assert step == 150
  _, expected = newest_checkpoint(whole)
  assert state.keys() == expected.keys()
  for name, value in expected.items():
    assert np.asarray(state[name]).tobytes() == np.asarray(value).tobytes(), name
  drafter = "drafter.safetensors"
  assert (part / drafter).read_bytes() == (whole / drafter).read_bytes()


@pytest.mark.usefixtures("handlers")
def test_a_run_is_not_resumed_with_other_settings(model, data, tmp_path, capsys):
  assert run_train(model, data, tmp_path, "--steps=2") == 0
  capsys.readouterr()
  assert run_train(model, data, tmp_path, "--steps=2", "--learning_rate=0.5") == 2
  assert "was begun with learning_rate 0.001, this run has 0.5" in capsys.readouterr().err.replace(
    "0.002", "0.001"
  )


@pytest.mark.usefixtures("handlers")
def test_a_run_on_the_prompts_judges_the_prompts(model, data, tmp_path):
  held_out = {}
  for part in ("answers", "prompts"):
    output = tmp_path / part
    changes = ["--steps=2", f"--config.data_part={part}", "--config.max_validation_rows=1"]
    assert run_train(model, data, output, *changes) == 0
    assert json.loads((output / "config.json").read_text())["data_part"] == part
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    held_out[part] = rows[-1]
    assert rows[-1]["split"] == "validation"
  assert held_out["answers"]["loss"] != held_out["prompts"]["loss"]


@pytest.mark.usefixtures("handlers")
def test_a_run_on_one_part_of_the_data_is_not_resumed_on_the_other(model, data, tmp_path, capsys):
  assert run_train(model, data, tmp_path, "--steps=2") == 0
  capsys.readouterr()
  assert run_train(model, data, tmp_path, "--steps=2", "--config.data_part=prompts") == 2
  assert "was begun with data_part 'answers', this run has 'prompts'" in capsys.readouterr().err


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--data="], "--data must name a folder"),
    (["--data=nowhere"], "data folder nowhere has no manifest.json"),
    (["--steps=0"], "num_steps must be an integer >= 1, got 0"),
    (["--window=0"], "window must be an integer >= 1, got 0"),
    (["--learning_rate=-1"], "learning_rate must be a number > 0, got -1.0"),
    (["--config.scheme=magic"], "scheme must be one of blockwise, draft_model, pass, got 'magic'"),
    (["--config.nonsense=1"], "unknown config key: nonsense"),
    (["--config.objective.draft_length=0"], "draft_length must be an integer >= 1, got 0"),
    (["--config.objective.draft_vocabulary=9999"], "size must be an integer in"),
    (["--config.data_part=both"], "data_part) must be one of answers, prompts, got 'both'"),
    (["--config.max_validation_rows=0"], "max_validation_rows must be an integer >= 1, got 0"),
    (["--seed=-1"], "seed must be in"),
    (["--model=nowhere/at-all/never"], "nowhere/at-all/never"),
  ],
)
def test_bad_train_flags_are_one_line(model, data, tmp_path, capsys, arguments, message):
  assert run_train(model, data, tmp_path, *arguments) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1 and error.startswith("error: ")


def test_help_names_every_flag(capsys):
  assert train.main(["train", "--help"]) == 0
  text = capsys.readouterr().out
  for name in ("--config", "--data", "--output", "--steps", "--learning_rate", "--accumulate"):
    assert name in text
  assert generate_data.main(["generate_data", "--help"]) == 0
  assert "--top_targets" in capsys.readouterr().out
