# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The main command from end to end, on a checkpoint that fits in a test."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import tiny_checkpoint

from experiments import decode, methods
from specjax.drafters import REGISTRY

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
KEYS = {
  "method",
  "prompt_index",
  "prompt_tokens",
  "token_ids",
  "text",
  "new_tokens",
  "target_calls",
  "draft_calls",
  "accepted_histogram",
  "prefill_seconds",
  "decode_seconds",
  "compile_seconds",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def questions(tmp_path):
  path = tmp_path / "questions.jsonl"
  lines = [
    {"question_id": 7, "category": "writing", "turns": ["abcdef", "ghi"]},
    {"prompt": "klm"},
    {"prompt": "xyz abc"},
  ]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return path


def command(checkpoint, *arguments):
  return ["decode", f"--model={checkpoint}", "--compilation_cache_dir=", *map(str, arguments)]


def read(folder):
  lines = (folder / "results.jsonl").read_text().splitlines()
  rows = {}
  for row in map(json.loads, lines):
    key = (row["method"], row["prompt_index"], row["turn"])
    assert key not in rows, "a row was written twice"
    rows[key] = row
  return rows


def facts(rows):
  names = ("token_ids", "text", "target_calls", "accepted_histogram", "finish_reason")
  return {key: tuple(str(row[name]) for name in names) for key, row in rows.items()}


def test_every_registered_drafter_is_a_method_of_the_command():
  assert set(methods.BUILDERS) == set(REGISTRY)


def test_rows_have_the_promised_keys_and_agree_between_methods(checkpoint, questions, tmp_path):
  output = tmp_path / "out"
  arguments = (f"--prompts={questions}", f"--output={output}", "--max_new_tokens=60")
  assert decode.main(command(checkpoint, *arguments)) == 0
  rows = read(output)
  assert len(rows) == 2 * 4
  for row in rows.values():
    assert set(row) >= KEYS
    assert row["new_tokens"] == len(row["token_ids"]) <= 60
    assert sum(row["accepted_histogram"]) == row["target_calls"]
  for (method, index, turn), row in rows.items():
    assert row["token_ids"] == rows["autoregressive", index, turn]["token_ids"]
    if method == "prompt_lookup":
      assert row["target_calls"] < row["new_tokens"]
  second = rows["autoregressive", 0, 1]
  # The second turn has read the first answer.
  assert second["prompt_tokens"] > rows["autoregressive", 0, 0]["prompt_tokens"] + 60
  assert second["question_id"] == 7


def test_rows_do_not_depend_on_the_batch_size(checkpoint, questions, tmp_path):
  options = ("--temperature=1.0", "--top_k=20", "--seed=3", "--max_new_tokens=24")
  for size in (1, 2):
    output = f"--output={tmp_path / str(size)}"
    arguments = (f"--prompts={questions}", output, f"--batch_size={size}", *options)
    assert decode.main(command(checkpoint, *arguments)) == 0
  assert facts(read(tmp_path / "1")) == facts(read(tmp_path / "2"))


def test_a_stop_string_ends_text_and_tokens_at_one_place(checkpoint, tmp_path):
  arguments = ("--prompt=abc", f"--output={tmp_path / 'out'}", "--stop=pq", "--max_new_tokens=80")
  assert decode.main(command(checkpoint, *arguments)) == 0
  for row in read(tmp_path / "out").values():
    assert row["finish_reason"] == "stop"
    assert row["text"].endswith("o") and "pq" not in row["text"]
    assert bytes(row["token_ids"]).decode() == row["text"]


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_rows_of_an_uninterrupted_one(
  checkpoint, questions, tmp_path
):
  arguments = [f"--prompts={questions}", "--max_new_tokens=40"]
  assert decode.main(command(checkpoint, *arguments, f"--output={tmp_path / 'whole'}")) == 0
  killed = tmp_path / "killed"
  line = [sys.executable, "-m", "experiments.decode"]
  line += command(checkpoint, *arguments, f"--output={killed}")[1:]
  process = subprocess.Popen(
    line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ}
  )
  results = killed / "results.jsonl"
  for _ in range(1200):
    if process.poll() is not None or (results.exists() and results.stat().st_size):
      break
    time.sleep(0.1)
  process.send_signal(signal.SIGKILL)
  process.wait()
  with results.open("a") as file:
    file.write('{"method": "prompt_loo')  # a line that the kill cut off
  assert decode.main(command(checkpoint, *arguments, f"--output={killed}")) == 0
  assert facts(read(killed)) == facts(read(tmp_path / "whole"))


