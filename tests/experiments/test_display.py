# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import io

import pytest
import rich.console

from experiments import display as display_module
from experiments.display import Display, RichDisplay, make_display
from experiments.prompts import Prompt

PROMPT = Prompt(turns=("hi",), category="editing")


def row(index, text):
  return {
    "prompt_index": index,
    "text": text,
    "new_tokens": 4,
    "target_calls": 2,
    "decode_seconds": 0.5,
    "finish_reason": "eos",
  }


def play(display):
  with display.open(total=3, done=1):
    display.begin("lookup", [(0, PROMPT)], 0)
    display.note("compiling")
    for piece in ("one [bold]line", "\nsecond", " line"):
      display.show([piece])
    display.end([row(0, "one [bold]line\nsecond line")])
    display.begin("lookup", [(1, PROMPT), (2, PROMPT)], 0)
    display.show(["a", "b"])
    display.end([row(1, "text of one"), row(2, "text of two")])


def plain():
  stream = io.StringIO()
  play(Display(stream))
  return stream.getvalue()


def with_bar():
  stream = io.StringIO()
  play(RichDisplay(rich.console.Console(file=stream, width=90, highlight=False)))
  return stream.getvalue()


@pytest.mark.parametrize("shown", [plain, with_bar])
def test_text_streams_for_one_row_and_comes_whole_for_several(shown):
  text = shown()
  assert "=== lookup: prompt 0 (editing) (1 of 3 rows done)" in text
  assert "1 of 3 rows are there from an earlier run" in text
  assert text.count("one [bold]line\nsecond line\n") == 1
  assert "4 tokens in 2 target calls, ended by eos, 0.50 s, 8.0 tokens/s\n" in text
  assert "2 rows together, 0.50 s, 16.0 tokens/s\n" in text
  assert "[prompt 1] text of one" in text and "[prompt 2] text of two" in text


def test_the_bar_reaches_its_end():
  assert "3/3" in with_bar().splitlines()[-1]


def test_plain_lines_are_printed_where_there_is_no_terminal():
  assert type(make_display()) is Display


@pytest.mark.parametrize("with_a_bar", [False, True])
def test_runs_of_many_rows_show_a_line_each_and_the_time_left(monkeypatch, with_a_bar):
  clock = iter([0.0, *[100.0] * 9])
  monkeypatch.setattr(display_module.time, "monotonic", lambda: next(clock))
  stream = io.StringIO()
  display = Display(stream, texts=False)
  if with_a_bar:
    display = RichDisplay(
      rich.console.Console(file=stream, width=120, highlight=False), texts=False
    )
    monkeypatch.undo()
  with display.open(total=6, done=1):
    display.begin("lookup", [(0, PROMPT)], 0)
    display.show(["the text"])
    display.end([row(0, "the text") | {"method": "lookup"}])
  text = stream.getvalue()
  assert "prompt 0 (editing), lookup: 4 tokens, 2.00 a target call, 8.0 tokens/s" in text
  assert "the text" not in text
  assert "(2 of 6 rows done, " in text
  if not with_a_bar:
    assert "(2 of 6 rows done, 7 min left)" in text


@pytest.mark.parametrize(
  ("seconds", "text"), [(0.2, "0 s"), (89, "89 s"), (90, "2 min"), (3599, "1 h 00 min")]
)
def test_durations_are_for_people(seconds, text):
  assert display_module.duration(seconds) == text
