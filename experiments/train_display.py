# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What training shows: a line of numbers that a terminal keeps in place.

With the `rich` package on a terminal, the line stays below the validations; elsewhere plain lines
are printed.
"""

import importlib.util
import sys
from typing import Any, TextIO


class TrainDisplay:
  """Plain lines on a stream, one a row of the log."""

  def __init__(self, num_steps: int, stream: TextIO | None = None):
    self._num_steps = num_steps
    self._stream = sys.stdout if stream is None else stream
    self._first: tuple[int, float] | None = None

  def __enter__(self) -> "TrainDisplay":
    return self

  def __exit__(self, *details: object) -> None:
    pass

  def show(self, row: dict[str, Any]) -> None:
    """Shows a row of the log."""
    agreement = " ".join(map(shown, row["agreement"]))
    text = f"loss {row['loss']:.3f} · agreement {agreement} · block {shown(row['block_length'])}"
    if row["split"] == "validation":
      self._keep(f"step {row['step']}: validation · {text}")
      return
    text = (
      f"step {row['step']}/{self._num_steps} · {text} · {row['tokens_per_second']:.0f} tokens/s"
    )
    if self._first is None:
      # Compilation is in the first row's time: what is left is told from the second on.
      self._first = (row["step"], row["seconds"])
    elif row["step"] > self._first[0]:
      rate = (row["seconds"] - self._first[1]) / (row["step"] - self._first[0])
      text += f" · {duration(rate * (self._num_steps - row['step']))} left"
    self._progress(text)

  def _keep(self, text: str) -> None:
    """A line that stays."""
    self._stream.write(f"{text}\n")
    self._stream.flush()

  def _progress(self, text: str) -> None:
    """A line that the next one replaces, where that can be."""
    self._keep(text)


class RichTrainDisplay(TrainDisplay):
  """The same with one progress line below, for terminals."""

  def __init__(self, num_steps: int, console: Any = None):
    super().__init__(num_steps)
    import rich.console
    import rich.live

    console = rich.console.Console(highlight=False) if console is None else console
    self._live = rich.live.Live(console=console, refresh_per_second=4)

  def __enter__(self) -> "RichTrainDisplay":
    self._live.start()
    return self

  def __exit__(self, *details: object) -> None:
    self._live.stop()

  def _keep(self, text: str) -> None:
    self._live.console.print(text, markup=False, emoji=False)

  def _progress(self, text: str) -> None:
    import rich.text

    self._live.update(rich.text.Text(text))


def make_train_display(num_steps: int) -> TrainDisplay:
  """The best display for where the output goes."""
  if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
    return RichTrainDisplay(num_steps)
  return TrainDisplay(num_steps)


def shown(value: float | None) -> str:
  """A mean with two digits; a dash where nothing was counted."""
  return "-" if value is None else f"{value:.2f}"


def duration(seconds: float) -> str:
  """Seconds for people: minutes:seconds, with hours in front if there are any."""
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
