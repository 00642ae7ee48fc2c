# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Does speculation pay, and with what draft length? The theory's advice, before anything is run.

  python -m experiments.plan --alpha=0.7 --cost=0.1
  python -m experiments.plan --from=runs/20260101-120000
  python -m experiments.plan --alpha=0.6 --cost=0.05 --rank_rates=0.6,0.15,0.06 --hardware=h100

alpha is the probability that a drafted token is kept, c the seconds of a draft step over those of a
target call (Leviathan, Kalman, Matias 2023, arXiv 2211.17192). --from fits both from the rows of
experiments.decode, which must hold the method and autoregressive decoding of the same prompts.
Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.command import answer, read_flags
from experiments.report import format_table
from specjax import json_lines
from specjax.arguments import check_integer
from specjax.evaluation.hardware import HARDWARE
from specjax.evaluation.theory import (
  Acceptance,
  best_draft_length,
  check_fraction,
  check_not_negative,
  check_positive,
  expected_speed_up,
  expected_tokens,
  longest_draft,
)
from specjax.evaluation.theory_batching import (
  CallCost,
  best_batched_draft_length,
  roofline,
  smallest_losing_batch,
)
from specjax.evaluation.theory_fit import BASELINE, Fit, fit
from specjax.evaluation.theory_trees import (
  StaticTree,
  TreeChoice,
  best_tree_for_cost,
  geometric_rank_rates,
)

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ASSUMED_RANKS = 4


@dataclasses.dataclass(frozen=True)
class Situation:
  """What advice is given for.

  Attributes:
    alpha: acceptance rate.
    acceptance: what chains are reckoned with: alpha, or measured rates by position.
    cost_ratio: c.
    drafting_share: of rounds that have a draft.
    rank_rates: p_1, p_2, ... of a token tree.
    saturation_tokens: tokens of a call from which on its cost grows.
    batch_sizes: to show.
    max_draft_length: the longest draft looked at.
    max_nodes: of the largest tree looked at.
    rank_rates_assumed: whether they follow from alpha, for want of measured ones.
  """

  alpha: float
  acceptance: Acceptance
  cost_ratio: float
  drafting_share: float
  rank_rates: tuple[float, ...]
  saturation_tokens: float
  batch_sizes: tuple[int, ...]
  max_draft_length: int
  max_nodes: int
  rank_rates_assumed: bool

  @property
  def call_cost(self) -> CallCost:
    """Of a target call by its tokens."""
    return roofline(self.saturation_tokens)


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: plan(read_flags(argv, _define, __doc__)),
    "interrupted",
  )


def _define(values: flags.FlagValues) -> None:
  def number(name: str, default: float | None, text: str) -> None:
    flags.DEFINE_float(name, default, text, flag_values=values)

  def integer(name: str, default: int, text: str) -> None:
    flags.DEFINE_integer(name, default, text, flag_values=values)

  number("alpha", None, "Acceptance rate: how often a drafted token is kept.")
  number("cost", None, "c: seconds of a draft step over those of a target call on one token.")
  flags.DEFINE_multi_string(
    "from",
    None,
    "Folder of experiments.decode, or a results.jsonl, to fit alpha and c from. It can be given "
    "several times.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "method",
    None,
    "With --from: whose drafter to give advice for. The default is the one that was fastest.",
    flag_values=values,
  )
  number(
    "drafting_share",
    1.0,
    "Share of rounds that have a draft; prompt lookup is silent without a match. --from measures "
    "it.",
  )
  flags.DEFINE_list(
    "rank_rates",
    None,
    "For the token tree: how often the first, second, ... child of an accepted node is the "
    "accepted one. The default takes each sibling to be kept with alpha, once those before it "
    "were not.",
    flag_values=values,
  )
  flags.DEFINE_enum(
    "hardware",
    "v5e",
    sorted(HARDWARE),
    "Whose roofline says from how many tokens on a call costs more, with weights of 2 bytes.",
    flag_values=values,
  )
  number("saturation_tokens", None, "In place of --hardware: those tokens, over all rows.")
  flags.DEFINE_list(
    "batch_sizes", [str(size) for size in _BATCHES], "Batches to show.", flag_values=values
  )
  integer("max_draft_length", 16, "The longest draft looked at.")
  integer("max_nodes", 64, "Nodes of the largest token tree looked at.")
  flags.DEFINE_string("output", "runs/plan.png", "PNG file for the plot.", flag_values=values)


