# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The Spec-Bench command on a tiny checkpoint."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest
import tiny_checkpoint

from experiments import differences, results, settings
from experiments.spec_bench import main
from specjax.models import checkpoint
from specjax.text import TextGenerator

pytestmark = pytest.mark.usefixtures("fast_compilation")

QUESTIONS = [
  {"question_id": 81, "category": "writing", "turns": ["hi", "again"], "reference": ["x"]},
  {"question_id": 82, "category": "writing", "turns": ["left out by the limit"]},
  {"question_id": 90, "category": "coding", "turns": ["code"]},
  {"question_id": 201, "category": "translation", "turns": ["one"]},
  {"question_id": 301, "category": "rag", "turns": ["two"]},
]
NEW = "--max_new_tokens=9"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), num_layers=1)


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
  path = tmp_path_factory.mktemp("questions") / "question.jsonl"
  path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
  return path


@pytest.fixture(scope="module")
def run(model, questions):
  """Runs the command in this process; returns exit code and rows."""

  def command(output, *arguments, methods="autoregressive,prompt_lookup"):
    given = [f"--questions={questions}", f"--model={model}", f"--output={output}"]
    given += ["--limit", "1", "--temperature", "0", "--raw", "--compilation_cache_dir="]
    code = main(["spec_bench", *given, f"--methods={methods}", NEW, *arguments])
    return code, read(output)

  return command


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
  """The folder of an uninterrupted run, with its report."""
  output = tmp_path_factory.mktemp("whole") / "out"
  code, _ = run(output, "--report")
  assert code == 0
  return output


def read(folder):
  path = folder / "results.jsonl"
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def decided(rows):
  """What of the rows does not depend on the clock."""
  return sorted(
    json.dumps({name: value for name, value in row.items() if not name.endswith("_seconds")})
    for row in rows
  )


# --- rows ----------------------------------------------------------------------------------


def test_methods_take_turns_question_by_question_and_the_limit_is_of_a_category(whole):
  order = [(row["question_id"], row["turn"], row["method"]) for row in read(whole)]
  lookup, plain = "prompt_lookup", "autoregressive"
  assert order[:4] == [(81, 0, plain), (81, 1, plain), (81, 0, lookup), (81, 1, lookup)]
  assert [number for number, _, _ in order[4:]] == [90, 90, 201, 201, 301, 301]


def test_rows_say_how_many_tokens_each_target_call_gave_and_what_they_were_measured_with(whole):
  for row in read(whole):
    assert len(row["tokens_per_call"]) == row["target_calls"]
    assert sum(row["tokens_per_call"]) == row["new_tokens"] == 9
    assert row["machine"]["jax"] == jax.__version__ and row["dtype"] == "float32"
  lookup = [row for row in read(whole) if row["method"] == "prompt_lookup"]
  assert any(max(row["tokens_per_call"]) > 1 for row in lookup)


def test_the_files_for_spec_benchs_tools_have_a_line_a_question_in_its_format(whole):
  rows = read(whole)
  for method in ("autoregressive", "prompt_lookup"):
    path = whole / "spec_bench" / f"{method}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["question_id"] for line in lines] == [81, 90, 201, 301]
    assert lines[0]["category"] == "writing" and lines[0]["model_id"].endswith(f"-{method}")
    (choice,) = lines[0]["choices"]
    turns = [row for row in rows if row["method"] == method and row["question_id"] == 81]
    assert choice["turns"] == [row["text"].strip() for row in turns]
    assert choice["new_tokens"] == [9, 9]
    assert choice["decoding_steps"] == [row["target_calls"] for row in turns]
    seconds = [row["prefill_seconds"] + row["decode_seconds"] for row in turns]
    assert choice["wall_time"] == pytest.approx(seconds)
    # Its tools take the mean over all steps: block efficiency.
    assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
    assert sum(choice["accept_lengths"]) == 18


# --- going on ------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 30, 900, 2000, -1])
def test_a_run_that_was_cut_off_anywhere_ends_with_the_same_rows(run, whole, tmp_path, cut):
  output = tmp_path / "out"
  output.mkdir()
  (output / "config.json").write_bytes((whole / "config.json").read_bytes())
  (output / "results.jsonl").write_bytes((whole / "results.jsonl").read_bytes()[:cut])
  code, rows = run(output)
  assert code == 0
  assert decided(rows) == decided(read(whole))


