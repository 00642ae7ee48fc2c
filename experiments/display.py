# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run shows while it decodes: the text as it comes, and how far it is.

With the `rich` package on a terminal, a progress bar stays below the text; elsewhere plain
lines are printed.
"""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from experiments.prompts import Prompt
from experiments.results import Row


class Display:
  """Plain lines on a stream."""

  def __init__(self, stream: TextIO | None = None, *, texts: bool = True):
    """Nothing is shown yet.

    Args:
      stream: where to; standard output if None.
      texts: whether to show what is decoded, or only a line for each row.
    """
    self._stream = sys.stdout if stream is None else stream
    self._texts, self._names = texts, [""]
    self._total = self._done = self._shown_rows = self._resumed = 0
    self._started = 0.0

  @contextlib.contextmanager
  def open(self, total: int, done: int) -> Iterator[None]:
    """Shows progress while the context lasts: `done` of `total` rows are there already."""
    self._total, self._done, self._resumed = total, done, done
    self._started = time.monotonic()
    if done:
      self.note(f"{done} of {total} rows are there from an earlier run")
    yield

  def begin(self, method: str, prompts: Sequence[tuple[int, Prompt]], turn: int) -> None:
    """A batch begins."""
    self._shown_rows = len(prompts)
    if not self._texts:
      self._names = [
        describe(index, prompt) + (f", turn {turn}" if len(prompt.turns) > 1 else "")
        for index, prompt in prompts
      ]
      return
    names = ", ".join(describe(index, prompt) for index, prompt in prompts)
    turn_text = f", turn {turn}" if any(len(prompt.turns) > 1 for _, prompt in prompts) else ""
    self._write(f"\n=== {method}: {names}{turn_text} ({self.progress()})\n")

  def note(self, text: str) -> None:
    """A line about what happens now."""
    self._write(f"... {text}\n")

  def show(self, pieces: Sequence[str]) -> None:
    """New text of each row. A batch's rows are shown one by one when they are complete."""
    if self._texts and self._shown_rows == 1:
      self._write("".join(pieces))

  def end(self, rows: Sequence[Row]) -> None:
    """The batch that began last is done."""
    self._done += len(rows)
    if not self._texts:
      for name, row in zip(self._names, rows, strict=True):
        self._write(f"{name}, {row['method']}: {_rates(row, len(rows))} ({self.progress()})\n")
      return
    for row in rows:
      if len(rows) > 1:
        self._write(f"\n[prompt {row['prompt_index']}] {row['text']}")
      self._write(
        f"\n--- {row['new_tokens']} tokens in {row['target_calls']} target calls, ended by "
        f"{row['finish_reason']}"
      )
    tokens, seconds = sum(row["new_tokens"] for row in rows), rows[0]["decode_seconds"]
    rate = f", {tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
    together = f"\n--- {len(rows)} rows together" if len(rows) > 1 else ""
    self._write(f"{together}, {seconds:.2f} s{rate}\n")

  def progress(self) -> str:
    """How far the run is, with the time left at the pace so far (none before the first row)."""
    new, left = self._done - self._resumed, self._total - self._done
    text = f"{self._done} of {self._total} rows done"
    if not new or left <= 0:
      return text
    return f"{text}, {duration((time.monotonic() - self._started) / new * left)} left"

  def _write(self, text: str) -> None:
    self._stream.write(text)
    self._stream.flush()


class RichDisplay(Display):
  """The same with a progress bar below, for terminals."""

  def __init__(self, console: Any = None, *, texts: bool = True):
    super().__init__(texts=texts)
    import rich.console
    import rich.live
    import rich.progress

    self._progress = rich.progress.Progress(
      rich.progress.TextColumn("{task.description}"),
      rich.progress.BarColumn(),
      rich.progress.MofNCompleteColumn(),
      rich.progress.TimeElapsedColumn(),
      rich.progress.TextColumn("{task.fields[left]}"),
    )
    console = rich.console.Console(highlight=False) if console is None else console
    self._live = rich.live.Live(console=console, refresh_per_second=12)
    self._task: Any = None
    self._line = ""

  @contextlib.contextmanager
  def open(self, total: int, done: int) -> Iterator[None]:
    """Shows the bar while the context lasts."""
    self._task = self._progress.add_task("", total=total, completed=done, left="")
    with self._live:
      with super().open(total, done):
        self._refresh()
        yield
      self._progress.update(self._task, description="done", completed=total, left="")
      self._refresh()

  def begin(self, method: str, prompts: Sequence[tuple[int, Prompt]], turn: int) -> None:
    """A batch begins."""
    self._progress.update(self._task, description=method)
    super().begin(method, prompts, turn)

  def end(self, rows: Sequence[Row]) -> None:
    """The batch that began last is done."""
    super().end(rows)
    left = self.progress().partition(", ")[2]
    self._progress.update(self._task, completed=self._done, left=left)
    self._refresh()

  def _write(self, text: str) -> None:
    """Whole lines go above the bar for good; the line that is not complete is redrawn."""
    *whole, self._line = (self._line + text).split("\n")
    self._refresh()
    for line in whole:
      self._live.console.print(line, markup=False, emoji=False)

  def _refresh(self) -> None:
    import rich.console
    import rich.text

    self._live.update(rich.console.Group(rich.text.Text(self._line), self._progress))


def make_display(*, texts: bool = True) -> Display:
  """The best display for where the output goes.

  Args:
    texts: whether to show what is decoded, or only a line for each row.
  """
  if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
    return RichDisplay(texts=texts)
  return Display(texts=texts)


def _rates(row: Row, batch_size: int) -> str:
  """A row in short: its tokens, how many a target call, and how fast."""
  parts = [f"{row['new_tokens']} tokens"]
  if row["target_calls"]:
    parts.append(f"{row['new_tokens'] / row['target_calls']:.2f} a target call")
  if row["decode_seconds"] > 0:
    parts.append(f"{row['new_tokens'] * batch_size / row['decode_seconds']:.1f} tokens/s")
  return ", ".join(parts)


def duration(seconds: float) -> str:
  """A rough time for people: "40 s", "12 min", "3 h 05 min"."""
  if seconds < 90:
    return f"{seconds:.0f} s"
  minutes = round(seconds / 60)
  return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def describe(index: int, prompt: Prompt) -> str:
  """A short name of a prompt for people."""
  return f"prompt {index}" + (f" ({prompt.category})" if prompt.category else "")
