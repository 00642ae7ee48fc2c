# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts: a few built in, or JSONL files, ours and Spec-Bench's (Xia et al. 2024)."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Prompt:
  """A conversation to hold: the answer to each turn is fed back before the next.

  Attributes:
    turns: the user's messages.
    category: what kind of task it is; may be empty.
    question_id: the file's own name for it, or None.
    origin: where it stands, for error messages: "prompts.jsonl line 3".
    answer: a reference answer, written by who wrote the prompts; None where there is none.
  """

  turns: tuple[str, ...]
  category: str = ""
  question_id: int | str | None = None
  origin: str = "prompt"
  answer: str | None = None


# Two typos to fix: the rest of a good answer repeats the text word for word.
_STORY = """\
Tom had a small dog named Max. Every morning Tom and Max walked to the lake behind teh old \
mill. Max liked to chase the ducks, but the ducks were always faster than Max. One day Max saw \
a duck that did not fly away. Its wing was hurt. Max sat down next to the duck and barked until \
Tom came. Tom wrapped the duck in his coat and carryed it home. Tom and Max looked after the \
duck for three weeks. When the wing had healed, they brought the duck back to the lake. From \
that day on, the ducks were no longer afraid of Max, and Max no longer chased the ducks."""

_ARTICLE = """\
For most of history, people measured the day by the sun. A village clock showed noon when the \
sun stood highest, and a village to the west reached noon a few minutes later. Nobody minded, \
because a journey between the two took longer than the difference. Railways changed that. A \
train that crossed a country passed through dozens of local times, and a timetable that used \
all of them was impossible to read. Worse, two trains on one track could collide if their \
drivers kept different times. In 1847 the railway companies of Britain agreed to use the time \
of Greenwich in every station, and most towns soon set their clocks by the station. In 1884, \
delegates from twenty-five countries met in Washington and divided the world into zones, each \
an hour apart, counted from the Greenwich meridian. Not everyone was pleased: some cities kept \
two clocks side by side for decades, one for the sun and one for the trains."""

BUILT_IN = (
  Prompt(
    turns=("Write a short story about a lighthouse keeper who finds a message in a bottle.",),
    category="writing",
    origin="built-in prompt 0",
  ),
  Prompt(
    turns=(
      "A baker sells 14 loaves in the morning and twice as many in the afternoon. Each loaf "
      "costs 3 dollars. How much money does the baker earn that day? Explain step by step.",
    ),
    category="arithmetic",
    origin="built-in prompt 1",
  ),
  Prompt(
    turns=(f"Please fix the typos in this story:\n\n{_STORY}",),
    category="editing",
    origin="built-in prompt 2",
  ),
  Prompt(
    turns=(f"Summarize the following article in three sentences.\n\n{_ARTICLE}",),
    category="summary",
    origin="built-in prompt 3",
  ),
)


def choose_prompts(texts: Sequence[str], path: str | None, limit: int | None) -> tuple[Prompt, ...]:
  """The prompts of a run: the texts given, those of a file, or else the built-in ones.

  Args:
    texts: single prompts from the command line.
    path: a JSONL file, or None.
    limit: how many to keep at most; None keeps all.

  Raises:
    ValueError: for both texts and a file, an empty text, or as `read_prompts`.
  """
  if texts and path is not None:
    raise ValueError("--prompt and --prompts were both given; one of them takes the prompts")
  if path is not None:
    prompts = read_prompts(Path(path))
  elif texts:
    prompts = tuple(
      Prompt(turns=(_text(text, f"--prompt {index}"),), origin=f"--prompt {index}")
      for index, text in enumerate(texts)
    )
  else:
    prompts = BUILT_IN
  return prompts[:limit]


def prompts_fingerprint(prompts: Sequence[Prompt]) -> dict[str, Any]:
  """What tells sets of prompts apart: their number and a checksum."""
  turns = json.dumps([prompt.turns for prompt in prompts])
  return {"number": len(prompts), "sha256": hashlib.sha256(turns.encode()).hexdigest()}


