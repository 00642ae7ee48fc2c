# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The plot of a training run: loss, agreement at each draft position, block length."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_metrics(rows: Sequence[dict[str, Any]], path: Path) -> str | None:
  """Draws the log to a PNG; returns a line that says so where matplotlib is missing.

  Args:
    rows: of `metrics.jsonl`.
    path: the PNG.
  """
  try:
    import matplotlib
  except ImportError:
    return "no plot: matplotlib is not installed (pip install 'specjax[plots]')"
  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(1, 3, figsize=(15, 4), layout="constrained")
  for split, style in (("train", "-"), ("validation", "o--")):
    part = [row for row in rows if row["split"] == split]
    if not part:
      continue
    steps = [row["step"] for row in part]
    axes[0].plot(steps, [row["loss"] for row in part], style, label=split)
    for position in range(len(part[0]["agreement"])):
      axes[1].plot(
        steps,
        [row["agreement"][position] for row in part],
        style,
        color=f"C{position}",
        label=f"position {position + 1}" if split == "train" else None,
      )
    axes[2].plot(steps, [row["block_length"] for row in part], style, label=split)
  titles = ("loss", "agreement with the target (validation dashed)", "expected block length")
  for axis, title in zip(axes, titles, strict=True):
    axis.set_title(title)
    axis.set_xlabel("step")
    axis.grid(alpha=0.3)
    if axis.has_data():
      axis.legend()
  figure.savefig(path, dpi=100)
  pyplot.close(figure)
  return None
