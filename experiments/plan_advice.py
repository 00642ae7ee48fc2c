# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The words and tables of experiments.plan."""

from experiments.plan_situation import Situation
from experiments.report import format_table
from specjax.evaluation.theory import Fit, StaticTree, expected_tokens
from specjax.trees import static_depths


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


def _verdict(situation: Situation, fitted: Fit | None) -> str:
  alpha, cost = situation.alpha, situation.cost_ratio
  share = situation.drafting_share
  given = f"alpha {alpha:.3g}, c {cost:.3g}" + (
    f", {share:.0%} of rounds with a draft" if share < 1 else ""
  )
  best = situation.best
  if not best.pays:
    reason = f"no draft length up to {situation.max_draft_length} is faster"
    if fitted is None and alpha <= cost:
      reason = f"alpha ({alpha:.3g}) is not above c ({cost:.3g}), and no draft length is faster"
    text = f"Speculation does not pay with {given}: {reason}."
    if share == 1 and situation.tree.speed_up > 1:
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
      added = length * max(cost_ratio, 0.0) + situation.block_cost(length) - 1
      return tokens / (1 + share * added)

    low = at(fitted.alpha.low, fitted.cost_ratio.high)
    high = at(fitted.alpha.high, fitted.cost_ratio.low)
    text += f"\nWith alpha and c at the ends of their intervals it is {low:.2f}x to {high:.2f}x."
    if low <= 1:
      text += " The rows do not settle whether it pays."
  return text


def _length_table(situation: Situation) -> str:
  best = situation.best
  last = min(max(best.draft_length + 4, 8), situation.max_draft_length)
  lines = []
  for length in range(last + 1):
    tokens, speed_up = situation.expected(length)
    mark = "<- best" if length == best.draft_length else ""
    lines.append((str(length), f"{tokens:.2f}", f"{speed_up:.2f}x", mark))
  return "By draft length, one row\n" + format_table(
    ("draft length", "tokens/call", "speed-up", ""), lines
  )


def _batch_table(situation: Situation) -> str:
  lines = []
  for batch_size in situation.batch_sizes:
    best = situation.in_batch(batch_size)
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
  limit = situation.smallest_losing_batch
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


def _tree_advice(situation: Situation) -> str:
  rates = ", ".join(f"{rate:.3g}" for rate in situation.rank_rates)
  choice = situation.tree
  head = f"Token tree, one row (a draft in every round; rates by rank {rates})"
  if not choice.tree.num_nodes:
    return f"{head}\nNo tree is faster than autoregressive decoding."
  tree = choice.tree
  return (
    f"{head}\n{tree.num_nodes} nodes, {tree.depth} levels: {tree.expected_tokens:.2f} tokens a "
    f"target call, {choice.speed_up:.2f}x; the best chain {situation.chain.speed_up:.2f}x.\n"
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
  depths = static_depths(tree.parents)
  return [depths.count(level) for level in range(1, tree.depth + 1)]
