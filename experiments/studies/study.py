# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a study is: a function from a `Bench` to a `StudyReport`."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

# Draws into the figure that it is given, a `matplotlib.figure.Figure`.
Draw = Callable[[Any], None]


@dataclasses.dataclass(frozen=True)
class Table:
  """One table of a study.

  Attributes:
    title: a line above it.
    header: the columns' names.
    lines: its cells as text, one sequence a line.
    note: a paragraph below it; may be empty.
  """

  title: str
  header: Sequence[str]
  lines: Sequence[Sequence[str]]
  note: str = ""


@dataclasses.dataclass(frozen=True)
class StudyReport:
  """What a study found.

  Attributes:
    title: of the whole.
    introduction: a paragraph: what the paper's table is, and where this one differs.
    tables: what was measured.
    draw: draws the figure.
    numbers: JSON values, for whoever wants to plot them again.
    figure_size: width and height in inches.
    measured_with: a phrase on the models and data, of a study that does not use the bench's target
      and prompts; empty where it does.
  """

  title: str
  introduction: str
  tables: Sequence[Table]
  draw: Draw
  numbers: Any
  figure_size: tuple[float, float] = (10.0, 4.0)
  measured_with: str = ""


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  """A Markdown table, its columns padded to one width; the first is aligned left."""
  widths = [max(3, *map(len, column)) for column in zip(header, *lines, strict=True)]

  def line(cells: Sequence[str]) -> str:
    pairs = list(zip(cells, widths, strict=True))
    padded = [
      cell.rjust(width) if i else cell.ljust(width) for i, (cell, width) in enumerate(pairs)
    ]
    return f"| {' | '.join(padded)} |"

  rule = "|".join("-" * (width + 1) + (":" if i else "-") for i, width in enumerate(widths))
  return "\n".join([line(header), f"|{rule}|", *map(line, lines)])
