# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The command that gives advice before anything is run, and from what was run."""

import json

import matplotlib.image
import pytest
import tiny_checkpoint

from experiments import decode, plan
from specjax.evaluation.theory import best_draft_length, expected_speed_up
from specjax.evaluation.theory_batching import roofline, smallest_losing_batch
from specjax.evaluation.theory_rows import chain_acceptance


@pytest.fixture
def command(tmp_path, capsys):
  """Runs the command; returns exit code, what it printed, and its one line of error."""

  def run(*arguments, output="plan.png"):
    code = plan.main(["plan", f"--output={tmp_path / output}", *arguments])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err and shown.err.count("\n") == (code == 2)
    return code, shown.out, shown.err

  return run


def table(text, title):
  """The cells of the table under a line that begins with `title`."""
  lines = text[text.index(title) :].splitlines()[3:]
  return [line.split() for line in lines[: lines.index("")]]


def test_advice_is_what_the_theory_says(command, tmp_path):
  code, text, _ = command("--alpha", "0.7", "--cost", "0.1", "--saturation_tokens=50")
  assert code == 0
  best = best_draft_length(0.7, 0.1)
  assert f"Speculation pays with alpha 0.7, c 0.1: best draft length {best.draft_length}" in text
  rows = table(text, "By draft length")
  assert [int(row[0]) for row in rows] == list(range(len(rows)))
  for length, row in enumerate(rows):
    assert row[2] == f"{expected_speed_up(0.7, length, 0.1):.2f}x"
    assert ("best" in row) == (length == best.draft_length)
  batches = {row[0]: row[1:] for row in table(text, "By batch size") if len(row) == 5}
  assert batches["1"][0] == str(best.draft_length) and batches["256"][-1] == "no"
  limit = smallest_losing_batch(0.7, 0.1, roofline(50))
  assert f"It stops to pay at {limit} rows." in text
  assert "parents = (-1, " in text and "an upper limit" in text
  picture = matplotlib.image.imread(tmp_path / "plan.png")
  assert picture.shape[0] > 300 and picture.shape[1] > 1000
  assert len(set(picture.reshape(-1, picture.shape[2])[:, 0].tolist())) > 10  # something is drawn


def test_where_it_does_not_pay_the_reason_is_said(command):
  code, text, _ = command("--alpha=0.1", "--cost=0.2")
  assert code == 0
  assert "does not pay" in text and "alpha (0.1) is not above c (0.2)" in text
  assert "It pays in no batch." in text and "A token tree may" in text
  assert [row[-1] for row in table(text, "By batch size")[:9]] == ["no"] * 9
  _, text, _ = command("--alpha=0.1", "--cost=0.2", "--rank_rates=0.1,0.05")
  assert "A token tree may" not in text and "No tree is faster" in text


def test_measured_rates_by_rank_shape_the_tree(command):
  _, text, _ = command("--alpha=0.6", "--cost=0.1", "--rank_rates=0.6,0.3", "--max_nodes=3")
  assert "an upper limit" not in text
  assert "rates by rank 0.6, 0.3" in text and "parents = (-1, -1, 0)" in text


def test_a_batch_list_and_silent_rounds_are_taken(command):
  _, text, _ = command("--alpha=0.9", "--cost=0", "--drafting_share=0.5", "--batch_sizes=3,30")
  assert "50% of rounds with a draft" in text
  assert [row[0] for row in table(text, "By batch size") if row[-1] in ("yes", "no")] == ["3", "30"]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ([], "give either --alpha and --cost, or --from"),
    (["--alpha=0.5"], "--alpha and --cost must both be given"),
    (["--alpha=0.5", "--cost=0.1", "--from=runs"], "give either --alpha and --cost, or --from"),
    (["--alpha=1.5", "--cost=0.1"], "alpha must be a number in [0, 1], got 1.5"),
    (["--alpha=nan", "--cost=0.1"], "alpha must be a number in [0, 1], got nan"),
    (["--alpha=0.5", "--cost=-1"], "cost must be a finite number >= 0, got -1.0"),
    (["--alpha=x", "--cost=1"], "x"),
    (["--alpha=0.5", "--cost=0.1", "--batch_sizes=2,0"], "batch_sizes must be integers >= 1"),
    (["--alpha=0.5", "--cost=0.1", "--rank_rates=0.9,0.9"], "rank_rates must sum to at most 1"),
    (["--alpha=0.5", "--cost=0.1", "--saturation_tokens=0"], "saturation_tokens must be"),
    (["--alpha=0.5", "--cost=0.1", "--max_nodes=0"], "max_nodes must be an integer >= 1, got 0"),
    (["--alpha=0.5", "--cost=0.1", "--method=a"], "method chooses among the rows of --from"),
    (["--alpha=0.5", "--cost=0.1", "--output=plan.pdf"], "output must be a .png file"),
    (["--alpha=0.5", "--cost=0.1", "more"], "unexpected argument 'more'"),
    (["--from=/nowhere"], "--from /nowhere has no results.jsonl"),
  ],
)
def test_bad_input_is_told_in_one_line(command, arguments, message):
  code, _, error = command(*arguments)
  assert code == 2 and message in error


