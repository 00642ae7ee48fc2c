# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A page as a list of blocks, written as Markdown with pictures beside it and as one HTML file.

The HTML has its style and its pictures inside, no script, and nothing that is fetched: it opens
from the disk without a network. Wide tables and pictures scroll in themselves, so that a phone
shows the page at its width and its letters large enough.
"""

import base64
import dataclasses
import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.studies.study import markdown_table
from specjax.models import cached_files

FIGURES = "figures"


@dataclasses.dataclass(frozen=True)
class Heading:
  """A heading; level 1 is the page's title."""

  text: str
  level: int = 2


@dataclasses.dataclass(frozen=True)
class Paragraph:
  """Plain text."""

  text: str


@dataclasses.dataclass(frozen=True)
class Code:
  """Text as it is, such as a command."""

  text: str


@dataclasses.dataclass(frozen=True)
class TableBlock:
  """A table of text; the first column is aligned left."""

  header: Sequence[str]
  lines: Sequence[Sequence[str]]


@dataclasses.dataclass(frozen=True)
class Figure:
  """A picture.

  Attributes:
    name: of its files, `figures/<name>.svg` and `.png`.
    caption: what it shows.
    draw: draws into the `matplotlib.figure.Figure` that it is given.
    size: width and height in inches.
  """

  name: str
  caption: str
  draw: Callable[[Any], None]
  size: tuple[float, float] = (7.0, 4.2)


Block = Heading | Paragraph | Code | TableBlock | Figure


def write_pages(folder: Path, name: str, blocks: Sequence[Block]) -> tuple[Path, Path]:
  """Writes `<name>.md`, `<name>.html` and the pictures; returns the paths of the two pages."""
  folder.mkdir(parents=True, exist_ok=True)
  pictures = draw_figures(folder, [block for block in blocks if isinstance(block, Figure)])
  markdown, page = folder / f"{name}.md", folder / f"{name}.html"
  cached_files.write_text(markdown, to_markdown(blocks))
  cached_files.write_text(page, to_html(blocks, pictures))
  return markdown, page


def draw_figures(folder: Path, figures: Sequence[Figure]) -> dict[str, bytes]:
  """Writes each picture as SVG and PNG; returns the SVG of each by name."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  pictures = {}
  place = folder / FIGURES
  place.mkdir(parents=True, exist_ok=True)
  # With a fixed salt and no date, the same numbers give the same bytes.
  with matplotlib.rc_context({"svg.hashsalt": "specjax"}):
    for block in figures:
      figure = pyplot.figure(figsize=block.size, layout="constrained")
      block.draw(figure)
      figure.savefig(place / f"{block.name}.svg", metadata={"Date": None})
      figure.savefig(place / f"{block.name}.png", dpi=110, metadata={"Software": None})
      pyplot.close(figure)
      pictures[block.name] = (place / f"{block.name}.svg").read_bytes()
  return pictures


def to_markdown(blocks: Sequence[Block]) -> str:
  """The page as Markdown; its pictures are files beside it."""
  parts = []
  for block in blocks:
    match block:
      case Heading(text, level):
        parts.append(f"{'#' * level} {_one_line(text)}")
      case Paragraph(text):
        parts.append(text)
      case Code(text):
        parts.append(f"```\n{text}\n```")
      case TableBlock(header, lines):
        parts.append(markdown_table(_cells(header), [_cells(line) for line in lines]))
      case Figure(name, caption):
        parts.append(f"![{_one_line(caption)}]({FIGURES}/{name}.png)")
  return "\n\n".join(parts) + "\n"


def to_html(blocks: Sequence[Block], pictures: dict[str, bytes]) -> str:
  """The page as one HTML file.

  Args:
    blocks: the page.
    pictures: the SVG of each figure, by name.
  """
  title = next((block.text for block in blocks if isinstance(block, Heading)), "report")
  body = "\n".join(_block_html(block, pictures) for block in blocks)
  return _PAGE.format(title=html.escape(title), style=_STYLE, body=body)


def _block_html(block: Block, pictures: dict[str, bytes]) -> str:
  match block:
    case Heading(text, level):
      return f"<h{level}>{html.escape(text)}</h{level}>"
    case Paragraph(text):
      return f"<p>{html.escape(text)}</p>"
    case Code(text):
      return f"<pre>{html.escape(text)}</pre>"
    case TableBlock(header, lines):
      head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
      rows = "\n".join(
        "<tr>"
        + f'<th scope="row">{_breakable(first)}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in lines
      )
      table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"
      return f'<div class="wide" tabindex="0">{table}</div>'
    case Figure(name, caption):
      data = base64.b64encode(pictures[name]).decode()
      text = html.escape(caption, quote=True)
      image = f'<img alt="{text}" src="data:image/svg+xml;base64,{data}">'
      scrolling = f'<div class="wide" tabindex="0">{image}</div>'
      return f"<figure>{scrolling}<figcaption>{text}</figcaption></figure>"


def _breakable(name: str) -> str:
  """A name that a narrow screen may break after its underscores."""
  return html.escape(name).replace("_", "_<wbr>")


def _cells(cells: Sequence[str]) -> list[str]:
  return [_one_line(cell).replace("|", "\\|") for cell in cells]


def _one_line(text: str) -> str:
  return " ".join(text.split())


_STYLE = """\
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; }
h2 { font-size: 1.2rem; margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin-top: 1.6rem; }
p, pre, figcaption, h1, h2, h3 { overflow-wrap: anywhere; }
pre { white-space: pre-wrap; background: var(--soft); padding: .6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child { text-align: left; }
thead th { white-space: normal; vertical-align: bottom; }
tbody th { font-weight: 600; position: sticky; left: 0; background: Canvas; white-space: normal;
  max-width: 50vw; overflow-wrap: break-word; }
figure { margin: 1rem 0; }
img { display: block; width: 100%; min-width: 34rem; max-width: 48rem; height: auto;
  background: #fff; }
figcaption { font-size: .875rem; }
"""
_PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
