# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`python -m experiments.scaling`: the table, the plot, and refusals."""

import json

import pytest

from experiments import scaling as command
from specjax.evaluation import scaling
from specjax.evaluation.hardware import HARDWARE
from specjax.models.huggingface_config import config_to_huggingface


def run(*arguments):
  return command.main(["scaling", *arguments])


def test_a_table_and_a_plot_of_each_hardware_are_written(tmp_path, capsys):
  output = tmp_path / "out"
  flags = ["--hardware=h100,v5e", "--mesh=model:4", "--alpha=0.6", "--draft_length=3"]
  flags += ["--drafter_cost=0.1", "--context=512", "--batch_sizes=64,1", "--draft_lengths=1,3"]
  assert run(*flags, f"--output={output}") == 0
  text = capsys.readouterr().out
  assert (output / "scaling.md").read_text().strip() in text
  assert (output / "scaling.png").read_bytes().startswith(b"\x89PNG")
  rows = [line.split(" | ") for line in text.splitlines() if line.startswith(("| 1 ", "| 64 "))]
  assert len(rows) == 4 and text.count("The speed-up") == 2
  assert "### llama-3.1-8b on 4 x H100 SXM (model:4)" in text and "4 x TPU v5e" in text
  setting = scaling.Setting(
    config=command.SHAPES["llama-3.1-8b"],
    mesh=scaling.MeshShape(model=4),
    hardware=HARDWARE["h100"],
    acceptance=0.6,
    drafter=scaling.DrafterCost(ratio=0.1),
    context=512,
  )
  expected = scaling.predict(setting, 64, 3)
  assert rows[1][-2] == f"{expected.speed_up:.2f}"
  losing = scaling.smallest_losing_batch(setting, 3)
  assert f"The speed-up falls under 1 at a batch of {losing}." in text
  raw = json.loads((output / "scaling.json").read_text())
  assert [row["batch_size"] for row in raw] == [1, 64, 1, 64]
  assert raw[1]["speed_up"] == expected.speed_up and raw[1]["smallest_losing_batch"] == losing


def test_a_folder_with_a_config_is_a_model(tmp_path, capsys):
  config = config_to_huggingface(command.SHAPES["smollm2-135m"])
  (tmp_path / "config.json").write_text(json.dumps(config))
  flags = ["--batch_sizes=1", "--draft_lengths=1", "--max_batch_size=2", "--hardware=h200"]
  tables = []
  for model in (tmp_path, "smollm2-135m"):
    assert run(f"--model={model}", *flags, f"--output={tmp_path / 'out'}") == 0
    tables.append([line for line in capsys.readouterr().out.splitlines() if line[:1] == "|"])
  assert tables[0] == tables[1]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--model=gpt-5"], "model must be one of llama-3.2-1b"),
    (["--hardware=a100"], "hardware must be one of v5e, v5p, h100, h200, got 'a100'"),
    (["--mesh=model"], "mesh must be written as"),
    (["--mesh=model:-1"], "not -1 for the rest"),
    (["--alpha=1.5"], "alpha"),
    (["--draft_length=0"], "draft_length"),
    (
      ["--batch_sizes=1,two"],
      "batch_sizes must be integers >= 1, separated by commas, got '1,two'",
    ),
    (["--draft_lengths=0"], "draft_lengths must be integers >= 1, separated by commas, got '0'"),
    (["--draft_model=smollm2-135m"], "must have the target's vocabulary of 128256, got 49152"),
    (["--draft_model=llama-3.2-1b", "--drafter_cost=0.1"], "each say what a draft step costs"),
    (["--context=0"], "context"),
    (["more"], "unexpected argument 'more'"),
  ],
)
def test_bad_input_is_one_line(arguments, message, capsys, tmp_path):
  assert run(*arguments, f"--output={tmp_path / 'out'}") == 2
  lines = capsys.readouterr().err.splitlines()
  assert len(lines) == 1 and message in lines[0] and not (tmp_path / "out").exists()


def test_help_explains_every_flag(capsys):
  assert run("--help") == 0
  text = capsys.readouterr().out
  assert all(f"--{name}" in text for name in ("model", "hardware", "mesh", "alpha", "draft_model"))
