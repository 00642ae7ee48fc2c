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

import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from experiments.command import answer, read_flags, read_integers
from experiments.plan_advice import advice
from experiments.plan_fit import fit_all, read_rows
from experiments.plan_plot import plot
from experiments.plan_situation import Situation
from specjax.arguments import check_integer
from specjax.evaluation.hardware import HARDWARE
from specjax.evaluation.theory import Acceptance, geometric_rank_rates
from specjax.evaluation.theory_chains import (
  check_fraction,
  check_not_negative,
  check_positive,
  longest_draft,
)

_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ASSUMED_RANKS = 4


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
    chosen, text = fit_all(read_rows(sources), method)
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
  print(f"\n{plot(situation, chosen, output) or f'Plot: {output}'}")


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
      geometric_rank_rates(alpha, _ASSUMED_RANKS) if rates is None else _rank_rates(rates)
    ),
    saturation_tokens=saturation,
    batch_sizes=read_integers("batch_sizes", values.batch_sizes),
    max_draft_length=longest_draft(acceptance, values.max_draft_length),
    max_nodes=values.max_nodes,
    rank_rates_assumed=rates is None,
  )


def _rank_rates(texts: Sequence[str]) -> tuple[float, ...]:
  """A list of numbers, none of them negative."""
  try:
    numbers = tuple(float(text) for text in texts)
  except ValueError:
    numbers = ()
  if not numbers or not all(number >= 0 for number in numbers):
    text = ",".join(texts)
    raise ValueError(f"rank_rates must be numbers >= 0, separated by commas, got {text!r}")
  return numbers


if __name__ == "__main__":
  sys.exit(main(sys.argv))
