# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The command that reproduces tables, and the two studies that only decode."""

import json

import jax
import numpy as np
import pytest
import tiny_checkpoint

from experiments import reproduce
from experiments.studies.measures import token_acceptance
from experiments.studies.speculative_sampling import expected_speed_up, expected_tokens
from experiments.studies.study import markdown_table
from specjax.drafters.drafter_file import save_drafter
from specjax.models import checkpoint
from specjax.text import TextGenerator
from specjax.training.distillation_objective import DistillationObjective
from specjax.training.pass_objective import PaSSObjective

pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def drafters(model, tmp_path_factory):
  """Files of drafters by scheme, as training would begin with them."""
  target = checkpoint.load(model)
  objectives = {
    "pass": PaSSObjective(target.model, look_ahead=2),
    "draft_model": DistillationObjective(
      target.model, layers=(0, 2), criterion="cross_entropy", teacher="labels"
    ),
  }
  folder = tmp_path_factory.mktemp("drafters")
  for scheme, objective in objectives.items():
    trainable = objective.init(jax.random.key(0), target.params)
    trained = objective.export(trainable, target.params)
    save_drafter(folder / scheme, trained, target.model, target.params, target.name)
  return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
  path.write_text(
    "\n".join(json.dumps({"prompt": text}) for text in ("hello", "bye", "what", "no"))
  )
  return path


def command(study, model, prompts, folder, *arguments):
  return reproduce.main(
    [
      "reproduce",
      f"--config=configs/reproduce_{study}.py",
      f"--model={model}",
      f"--prompts={prompts}",
      "--every=2",
      f"--output={folder / 'report'}",
      f"--work={folder / 'work'}",
      "--compilation_cache_dir=",
      "--config.decode.max_new_tokens=12",
      *arguments,
    ]
  )


def rows_of(folder, name, method):
  lines = (folder / "work" / "decoded" / name / "results.jsonl").read_text().splitlines()
  return [row for row in map(json.loads, lines) if row["method"] == method]


def tokens_per_call(rows):
  return sum(row["new_tokens"] for row in rows) / sum(row["target_calls"] for row in rows)


@pytest.fixture(scope="module")
def pass_report(model, drafters, prompts, tmp_path_factory):
  folder = tmp_path_factory.mktemp("pass")
  arguments = [
    f"--config.options.drafter={drafters / 'pass'}",
    "--config.options.look_aheads=(1, 2)",
    "--config.options.temperatures=(0.0, 0.8)",
  ]
  assert command("pass", model, prompts, folder, *arguments) == 0
  return folder, arguments


def test_every_cell_of_the_pass_study_is_what_its_rows_say(pass_report):
  folder, _ = pass_report
  numbers = json.loads((folder / "report" / "numbers.json").read_text())
  assert [part["temperature"] for part in numbers] == [0.0, 0.8]
  for part in numbers:
    name = f"temperature-{part['temperature']:g}"
    assert len(part["cells"]) == 6
    for cell in part["cells"]:
      rows = rows_of(folder, name, f"{cell['variant']} L={cell['look_ahead']}")
      # Every second of four prompts.
      assert sorted(row["prompt_index"] for row in rows) == [0, 1]
      assert cell["tokens_per_call"] == pytest.approx(tokens_per_call(rows))
      judged = sum(
        min(length + 1, cell["look_ahead"]) * count
        for row in rows
        for length, count in enumerate(row["accepted_histogram"])
      ) - sum(sum(row["accepted_histogram"]) - row["draft_calls"] for row in rows)
      kept = sum(row["accepted_tokens"] for row in rows)
      assert cell["acceptance"] == (pytest.approx(kept / judged) if judged else None)
      # The method's two calls a round both count.
      assert cell["tokens_per_call"] >= 1 - 1e-9


def test_prompts_of_many_lengths_are_decoded_with_few_programs(
  model, drafters, tmp_path, monkeypatch
):
  texts = ("hello", "hello there " * 6, "how are you " * 10)
  path = tmp_path / "prompts.jsonl"
  path.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
  shapes = []
  original = TextGenerator.open

  def open_session(generator, **options):
    shapes.append((options["prompt_width"], options["capacity"]))
    return original(generator, **options)

  monkeypatch.setattr(TextGenerator, "open", open_session)
  arguments = [
    "--every=1",
    f"--config.options.drafter={drafters / 'pass'}",
    "--config.options.look_aheads=(1,)",
    "--config.options.temperatures=(0.0,)",
  ]
  assert command("pass", model, path, tmp_path, *arguments) == 0
  assert len(set(shapes)) == 1


def test_greedy_text_is_the_same_in_every_variant(pass_report):
  folder, _ = pass_report
  texts = {
    name: [row["token_ids"] for row in rows_of(folder, "temperature-0", name)]
    for name in ("autoregressive", "trained L=2", "untrained L=2", "merged L=2")
  }
  assert all(text == texts["autoregressive"] for text in texts.values())


