# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from experiments.prompts import BUILT_IN, choose_prompts, read_prompts


def write(path, *lines):
  path.write_text("\n".join(lines) + "\n", encoding="utf-8")
  return path


def test_both_kinds_of_lines_are_read(tmp_path):
  path = write(
    tmp_path / "p.jsonl",
    json.dumps({"prompt": "one"}),
    "",
    json.dumps({"question_id": 81, "category": "writing", "turns": ["a", "é"], "reference": []}),
  )
  first, second = read_prompts(path)
  assert first.turns == ("one",) and first.question_id is None
  assert second.turns == ("a", "é")
  assert (second.category, second.question_id) == ("writing", 81)
  assert second.origin == f"{path} line 3"


def test_a_byte_order_mark_and_windows_line_ends_are_no_error(tmp_path):
  path = tmp_path / "p.jsonl"
  path.write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\r\n{"prompt": "two"}\r\n')
  assert [prompt.turns for prompt in read_prompts(path)] == [("one",), ("two",)]


@pytest.mark.parametrize(
  ("line", "reason"),
  [
    ('{"prompt": "x"', "is not JSON"),
    ("[1]", "must be a JSON object, got list"),
    ("{}", "must have either 'prompt' or 'turns', it has neither"),
    ('{"prompt": "x", "turns": ["x"]}', "it has both"),
    ('{"prompt": 3}', "'prompt' must be a string, got int"),
    ('{"prompt": ""}', "'prompt' is empty"),
    ('{"turns": []}', "'turns' must be a list of at least one string, got []"),
    ('{"turns": "x"}', "'turns' must be a list of at least one string, got 'x'"),
    ('{"turns": ["x", ""]}', "'turns'[1] is empty"),
    ('{"prompt": "x", "category": 3}', "'category' must be a string"),
    ('{"prompt": "x", "question_id": [1]}', "'question_id' must be a number or a string"),
    (r'{"prompt": "\ud800"}', "'prompt' is not valid Unicode"),
    ("[" * 100_000, "is not JSON"),
  ],
)
def test_a_malformed_line_is_answered_by_file_line_and_reason(tmp_path, line, reason):
  path = write(tmp_path / "p.jsonl", *['{"prompt": "x"}'] * 6, line)
  with pytest.raises(ValueError) as error:
    read_prompts(path)
  assert str(error.value).startswith(f"{path} line 7")
  assert reason in str(error.value)
  assert "\n" not in str(error.value)


def test_a_file_that_is_not_utf8_is_answered_by_line(tmp_path):
  path = tmp_path / "p.jsonl"
  path.write_bytes(b'{"prompt": "x"}\n{"prompt": "\xff"}\n')
  with pytest.raises(ValueError, match=r"p\.jsonl line 2 is not UTF-8"):
    read_prompts(path)


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_refused(tmp_path, content):
  path = tmp_path / "p.jsonl"
  path.write_text(content)
  with pytest.raises(ValueError, match=r"p\.jsonl is empty"):
    read_prompts(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
  with pytest.raises(ValueError, match=r"does not exist"):
    read_prompts(tmp_path / "none.jsonl")
  with pytest.raises(ValueError, match=r"cannot be read"):
    read_prompts(tmp_path)


def test_prompts_come_from_the_texts_the_file_or_the_built_in_ones(tmp_path):
  path = str(write(tmp_path / "p.jsonl", '{"prompt": "a"}', '{"prompt": "b"}'))
  assert [p.turns[0] for p in choose_prompts(("x", "y"), None, None)] == ["x", "y"]
  assert [p.turns[0] for p in choose_prompts((), path, 1)] == ["a"]
  assert choose_prompts((), None, None) == BUILT_IN
  with pytest.raises(ValueError, match=r"--prompt and --prompts were both given"):
    choose_prompts(("x",), path, None)
  with pytest.raises(ValueError, match=r"--prompt 1 is empty"):
    choose_prompts(("x", ""), None, None)


def test_built_in_prompts_are_of_four_kinds():
  assert [p.category for p in BUILT_IN] == ["writing", "arithmetic", "editing", "summary"]