def test_a_run_that_was_killed_goes_on_to_the_same_rows(run, model, questions, whole, tmp_path):
  output = tmp_path / "killed"
  arguments = [
    *(f"--questions={questions}", f"--model={model}", f"--output={output}", "--limit=1", NEW),
    *(
      "--temperature=0",
      "--raw",
      "--compilation_cache_dir=",
      "--methods=autoregressive,prompt_lookup",
    ),
  ]
  process = subprocess.Popen(
    [sys.executable, "-m", "experiments.spec_bench", *arguments],
    stdout=subprocess.DEVNULL,
    env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true"},
  )
  while not read_bytes(output).count(b"\n"):
    assert process.poll() is None, "the run ended before it was killed"
    time.sleep(0.005)
  process.send_signal(signal.SIGKILL)
  process.wait()
  assert 1 <= read_bytes(output).count(b"\n") < len(read(whole))
  code, rows = run(output)
  assert code == 0
  mask = {"machine": None}  # the killed process saw one device, this one several
  assert decided(row | mask for row in rows) == decided(row | mask for row in read(whole))


def read_bytes(folder):
  path = folder / "results.jsonl"
  return path.read_bytes() if path.exists() else b""


def test_ctrl_c_keeps_finished_rows_and_says_how_to_go_on(
  run, whole, tmp_path, monkeypatch, capsys
):
  append, calls = results.ResultsFolder.append, []

  def interrupted(self, rows):
    calls.append(rows)
    if len(calls) == 3:
      raise KeyboardInterrupt
    append(self, rows)

  with monkeypatch.context() as patch:
    patch.setattr(results.ResultsFolder, "append", interrupted)
    code, rows = run(tmp_path)
  assert code == 130 and len(rows) == 2
  assert f"go on, run the same command with --output={tmp_path}" in capsys.readouterr().err
  assert decided(run(tmp_path)[1]) == decided(read(whole))


# --- equality ------------------------------------------------------------------------------


def test_where_an_output_differs_the_gap_of_the_two_best_logits_is_measured_once(
  run, whole, model, tmp_path
):
  output = tmp_path / "out"
  output.mkdir()
  (output / "config.json").write_bytes((whole / "config.json").read_bytes())
  rows = read(whole)
  wrong = next(row for row in rows if row["method"] == "prompt_lookup" and row["turn"] == 0)
  wrong["token_ids"][4] = 7
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (output / "results.jsonl").write_text(lines)
  assert run(output, "--report")[0] == 0
  (found,) = differences.read_margins(output).values()
  assert (found["token_index"], found["token"]) == (4, 7)
  # The oracle: the whole text in one call of the target.
  target = checkpoint.load(model)
  prompt = TextGenerator(target, raw=True).encode("hi")
  plain = rows[0]["token_ids"]
  logits = next_logits(target, [*prompt, *plain[:4]])
  best, second = sorted(logits)[::-1][:2]
  assert found["baseline_token"] == plain[4] == int(logits.argmax())
  assert found["margin"] == pytest.approx(best - second, rel=1e-4)
  assert found["gap"] == pytest.approx(best - logits[7], rel=1e-4)
  report = (output / "report.md").read_text()
  assert f"question 81 turn 0 token 4, gap {found['margin']:.2g}" in report
  assert "4 of 5 (80.0%)" in report
  before = (output / "differences.jsonl").read_bytes()
  assert run(output)[0] == 0
  assert (output / "differences.jsonl").read_bytes() == before


def next_logits(target, ids):
  from specjax.types import Block

  cache = target.model.init_cache(1, len(ids) + 1)
  block = Block.chain(jax.numpy.zeros((1,), "int32"), len(ids))
  output = target.model.apply(target.params, jax.numpy.asarray([ids]), block, cache)
  return jax.device_get(target.model.logits(target.params, output.hidden)[0, -1])


# --- the other system ----------------------------------------------------------------------


def test_transformers_answers_the_same_questions_from_the_same_weights_as_all_our_methods(
  run, tmp_path, monkeypatch, capsys
):
  pytest.importorskip("transformers")
  ours = ("autoregressive", "prompt_lookup", "draft_model", "blockwise")
  monkeypatch.setattr(settings, "METHODS", {name: name for name in ours})
  code, rows = run(
    tmp_path / "out", "--peers=transformers", "--report", "--config.draft_layers=1",
    "--config.draft_length=3", methods="all",
  )  # fmt: skip
  assert code == 0
  output = capsys.readouterr()
  assert "left out: blockwise (no trained blockwise drafter" in output.out and output.err == ""
  assert "Tokens a target call" in output.out and "translation" in output.out
  assert not (tmp_path / "out" / "peer_weights").exists()
  by_method = {}
  for row in rows:
    by_method.setdefault(row["method"], []).append(row)
  plain = [row["token_ids"] for row in by_method["autoregressive"]]
  assert set(ours[:3]) < set(by_method) and "blockwise" not in by_method
  names = [name for name in by_method if name.startswith("transformers_")]
  assert names == [f"transformers_{n}" for n in ("autoregressive", "prompt_lookup", "assistant")]
  for name in names:
    for row in by_method[name]:
      assert len(row["tokens_per_call"]) == row["target_calls"] == sum(row["accepted_histogram"])
      assert sum(row["tokens_per_call"]) == row["new_tokens"]
      assert row["decode_tokens"] == row["new_tokens"] - row["tokens_per_call"][0]
      assert row["accepted_tokens"] <= row["drafted_tokens"]
    assert [row["token_ids"] for row in by_method[name]] == plain
  assert {row["target_calls"] for row in by_method["transformers_autoregressive"]} == {9}
  # The draft model is the whole target: three tokens and one of the target's own a call.
  assert by_method["transformers_assistant"][0]["tokens_per_call"] == [4, 4, 1]
  assert by_method["draft_model"][0]["tokens_per_call"] == [4, 4, 1]
  page = (tmp_path / "out" / "report.md").read_text()
  assert "draft_model against transformers_assistant" in page