def plan(values: flags.FlagValues) -> None:
  """Prints the advice and draws the plot.

  Raises:
    ValueError: for bad input, rows that cannot tell included.
  """
  output = Path(values.output)
  if output.suffix.lower() != ".png":
    raise ValueError(f"output must be a .png file, got {values.output!r}")
  sources, method = values["from"].value, values.method
  if bool(sources) == (values.alpha is not None or values.cost is not None):
    raise ValueError("give either --alpha and --cost, or --from")
  chosen = None
  acceptance: Acceptance
  if sources:
    if values["drafting_share"].present:
      raise ValueError("drafting_share is measured from the rows of --from; leave it out")
    chosen, text = _fit_all(_read(sources), method)
    print(f"{text}\n")
    alpha, cost = chosen.alpha.value, max(chosen.cost_ratio.value, 0.0)
    share, acceptance = chosen.acceptance.drafting_share, chosen.acceptance.rates
  else:
    if values.alpha is None or values.cost is None:
      raise ValueError("--alpha and --cost must both be given")
    if method is not None:
      raise ValueError("method chooses among the rows of --from; leave it out")
    alpha, cost, share = values.alpha, values.cost, values.drafting_share
    acceptance = alpha
  situation = _situation(values, alpha, acceptance, cost, share)
  print(advice(situation, chosen))
  output.parent.mkdir(parents=True, exist_ok=True)
  print(f"\n{_plot(situation, chosen, output) or f'Plot: {output}'}")


def _situation(
  values: flags.FlagValues,
  alpha: float,
  acceptance: Acceptance,
  cost_ratio: float,
  drafting_share: float,
) -> Situation:
  check_fraction("alpha", alpha)
  check_not_negative("cost", cost_ratio)
  check_fraction("drafting_share", drafting_share)
  for name in ("max_draft_length", "max_nodes"):
    check_integer(name, values[name].value, 1)
  saturation = values.saturation_tokens
  if saturation is None:
    saturation = HARDWARE[values.hardware].saturation_flops_per_byte
  check_positive("saturation_tokens", saturation)
  rates = values.rank_rates
  return Situation(
    alpha=alpha,
    acceptance=acceptance,
    cost_ratio=cost_ratio,
    drafting_share=drafting_share,
    rank_rates=(
      geometric_rank_rates(alpha, _ASSUMED_RANKS)
      if rates is None
      else _numbers("rank_rates", rates, float)
    ),
    saturation_tokens=saturation,
    batch_sizes=_numbers("batch_sizes", values.batch_sizes, int),
    max_draft_length=longest_draft(acceptance, values.max_draft_length),
    max_nodes=values.max_nodes,
    rank_rates_assumed=rates is None,
  )


def _numbers(name: str, texts: Sequence[str], kind: Callable[[str], Any]) -> tuple[Any, ...]:
  """A list of numbers, none of them negative."""
  try:
    numbers = tuple(kind(text) for text in texts)
  except ValueError:
    numbers = ()
  if not numbers or not all(number >= (1 if kind is int else 0) for number in numbers):
    what = "integers >= 1" if kind is int else "numbers >= 0"
    raise ValueError(f"{name} must be {what}, separated by commas, got {','.join(texts)!r}")
  return numbers


# --- fitting -------------------------------------------------------------------------------


def _read(sources: Sequence[str]) -> list[dict[str, Any]]:
  """The rows of folders or files; each says in `run` which one it is of."""
  rows = []
  for source in sources:
    path = Path(source)
    path = path / "results.jsonl" if path.is_dir() else path
    if not path.is_file():
      raise ValueError(f"--from {source} has no results.jsonl")
    for number, row in enumerate(json_lines.read(path), start=1):
      if not isinstance(row, dict) or not isinstance(row.get("method"), str):
        raise ValueError(f"{path} line {number} is not a row of results: it has no 'method'")
      rows.append({**row, "run": str(path)})
  if not rows:
    raise ValueError(f"--from {', '.join(sources)} has no rows")
  return rows


