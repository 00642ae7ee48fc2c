# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Super-resolution of digits: its arrays, and the study at miniature scale."""

import json

import numpy as np
import pytest

from experiments import reproduce
from experiments.studies import digits

pytestmark = pytest.mark.usefixtures("fast_compilation")

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def images():
  return digits.load_images()[:12]


def test_an_image_comes_back_from_its_tokens(images):
  sequences = digits.encode(images)
  assert sequences.shape == (12, digits.SEQUENCE_LENGTH)
  assert np.all(sequences[:, digits.PROMPT_LENGTH - 1] == digits.SEPARATOR)
  assert np.array_equal(digits.decode(sequences[:, digits.PROMPT_LENGTH :]), images)


def test_a_pixel_of_the_small_image_is_the_rounded_mean_of_four(images):
  small = digits.low_resolution(images)
  for index, image in enumerate(images):
    for row in range(4):
      for column in range(4):
        four = image[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert small[index, row, column] == int(four.sum() / 4 + 0.5)
  told = digits.encode(images)[:, : digits.PROMPT_LENGTH - 1]
  assert np.array_equal(told.reshape(-1, 4, 4), small)


def test_errors_are_measured_as_their_names_say():
  truth = np.zeros((1, 8, 8), np.int32)
  image = truth.copy()
  image[0, 0, 0] = 8
  assert digits.mean_absolute_error(image, truth) == pytest.approx(8 / 64)
  # Mean squared error 1: the brightest pixel's square, in dB.
  assert digits.peak_signal_to_noise(image, truth) == pytest.approx(10 * np.log10(256))
  assert digits.peak_signal_to_noise(truth, truth) is None


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    (np.zeros((2, 4, 4), np.int32), r"shape \[N, 8, 8\], got \(2, 4, 4\)"),
    (np.full((1, 8, 8), 17, np.int32), r"intensities in 0 \.\. 16, got 17"),
  ],
)
def test_other_images_are_refused(wrong, message):
  with pytest.raises(ValueError, match=message):
    digits.encode(wrong)


# --- the study -------------------------------------------------------------------------------


def command(folder, *arguments):
  changes = {
    "options.block_sizes": "(2, 3)",
    "options.distances": "(1,)",
    "options.held_out": 6,
    "options.decode_batch": 4,
    "options.shown": 2,
    "options.head_width": 8,
    "options.model.hidden_size": 16,
    "options.model.intermediate_size": 16,
    "options.model.num_layers": 1,
    "options.model.num_heads": 2,
    "options.training.target.num_steps": 12,
    "options.training.frozen.num_steps": 4,
    "options.training.fine_tuned.num_steps": 4,
    "train.batch_size": 4,
    "train.warmup_steps": 2,
  }
  return reproduce.main(
    [
      "reproduce",
      "--config=configs/reproduce_super_resolution.py",
      *(f"--config.{name}={value}" for name, value in changes.items()),
      f"--output={folder / 'report'}",
      f"--work={folder / 'work'}",
      "--compilation_cache_dir=",
      *arguments,
    ]
  )


@pytest.fixture(scope="module")
def report(tmp_path_factory):
  folder = tmp_path_factory.mktemp("digits")
  # No model is loaded: one that does not exist is no hindrance.
  assert command(folder, "--model=nowhere/at-all") == 0
  return folder


def numbers_of(folder):
  return json.loads((folder / "report" / "numbers.json").read_text())


def test_every_rule_keeps_its_promise(report):
  found = numbers_of(report)
  cells = {(cell["target"], cell["rule"], cell["k"]): cell for cell in found["cells"]}
  for target in ("frozen", "fine_tuned"):
    plain = cells[target, "exact", 1]
    assert plain["block_size"] == pytest.approx(1.0)
    for k in (2, 3):
      exact, near = cells[target, "exact", k], cells[target, "distance 1", k]
      assert exact["deviations"] == 0
      # Exact acceptance leaves the images, and so their quality, as they were.
      assert exact["psnr"] == pytest.approx(plain["psnr"])
      assert 1 <= exact["block_size"] <= k
      assert near["block_size"] >= exact["block_size"]
      # A row's last block may be cut short by its 64th pixel.
      assert cells[target, "distance 1, at least 2", k]["block_size"] >= 64 / 33
    assert found["targets"][target]["exact_images"] == 6


def test_the_report_shows_the_numbers(report):
  text = (report / "report" / "README.md").read_text()
  cells = numbers_of(report)["cells"]
  line = next(line for line in text.splitlines() if line.startswith("| 3 "))
  shown = [float(cell) for cell in line.strip("| ").split("|")[1:]]
  rules = ("exact", "distance 1", "distance 1, at least 2")
  expected = [
    round(cell["block_size"], 2)
    for target in ("frozen", "fine_tuned")
    for rule in rules
    for cell in cells
    if (cell["target"], cell["rule"], cell["k"]) == (target, rule, 3)
  ]
  assert shown == pytest.approx(expected, abs=0.011)
  assert (report / "report" / "figure.png").stat().st_size > 1000


def test_a_second_run_trains_nothing(report, monkeypatch):
  before = numbers_of(report)

  def refuse(*arguments, **options):
    raise AssertionError("everything is trained")

  monkeypatch.setattr("specjax.training.train_loop.TrainLog.append", refuse)
  assert command(report) == 0
  assert numbers_of(report) == before


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ("--config.options.held_out=1797", "held_out must be below 1797, got 1797"),
    ("--config.options.block_sizes=(1,)", "block_sizes must be an integer >= 2, got 1"),
    ("--config.options.model.num_layers=0", "num_layers"),
  ],
)
def test_options_that_do_not_fit_are_named(change, message, tmp_path, capsys):
  assert command(tmp_path, change) == 2
  error = capsys.readouterr().err
  assert message in error and error.count("\n") == 1
