# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The command that chooses draft length and n-gram sizes by measured time.

No test here looks at a clock: the seconds of rows are replaced as they are written.
"""

import json
import runpy

import numpy as np
import pytest
import tiny_checkpoint

from experiments import decode, results, tune, tune_measure
from experiments.prompts import Prompt

pytestmark = pytest.mark.usefixtures("fast_compilation")

PROMPTS = ("hello", "bye", "what", "no")
DEFAULT = "prompt_lookup draft_length=10 max_ngram=3 min_ngram=2"
SHORT = "prompt_lookup draft_length=2 max_ngram=3 min_ngram=1"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), num_layers=1)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
  path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
  return path


@pytest.fixture
def command(model, prompts, tmp_path, monkeypatch):
  """Runs the command with given seconds a token by method; can stop it after some appends."""

  def run(seconds, *arguments, stop_after=None):
    appended = []

    class Clock(results.ResultsFolder):
      def append(self, rows):
        if stop_after is not None and len(appended) == stop_after:
          raise KeyboardInterrupt
        timed = []
        for row in rows:
          # The second of three repeats is disturbed: a median does not see it.
          slow = 50 if self.path.name == "repeat-1" and "draft_length=2" in row["method"] else 1
          timed.append({**row, "decode_seconds": slow * row["new_tokens"] * seconds[row["method"]]})
        appended.extend((str(self.path), row["method"], row["prompt_index"]) for row in timed)
        super().append(timed)

    monkeypatch.setattr(tune_measure, "ResultsFolder", Clock)
    code = tune.main(
      [
        "tune",
        f"--model={model}",
        f"--prompts={prompts}",
        "--draft_lengths=2",
        "--ngrams=3:1",
        "--config.max_new_tokens=20",
        "--compilation_cache_dir=",
        f"--output={tmp_path / 'out'}",
        *arguments,
      ]
    )
    return code, appended

  return run


SECONDS = {"autoregressive": 0.03, DEFAULT: 0.02, SHORT: 0.01}


def rows_below(folder):
  """All rows, without what a clock says."""
  rows = []
  for path in sorted(folder.rglob("results.jsonl")):
    for line in path.read_text().splitlines():
      row = json.loads(line)
      kept = {name: value for name, value in row.items() if not name.endswith("_seconds")}
      rows.append((str(path.relative_to(folder)), json.dumps(kept, sort_keys=True)))
  return sorted(rows)


def test_the_fastest_setting_is_chosen_reported_on_other_prompts_and_written(
  command, model, prompts, tmp_path, capsys
):
  code, appended = command(SECONDS)
  shown = capsys.readouterr()
  assert code == 0 and shown.err == ""
  # Interleaved: three methods, two prompts and three repeats on each side.
  assert len(appended) == 36
  first = [method for path, method, index in appended[:3]]
  assert sorted(first) == sorted(SECONDS) and {index for *_, index in appended[:3]} == {0}
  assert [method for _, method, _ in appended[6:9]] != first  # the order changes by repeat
  texts = {}
  for part in ("choose", "report"):
    config = json.loads((tmp_path / "out" / part / "repeat-0" / "config.json").read_text())
    texts[part] = config["prompts"]
  assert texts["choose"]["number"] == texts["report"]["number"] == 2
  assert texts["choose"]["sha256"] != texts["report"]["sha256"]
  assert "The choice: prompt_lookup with draft_length=2 max_ngram=3 min_ngram=1" in shown.out
  lines = [line for line in shown.out.splitlines() if "chosen: draft_length=2" in line]
  assert len(lines) == 1 and "100.0" in lines[0] and "3.00x" in lines[0] and "2.00x" in lines[0]
  path = tmp_path / "out" / "tuned.py"
  config = runpy.run_path(str(path))["get_config"]()
  assert config.methods == ("autoregressive", "prompt_lookup")
  assert (config.draft_length, config.max_ngram, config.min_ngram) == (2, 3, 1)
  assert config.max_new_tokens == 20
  # And the main command decodes with it.
  arguments = [f"--config={path}", f"--model={model}", "--prompt=hello", "--compilation_cache_dir="]
  assert decode.main(["decode", *arguments, f"--output={tmp_path / 'decoded'}"]) == 0
  rows = (tmp_path / "decoded" / "results.jsonl").read_text().splitlines()
  assert len(json.loads(rows[1])["accepted_histogram"]) == 3
  # The same command again has nothing left to decode, and says the same.
  code, appended = command(SECONDS)
  assert code == 0 and appended == []
  assert "The choice: prompt_lookup with draft_length=2" in capsys.readouterr().out


def test_a_stopped_run_goes_on_and_ends_with_the_same_rows(command, tmp_path, capsys):
  assert command(SECONDS, f"--output={tmp_path / 'whole'}")[0] == 0
  capsys.readouterr()
  code, before = command(SECONDS, stop_after=7)
  assert code == 130 and len(before) == 7
  assert "run the same command with --output=" in capsys.readouterr().err
  assert not (tmp_path / "out" / "tuned.py").exists()
  # Killed in the middle of a line.
  path = next((tmp_path / "out").rglob("results.jsonl"))
  path.write_text(path.read_text() + '{"method": ')
  code, after = command(SECONDS)
  assert code == 0 and len(after) == 36 - 7 and not set(before) & set(after)
  assert rows_below(tmp_path / "out") == rows_below(tmp_path / "whole")
  assert (tmp_path / "out" / "tuned.py").read_text() == (tmp_path / "whole/tuned.py").read_text()


def test_a_default_that_is_fastest_stays_and_a_loss_is_said(command, tmp_path, capsys):
  code, _ = command({"autoregressive": 0.01, DEFAULT: 0.02, SHORT: 0.03}, "--repeats=1")
  shown = capsys.readouterr().out
  assert code == 0
  assert "the default is the choice" in shown and "draft_length=10" in shown
  assert "no faster than autoregressive decoding on the held-out prompts" in shown
  text = (tmp_path / "out" / "tuned.py").read_text()
  assert "config.draft_length = 10" in text and "the method's default." in text


def test_rows_of_other_settings_are_not_gone_on_with(command, capsys):
  assert command(SECONDS, "--repeats=1")[0] == 0
  capsys.readouterr()
  assert command(SECONDS, "--repeats=1", "--config.max_new_tokens=21")[0] == 2
  error = capsys.readouterr().err
  assert "max_new_tokens was 20, now it is 21" in error and error.count("\n") == 1


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--ngrams=1:2"], "ngrams must be pairs max_ngram:min_ngram"),
    (["--draft_lengths=3,0"], "draft_lengths must be integers >= 1"),
    (["--repeats=0"], "repeats must be an integer >= 1, got 0"),
    (["--held_out=1"], "held_out must be in (0, 1), got 1.0"),
    (["--limit=1"], "prompts must be at least 2"),
    (["--methods=autoregressive"], "methods must name at least one that drafts"),
    (["--methods=nothing"], "unknown name 'nothing'"),
    (["--config.draft_lenght=3"], "unknown config key"),
    (["--prompts=/nowhere.jsonl"], "prompts file /nowhere.jsonl does not exist"),
    (["more"], "unexpected argument 'more'"),
  ],
)
def test_bad_input_is_told_in_one_line(command, arguments, message, capsys):
  assert command(SECONDS, *arguments) == (2, [])
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1


# --- parts -------------------------------------------------------------------------------------


def test_prompts_are_parted_without_overlap_and_the_seed_says_how():
  prompts = [Prompt(turns=(str(index),)) for index in range(10)]
  choosing, reporting = tune.split_prompts(prompts, 0.3, 0)
  assert len(choosing) == 7 and len(reporting) == 3
  assert sorted(int(p.turns[0]) for p in choosing + reporting) == list(range(10))
  assert tune.split_prompts(prompts, 0.3, 0) == (choosing, reporting)
  assert tune.split_prompts(prompts, 0.3, 1) != (choosing, reporting)
  for share in (0.01, 0.99):
    assert min(map(len, tune.split_prompts(prompts[:2], share, 0))) == 1


def result(index, turn, seconds, tokens, method="m", batch=None):
  return {
    "method": method,
    "batch_index": index if batch is None else batch,
    "turn": turn,
    "new_tokens": tokens,
    "decode_seconds": seconds,
    "target_calls": tokens,
    "drafted_tokens": 0,
    "accepted_tokens": 0,
    "prefill_seconds": 0.0,
    "compile_seconds": 0.0,
    "lossless": True,
  }


def test_medians_are_over_repeats_and_a_batch_counts_once():
  repeats = [
    [result(0, 0, s, 10), result(0, 1, s, 20), result(1, 0, 2.0, 30), result(9, 0, 9, 9, "other")]
    for s in (1.0, 50.0, 1.5)
  ]
  times = tune_measure.collect(repeats, "m")
  np.testing.assert_allclose(times.seconds, [3.0, 2.0])
  np.testing.assert_allclose(times.tokens, [30, 30])
  assert times.rate == pytest.approx(60 / 5)
  together = [[result(0, 0, 4.0, 10, batch=0), result(1, 0, 4.0, 10, batch=0)]]
  assert tune_measure.collect(together, "m").rate == pytest.approx(20 / 4)
  with pytest.raises(ValueError, match="m decoded no token"):
    tune_measure.collect([[result(0, 0, 0.0, 0)]], "m")


def test_the_interval_of_a_ratio_holds_it_and_is_a_point_without_spread():
  random = np.random.default_rng(0)
  tokens, seconds = np.full(40, 100.0), 1 + random.random(40)
  theirs = tune_measure.Times(tokens, seconds, tokens)
  same = tune_measure.Times(tokens, seconds / 2, tokens)
  np.testing.assert_allclose(tune_measure.ratio_interval(same, theirs), (2, 2, 2))
  noisy = tune_measure.Times(tokens, seconds / 2 * (1 + 0.5 * random.random(40)), tokens)
  ratio, low, high = tune_measure.ratio_interval(noisy, theirs)
  assert low < ratio < high and high - low > 0.02


def test_on_a_mesh_the_same_is_decoded(command, tmp_path):
  rows = {}
  for name, mesh in (("one", []), ("mesh", ["--mesh=data:2,model:2"])):
    folder = tmp_path / name
    common = ["--batch_size=2", "--repeats=1", f"--output={folder}"]
    code, _ = command(SECONDS, *common, *mesh)
    assert code == 0
    found = [json.loads(line) for path in folder.rglob("results.jsonl") for line in path.open()]
    rows[name] = sorted((row["method"], row["text"], row["token_ids"]) for row in found)
    assert {row["mesh"] for row in found} == {"data:2,model:2" if mesh else None}
  assert rows["one"] == rows["mesh"]
