# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What training shows while it runs, and the plot at its end."""

import io
import sys

import pytest
import rich.console

from experiments.train_display import (
  RichTrainDisplay,
  TrainDisplay,
  duration,
  make_train_display,
)
from experiments.train_plot import plot_metrics


def row(step, split="train", **values):
  return {
    "step": step,
    "split": split,
    "loss": 2.5,
    "agreement": [0.5, 0.25],
    "block_length": 1.625,
    "tokens_per_second": 1234.4,
    "tokens": 100 * step,
    "seconds": 7.0 + step,
    **values,
  }


ROWS = [row(10), row(20), row(20, "validation", loss=3.0), row(100)]


def plain():
  stream = io.StringIO()
  with TrainDisplay(100, stream) as display:
    for one in ROWS:
      display.show(one)
  return stream.getvalue()


def in_place():
  stream = io.StringIO()
  with RichTrainDisplay(100, rich.console.Console(file=stream, width=120)) as display:
    for one in ROWS:
      display.show(one)
  return stream.getvalue()


def test_plain_lines_are_one_a_row():
  assert plain().splitlines() == [
    "step 10/100 · loss 2.500 · agreement 0.50 0.25 · block 1.62 · 1234 tokens/s",
    "step 20/100 · loss 2.500 · agreement 0.50 0.25 · block 1.62 · 1234 tokens/s · 1:20 left",
    "step 20: validation · loss 3.000 · agreement 0.50 0.25 · block 1.62",
    "step 100/100 · loss 2.500 · agreement 0.50 0.25 · block 1.62 · 1234 tokens/s · 0:00 left",
  ]


def test_a_terminal_keeps_validations_and_the_newest_progress():
  lines = [line for line in in_place().splitlines() if line.strip()]
  assert lines == plain().splitlines()[2:]


def test_plain_lines_are_printed_where_there_is_no_terminal():
  assert type(make_train_display(1)) is TrainDisplay


@pytest.mark.parametrize(
  ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3600 + 62, "1:01:02")]
)
def test_durations_read_like_a_clock(seconds, text):
  assert duration(seconds) == text


def test_the_plot_is_a_png(tmp_path):
  pytest.importorskip("matplotlib")
  assert plot_metrics(ROWS, tmp_path / "metrics.png") is None
  assert (tmp_path / "metrics.png").read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_one_line_says_how_to_get_it(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "matplotlib", None)
  note = plot_metrics(ROWS, tmp_path / "metrics.png")
  assert "pip install 'specjax[plots]'" in note and "\n" not in note
  assert not (tmp_path / "metrics.png").exists()
