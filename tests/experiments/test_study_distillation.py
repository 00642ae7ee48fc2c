# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The study of distillation, on a tiny checkpoint."""

import json

import jax
import numpy as np
import pytest
import tiny_checkpoint
import tiny_token_data

from configs import train_draft_model
from experiments import reproduce
from experiments.studies.distillation import (
  UNDISTILLED,
  Recipe,
  _recipes,
  acceptance_gain,
  undistilled,
)
from specjax.drafters.drafter_file import read_drafter
from specjax.drafters.trained_draft_model import from_trained
from specjax.models import checkpoint, save_huggingface
from specjax.models.truncation import truncate

METHODS = [
  "undistilled",
  "cross_entropy-teacher",
  "total_variation-teacher",
  "total_variation-student",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  """A target whose second layer, which the draft model lacks, has a say in what comes next."""
  folder = tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), num_layers=2, hidden_size=32)
  target = checkpoint.load(folder)
  first, second = (target.params["layers"][name] for name in sorted(target.params["layers"]))
  second = jax.tree.map(lambda leaf: leaf * 3 if leaf.ndim == 2 else leaf, second)
  layers = dict(zip(sorted(target.params["layers"]), (first, second), strict=True))
  save_huggingface(folder, target.model, {**target.params, "layers": layers})
  return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  return tiny_token_data.write(tmp_path_factory.mktemp("data") / "data")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
  path.write_text("\n".join(json.dumps({"prompt": text}) for text in ("hello", "bye", "what")))
  return path


@pytest.fixture(scope="module", autouse=True)
def small_and_quickly_compiled(fast_compilation):
  """One layer drafts, and programs this small take longer to optimise than to run."""
  whole = train_draft_model.get_config

  def small():
    config = whole()
    config.objective.layers = (0,)
    config.objective.rank = 8
    config.objective.draft_vocabulary = 200
    return config

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(train_draft_model, "get_config", small)
    patch.setitem(reproduce.STUDIES, "distillation", "experiments.studies.distillation")
    yield


def run(model, data, prompts, folder, **changes):
  """The command; `changes` are to its options, or to `data`."""
  options = {
    "losses": ("cross_entropy", "total_variation"),
    "sources": ("teacher", "student"),
    "steps": 40,
    "draft_length": 2,
    "temperatures": (1.0, 0.0),
    **changes,
  }
  flags = {
    "config": "configs/reproduce_distillation.py",
    "model": model,
    "data": data,
    "prompts": prompts,
    "output": folder / "report",
    "work": folder / "work",
    "compilation_cache_dir": "",
    **{f"config.options.{name}": value for name, value in options.items()},
    "config.decode.max_new_tokens": 24,
    "config.decode.batch_size": 3,
    "config.train.window": 96,
    "config.train.learning_rate": 0.01,
    "config.train.objective.student_prefix": 8,
    "config.train.objective.student_tokens": 6,
  }
  return reproduce.main(["reproduce", *(f"--{name}={value}" for name, value in flags.items())])


@pytest.fixture(scope="module")
def done(model, data, prompts, tmp_path_factory):
  folder = tmp_path_factory.mktemp("study")
  assert run(model, data, prompts, folder) == 0
  return folder


def read_numbers(folder):
  return json.loads((folder / "report" / "numbers.json").read_text())


def rows_of(folder, temperature, method):
  path = folder / "work" / "decoded" / f"temperature-{temperature:g}" / "results.jsonl"
  return [row for row in map(json.loads, path.read_text().splitlines()) if row["method"] == method]


def kept_and_judged(rows, draft_length):
  """Counted block by block: a draft is judged up to the first token that is not kept."""
  kept = judged = 0
  for row in rows:
    histogram = list(row["accepted_histogram"])
    # A round without a draft, at the end of a text, judges nothing.
    histogram[0] -= sum(histogram) - row.get("draft_calls", sum(histogram))
    for length, count in enumerate(histogram):
      for _ in range(count):
        kept += length
        judged += length if length == draft_length else length + 1
  return kept, judged


def test_every_cell_is_what_its_rows_say(done):
  text = (done / "report" / "README.md").read_text()
  numbers = read_numbers(done)
  assert [part["temperature"] for part in numbers] == [1, 0]
  for part, title in zip(numbers, ("Temperature 1", "Temperature 0 (greedy)"), strict=True):
    lines = text.split(f"## {title}\n\n")[1].split("\n\n")[0].splitlines()[2:]
    alphas = []
    for method, cell, line in zip(METHODS, part["cells"], lines, strict=True):
      rows = rows_of(done, part["temperature"], method)
      assert len(rows) == 3
      kept, judged = kept_and_judged(rows, 2)
      alphas.append(kept / judged)
      assert cell["alpha"] == pytest.approx(alphas[-1])
      tokens, calls = (sum(row[name] for row in rows) for name in ("new_tokens", "target_calls"))
      assert cell["tokens_per_call"] == pytest.approx(tokens / calls)
      shown = [value.strip() for value in line.strip("|").split("|")]
      assert shown[0].replace(" ", "_") == method.split("-")[0]
      assert shown[2] == f"{alphas[-1]:.1%}" and shown[5] == f"{tokens / calls:.2f}"
      if method != "undistilled":
        assert cell["gain"] == pytest.approx(alphas[-1] - alphas[0])
        assert shown[1] == method.split("-")[1] and shown[3] == f"{cell['gain']:+.1%}"