BAD = {
  "method": (["--methods=foo"], "unknown name 'foo'"),
  "config key": (["--config.nonsense=1"], "unknown config key: nonsense"),
  "temperature": (["--temperature=-1"], "temperature"),
  "budget": (["--max_new_tokens=-1"], "max_new_tokens"),
  "draft length": (["--config.draft_length=0"], "draft_length must be an integer >= 1, got 0"),
  "no file": (["--prompts=/nowhere.jsonl"], "/nowhere.jsonl does not exist"),
  "empty prompt": (["--prompt="], "is empty"),
  "flag": (["--nope=1"], "nope"),
  "both": (["--prompt=a", "--prompts=b"], "both given"),
  "batch size": (["--batch_size=0"], "batch_size must be an integer >= 1, got 0"),
  "top_p": (["--top_p=1.5"], "top_p must be in"),
  "top_k": (["--top_k=-1"], "top_k"),
  "min_p": (["--min_p=2"], "min_p"),
  "penalty": (["--repetition_penalty=0"], "repetition_penalty"),
  "config file": (["--config=/nope.py"], "config file"),
  "number": (["--temperature=abc"], "temperature"),
  "stop": (["--stop="], "stop"),
}


def assert_one_line(capsys, code, message):
  error = capsys.readouterr().err
  assert code == 2
  assert error.startswith("error: ") and error.count("\n") == 1
  assert message in error and "Traceback" not in error


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(case, checkpoint, capsys, tmp_path):
  arguments, message = BAD[case]
  line = command(checkpoint, *arguments, f"--output={tmp_path / 'out'}")
  assert_one_line(capsys, decode.main(line), message)


@pytest.mark.parametrize("model", ["/no/such/folder", "nonsense"])
def test_a_model_that_is_not_there_is_one_line(model, capsys, tmp_path):
  assert_one_line(
    capsys, decode.main(command(model, f"--output={tmp_path / 'out'}", "--prompt=a")), model
  )


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b'{"prompt": "a"}\n' * 6 + b"{bad\n", "line 7 is not JSON"),
    (b"", "is empty"),
    (b'\xff\xfe{"prompt": "a"}\n', "line 1 is not UTF-8"),
    (b'{"question_id": 1, "category": "x"}\n', "line 1 must have either 'prompt' or 'turns'"),
    (b'{"prompt": "' + b"abc " * 300 + b'"}\n', "line 1: the prompt has"),
  ],
)
def test_a_malformed_prompts_file_is_answered_by_line_and_reason(
  content, message, checkpoint, capsys, tmp_path
):
  path = tmp_path / "prompts.jsonl"
  path.write_bytes(content)
  line = command(checkpoint, f"--prompts={path}", f"--output={tmp_path / 'out'}")
  assert_one_line(capsys, decode.main(line), message)


def test_other_settings_in_the_same_folder_are_refused(checkpoint, capsys, tmp_path):
  line = command(checkpoint, "--prompt=abc", f"--output={tmp_path}", "--max_new_tokens=4")
  assert decode.main(line) == 0
  capsys.readouterr()
  assert_one_line(capsys, decode.main([*line, "--seed=3"]), "seed was 0, now it is 3")


def test_help_explains_every_flag(capsys):
  assert decode.main(["decode", "--help"]) == 0
  text = capsys.readouterr().out
  for flag in ("config", "prompts", "methods", "stop", "batch_size", "output", "min_p"):
    assert f"--{flag}" in text