def _fit_all(rows: Sequence[dict[str, Any]], method: str | None) -> tuple[Fit, str]:
  """Fits every method and draft length; returns the one to advise on, and a table of all."""
  plain = [row for row in rows if row["method"] == BASELINE]
  drafters = sorted({(row["method"], _length(row)) for row in rows if row["method"] != BASELINE})
  if method is not None:
    names = sorted({name for name, _ in drafters})
    drafters = [(name, length) for name, length in drafters if name == method]
    if not drafters:
      raise ValueError(f"method must be one that drafts, of {', '.join(names)}, got {method!r}")
  fits, refused = [], []
  for name, length in drafters:
    ours = [row for row in rows if row["method"] == name and _length(row) == length]
    try:
      fits.append(fit([*plain, *ours], name))
    except ValueError as error:
      refused.append(f"{name}, draft length {length}: {error}")
  if not fits:
    raise ValueError("nothing could be fitted: " + ("; ".join(refused) or "no method drafts"))
  header = (
    "method",
    "gamma",
    "prompts",
    "drafts",
    "alpha (95 %)",
    "c (95 %)",
    "tokens/call",
    "by position",
    "one alpha",
    "speed-up (95 %)",
    "expected",
  )
  lines = [
    (
      found.method,
      str(found.acceptance.draft_length),
      str(found.conversations),
      f"{found.acceptance.drafting_share:.0%}",
      str(found.alpha),
      str(found.cost_ratio),
      f"{found.acceptance.measured:.2f}",
      f"{found.acceptance.predicted():.2f}",
      f"{found.acceptance.predicted(rates=found.alpha.value):.2f}",
      str(found.speed_up),
      f"{found.expected_speed_up:.3f}",
    )
    for found in fits
  ]
  best = max(fits, key=lambda found: found.speed_up.value)
  text = [
    f"Fitted from {len(rows)} rows\n{format_table(header, lines)}",
    "drafts: share of target calls that had one. by position, one alpha: tokens/call that the "
    "theory expects from\nthe acceptance rates by position, and from alpha alone. Intervals are "
    "bootstrapped over prompts.",
    *(f"left out: {line}" for line in refused),
    f"Advice for {best.method} (draft length {best.acceptance.draft_length}), from its acceptance "
    f"rates by position:\n{', '.join(f'{rate:.3f}' for rate in best.acceptance.rates)}",
  ]
  if best.cost_ratio.value < 0:
    text.append("Drafting took no measurable time: c is taken to be 0.")
  return best, "\n\n".join(text)


def _length(row: dict[str, Any]) -> int:
  histogram = row.get("accepted_histogram")
  if not isinstance(histogram, list) or not histogram:
    raise ValueError(f"a row of {row['method']!r} in {row['run']} has no accepted_histogram")
  return len(histogram) - 1


# --- advice --------------------------------------------------------------------------------


def advice(situation: Situation, fitted: Fit | None = None) -> str:
  """The tables and sentences as one text.

  Args:
    situation: what to give advice for.
    fitted: where alpha and c came from, for their uncertainty; None if they were given.
  """
  return "\n\n".join(
    [
      _verdict(situation, fitted),
      _length_table(situation),
      _batch_table(situation),
      _tree_advice(situation),
    ]
  )


def _best(situation: Situation) -> Any:
  return best_draft_length(
    situation.acceptance,
    situation.cost_ratio,
    block_cost=_block_cost(situation),
    drafting_share=situation.drafting_share,
    max_draft_length=situation.max_draft_length,
  )


def _block_cost(situation: Situation) -> Callable[[int], float]:
  """v of one row by draft length."""
  cost = situation.call_cost
  return lambda draft_length: cost(draft_length + 1) / cost(1)


def _verdict(situation: Situation, fitted: Fit | None) -> str:
  alpha, cost = situation.alpha, situation.cost_ratio
  share = situation.drafting_share
  given = f"alpha {alpha:.3g}, c {cost:.3g}" + (
    f", {share:.0%} of rounds with a draft" if share < 1 else ""
  )
  best = _best(situation)
  if not best.pays:
    reason = f"no draft length up to {situation.max_draft_length} is faster"
    if fitted is None and alpha <= cost:
      reason = f"alpha ({alpha:.3g}) is not above c ({cost:.3g}), and no draft length is faster"
    text = f"Speculation does not pay with {given}: {reason}."
    if share == 1 and _tree(situation).speed_up > 1:
      text += "\nA token tree may, if its rates by rank are right: see below."
  else:
    text = (
      f"Speculation pays with {given}: best draft length {best.draft_length}, "
      f"{best.expected_tokens:.2f} tokens a target call,\n{best.speed_up:.2f}x the speed of "
      "autoregressive decoding of one row."
    )
    if best.draft_length == situation.max_draft_length:
      text += " A longer draft may be better still" + (
        ": raise --max_draft_length." if fitted is None else ": measure with one."
      )
  if fitted is not None and best.draft_length:

    def at(alpha: float, cost_ratio: float) -> float:
      # What one alpha for all positions gains or loses, put on the rates by position.
      length = best.draft_length
      ours, middle = (expected_tokens(x, length) - 1 for x in (min(alpha, 1.0), situation.alpha))
      tokens = 1 + (best.expected_tokens - 1) * (ours / middle if middle else 1.0)
      added = length * max(cost_ratio, 0.0) + _block_cost(situation)(length) - 1
      return tokens / (1 + share * added)

    low = at(fitted.alpha.low, fitted.cost_ratio.high)
    high = at(fitted.alpha.high, fitted.cost_ratio.low)
    text += f"\nWith alpha and c at the ends of their intervals it is {low:.2f}x to {high:.2f}x."
    if low <= 1:
      text += " The rows do not settle whether it pays."
  return text


