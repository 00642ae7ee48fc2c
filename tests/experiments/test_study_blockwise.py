# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The study of blockwise parallel decoding, on a tiny checkpoint."""

import json
import types

import pytest
import tiny_checkpoint
import tiny_token_data

from experiments import reproduce
from experiments.studies import blockwise
from experiments.studies.blockwise import SETTINGS, text_kept

NAMES = ["frozen, original", "frozen, distilled", "fine-tuned, original", "fine-tuned, distilled"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tiny")
  return tiny_checkpoint.write(folder, num_layers=1, hidden_size=32)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return tiny_token_data.write(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
  path.write_text("\n".join(json.dumps({"prompt": text}) for text in ("hello", "bye", "what")))
  return path


def run(model, data, prompts, folder, **changes):
  """The command; `changes` are to these flags, by their last names."""
  flags = {
    "config": "configs/reproduce_blockwise.py",
    "model": model,
    "data": data,
    "prompts": prompts,
    "output": folder / "report",
    "work": folder / "work",
    "compilation_cache_dir": "",
  }
  options = {
    "block_sizes": (2, 3),
    "accept_top_k": (9,),
    "steps": 20,
    "fine_tune_steps": 10,
    "fine_tune_learning_rate": 0.02,
    "separate_trainings": False,
  }
  flags |= {name: value for name, value in changes.items() if name in flags}
  options |= {name: value for name, value in changes.items() if name not in flags}
  flags |= {f"config.options.{name}": value for name, value in options.items()}
  flags |= {
    "config.decode.max_new_tokens": 12,
    "config.decode.batch_size": 3,
    "config.train.window": 96,
    "config.train.warmup_steps": 1,
    "config.train.learning_rate": 0.03,
  }
  return reproduce.main(["reproduce", *(f"--{name}={value}" for name, value in flags.items())])


@pytest.fixture(scope="module", autouse=True)
def small_and_quickly_compiled(fast_compilation):
  """Programs this small take longer to optimise than to run; heads of 8192 tokens would not fit."""
  from configs import train_blockwise

  whole = train_blockwise.get_config

  def small():
    config = whole()
    config.objective.head_width = 16
    config.objective.draft_vocabulary = 60
    return config

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train_blockwise, "get_config", small)
    yield


@pytest.fixture(scope="module")
def done(model, data, prompts, tmp_path_factory):
  folder = tmp_path_factory.mktemp("study")
  assert run(model, data, prompts, folder) == 0
  return folder


def rows_of(folder, name, method):
  lines = (folder / "work" / "decoded" / name / "results.jsonl").read_text().splitlines()
  return [row for row in map(json.loads, lines) if row["method"] == method]


def read_numbers(folder):
  return json.loads((folder / "report" / "numbers.json").read_text())


def total(rows, name):
  return sum(row[name] for row in rows)


def table_of(text, title):
  """The cells of a table below its header, line by line."""
  lines = text.split(f"## {title}")[1].split("\n\n")[1].splitlines()[2:]
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_cell_is_what_its_rows_say(done):
  numbers = read_numbers(done)
  text = (done / "report" / "README.md").read_text()
  table = table_of(text, "Mean accepted block size, exact acceptance")
  assert [part["name"] for part in numbers["settings"]] == NAMES
  for column, (setting, part) in enumerate(zip(SETTINGS, numbers["settings"], strict=True), 1):
    name = f"exact-{setting.folder}-k3"
    assert [cell["k"] for cell in part["cells"]] == [2, 3]
    for line, cell in enumerate(part["cells"]):
      rows = rows_of(done, name, f"k={cell['k']}")
      assert len(rows) == 3
      expected = total(rows, "new_tokens") / total(rows, "target_calls")
      assert cell["block_size"] == pytest.approx(expected)
      assert 1 <= expected <= cell["k"]
      assert table[line][0] == str(cell["k"]) and table[line][column] == f"{expected:.2f}"
      # One batch: its seconds are those of each of its rows.
      baseline = rows_of(done, name, "autoregressive")
      rates = [total(r, "new_tokens") / r[0]["decode_seconds"] for r in (rows, baseline)]
      assert cell["speed_up"] == pytest.approx(rates[0] / rates[1])


def test_looser_acceptance_counts_its_deviations(done):
  text = (done / "report" / "README.md").read_text()
  table = table_of(text, "Mean accepted block size, looser acceptance (frozen, distilled)")
  (part,) = read_numbers(done)["top_k"]
  assert part["accept_top_k"] == 9
  for line, cell in zip(table, part["cells"], strict=True):
    rows = rows_of(done, "top-9-frozen-distilled-k3", f"k={cell['k']}")
    assert {row["verifier"] for row in rows} == {"top_k_match"}
    size = total(rows, "new_tokens") / total(rows, "target_calls")
    deviations = total(rows, "deviations") / total(rows, "new_tokens")
    assert cell["block_size"] == pytest.approx(size)
    assert cell["deviations_per_token"] == pytest.approx(deviations)
    assert line[2:] == [f"{size:.2f}", f"{deviations:.3f}"]
    assert deviations > 0


def test_exact_acceptance_gives_the_greedy_text_of_the_heads_own_target(done):
  texts = {}
  for setting in SETTINGS:
    name = f"exact-{setting.folder}-k3"
    methods = ("autoregressive", "k=2", "k=3")
    plain, *drafted = ([row["token_ids"] for row in rows_of(done, name, m)] for m in methods)
    assert drafted == [plain, plain]
    texts[setting.name] = plain
  assert texts["frozen, original"] == texts["frozen, distilled"]
  assert texts["fine-tuned, original"] != texts["frozen, original"]
  kept = [part["cells"][-1]["text_kept"] for part in read_numbers(done)["settings"]]
  assert kept[:2] == [1, 1] and kept[2] < 1
  # Heads that learned the target's own text draft it.
  assert read_numbers(done)["settings"][1]["cells"][1]["block_size"] > 1.2


def test_settings_train_what_they_say_with_one_training_for_all_k(done):
  trained = done / "work" / "trained"
  folders = {f"{setting.folder}-k3" for setting in SETTINGS}
  assert {path.name for path in trained.iterdir()} == folders
  for setting in SETTINGS:
    config = json.loads((trained / f"{setting.folder}-k3" / "config.json").read_text())
    assert config["data_part"] == ("prompts" if setting.name.endswith("original") else "answers")
    assert config["objective"]["fine_tune"] == setting.fine_tune
    assert config["objective"]["draft_length"] == 2
    assert config["num_steps"] == (10 if setting.fine_tune else 20)
    assert config["learning_rate"] == (0.02 if setting.fine_tune else 0.03)
    tuned = trained / f"{setting.folder}-k3" / "target"
    assert tuned.exists() == setting.fine_tune


def test_a_study_that_ran_before_trains_and_decodes_nothing_again(
  done, model, data, prompts, monkeypatch
):
  paths = [done / "report" / "numbers.json", done / "report" / "figure.png"]
  paths += sorted((done / "work").glob("trained/*/metrics.jsonl"))
  before = [path.read_bytes() for path in paths]
  assert before[1].startswith(b"\x89PNG")

  def refuse(*_):
    raise AssertionError("nothing is left to do")

  monkeypatch.setattr("experiments.runner.Runner._decode", refuse)
  monkeypatch.setattr("specjax.training.packing.PackedData.batch_at", refuse)
  assert run(model, data, prompts, done) == 0
  assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("apart", [False, True])
def test_each_k_has_the_first_heads_of_the_largest_or_a_training_of_its_own(apart, tmp_path):
  asked = {}

  def pretend(name, config, changes):
    assert config == "train_blockwise"
    asked[name] = changes
    return tmp_path / name

  options = {"steps": 7, "fine_tune_steps": 5, "fine_tune_learning_rate": 0.5}
  bench = types.SimpleNamespace(train=pretend, options=options | {"separate_trainings": apart})
  frozen, tuned = SETTINGS[0], SETTINGS[3]
  folders = blockwise._train(bench, frozen, (2, 4))
  first = "frozen-original-k2" if apart else "frozen-original-k4"
  assert folders == {2: tmp_path / first, 4: tmp_path / "frozen-original-k4"}
  lengths = {name: changes["objective"]["draft_length"] for name, changes in asked.items()}
  assert lengths == ({first: 1} if apart else {}) | {"frozen-original-k4": 3}
  # Rows of other trainings are others: they have a folder of their own.
  assert blockwise._names(folders) == "+".join(sorted({first, "frozen-original-k4"}))
  blockwise._train(bench, tuned, (3,))
  assert asked["fine-tuned-distilled-k3"] == {
    "data_part": "answers",
    "num_steps": 5,
    "learning_rate": 0.5,
    "objective": {"draft_length": 2, "fine_tune": True},
  }


def test_fine_tuned_targets_of_trainings_apart_decode_apart(done, model, monkeypatch):
  """Both k on the one training there is, but as if each had one: two targets, two calls."""
  name = "fine-tuned-original-k3"
  calls = []

  def pretend(name, methods, target, **settings):
    calls.append((name, [method.name for method in methods], target.name))
    return {method.name: [f"{method.name} of {name}"] for method in methods}

  apart = {2: done / "apart" / "of k2", 3: done / "apart" / "of k3"}
  for folder in apart.values():
    if not folder.exists():
      folder.parent.mkdir(exist_ok=True)
      folder.symlink_to(done / "work" / "trained" / name)
  bench = types.SimpleNamespace(decode=pretend, decode_settings={}, dtype=None, target=None)
  decoded = blockwise._decode_exact(bench, SETTINGS[2], apart)
  assert calls == [
    (f"exact-of k{k}", ["autoregressive", f"k={k}"], str(apart[k] / "target")) for k in (2, 3)
  ]
  assert decoded.rows == {k: [f"k={k} of exact-of k{k}"] for k in (2, 3)}
  assert decoded.baselines == {k: [f"autoregressive of exact-of k{k}"] for k in (2, 3)}


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"block_sizes": (1, 2)}, "block_sizes must be integers >= 2, at least one, got (1, 2)"),
    ({"block_sizes": ()}, "block_sizes must be integers >= 2, at least one, got ()"),
    ({"steps": 0}, "num_steps must be an integer >= 1, got 0"),
    ({"nothing": 1}, "nothing"),
    ({"data": "nowhere"}, "data folder nowhere has no manifest.json"),
  ],
)
def test_bad_options_are_told_in_one_line(changes, message, model, data, prompts, tmp_path, capsys):
  values = {"data": data, **changes}
  assert run(model, prompts=prompts, folder=tmp_path, **values) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1


def test_text_is_kept_up_to_the_first_difference():
  def row(index, ids):
    return {"prompt_index": index, "turn": 0, "token_ids": ids}

  original = [row(0, [1, 2, 3, 4]), row(1, [5, 6])]
  assert text_kept([row(1, [5, 6]), row(0, [1, 9, 3, 4])], original) == 3 / 6
  assert text_kept([row(0, [1, 2]), row(1, [5, 6, 7])], original) == 4 / 6
  assert text_kept([row(0, [])], [row(0, [])]) is None
