# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Chat templates: a conversation to the text that a checkpoint was trained on.

Templates are Jinja programs that come with a checkpoint, so they run in a sandbox. The settings
and helper functions are those that `transformers` gives them, and so is the text.
"""

import datetime
import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.models.optional_packages import require

Message = Mapping[str, Any]


def render(
  template: str,
  messages: Sequence[Message],
  *,
  bos_token: str | None = None,
  eos_token: str | None = None,
  add_generation_prompt: bool = True,
  tools: Sequence[Mapping[str, Any]] | None = None,
  **variables: Any,
) -> str:
  """The conversation as text.

  The text holds the special tokens, BOS included where the template writes it: encode it with
  `add_special_tokens=False`.

  Args:
    template: the Jinja source.
    messages: dicts with `role` and `content`, oldest first. Keys whose value is None are left
      out, as templates take a missing key better.
    bos_token: text of the checkpoint's BOS token, for templates that write it.
    eos_token: text of its EOS token.
    add_generation_prompt: ends with the header of the assistant's turn.
    tools: JSON schemas of functions, for templates that describe them to the model.
    **variables: what else the template reads, for example `enable_thinking=False`.

  Raises:
    ValueError: for an empty or malformed conversation, and where the template refuses it (roles
      that do not alternate, no support for a system message) or is broken.
  """
  jinja2 = require("jinja2")
  # A token that the checkpoint does not have is undefined in the template, not "None".
  special = {"bos_token": bos_token, "eos_token": eos_token}
  defined = {name: text for name, text in special.items() if text is not None}
  try:
    return _compile(template).render(
      messages=_checked(messages),
      tools=None if tools is None else _plain(tools),
      documents=None,
      add_generation_prompt=add_generation_prompt,
      **(defined | _plain(variables)),
    )
  except (jinja2.TemplateError, TypeError, ArithmeticError, LookupError) as error:
    raise ValueError(f"the chat template cannot render these messages: {error}") from error


def _checked(messages: Sequence[Message]) -> list[dict[str, Any]]:
  if not messages:
    raise ValueError("messages must hold at least one message, got none")
  for index, message in enumerate(messages):
    if not isinstance(message, Mapping):
      raise ValueError(f"messages[{index}] must be a dict, got {type(message).__name__}")
    if not isinstance(message.get("role"), str):
      raise ValueError(f"messages[{index}] must have a 'role', got the keys {sorted(message)}")
  return [
    {key: _plain(value) for key, value in message.items() if value is not None}
    for message in messages
  ]


def _plain(value: Any) -> Any:
  """A copy out of plain JSON types: the template must not reach a live object's methods.

  Raises:
    ValueError: for what JSON does not have.
  """
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, Mapping):
    return {str(key): _plain(item) for key, item in value.items()}
  if isinstance(value, Sequence):
    return [_plain(item) for item in value]
  raise ValueError(f"a chat template takes plain values, got {type(value).__name__}")


@functools.lru_cache(maxsize=16)
def _compile(template: str) -> Any:
  sandbox = require("jinja2.sandbox")
  environment = sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=["jinja2.ext.loopcontrols", _generation_block()],
  )
  environment.filters["tojson"] = _to_json
  environment.globals["raise_exception"] = _raise_exception
  environment.globals["strftime_now"] = _strftime_now
  return environment.from_string(template)


def _generation_block() -> type:
  """An extension that reads `{% generation %}...{% endgeneration %}` as its content.

  Templates mark the assistant's text by it, for training; it changes no text.
  """
  extension = require("jinja2.ext").Extension

  class Generation(extension):  # type: ignore[misc, valid-type]
    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> Any:
      next(parser.stream)
      return parser.parse_statements(("name:endgeneration",), drop_needle=True)

  return Generation


def _to_json(
  value: Any,
  ensure_ascii: bool = False,
  indent: int | None = None,
  separators: tuple[str, str] | None = None,
  sort_keys: bool = False,
) -> str:
  """Jinja's own filter escapes HTML, which is no use to a language model."""
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


def _raise_exception(message: str) -> None:
  raise require("jinja2").TemplateError(message)


def _strftime_now(format: str) -> str:
  return datetime.datetime.now().strftime(format)