def test_a_report_has_tables_a_figure_and_its_command(pass_report):
  folder, _ = pass_report
  text = (folder / "report" / "README.md").read_text()
  assert "## Temperature 0 (greedy)" in text and "## Temperature 0.8" in text
  assert text.count("| 2 ") == 2
  assert "python -m experiments.reproduce --config=configs/reproduce_pass.py" in text
  assert (folder / "report" / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_study_that_ran_before_decodes_nothing_again(
  pass_report, model, prompts, drafters, monkeypatch
):
  folder, arguments = pass_report
  before = (folder / "report" / "numbers.json").read_bytes()

  def refuse(*_):
    raise AssertionError("nothing is left to decode")

  monkeypatch.setattr("experiments.runner.Runner._decode", refuse)
  assert command("pass", model, prompts, folder, *arguments) == 0
  assert (folder / "report" / "numbers.json").read_bytes() == before


def test_rows_of_another_drafter_are_not_taken_for_this_ones(
  pass_report, model, prompts, tmp_path, capsys
):
  folder, arguments = pass_report
  target = checkpoint.load(model)
  objective = PaSSObjective(target.model, look_ahead=2)
  trained = objective.export(objective.init(jax.random.key(7), target.params), target.params)
  save_drafter(tmp_path / "other", trained, target.model, target.params, target.name)
  other = [f"--config.options.drafter={tmp_path / 'other'}", *arguments[1:]]
  assert command("pass", model, prompts, folder, *other) == 2
  assert "with another trained drafter" in capsys.readouterr().err


def test_predictions_stand_beside_what_was_measured(model, drafters, prompts, tmp_path):
  arguments = [
    f"--config.options.drafter={drafters / 'draft_model'}",
    "--config.options.draft_lengths=(1, 3)",
    "--config.options.temperatures=(1.0,)",
  ]
  assert command("speculative_sampling", model, prompts, tmp_path, *arguments) == 0
  (part,) = json.loads((tmp_path / "report" / "numbers.json").read_text())
  name = "temperature-1"
  alphas = [token_acceptance(rows_of(tmp_path, name, f"gamma={n}"), n) for n in (1, 3)]
  assert part["alpha"] == pytest.approx(np.mean(alphas))
  assert part["cost_ratio"] > 0
  for cell in part["cells"]:
    gamma = cell["draft_length"]
    rows = rows_of(tmp_path, name, f"gamma={gamma}")
    assert cell["tokens_per_call"] == pytest.approx(tokens_per_call(rows))
    assert cell["predicted_tokens"] == pytest.approx(expected_tokens(part["alpha"], gamma))
    expected = cell["predicted_tokens"] / (gamma * part["cost_ratio"] + 1)
    assert cell["predicted_speed_up"] == pytest.approx(expected)
    expected = cell["predicted_tokens"] / (gamma * part["cost_ratio"] + cell["block_cost"])
    assert cell["predicted_with_block_cost"] == pytest.approx(expected)


@pytest.mark.parametrize("study", ["pass", "speculative_sampling"])
def test_without_a_trained_drafter_one_line_says_how_to_get_one(
  study, model, prompts, tmp_path, capsys
):
  assert command(study, model, prompts, tmp_path) == 2
  error = capsys.readouterr().err
  assert "train one with python -m experiments.train" in error and error.count("\n") == 1


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.study=nothing"], "study must be one of blockwise, "),
    (["--config.decode.max_tokens=3"], "max_tokens"),
    (["--every=0"], "every must be an integer >= 1, got 0"),
    (["more"], "unexpected argument 'more'"),
  ],
)
def test_bad_input_is_told_in_one_line(arguments, message, model, prompts, tmp_path, capsys):
  assert command("pass", model, prompts, tmp_path, *arguments) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1


def test_help_names_every_flag(capsys):
  assert reproduce.main(["reproduce", "--help"]) == 0
  shown = capsys.readouterr().out
  for flag in ("--config", "--prompts", "--every", "--work", "--output"):
    assert flag in shown


# --- arithmetic ------------------------------------------------------------------------------


def test_token_acceptance_counts_judged_tokens_only():
  # Draft length 3. Two blocks kept 0, one kept 2, two kept all: judged 1 + 1 + 3 + 3 + 3.
  rows = [{"accepted_histogram": [2, 0, 1, 2]}]
  assert token_acceptance(rows, 3) == pytest.approx(8 / 11)
  assert token_acceptance([{"accepted_histogram": [0, 0]}], 3) is None


@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 3), (0.6, 1), (0.8, 5), (1.0, 4)])
def test_expected_tokens_are_the_mean_of_a_simulation_written_out(alpha, gamma):
  # Kept exactly j < gamma: alpha^j (1 - alpha); all: alpha^gamma; and one token of the target's.
  by_hand = sum((j + 1) * alpha**j * (1 - alpha) for j in range(gamma))
  by_hand += (gamma + 1) * alpha**gamma
  assert expected_tokens(alpha, gamma) == pytest.approx(by_hand)
  assert expected_speed_up(alpha, gamma, 0.1, 1.5) == pytest.approx(by_hand / (gamma * 0.1 + 1.5))


def test_a_markdown_table_has_as_many_cells_a_line():
  text = markdown_table(("a", "long name"), [("1", "2"), ("wide cell", "3")])
  lines = text.splitlines()
  assert len(lines) == 4 and len(set(map(len, lines))) == 1
  assert all(line.count("|") == 3 for line in lines)
  assert lines[1].endswith(":|")