def test_help_names_every_flag(capsys):
  assert plan.main(["plan", "--help"]) == 0
  shown = capsys.readouterr().out
  assert all(f"--{name}" in shown for name in ("alpha", "cost", "from", "hardware", "output"))


# --- from rows that were really decoded ----------------------------------------------------------


@pytest.fixture(scope="module")
def decoded(tmp_path_factory, fast_compilation):
  """The folder of a run of the main command on a tiny checkpoint."""
  folder = tmp_path_factory.mktemp("run")
  model = tiny_checkpoint.write(folder / "tiny", num_layers=1)
  prompts = [f"--prompt={text}" for text in ("hello", "b", "some more text", "fghij")]
  arguments = ["decode", f"--model={model}", f"--output={folder / 'out'}", *prompts]
  arguments += ["--compilation_cache_dir=", "--max_new_tokens=60"]
  assert decode.main(arguments) == 0
  return folder / "out"


def rewritten(folder, target, change):
  """A copy of a run whose rows went through `change`."""
  target.mkdir()
  lines = (folder / "results.jsonl").read_text().splitlines()
  rows = [change(json.loads(line)) for line in lines]
  (target / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return target


def with_cost(cost_ratio):
  """Seconds as if a plain call took 10 ms, and a draft step `cost_ratio` of it."""

  def change(row):
    calls = row["target_calls"] + 10 * cost_ratio * row["draft_calls"]
    return {**row, "decode_seconds": 0.01 * calls}

  return change


def test_alpha_and_cost_are_fitted_from_decoded_rows(command, decoded, tmp_path):
  folder = rewritten(decoded, tmp_path / "run", with_cost(0.03))
  code, text, _ = command(f"--from={folder}")
  assert code == 0
  (fitted,) = table(text, "Fitted from 8 rows")
  assert fitted[:3] == ["prompt_lookup", "10", "4"]
  assert "0.030 (0.030 to 0.030)" in text
  rows = [json.loads(line) for line in (decoded / "results.jsonl").read_text().splitlines()]
  rows = [row for row in rows if row["method"] == "prompt_lookup"]
  measured = sum(row["new_tokens"] for row in rows) / sum(row["target_calls"] for row in rows)
  assert fitted.count(f"{measured:.2f}") >= 2  # measured, and predicted by position
  assert "Advice for prompt_lookup (draft length 10)" in text
  assert "With alpha and c at the ends of their intervals" in text
  # Advice is from the rates by position: at the measured length it is what was measured.
  acceptance = chain_acceptance(rows)
  by_length = table(text, "By draft length")
  assert by_length[10][1] == f"{acceptance.predicted():.2f}"
  assert by_length[3][1] == f"{acceptance.predicted(3):.2f}" and len(by_length) == 11


def test_rows_that_cannot_tell_are_refused(command, decoded, tmp_path):
  def drop(row):
    return {**row, "method": "prompt_lookup" if row["method"] == "prompt_lookup" else "other"}

  code, _, error = command(f"--from={rewritten(decoded, tmp_path / 'a', drop)}")
  assert code == 2 and "no row of 'autoregressive' to compare 'prompt_lookup' with" in error
  batched = rewritten(decoded, tmp_path / "b", lambda row: {**row, "batch_size": 2})
  code, _, error = command(f"--from={batched}")
  assert code == 2 and "decode with --batch_size=1" in error
  code, _, error = command(f"--from={decoded}", "--method=draft_model")
  assert code == 2 and "method must be one that drafts, of prompt_lookup" in error


def test_files_that_are_no_results_are_named_and_left_alone(command, decoded, tmp_path):
  folder = rewritten(decoded, tmp_path / "run", with_cost(0.03))
  path = folder / "results.jsonl"
  cut = path.read_text() + '{"method": "prompt_lo'
  path.write_text(cut)  # another process may be writing this line
  assert command(f"--from={folder}")[0] == 0
  assert path.read_text() == cut
  path.write_text('{"method": "x"\n')
  code, _, error = command(f"--from={folder}")
  assert code == 2 and "results.jsonl line 1 is damaged" in error
  path.write_text("[]\n")
  code, _, error = command(f"--from={path}")
  assert code == 2 and "line 1 is not a row of results" in error
  path.write_text('{"method": "x"}\n')
  code, _, error = command(f"--from={path}")
  assert code == 2 and "has no accepted_histogram" in error
