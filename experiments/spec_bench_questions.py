# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Spec-Bench's questions and the six groups of tasks that they belong to.

Xia et al. (2024), "Unlocking Efficiency in Large Language Model Inference: A Comprehensive Survey
of Speculative Decoding", arXiv 2401.07851, section 6: MT-Bench's eight categories are the first
group, multi-turn conversation.
"""

import collections
from collections.abc import Sequence
from pathlib import Path

from experiments.prompts import Prompt, read_prompts

# By group, in the order of Spec-Bench's tables: the categories of its questions.
TASKS: dict[str, tuple[str, ...]] = {
  "multi-turn conversation": (
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
  ),
  "translation": ("translation",),
  "summarisation": ("summarization",),
  "question answering": ("qa",),
  "mathematical reasoning": ("math_reasoning",),
  "retrieval-augmented generation": ("rag",),
}
OTHER = "other"


def task_of(category: str) -> str:
  """The group of a category; one that Spec-Bench does not have is a group of its own."""
  for task, categories in TASKS.items():
    if category in categories:
      return task
  return category or OTHER


def tasks_of(categories: Sequence[str]) -> list[str]:
  """The groups of some categories, in the order of Spec-Bench's tables, others after them."""
  found = {task_of(category) for category in categories}
  return [task for task in TASKS if task in found] + sorted(found - TASKS.keys())


def read_questions(path: Path, limit: int | None = None) -> tuple[Prompt, ...]:
  """Reads a question file, in its own order.

  Args:
    path: a JSONL file in Spec-Bench's format: `question_id`, `category`, `turns`.
    limit: the first questions of each category to keep; None keeps all.

  Raises:
    ValueError: naming file, line and reason.
  """
  questions = read_prompts(path, "questions")
  origins: dict[int | str, str] = {}
  for question in questions:
    if question.question_id is None:
      continue
    if question.question_id in origins:
      raise ValueError(
        f"{question.origin}: the question_id {question.question_id!r} is already that of "
        f"{origins[question.question_id]}"
      )
    origins[question.question_id] = question.origin
  kept: collections.Counter[str] = collections.Counter()
  chosen = []
  for question in questions:
    kept[question.category] += 1
    if limit is None or kept[question.category] <= limit:
      chosen.append(question)
  return tuple(chosen)
