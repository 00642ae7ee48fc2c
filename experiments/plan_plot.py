# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The plot of experiments.plan."""

from pathlib import Path
from typing import Any

from experiments.plan_situation import Situation
from specjax.evaluation.theory import Fit, StaticTree


def plot(situation: Situation, fitted: Fit | None, path: Path) -> str | None:
  """Draws the PNG.

  Args:
    situation: what advice is given for.
    fitted: what was measured; None if nothing was.
    path: of the PNG.

  Returns:
    None, or a line that says so where matplotlib is missing.
  """
  try:
    import matplotlib
  except ImportError:
    return "no plot: matplotlib is not installed (pip install 'specjax[plots]')"
  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
  lengths = range(situation.max_draft_length + 1)
  expected = [situation.expected(length) for length in lengths]
  left.plot(lengths, [tokens for tokens, _ in expected], "--", label="tokens a target call")
  left.plot(lengths, [speed_up for _, speed_up in expected], "o-", label="speed-up")
  if fitted is not None:
    error = [
      [max(fitted.speed_up.value - fitted.speed_up.low, 0)],
      [max(fitted.speed_up.high - fitted.speed_up.value, 0)],
    ]
    left.errorbar(
      [fitted.acceptance.draft_length],
      [fitted.speed_up.value],
      yerr=error,
      fmt="s",
      color="black",
      label="measured speed-up",
    )
  left.set(title="one row", xlabel="draft length gamma")
  batches = situation.batch_sizes
  choices = [situation.in_batch(size) for size in batches]
  middle.plot(batches, [choice.speed_up for choice in choices], "o-", label="speed-up")
  for size, choice in zip(batches, choices, strict=True):
    middle.annotate(
      str(choice.draft_length),
      (size, choice.speed_up),
      textcoords="offset points",
      xytext=(0, 7),
      ha="center",
    )
  middle.set_xscale("log", base=2)
  middle.set_xticks(batches, [str(size) for size in batches])
  middle.margins(y=0.12)
  middle.set(title="best draft length (numbers) by batch", xlabel="batch size")
  _draw_tree(right, situation.tree.tree)
  for axis in (left, middle):
    axis.axhline(1, color="gray", linewidth=1)
    axis.grid(alpha=0.3)
    axis.legend(loc="lower left" if axis is middle else "best")
  figure.suptitle(f"alpha {situation.alpha:.3g}, c {situation.cost_ratio:.3g}")
  figure.savefig(path, dpi=100)
  pyplot.close(figure)
  return None


def _draw_tree(axis: Any, tree: StaticTree) -> None:
  """The tree, its root at the top; leaves are side by side, a parent is above its first child."""
  children: dict[int, list[int]] = {}
  for node, parent in enumerate(tree.parents):
    children.setdefault(parent, []).append(node)
  places: dict[int, tuple[float, int]] = {}
  leaves = 0

  def place(node: int, depth: int) -> None:
    nonlocal leaves
    below = children.get(node, [])
    for child in below:
      place(child, depth + 1)
    if below:
      places[node] = (places[below[0]][0], -depth)
    else:
      places[node] = (float(leaves), -depth)
      leaves += 1

  place(-1, 0)
  for node, parent in enumerate(tree.parents):
    axis.plot(*zip(places[parent], places[node], strict=True), color="gray", linewidth=1, zorder=1)
  axis.scatter(*zip(*places.values(), strict=True), s=30, zorder=2)
  axis.set(title=f"token tree: {tree.num_nodes} nodes", xticks=[], yticks=[])
