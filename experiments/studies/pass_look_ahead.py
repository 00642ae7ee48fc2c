# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""PaSS against the number of look-ahead embeddings, trained and untrained.

Monea, Joulin, Grave (2023, arXiv 2311.13581): speed-up and acceptance against L, at temperature 0
and 0.8, beside look-ahead tokens that were not trained.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.methods import Method, find_trained
from experiments.results import Row
from experiments.studies.bench import Bench
from experiments.studies.measures import (
  block_efficiency,
  number,
  percent,
  speed_up,
  token_acceptance,
)
from experiments.studies.study import StudyReport, Table
from specjax.drafters import Empty
from specjax.drafters.drafter_file import read_drafter, save_drafter
from specjax.drafters.pass_look_ahead import from_trained
from specjax.text import TextGenerator
from specjax.training.objective import TrainedDrafter
from specjax.training.pass_objective import PaSSObjective

# How look-ahead embeddings are used: with two target calls a round as in the paper, or with one.
VARIANTS = ("trained", "untrained", "merged")


def study(bench: Bench) -> StudyReport:
  """Decodes with every L, in every variant, at every temperature.

  Options: `look_aheads` (the L), `temperatures`, and `drafter` (a file; None is the one that
  comes with specjax).

  Raises:
    ValueError: without a trained drafter for the target, or for an L that it does not serve.
  """
  options = bench.options
  path = options["drafter"] or find_trained("pass", bench.target)
  trained, _ = read_drafter(path)
  look_aheads = tuple(options["look_aheads"])
  methods = _methods(bench, Path(path), trained, look_aheads)
  numbers = [
    _numbers(
      bench.decode(f"temperature-{temperature:g}", methods, temperature=temperature),
      temperature,
      look_aheads,
    )
    for temperature in options["temperatures"]
  ]
  return StudyReport(
    title="PaSS: how many look-ahead tokens",
    introduction=(
      "Monea, Joulin, Grave (2023, arXiv 2311.13581) give speed-up and acceptance against L, the "
      "number of look-ahead embeddings. *trained* makes two target calls a round, as the paper "
      "does; *untrained* does so with the embeddings that training starts from (the mean of the "
      "vocabulary's and a little noise); *merged* is ours: the trained embeddings with one target "
      "call a round. tokens/call counts every target call; acceptance is how often a look-ahead "
      "token is kept whose predecessors were; speed-up is over autoregressive decoding of the same "
      "prompts in turn."
    ),
    tables=[_table(part) for part in numbers],
    draw=lambda figure: _draw(figure, numbers),
    numbers=numbers,
    figure_size=(11.0, 3.6 * len(numbers)),
  )


def _methods(
  bench: Bench, path: Path, trained: TrainedDrafter, look_aheads: Sequence[int]
) -> list[Method]:
  target = bench.target
  untrained_path = bench.work / "untrained.safetensors"
  untrained = _untrained(bench, trained)
  save_drafter(untrained_path, untrained, target.model, target.params, target.name)
  methods = [Method("autoregressive", TextGenerator(target, drafter=Empty()), lossless=True)]
  for look_ahead in look_aheads:
    for variant in VARIANTS:
      drafter, params = from_trained(
        untrained if variant == "untrained" else trained,
        target.model,
        target.params,
        look_ahead=look_ahead,
        merged=variant == "merged",
      )
      drafter.check(target.model)
      generator = TextGenerator(target, drafter=drafter, drafter_params=params)
      file = untrained_path if variant == "untrained" else path
      name = f"{variant} L={look_ahead}"
      methods.append(Method(name, generator, lossless=True, drafter_file=file))
  return methods


def _untrained(bench: Bench, trained: TrainedDrafter) -> TrainedDrafter:
  """As many embeddings as were trained, as training starts from them."""
  count = np.shape(trained.arrays["look_ahead"])[0]
  objective = PaSSObjective(bench.target.model, look_ahead=count)
  start = objective.init(jax.random.key(0), bench.target.params)
  return objective.export(start, bench.target.params)


def _numbers(
  rows: Mapping[str, Sequence[Row]], temperature: float, look_aheads: Sequence[int]
) -> dict[str, Any]:
  """What is shown of one temperature."""
  baseline = rows["autoregressive"]
  cells = []
  for look_ahead in look_aheads:
    for variant in VARIANTS:
      chosen = rows[f"{variant} L={look_ahead}"]
      cells.append(
        {
          "look_ahead": look_ahead,
          "variant": variant,
          "tokens_per_call": block_efficiency(chosen),
          "acceptance": token_acceptance(chosen, look_ahead),
          "speed_up": speed_up(chosen, baseline),
        }
      )
  return {"temperature": temperature, "cells": cells}


def _table(numbers: Mapping[str, Any]) -> Table:
  header = ["L"]
  for variant in VARIANTS:
    header += [f"{variant}: tokens/call", "acceptance", "speed-up"]
  lines: dict[int, list[str]] = {}
  for cell in numbers["cells"]:
    line = lines.setdefault(cell["look_ahead"], [str(cell["look_ahead"])])
    line += [
      number(cell["tokens_per_call"]),
      percent(cell["acceptance"]),
      number(cell["speed_up"], "{:.2f}x"),
    ]
  temperature = numbers["temperature"]
  greedy = " (greedy)" if temperature == 0 else ""
  return Table(f"Temperature {temperature:g}{greedy}", header, list(lines.values()))


def _draw(figure: Any, numbers: Sequence[Mapping[str, Any]]) -> None:
  axes = figure.subplots(len(numbers), 3, squeeze=False)
  shown = (
    ("tokens_per_call", "tokens a target call"),
    ("acceptance", "acceptance rate"),
    ("speed_up", "speed-up"),
  )
  for part, row in zip(numbers, axes, strict=True):
    for axis, (key, title) in zip(row, shown, strict=True):
      for variant in VARIANTS:
        cells = [cell for cell in part["cells"] if cell["variant"] == variant]
        x = [cell["look_ahead"] for cell in cells]
        axis.plot(x, [cell[key] for cell in cells], "o-", label=variant)
      axis.set_title(f"{title}, temperature {part['temperature']:g}")
      axis.set_xlabel("look-ahead embeddings L")
      axis.grid(alpha=0.3)
    row[0].legend()
