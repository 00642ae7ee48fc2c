# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A traced decode on a terminal: a line for each step, more where the draft is a tree.

Every outcome has a mark as well as a colour, so that plain output says the same.
"""

import importlib.util
import json
import os
import sys
from typing import Any, TextIO

from experiments.trace_record import Json

# By outcome: the mark before a token, its colour and what the legend says of it.
STYLES = {
  "accepted": ("+", "green", "accepted"),
  "certain": ("=", "cyan", "certain: the target itself gave it to the drafter"),
  "rejected": ("x", "strike red", "rejected"),
  "unreached": (".", "bright_black", "not reached"),
  "cut": ("/", "bright_black", "accepted, but the text had ended"),
  "corrected": (">", "bold yellow", "the target's correction"),
  "bonus": ("*", "bold magenta", "the target's bonus token after an accepted draft"),
  "undrafted": ("-", "blue", "the target's token where nothing was drafted"),
}
_Segments = list[tuple[str, str]]


class TraceTerminal:
  """Writes to a stream: in colours on a terminal, plain elsewhere or where NO_COLOR is set."""

  def __init__(self, stream: TextIO | None = None):
    self._stream = sys.stdout if stream is None else stream
    self._console: Any = None
    if use_colors(self._stream):
      import rich.console

      self._console = rich.console.Console(file=self._stream, highlight=False, soft_wrap=True)

  def legend(self) -> None:
    """What the marks mean."""
    for mark, style, words in STYLES.values():
      self._line([(f"  {mark} {words}", style)])
    self._line([("  A draft token is followed by its probability under drafter / target.", "")])

  def step(self, step: Json) -> None:
    """Shows one step."""
    nodes, own = step["nodes"], step["own"]
    drafted = f"{len(nodes)} drafted" if nodes else "nothing drafted"
    head = f"{step['round'] + 1:4}  {1000 * step['seconds']:7.1f} ms  +{len(step['committed'])}"
    line: _Segments = [(f"{head}  {drafted}:", "bold")]
    last = [_token(own, _probabilities(own))] if own else []
    if _is_chain(nodes):
      line += [_token(node, _probabilities(node)) for node in nodes] + last
      self._line(line)
      return
    self._line(line + last)
    for index, depth in _in_tree_order(nodes):
      self._line([("  " * depth + " " * 8, ""), _token(nodes[index], _probabilities(nodes[index]))])

  def text(self, steps: list[Json]) -> None:
    """The decoded text, each token in the colour of where it came from."""
    pieces = [
      (_printable(token["piece"]), STYLES[token["outcome"]][1])
      for step in steps
      for token in step["committed"]
    ]
    self._line(pieces)

  def note(self, text: str) -> None:
    """A line of plain text."""
    self._line([(text, "")])

  def _line(self, segments: _Segments) -> None:
    if self._console is None:
      self._stream.write("".join(text for text, _ in segments) + "\n")
      self._stream.flush()
      return
    import rich.text

    self._console.print(rich.text.Text.assemble(*segments))


def use_colors(stream: TextIO) -> bool:
  """Whether a stream is a terminal that takes colours, and the user wants them."""
  plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
  return not plain and stream.isatty() and importlib.util.find_spec("rich") is not None


def _is_chain(nodes: list[Json]) -> bool:
  return [node["parent"] for node in nodes] == list(range(-1, len(nodes) - 1))


def _in_tree_order(nodes: list[Json]) -> list[tuple[int, int]]:
  """Node and depth, each node right before those below it."""
  order: list[tuple[int, int]] = []

  def visit(parent: int, depth: int) -> None:
    for index, node in enumerate(nodes):
      if node["parent"] == parent:
        order.append((index, depth))
        visit(index, depth + 1)

  visit(-1, 0)
  return order


def _token(token: Json, probabilities: str) -> tuple[str, str]:
  mark, style, _ = STYLES[token["outcome"]]
  deviates = "!" if token.get("deviates") else ""
  return f"  {mark}{deviates}{_quoted(token['text'])}{probabilities}", style


def _probabilities(token: Json) -> str:
  draft, target = token.get("draft_probability"), token["target_probability"]
  return f" {target:.2f}" if draft is None else f" {draft:.2f}/{target:.2f}"


def _quoted(text: str) -> str:
  """In quotes, with what does not print spelled out."""
  quoted = json.dumps(text, ensure_ascii=False)
  return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in quoted)


def _printable(text: str) -> str:
  """Text from a model must not steer the terminal."""
  return "".join(char if char.isprintable() or char in "\n\t" else "\ufffd" for char in text)
