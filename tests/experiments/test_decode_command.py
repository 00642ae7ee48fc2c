# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The main command on a tiny checkpoint."""

import json
import shutil
import subprocess
import sys
import time

import jax
import pytest
import tiny_checkpoint
import tiny_drafters

from experiments import compiled_programs
from experiments import results as results_module
from experiments.decode import main
from specjax.drafters import shipped
from specjax.models import checkpoint
from specjax.text import TextGenerator

REQUIRED = {
  "method",
  "prompt_index",
  "prompt_tokens",
  "token_ids",
  "text",
  "new_tokens",
  "target_calls",
  "draft_calls",
  "accepted_histogram",
  "deviations",
  "drafter_file",
  "drafter_sha256",
  "prefill_seconds",
  "decode_seconds",
  "compile_seconds",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def command(model, tmp_path):
  """Runs the command in this process; returns exit code and rows."""

  def run(*arguments, output="out", prompts=("hello", "b", "some more text")):
    given = [f"--prompt={prompt}" for prompt in prompts]
    # An empty cache folder: the test must not write to the user's, nor set it for other tests.
    common = [f"--model={model}", f"--output={tmp_path / output}", "--compilation_cache_dir="]
    code = main(["decode", *common, *given, *arguments])
    return code, read(tmp_path / output)

  return run


def read(folder):
  path = folder / "results.jsonl"
  return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def decided(rows):
  """What of the rows does not depend on the clock or the batching, in a fixed order."""
  names = (*sorted(REQUIRED - {"prefill_seconds", "decode_seconds", "compile_seconds"}), "turn")
  return sorted(json.dumps([row[name] for name in names]) for row in rows)


# --- results -----------------------------------------------------------------------------------


def test_rows_have_every_key_and_agree_with_themselves(command, capsys):
  code, rows = command("--max_new_tokens=60")
  assert code == 0
  assert len(rows) == 6
  for row in rows:
    assert set(row) >= REQUIRED
    assert row["new_tokens"] == len(row["token_ids"]) == len(row["log_probs"]) == 60
    assert row["target_calls"] == sum(row["accepted_histogram"])
    assert row["accepted_tokens"] == row["new_tokens"] - row["target_calls"]
    assert row["text"].startswith("abcdefg")
    assert row["prefill_seconds"] > 0 and row["decode_seconds"] > 0
    assert row["lossless"] is True
  lookup = [row for row in rows if row["method"] == "prompt_lookup"]
  plain = [row for row in rows if row["method"] == "autoregressive"]
  assert [row["token_ids"] for row in lookup] == [row["token_ids"] for row in plain]
  assert all(row["draft_calls"] == 0 and row["target_calls"] == 60 for row in plain)
  assert all(row["draft_calls"] > 0 and row["target_calls"] < 50 for row in lookup)
  output = capsys.readouterr()
  assert output.err == ""
  assert "All prompts" in output.out and "speed-up" in output.out
  assert "abcdefghijklmnopqrstuvwxyz éabc" in output.out  # the streamed text


def test_each_program_is_compiled_once_and_before_the_timing(command):
  _, rows = command("--max_new_tokens=8", prompts=("one", "two", "three"))
  for method in ("autoregressive", "prompt_lookup"):
    seconds = [row["compile_seconds"] for row in rows if row["method"] == method]
    assert seconds[0] > 0 and seconds[1:] == [0.0, 0.0]


def test_programs_are_forgotten_before_the_memory_maps_run_out(command, monkeypatch):
  _, whole = command("--max_new_tokens=8", output="whole", prompts=("one", "two"))
  assert 0 <= compiled_programs.share_of_maps() < 1
  assert sys.platform != "linux" or compiled_programs.share_of_maps() > 0
  assert not compiled_programs.free_if_many(share=1.1)
  # The limit is near when the second method's program is needed.
  shares = iter([0.0, 0.6, 0.0, 0.0])
  monkeypatch.setattr(compiled_programs, "share_of_maps", lambda: next(shares))
  freed = []
  monkeypatch.setattr(jax, "clear_caches", lambda: freed.append(None))
  _, rows = command("--max_new_tokens=8", output="freed", prompts=("one", "two"))
  assert len(freed) == 1
  assert decided(rows) == decided(whole)
  compiled = [(row["method"], row["prompt_index"]) for row in rows if row["compile_seconds"] > 0]
  # The second method's program drove out that of the first.
  assert compiled == [("autoregressive", 0), ("prompt_lookup", 0), ("autoregressive", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_rows_do_not_depend_on_the_batch_size(command, temperature):
  arguments = ["--max_new_tokens=30", f"--temperature={temperature}", "--seed=5"]
  _, alone = command(*arguments, output="one")
  _, pairs = command(*arguments, "--batch_size=2", output="two")
  _, together = command(*arguments, "--batch_size=3", output="three")
  assert decided(alone) == decided(pairs) == decided(together)
  assert [row["batch_size"] for row in pairs] == [2, 2, 2, 2, 1, 1]
  assert [row["batch_index"] for row in pairs] == [0, 0, 0, 0, 1, 1]
  if temperature:
    assert len({row["text"] for row in alone}) > 2


def test_the_seed_decides_the_sample(command):
  arguments = ["--max_new_tokens=30", "--temperature=1", "--methods=autoregressive"]
  texts = [
    [row["text"] for row in command(*arguments, f"--seed={seed}", output=name)[1]]
    for seed, name in ((1, "a"), (1, "b"), (2, "c"))
  ]
  assert texts[0] == texts[1] != texts[2]


def test_a_stop_string_ends_text_and_tokens(command):
  _, rows = command("--stop=xy", "--stop=efg", "--max_new_tokens=60")
  for row in rows:
    assert row["text"] == "abcd" and row["finish_reason"] == "stop"
    assert row["token_ids"] == list(b"abcd") and len(row["log_probs"]) == 4


def test_a_budget_of_nothing_decodes_nothing(command):
  code, rows = command("--max_new_tokens=0", prompts=("hello",))
  assert code == 0
  assert [row["token_ids"] for row in rows] == [[], []]
  assert [row["target_calls"] for row in rows] == [0, 0]


def test_a_prompt_is_a_user_message_unless_raw(command, model):
  generator = TextGenerator(checkpoint.load(model))
  _, rows = command("--max_new_tokens=2", prompts=("hello",))
  assert rows[0]["prompt_tokens"] == len(generator.encode("hello")) > 25
  _, rows = command("--max_new_tokens=2", "--raw", output="raw", prompts=("hello",))
  assert rows[0]["prompt_tokens"] == 5


@pytest.mark.slow
def test_every_method_decodes_and_stays_with_the_target(command, capsys):
  methods = "autoregressive,prompt_lookup,draft_model,fallback"
  code, rows = command(
    f"--methods={methods}", "--config.draft_length=3", "--config.draft_layers=2",
    "--max_new_tokens=40", prompts=("hello",),
  )  # fmt: skip
  assert code == 0
  assert [row["method"] for row in rows] == methods.split(",")
  assert len({tuple(row["token_ids"]) for row in rows}) == 1
  assert [len(row["accepted_histogram"]) for row in rows] == [1, 4, 4, 4]
  assert capsys.readouterr().out.count("no (from token") == 0


# --- trained drafters --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drafters(model, tmp_path_factory):
  """A drafter file of each scheme for the tiny checkpoint, as in the folder of shipped ones."""
  target = checkpoint.load(model)
  folder = tmp_path_factory.mktemp("shipped") / "tiny"
  for scheme in tiny_drafters.SCHEMES:
    path = folder / f"{scheme}.safetensors"
    tiny_drafters.write(path, scheme, target.model, target.params, "Tiny-1")
  return folder


@pytest.fixture
def ship(drafters, monkeypatch):
  """Lets the files of `drafters` come with specjax."""
  monkeypatch.setattr(shipped, "FOLDER", drafters.parent)


def test_shipped_drafters_decode_out_of_the_box_and_stay_with_the_target(command, ship, drafters):
  methods = "autoregressive,blockwise,pass,pass_merged,draft_model"
  code, rows = command(f"--methods={methods}", "--max_new_tokens=30", prompts=("hello",))
  assert code == 0
  assert [row["method"] for row in rows] == methods.split(",")
  assert len({tuple(row["token_ids"]) for row in rows}) == 1
  plain, blockwise, two_calls, merged, draft_model = rows
  assert plain["drafter_file"] is plain["drafter_sha256"] is None
  for row, scheme in ((blockwise, "blockwise"), (two_calls, "pass"), (merged, "pass")):
    assert row["drafter_file"] == str(drafters / f"{scheme}.safetensors")
    assert row["drafted_tokens"] > 0 and row["deviations"] == 0 and row["lossless"]
  # The draft model is the target: three tokens and the target's own a call.
  assert draft_model["accepted_histogram"][3] == 7 and draft_model["target_calls"] == 8
  # A call of its own for every draft, beside the one that scores it.
  assert (
    two_calls["target_calls"] == sum(two_calls["accepted_histogram"]) + two_calls["draft_calls"]
  )
  assert merged["target_calls"] == sum(merged["accepted_histogram"])
  for row in rows:
    assert len(row["tokens_per_call"]) == row["target_calls"]
    assert sum(row["tokens_per_call"]) == row["new_tokens"]


def test_deviations_of_a_loose_rule_are_counted_and_shown(command, ship, capsys):
  code, rows = command(
    "--methods=autoregressive,blockwise", "--config.verifier=top_k_match",
    "--config.accept_top_k=300", "--config.min_block_size=2", "--max_new_tokens=20",
    prompts=("hello",),
  )  # fmt: skip
  assert code == 0
  plain, blockwise = rows
  assert plain["lossless"] and plain["deviations"] == 0
  # Every token is among the best 300 of 259: all drafts are kept, whatever the target says.
  assert blockwise["target_calls"] == 5 and not blockwise["lossless"]
  assert 0 < blockwise["deviations"] <= 15
  assert f"no ({blockwise['deviations']} deviate)" in capsys.readouterr().out


def test_a_drafter_that_was_trained_on_is_not_mixed_with_old_results(
  command, model, tmp_path, capsys
):
  target = checkpoint.load(model)
  path = tmp_path / "pass"
  arguments = ["--methods=pass", f"--drafter={path}", "--max_new_tokens=4"]
  tiny_drafters.write(path, "pass", target.model, target.params)
  assert command(*arguments, prompts=("hello",))[0] == 0
  assert command(*arguments, prompts=("hello",))[0] == 0
  tiny_drafters.write(path, "pass", target.model, target.params, "another name")
  capsys.readouterr()
  assert command(*arguments, prompts=("hello",))[0] == 2
  assert_one_error_line(capsys, "holds results of pass with another trained drafter")


def test_a_drafter_for_another_target_is_one_line_with_both_names(
  command, drafters, tmp_path, capsys
):
  other = tiny_checkpoint.write(tmp_path / "other", seed=1)
  arguments = ["--methods=blockwise", f"--drafter={drafters / 'blockwise.safetensors'}"]
  code, rows = command(*arguments, f"--model={other}")
  assert code == 2 and rows == []
  error = assert_one_error_line(capsys, "was made for Tiny-1 (fingerprint ")
  assert f"not for {other} (fingerprint " in error


def test_a_damaged_drafter_is_answered_before_a_model_is_loaded(drafters, tmp_path, capsys):
  path = tmp_path / "cut"
  path.write_bytes((drafters / "blockwise.safetensors").read_bytes()[:3000])
  arguments = ["--methods=blockwise", f"--drafter={path}", "--model=/no/such/folder"]
  assert main(["decode", *arguments]) == 2
  assert_one_error_line(capsys, f"{path} is truncated or damaged")


# --- conversations -----------------------------------------------------------------------------


@pytest.fixture
def questions(tmp_path):
  path = tmp_path / "questions.jsonl"
  lines = [
    {"question_id": 81, "category": "writing", "turns": ["hi", "again", "bye"]},
    {"question_id": 82, "category": "qa", "turns": ["one turn"]},
  ]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return path


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_answer_is_fed_back_before_the_next_turn(command, model, questions, batch_size):
  _, rows = command(
    f"--prompts={questions}", f"--batch_size={batch_size}", "--max_new_tokens=9", prompts=()
  )
  assert len(rows) == 2 * 4
  generator = TextGenerator(checkpoint.load(model))
  turns = [row for row in rows if row["method"] == "prompt_lookup" and row["question_id"] == 81]
  assert [row["turn"] for row in turns] == [0, 1, 2]
  messages = []
  for row, text in zip(turns, ("hi", "again", "bye"), strict=True):
    messages.append({"role": "user", "content": text})
    assert row["prompt_tokens"] == len(generator.encode(messages))
    assert row["text"] == generator.generate([messages], max_new_tokens=9)[0].text
    messages.append({"role": "assistant", "content": row["text"]})


def test_a_conversation_that_fills_the_context_ends_there(command, tmp_path):
  path = tmp_path / "long.jsonl"
  path.write_text(json.dumps({"turns": ["x" * 300, "y" * 100, "z" * 100, "more"]}) + "\n")
  code, rows = command(
    f"--prompts={path}", "--max_new_tokens=60", "--methods=autoregressive", prompts=()
  )
  assert code == 0
  assert rows[0]["new_tokens"] == 60
  assert rows[1]["prompt_tokens"] + rows[1]["new_tokens"] <= 512
  assert [row["new_tokens"] for row in rows][2:] == [0, 0]
  assert [row["finish_reason"] for row in rows] == ["length"] * 4


# --- resuming ----------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_run_goes_on_after_half_a_line(command, questions, tmp_path, batch_size):
  arguments = [f"--prompts={questions}", "--max_new_tokens=9", f"--batch_size={batch_size}"]
  _, whole = command(*arguments, output="whole", prompts=())
  command(*arguments, output="cut", prompts=())
  path = tmp_path / "cut" / "results.jsonl"
  data = path.read_bytes().splitlines(keepends=True)
  path.write_bytes(b"".join(data[:2]) + data[2][:25])
  code, rows = command(*arguments, output="cut", prompts=())
  assert code == 0
  assert decided(rows) == decided(whole)
  assert path.read_bytes().splitlines(keepends=True)[:2] == data[:2]


def test_a_finished_run_decodes_nothing_again_and_shows_the_table(command, tmp_path, capsys):
  command("--max_new_tokens=5")
  before = (tmp_path / "out" / "results.jsonl").read_bytes()
  capsys.readouterr()
  code, _ = command("--max_new_tokens=5")
  assert code == 0
  assert (tmp_path / "out" / "results.jsonl").read_bytes() == before
  output = capsys.readouterr().out
  assert "All prompts" in output and "===" not in output


def test_another_setting_in_the_same_folder_is_refused(command, capsys):
  command("--max_new_tokens=5")
  capsys.readouterr()
  code, _ = command("--max_new_tokens=6")
  assert code == 2
  assert_one_error_line(capsys, "max_new_tokens was 5, now it is 6; choose another --output")
  code, _ = command("--max_new_tokens=5", prompts=("other",))
  assert code == 2
  assert_one_error_line(capsys, "prompts was")


def test_ctrl_c_keeps_finished_rows_and_says_how_to_go_on(command, monkeypatch, capsys, tmp_path):
  _, whole = command("--max_new_tokens=9", output="whole")
  append = results_module.ResultsFolder.append
  calls = []

  def interrupted(self, rows):
    calls.append(rows)
    if len(calls) == 3:
      raise KeyboardInterrupt
    append(self, rows)

  monkeypatch.setattr(results_module.ResultsFolder, "append", interrupted)
  capsys.readouterr()
  code, rows = command("--max_new_tokens=9")
  assert code == 130
  assert len(rows) == 2
  (line,) = capsys.readouterr().err.strip().splitlines()
  assert line.startswith("interrupted: 2 finished rows")
  assert line.endswith(f"--output={tmp_path / 'out'}")
  monkeypatch.undo()
  code, rows = command("--max_new_tokens=9")
  assert code == 0
  assert decided(rows) == decided(whole)


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(command, model, tmp_path):
  arguments = ["--max_new_tokens=9", "--prompt=hello", "--prompt=" + "long " * 20]
  path = tmp_path / "killed" / "results.jsonl"
  module = [sys.executable, "-m", "experiments.decode", f"--output={path.parent}"]
  process = subprocess.Popen(
    [*module, f"--model={model}", "--compilation_cache_dir=", *arguments],
    stdout=subprocess.DEVNULL,
  )
  # The second row needs a compilation, so that there is time to kill the run before it.
  while not (path.exists() and path.read_bytes().endswith(b"\n")):
    assert process.poll() is None, "the run ended before it was killed"
    time.sleep(0.01)
  process.kill()
  process.wait()
  assert 1 <= len(read(path.parent)) < 4
  _, whole = command(*arguments, output="whole", prompts=())
  code, rows = command(*arguments, output="killed", prompts=())
  assert code == 0
  assert decided(rows) == decided(whole)


# --- bad input ---------------------------------------------------------------------------------


def assert_one_error_line(capsys, message):
  error = capsys.readouterr().err
  assert error.startswith("error: ") and error.count("\n") == 1 and error.endswith("\n"), error
  assert "Traceback" not in error
  assert message in error
  return error


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--methods=magic"], "methods: unknown name 'magic'; the names are"),
    (["--methods=autoregressive,autoregressive"], "must not name 'autoregressive' twice"),
    (["--config.nonsense=1"], "unknown config key: nonsense"),
    (["--config.verifier=magic"], "verifier: unknown name 'magic'"),
    (["--config=nowhere.py"], "the config file cannot be loaded"),
    (["--nonsense"], "Unknown command line flag 'nonsense'"),
    (["--temperature=-1"], "temperature must be a finite number >= 0, got -1.0"),
    (["--temperature=nan"], "temperature must be a finite number >= 0, got nan"),
    (["--temperature=hot"], "--temperature=hot"),
    (["--max_new_tokens=-1"], "max_new_tokens must be an integer >= 0, got -1"),
    (["--max_new_tokens=1000"], "more than the model's context of 512"),
    (["--config.draft_length=0"], "draft_length must be an integer >= 1, got 0"),
    (["--top_p=0"], "top_p must be in (0, 1], got 0.0"),
    (["--top_p=1.5"], "top_p must be in (0, 1], got 1.5"),
    (["--top_k=-1"], "top_k must be an integer >= 0"),
    (["--min_p=2"], "min_p must be in [0, 1], got 2.0"),
    (["--repetition_penalty=0"], "repetition_penalty must be a finite number > 0"),
    (["--batch_size=0"], "batch_size must be an integer >= 1, got 0"),
    (["--seed=-1"], "seed must be in 0 .. 2^32 - 1, got -1"),
    (["--limit=0"], "limit must be an integer >= 1, got 0"),
    (["--stop="], "stop must be strings that are not empty"),
    (["--dtype=int4"], "dtype must be float32, bfloat16 or float16, got 'int4'"),
    (["--prompt="], "--prompt 1 is empty"),
    (["--prompts=nowhere.jsonl"], "--prompt and --prompts were both given"),
    (["--model=nowhere"], "nowhere"),
    (["--model=/no/such/folder"], "/no/such/folder"),
    (["--methods=draft_model", "--config.draft_checkpoint=/no/draft"], "/no/draft"),
    (["--methods=draft_model", "--config.draft_layers=9"], "draft_layers must be at most 3"),
    (
      ["--config.verifier=greedy_match", "--temperature=1"],
      "verifier GreedyMatch decodes greedily",
    ),
    (["--methods=pass"], "no trained pass drafter comes with specjax for"),
    (["--methods=pass", "--drafter=/no/drafter"], "/no/drafter: there is no such drafter file"),
    (["--config.min_block_size=2"], "min_block_size is a setting of the verifier"),
    (["stray"], "unexpected argument 'stray'"),
  ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, capsys, tmp_path, arguments, message):
  code, rows = command(*arguments, prompts=("hello",))
  assert code == 2
  assert rows == [] and not (tmp_path / "out").exists()
  assert_one_error_line(capsys, message)


@pytest.mark.parametrize(
  ("line", "message"),
  [
    ('{"prompt": ', "line 2 is not JSON"),
    ('{"text": "x"}', "line 2 must have either 'prompt' or 'turns'"),
    (
      json.dumps({"prompt": "x" * 600}),
      "line 2: the prompt has 634 tokens, which with max",
    ),
  ],
)
def test_a_bad_prompts_file_is_answered_by_file_line_and_reason(
  command, capsys, tmp_path, line, message
):
  path = tmp_path / "bad.jsonl"
  path.write_text('{"prompt": "good"}\n' + line + "\n")
  code, _ = command(f"--prompts={path}", prompts=())
  assert code == 2
  assert_one_error_line(capsys, f"{path} {message}")


def test_a_bad_prompts_file_is_answered_before_a_model_is_loaded(tmp_path, capsys):
  path = tmp_path / "bad.jsonl"
  path.write_text("{}\n")
  assert main(["decode", f"--prompts={path}", "--model=/no/such/folder"]) == 2
  assert_one_error_line(capsys, f"{path} line 1")


def test_a_prompt_that_is_too_long_is_answered_before_weights_are_read(model, tmp_path, capsys):
  outline = shutil.copytree(model, tmp_path / "outline")
  (outline / "model.safetensors").unlink()
  path = tmp_path / "long.jsonl"
  path.write_text('{"prompt": "good"}\n' + json.dumps({"prompt": "x" * 600}) + "\n")
  arguments = [f"--prompts={path}", f"--model={outline}", f"--output={tmp_path / 'out'}"]
  assert main(["decode", *arguments, "--compilation_cache_dir="]) == 2
  assert_one_error_line(capsys, f"{path} line 2: the prompt has 6")


def test_help_exits_with_0(capsys):
  assert main(["decode", "--help"]) == 0
  output = capsys.readouterr()
  assert "--max_new_tokens" in output.out and output.err == ""


def test_the_module_is_a_command():
  bad = [sys.executable, "-m", "experiments.decode", "--temperature=-1", "--prompt=x"]
  done = subprocess.run(bad, capture_output=True, text=True, timeout=120)
  assert done.returncode == 2
  assert done.stderr == "error: temperature must be a finite number >= 0, got -1.0\n"


# --- the real model ----------------------------------------------------------------------------


@pytest.mark.real_model
def test_prompt_lookup_gives_the_autoregressive_tokens_on_the_built_in_prompts(tmp_path):
  arguments = [f"--output={tmp_path}", "--max_new_tokens=64", "--compilation_cache_dir="]
  assert main(["decode", *arguments]) == 0
  by_method = {}
  for row in read(tmp_path):
    by_method.setdefault(row["method"], []).append(row)
  plain, lookup = by_method["autoregressive"], by_method["prompt_lookup"]
  assert [row["token_ids"] for row in lookup] == [row["token_ids"] for row in plain]
  (editing,) = [row for row in lookup if row["category"] == "editing"]
  assert editing["new_tokens"] / editing["target_calls"] > 6