def test_training_on_its_own_text_raises_a_draft_models_acceptance_when_sampling(done):
  sampled, _ = read_numbers(done)
  # The last is on-policy: it learns the target's distribution where it will be judged by it.
  on_policy = sampled["cells"][-1]
  assert on_policy["source"] == "student" and on_policy["gain"] > 0.05


def test_each_training_has_its_loss_and_its_text(done):
  for method in METHODS[1:]:
    config = json.loads((done / "work" / "trained" / method / "config.json").read_text())
    loss, source = method.split("-")
    objective = config["objective"]
    assert (objective["criterion"], objective["data_source"]) == (loss, source)
    assert objective["teacher"] == ("labels" if loss == "cross_entropy" else "recompute")
    assert objective["storage"] == "bfloat16" and objective["draft_length"] == 2
    assert config["num_steps"] == 40


def test_the_undistilled_draft_model_is_the_truncated_target(done, model):
  target = checkpoint.load(model)
  trained, _ = read_drafter(done / "work" / "trained" / METHODS[2] / "drafter.safetensors")
  untrained, _ = read_drafter(done / "work" / "undistilled.safetensors")
  assert untrained.settings == trained.settings
  np.testing.assert_array_equal(untrained.arrays["kept"], trained.arrays["kept"])
  drafter, params = from_trained(untrained, target.model, target.params)
  _, first_layer = truncate(target.model, target.params, 1)
  ours, theirs = params["model"]["layers"], first_layer["layers"]
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)
  changed = from_trained(trained, target.model, target.params)[1]["model"]["layers"]
  same = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), changed, theirs)
  assert not all(jax.tree.leaves(same))
  assert drafter.draft_length == 2
  # Without a draft vocabulary there is none either.
  whole = undistilled(type(trained)(trained.scheme, trained.settings, {}), checkpoint.load(model))
  assert "kept" not in whole.arrays


def test_a_study_that_ran_before_trains_and_decodes_nothing_again(
  done, model, data, prompts, monkeypatch
):
  paths = [done / "report" / name for name in ("numbers.json", "figure.png")]
  paths += sorted((done / "work").glob("**/*.safetensors"))
  paths += sorted((done / "work").glob("trained/*/metrics.jsonl"))
  assert len(paths) == 2 + 4 + 3
  before = [path.read_bytes() for path in paths]

  def refuse(*_):
    raise AssertionError("nothing is left to do")

  monkeypatch.setattr("experiments.runner.Runner._decode", refuse)
  monkeypatch.setattr("specjax.training.packing.PackedData.batch_at", refuse)
  assert run(model, data, prompts, done) == 0
  assert [path.read_bytes() for path in paths] == before


def test_losses_are_trained_on_every_source_and_the_labels_once():
  every = _recipes(("cross_entropy", "forward_kl", "reverse_kl"), ("teacher", "student", "mix"))
  assert [recipe.name for recipe in every] == [
    "cross_entropy-teacher",
    *(f"forward_kl-{source}" for source in ("teacher", "student", "mix")),
    *(f"reverse_kl-{source}" for source in ("teacher", "student", "mix")),
  ]
  assert _recipes(("cross_entropy",), ("mix", "mix")) == [Recipe("cross_entropy", "teacher")]
  assert UNDISTILLED.name == "undistilled"


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"losses": ("kl",)}, "losses must name some of cross_entropy, forward_kl, "),
    ({"sources": ("truth",)}, "sources must name some of teacher, student, mix, got ('truth',)"),
    ({"losses": ()}, "losses must name some of"),
    ({"draft_length": 0}, "draft_length must be an integer >= 1, got 0"),
    ({"steps": 0}, "num_steps must be an integer >= 1, got 0"),
  ],
)
def test_bad_options_are_told_in_one_line(changes, message, model, data, prompts, tmp_path, capsys):
  assert run(model, data, prompts, tmp_path, **changes) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1


def test_a_gain_and_its_error_are_the_jackknifes():
  def rows(*histograms):
    return [{"prompt_index": i, "accepted_histogram": h} for i, h in enumerate(histograms)]

  ours = rows([1, 2, 3], [4, 0, 2], [0, 1, 5])
  theirs = rows([3, 2, 1], [4, 1, 1], [2, 2, 2])

  def alpha(part):
    kept, judged = kept_and_judged(part, 2)
    return kept / judged

  gain, error = acceptance_gain(ours, theirs, 2)
  assert gain == pytest.approx(alpha(ours) - alpha(theirs))
  left = [alpha(ours[:i] + ours[i + 1 :]) - alpha(theirs[:i] + theirs[i + 1 :]) for i in range(3)]
  mean = sum(left) / 3
  assert error == pytest.approx((2 / 3 * sum((value - mean) ** 2 for value in left)) ** 0.5)
  assert acceptance_gain(ours[:1], theirs[:1], 2)[1] is None
  assert acceptance_gain(rows([0, 0]), rows([0, 0]), 2) == (None, None)