def check_fit(
  prompts: Sequence[Prompt],
  encode: Callable[[str], list[int]],
  max_positions: int | None,
  max_new_tokens: int,
) -> None:
  """Checks that each turn by itself fits the model's context, with its answer.

  A conversation of several turns may still outgrow it; it then ends there.

  Args:
    prompts: what is to be answered.
    encode: turns one message into tokens, as the model reads it.
    max_positions: the context's length; None has no end.
    max_new_tokens: the longest answer.

  Raises:
    ValueError: naming the prompt, by file and line where it has them, and the turn.
  """
  for prompt in prompts:
    for turn, text in enumerate(prompt.turns):
      what = f"'turns'[{turn}]" if len(prompt.turns) > 1 else "the prompt"
      try:
        length = len(encode(text))
      except ValueError as error:
        raise ValueError(f"{prompt.origin}: {what}: {error}") from error
      if max_positions is not None and length + max_new_tokens > max_positions:
        raise ValueError(
          f"{prompt.origin}: {what} has {length} tokens, which with max_new_tokens "
          f"{max_new_tokens} is more than the model's context of {max_positions}"
        )


def read_prompts(path: Path, what: str = "prompts") -> tuple[Prompt, ...]:
  """Reads a JSONL file: an object a line, with `prompt` or with Spec-Bench's `turns`.

  Further keys that are read: `category`, `question_id`, `answer`. Blank lines are skipped.

  Args:
    path: the file.
    what: what it holds, for error messages.

  Raises:
    ValueError: naming file, line and reason.
  """
  try:
    data = path.read_bytes()
  except FileNotFoundError:
    raise ValueError(f"{what} file {path} does not exist") from None
  except OSError as error:
    raise ValueError(f"{what} file {path} cannot be read: {error.strerror}") from error
  prompts = []
  for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
    origin = f"{path} line {number}"
    try:
      text = line.decode("utf-8")
    except UnicodeDecodeError as error:
      raise ValueError(f"{origin} is not UTF-8: {error.reason} at byte {error.start}") from None
    if text.strip():
      prompts.append(_parse(text, origin))
  if not prompts:
    raise ValueError(f"{what} file {path} is empty; it takes one JSON object a line")
  return tuple(prompts)


def _parse(line: str, origin: str) -> Prompt:
  try:
    value = json.loads(line)
  except json.JSONDecodeError as error:
    raise ValueError(f"{origin} is not JSON: {error.msg} at column {error.colno}") from None
  except RecursionError:
    raise ValueError(f"{origin} is not JSON that can be read: nested too deeply") from None
  if not isinstance(value, dict):
    raise ValueError(f"{origin} must be a JSON object, got {type(value).__name__}")
  return Prompt(
    turns=_turns(value, origin),
    category=_category(value, origin),
    question_id=_question_id(value, origin),
    origin=origin,
    answer=None if value.get("answer") is None else _text(value["answer"], f"{origin}: 'answer'"),
  )


def _turns(value: dict[str, Any], origin: str) -> tuple[str, ...]:
  if ("prompt" in value) == ("turns" in value):
    found = "both" if "prompt" in value else "neither"
    raise ValueError(f"{origin} must have either 'prompt' or 'turns', it has {found}")
  if "prompt" in value:
    return (_text(value["prompt"], f"{origin}: 'prompt'"),)
  turns = value["turns"]
  if not isinstance(turns, list) or not turns:
    raise ValueError(f"{origin}: 'turns' must be a list of at least one string, got {turns!r:.80}")
  return tuple(_text(turn, f"{origin}: 'turns'[{index}]") for index, turn in enumerate(turns))


def _text(value: Any, name: str) -> str:
  if not isinstance(value, str):
    raise ValueError(f"{name} must be a string, got {type(value).__name__}")
  if not value:
    raise ValueError(f"{name} is empty; a prompt needs some text")
  try:
    value.encode("utf-8")
  except UnicodeEncodeError as error:
    raise ValueError(f"{name} is not valid Unicode: {error.reason}") from None
  return value


def _category(value: dict[str, Any], origin: str) -> str:
  category = value.get("category") or ""
  if not isinstance(category, str):
    raise ValueError(f"{origin}: 'category' must be a string, got {category!r:.80}")
  return category


def _question_id(value: dict[str, Any], origin: str) -> int | str | None:
  question_id = value.get("question_id")
  if isinstance(question_id, bool) or not isinstance(question_id, int | str | None):
    raise ValueError(f"{origin}: 'question_id' must be a number or a string")
  return question_id
