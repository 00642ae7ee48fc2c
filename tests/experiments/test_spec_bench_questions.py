# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from experiments.prompts import check_fit
from experiments.spec_bench_questions import TASKS, read_questions, task_of, tasks_of


def write(path, lines):
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return path


def question(number, category="qa", turns=("a",)):
  return {"question_id": number, "category": category, "turns": list(turns)}


def test_the_limit_is_of_each_category_and_keeps_the_files_order(tmp_path):
  names = ["qa", "writing", "qa", "coding", "qa", "writing"]
  path = write(tmp_path / "q", [question(n, name) for n, name in enumerate(names)])
  assert [q.question_id for q in read_questions(path, 1)] == [0, 1, 3]
  assert [q.question_id for q in read_questions(path, 2)] == [0, 1, 2, 3, 5]
  assert len(read_questions(path)) == 6


def test_the_eight_categories_of_mt_bench_are_one_task_and_unknown_ones_their_own():
  assert len(TASKS) == 6 and len(TASKS["multi-turn conversation"]) == 8
  assert {task_of(name) for name in TASKS["multi-turn conversation"]} == {"multi-turn conversation"}
  found = tasks_of(["chess", "rag", "math_reasoning", "math", ""])
  assert found == [
    "multi-turn conversation", "mathematical reasoning", "retrieval-augmented generation",
    "chess", "other",
  ]  # fmt: skip


def test_two_questions_of_one_id_are_refused(tmp_path):
  path = write(tmp_path / "q", [question(1), question(2), question(1)])
  with pytest.raises(ValueError, match=rf"{path} line 3: .* 1 is already that of {path} line 1"):
    read_questions(path)


def test_any_turn_that_does_not_fit_the_context_is_named(tmp_path):
  path = write(tmp_path / "q", [question(1), question(2, turns=("a", "b" * 30))])
  questions = read_questions(path)
  check_fit(questions, list, 40, 10)
  check_fit(questions, list, None, 10)
  with pytest.raises(ValueError, match=rf"{path} line 2: 'turns'\[1\] has 30 tokens, which with"):
    check_fit(questions, list, 39, 10)