# --- bad input -----------------------------------------------------------------------------


GOOD = b'{"question_id": 1, "category": "qa", "turns": ["a"]}\n'


@pytest.mark.parametrize(
  ("data", "message"),
  [
    (GOOD * 0, "questions file {} is empty"),
    (b'{"question_id": 1, "category": "qa"}\n', "{} line 1 must have either 'prompt' or 'turns'"),
    (
      b"".join(GOOD.replace(b"1", b"%d" % n) for n in range(6)) + b'{"question_id": 7,\n',
      "{} line 7 is not JSON",
    ),
    (GOOD + GOOD.replace(b"1", b"2").replace(b'"a"', b'"\xff"'), "{} line 2 is not UTF-8"),
    (GOOD.replace(b'["a"]', b"[]"), "{} line 1: 'turns' must be a list"),
    (GOOD * 2, "{} line 2: the question_id 1 is already that of"),
  ],
)
def test_a_bad_question_file_is_one_line_with_its_place_before_a_model_is_loaded(
  tmp_path, capsys, data, message
):
  path = tmp_path / "bad.jsonl"
  path.write_bytes(data)
  arguments = [f"--questions={path}", "--model=/no/such/folder", f"--output={tmp_path / 'out'}"]
  assert main(["spec_bench", *arguments]) == 2
  assert_one_error_line(capsys, message.format(path))
  assert not (tmp_path / "out").exists()


def test_a_prompt_that_is_too_long_is_answered_before_weights_are_read_and_good_rows_stay(
  run, whole, model, tmp_path, capsys
):
  path = tmp_path / "long.jsonl"
  path.write_bytes(GOOD + GOOD.replace(b"1", b"2").replace(b'"a"', b'"a", "%s"' % (b"x" * 600)))
  outline = shutil.copytree(model, tmp_path / "outline")
  (outline / "model.safetensors").unlink()
  arguments = [f"--questions={path}", f"--model={outline}", "--compilation_cache_dir=", NEW]
  before = (whole / "results.jsonl").read_bytes()
  assert main(["spec_bench", *arguments, f"--output={tmp_path / 'out'}"]) == 2
  assert_one_error_line(capsys, f"{path} line 2: 'turns'[1] has 6")
  arguments[1] = f"--model={model}"
  assert main(["spec_bench", *arguments, f"--output={whole}"]) == 2
  assert (whole / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "--questions must name a question file (or --report result folders)"),
    (["runs/a"], "unexpected argument 'runs/a'; result folders come with --report"),
    (["--report"], "--report needs result folders"),
    (["--report", "/no/such/folder"], "/no/such/folder is not a folder of results"),
    (["--questions=/no/such/file"], "questions file /no/such/file does not exist"),
    (["--questions=q", "--limit=0"], "limit must be an integer >= 1, got 0"),
    (["--questions=q", "--peers=vllm"], "peers: unknown name 'vllm'"),
    (["--questions=q", "--peers=transformers", "--temperature=1"], "temperature must be 0"),
    (["--questions=q", "--peers=transformers", "--batch_size=2"], "batch_size must be 1, got 2"),
    (["--questions=q", "--methods=all,prompt_lookup"], "methods: unknown name 'all'"),
  ],
)
def test_bad_flags_are_one_line_before_a_model_is_loaded(tmp_path, capsys, arguments, message):
  path = tmp_path / "q"
  path.write_bytes(GOOD)
  given = [argument.replace("--questions=q", f"--questions={path}") for argument in arguments]
  assert main(["spec_bench", *given, "--model=/no/such/folder"]) == 2
  assert_one_error_line(capsys, message)


def assert_one_error_line(capsys, message):
  error = capsys.readouterr().err
  assert error.startswith("error: ") and error.count("\n") == 1 and message in error, error


def test_help_says_what_the_limit_is_of(capsys):
  assert main(["spec_bench", "--help"]) == 0
  assert "only this many questions of each category" in capsys.readouterr().out
