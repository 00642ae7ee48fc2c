# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic and command line. Tests time nothing: seconds here are made up."""

import json

import jax
import pytest
import tiny_checkpoint

from experiments import benchmark
from experiments.benchmark_timers import Timers
from experiments.prompts import Prompt
from specjax.decoding import Session
from specjax.models import checkpoint
from specjax.models.huggingface_config import config_to_huggingface

pytestmark = pytest.mark.usefixtures("fast_compilation")

PROMPTS = (Prompt(turns=("a",), category="writing"), Prompt(turns=("b",), category="editing"))


def timing(seconds, num_tokens, calls=0):
  return benchmark.Timing(seconds=seconds, tokens=list(range(num_tokens)), calls=calls)


def timings():
  return {
    ("specjax", "autoregressive", 0): timing([1.0, 1.0, 9.0], 11),
    ("transformers", "autoregressive", 0): timing([2.0, 2.0, 2.0], 11),
    ("specjax", "autoregressive", 1): timing([1.0], 11),
    ("transformers", "autoregressive", 1): timing([4.0], 11),
    ("specjax", "prompt_lookup", 0): timing([1.0], 11),
    ("transformers", "prompt_lookup", 0): timing([1.0], 11),
    ("specjax", "prompt_lookup", 1): timing([0.25], 11, calls=3),
    ("transformers", "prompt_lookup", 1): timing([0.75], 10),
  }


def test_ratios_are_of_median_seconds_a_token():
  _, figures = benchmark.summarise(timings(), PROMPTS)
  assert figures["ratio_autoregressive"] == pytest.approx((2 + 4) / (1 + 1))
  # About the editing prompt; the first token belongs to the prefill on both sides.
  assert figures["ratio_prompt_lookup"] == pytest.approx((0.75 / 9) / (0.25 / 10))
  assert figures["speedup_prompt_lookup"] == pytest.approx(4.0)


def test_tokens_that_differ_are_said_to():
  table, figures = benchmark.summarise(timings(), PROMPTS)
  assert "differ from 10" in table
  assert [row["tokens_equal"] for row in figures["raw"]] == [True, True, True, False]


def test_without_the_peer_there_is_no_ratio_but_our_own_speed_up():
  ours = {key: value for key, value in timings().items() if key[0] == "specjax"}
  _, figures = benchmark.summarise(ours, PROMPTS)
  assert figures["ratio_autoregressive"] is None
  assert figures["speedup_prompt_lookup"] == pytest.approx(4.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  # The built-in prompts are long in single bytes.
  path = tmp_path_factory.mktemp("tiny")
  return tiny_checkpoint.write(path, num_layers=2, max_positions=2048)


def run(*arguments):
  small = ("--nopeers", "--repeats=1", "--max_new_tokens=4", "--widths=2", "--batch_size=2")
  return benchmark.main(["benchmark", *small, *arguments])


@pytest.mark.parametrize("mesh", [None, "data:2,model:2"])
def test_the_command_writes_every_figure(mesh, model, tmp_path, capsys, monkeypatch):
  # Programs are compiled for each length of a prompt.
  monkeypatch.setattr(benchmark, "BUILT_IN", benchmark.BUILT_IN[:1])
  path = tmp_path / "figures.json"
  methods = "--methods=autoregressive,draft_model,blockwise"
  arguments = [f"--model={model}", methods, "--draft_layers=1", f"--json={path}"]
  assert run(*arguments, *([f"--mesh={mesh}"] if mesh else [])) == 0
  shown, figures = capsys.readouterr(), json.loads(path.read_text())
  assert "left out: blockwise (no trained blockwise drafter" in shown.err
  assert set(figures["block_cost"]) == {"1", "2"} and figures["block_cost"]["1"] == 1
  assert figures["ratio_autoregressive"] is None and figures["mesh"] == mesh
  assert figures["speedup_draft_model_all_prompts"] > 0 and figures["ratio_batch"] > 0
  assert figures["no_transfers_in_the_loop"] is True
  assert "speedup_draft_model_all_prompts" in shown.out and "bandwidth_share" in shown.out
  assert {row["method"] for row in figures["raw"]} == {"autoregressive", "draft_model"}


def test_a_shape_without_weights_is_timed_on_random_tokens(tmp_path, capsys):
  config = config_to_huggingface(tiny_checkpoint.CONFIG)
  (tmp_path / "config.json").write_text(json.dumps(config))
  path = tmp_path / "figures.json"
  assert run(f"--model=random:{tmp_path}", f"--json={path}", "--dtype=bfloat16") == 0
  figures = json.loads(path.read_text())
  assert figures["dtype"] == "bfloat16" and figures["model"] == f"random:{tmp_path}"
  assert [row["category"] for row in figures["raw"]] == ["random tokens"] * 2


def test_a_transfer_in_the_loop_is_noticed(model, monkeypatch):
  timers = Timers(checkpoint.load(model), repeats=1)
  assert timers.check_transfers([[1, 2, 3]])
  advance = Session.advance_async

  def transferring(self, max_rounds=None):
    jax.jit(lambda value: value)(1)
    advance(self, max_rounds)

  monkeypatch.setattr(Session, "advance_async", transferring)
  assert not timers.check_transfers([[1, 2, 3]])


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--widths=0"], "widths must be integers >= 1"),
    (["--methods=prompt_lookup"], "methods must name autoregressive"),
    (["--methods=autoregressive,magic"], "unknown name 'magic'"),
    (["--max_new_tokens=1"], "max_new_tokens"),
    (["--json=/no/such/folder/x.json"], "json must be a file in a folder that exists"),
    (["--model=random:gpt-5"], "what follows 'random:' must be one of llama-3.2-1b"),
    (["--mesh=data:16", "--batch_size=16"], "needs 16 devices"),
    (["--mesh=data:4", "--batch_size=6"], "batch_size must be a multiple of 4"),
    (["more"], "unexpected argument 'more'"),
  ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
  assert run(*arguments) == 2
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1 and message in lines[0]
