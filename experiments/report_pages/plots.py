# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The pictures of a report on methods: functions that draw into a matplotlib figure.

A method has the same colour in all pictures of a page: its place in the list of all of them.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.report_pages.measures import Ratio

# Distribution beyond this many tokens a round is in the last bar.
_LONGEST = 10


def colour(methods: Sequence[str], name: str) -> Any:
  """A method's colour."""
  import matplotlib

  return matplotlib.colormaps["tab20" if len(methods) > 10 else "tab10"](methods.index(name))


def draw_speed_up_by_task(
  figure: Any,
  speed_ups: Mapping[str, Mapping[str, Ratio | None]],
  tasks: Sequence[str],
  methods: Sequence[str],
) -> None:
  """Bars of wall-clock speed-up, a group for each task, with their intervals.

  Args:
    figure: what is drawn into.
    speed_ups: by method and task.
    tasks: in order.
    methods: all methods of the page, for the colours.
  """
  axis = figure.add_subplot()
  width = 0.8 / max(len(speed_ups), 1)
  for place, (name, by_task) in enumerate(speed_ups.items()):
    found = [(at, ratio) for at, task in enumerate(tasks) if (ratio := by_task.get(task))]
    x = [at + (place - (len(speed_ups) - 1) / 2) * width for at, _ in found]
    ratios = [ratio for _, ratio in found]
    axis.bar(x, [ratio.value for ratio in ratios], width, color=colour(methods, name), label=name)
    axis.errorbar(
      x,
      [ratio.value for ratio in ratios],
      yerr=_errors(ratios),
      fmt="none",
      ecolor="black",
      elinewidth=0.8,
    )
  axis.axhline(1.0, color="black", linewidth=0.8)
  # A line break between words: names of tasks are long and their bars narrow.
  axis.set_xticks(range(len(tasks)), [task.replace(" ", "\n") for task in tasks], fontsize=8)
  axis.set_ylabel("speed-up over autoregressive")
  _legend(figure, axis)


def draw_accepted_lengths(
  figure: Any, histograms: Mapping[str, np.ndarray], methods: Sequence[str]
) -> None:
  """Shares of rounds by how many drafted tokens were accepted."""
  axis = figure.add_subplot()
  width = 0.8 / max(len(histograms), 1)
  last = 0
  for place, (name, histogram) in enumerate(histograms.items()):
    counts = np.array(histogram[: _LONGEST + 1], float)
    counts[-1] += histogram[_LONGEST + 1 :].sum()
    last = max(last, len(counts) - 1)
    x = np.arange(len(counts)) + (place - (len(histograms) - 1) / 2) * width
    axis.bar(x, counts / max(counts.sum(), 1), width, color=colour(methods, name), label=name)
  labels = [str(length) for length in range(last + 1)]
  if last == _LONGEST:
    labels[-1] += " or more"
  axis.set_xticks(range(last + 1), labels)
  axis.set_xlabel("drafted tokens accepted in a round")
  axis.set_ylabel("share of rounds")
  _legend(figure, axis)


def draw_acceptance(
  figure: Any,
  reached: Mapping[str, Sequence[float]],
  conditional: Mapping[str, Sequence[float | None]],
  methods: Sequence[str],
) -> None:
  """Acceptance by draft position: on the left of all drafts, on the right given those before."""
  left, right = figure.subplots(1, 2, sharey=True)
  for axis, values, title in (
    (left, reached, "of all drafts"),
    (right, conditional, "given the tokens before"),
  ):
    for name, rates in values.items():
      y = [np.nan if rate is None else rate for rate in rates]
      axis.plot(
        range(1, len(y) + 1), y, "o-", markersize=3, color=colour(methods, name), label=name
      )
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("draft position")
    axis.set_ylim(0, 1.02)
    axis.grid(alpha=0.3)
    axis.xaxis.get_major_locator().set_params(integer=True)
  left.set_ylabel("accepted")
  _legend(figure, left)


def draw_speed_up_against(
  figure: Any,
  lines: Mapping[tuple[str, str], Mapping[int, Ratio]],
  label: str,
  methods: Sequence[str],
) -> None:
  """Lines of speed-up against a number, such as the draft length.

  Args:
    figure: what is drawn into.
    lines: by method and what else tells its lines apart (may be ""): the speed-up at each number.
    label: what the number is.
    methods: all methods of the page.
  """
  axis = figure.add_subplot()
  styles = list(dict.fromkeys(other for _, other in lines))
  for (name, other), points in lines.items():
    x = sorted(points)
    ratios = [points[at] for at in x]
    axis.errorbar(
      x,
      [ratio.value for ratio in ratios],
      yerr=_errors(ratios),
      fmt=("o-", "s--", "^:", "v-.")[styles.index(other) % 4],
      markersize=4,
      capsize=2,
      color=colour(methods, name),
      label=f"{name} ({other})" if other else name,
    )
  axis.axhline(1.0, color="black", linewidth=0.8)
  axis.set_xticks(sorted({at for points in lines.values() for at in points}))
  axis.set_xlabel(label)
  axis.set_ylabel("speed-up over autoregressive")
  axis.grid(alpha=0.3)
  _legend(figure, axis)


def _errors(ratios: Sequence[Ratio]) -> np.ndarray:
  """What `errorbar` takes: the distances to the ends, `[2, N]`; 0 without an interval."""
  ends = [
    (ratio.value - ratio.low, ratio.high - ratio.value)
    if ratio.low is not None and ratio.high is not None
    else (0.0, 0.0)
    for ratio in ratios
  ]
  # The value of all questions is nearly always, but not by construction, within its interval.
  return np.maximum(np.array(ends).reshape(-1, 2).T, 0)


def _legend(figure: Any, axis: Any) -> None:
  handles, labels = axis.get_legend_handles_labels()
  if handles:
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