def _length_table(situation: Situation) -> str:
  best = _best(situation)
  last = min(max(best.draft_length + 4, 8), situation.max_draft_length)
  lines = []
  for length in range(last + 1):
    tokens, speed_up = _expected(situation, length)
    mark = "<- best" if length == best.draft_length else ""
    lines.append((str(length), f"{tokens:.2f}", f"{speed_up:.2f}x", mark))
  return "By draft length, one row\n" + format_table(
    ("draft length", "tokens/call", "speed-up", ""), lines
  )


def _expected(situation: Situation, draft_length: int) -> tuple[float, float]:
  """Tokens a call and speed-up of one row."""
  share = situation.drafting_share
  return (
    expected_tokens(situation.acceptance, draft_length, drafting_share=share),
    expected_speed_up(
      situation.acceptance,
      draft_length,
      situation.cost_ratio,
      _block_cost(situation)(draft_length),
      drafting_share=share,
    ),
  )


def _in_batch(situation: Situation, batch_size: int) -> Any:
  return best_batched_draft_length(
    situation.acceptance,
    situation.cost_ratio,
    batch_size,
    situation.call_cost,
    drafting_share=situation.drafting_share,
    max_draft_length=situation.max_draft_length,
  )


def _batch_table(situation: Situation) -> str:
  lines = []
  for batch_size in situation.batch_sizes:
    best = _in_batch(situation, batch_size)
    lines.append(
      (
        str(batch_size),
        str(best.draft_length) if best.pays else "-",
        f"{best.expected_tokens:.2f}",
        f"{best.speed_up:.2f}x",
        "yes" if best.pays else "no",
      )
    )
  table = format_table(
    ("batch size", "best draft length", "tokens/call", "speed-up", "pays"), lines
  )
  limit = smallest_losing_batch(
    situation.acceptance,
    situation.cost_ratio,
    situation.call_cost,
    drafting_share=situation.drafting_share,
    max_draft_length=situation.max_draft_length,
  )
  if limit is None:
    end = "It pays in every batch that was looked at."
  elif limit == 1:
    end = "It pays in no batch."
  else:
    end = f"It stops to pay at {limit} rows."
  return (
    f"By batch size (a call costs more from {situation.saturation_tokens:.0f} tokens on; long "
    f"contexts, whose caches must be read, move this)\n{table}\n{end}"
  )


def _tree(situation: Situation) -> TreeChoice:
  """The tree for one row. Only where all rounds draft: a tree's silent rounds are not known."""
  return best_tree_for_cost(
    situation.rank_rates,
    situation.cost_ratio,
    call_cost=situation.call_cost,
    max_nodes=situation.max_nodes,
    max_depth=situation.max_draft_length,
  )


def _tree_advice(situation: Situation) -> str:
  rates = ", ".join(f"{rate:.3g}" for rate in situation.rank_rates)
  choice = _tree(situation)
  head = f"Token tree, one row (a draft in every round; rates by rank {rates})"
  if not choice.tree.num_nodes:
    return f"{head}\nNo tree is faster than autoregressive decoding."
  tree = choice.tree
  chain = best_tree_for_cost(
    situation.rank_rates[:1],
    situation.cost_ratio,
    call_cost=situation.call_cost,
    max_nodes=situation.max_draft_length,
    max_depth=situation.max_draft_length,
  )
  return (
    f"{head}\n{tree.num_nodes} nodes, {tree.depth} levels: {tree.expected_tokens:.2f} tokens a "
    f"target call, {choice.speed_up:.2f}x; the best chain {chain.speed_up:.2f}x.\n"
    f"Nodes by level: {', '.join(map(str, _level_sizes(tree)))}.\n"
    f"parents = {tree.parents}"
    + (
      "\nThe rates take each sibling to be kept with alpha once those before it were not: an upper "
      "limit.\nMeasured ones are given with --rank_rates."
      if situation.rank_rates_assumed
      else ""
    )
  )


def _level_sizes(tree: StaticTree) -> list[int]:
  """Nodes of each level from 1."""
  from specjax.trees import static_depths

  depths = static_depths(tree.parents)
  return [depths.count(level) for level in range(1, tree.depth + 1)]


# --- the plot ------------------------------------------------------------------------------


def _plot(situation: Situation, fitted: Fit | None, path: Path) -> str | None:
  """Draws the PNG; returns a line that says so where matplotlib is missing."""
  try:
    import matplotlib
  except ImportError:
    return "no plot: matplotlib is not installed (pip install 'specjax[plots]')"
  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
  lengths = range(situation.max_draft_length + 1)
  expected = [_expected(situation, length) for length in lengths]
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
  choices = [_in_batch(situation, size) for size in batches]
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
  _draw_tree(right, _tree(situation).tree)
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


if __name__ == "__main__":
  sys.exit(main(sys.argv))
