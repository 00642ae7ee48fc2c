# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Speculative sampling against the draft length, beside what its analysis predicts.

Leviathan, Kalman, Matias (2023, arXiv 2211.17192), Theorem 3.8: with acceptance rate alpha, draft
length gamma and a draft step that costs c of a target call, a round makes
(1 - alpha^(gamma + 1)) / (1 - alpha) tokens in the time of gamma c + 1 target calls. That takes a
target call on gamma + 1 tokens to cost what one on a single token does; where it costs v times as
much, the time is gamma c + v.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.methods import Method, find_trained
from experiments.results import Row
from experiments.studies.bench import Bench
from experiments.studies.measures import (
  block_efficiency,
  number,
  percent,
  seconds_per_call,
  speed_up,
  token_acceptance,
)
from experiments.studies.study import StudyReport, Table
from specjax.drafters import DraftModel, Empty
from specjax.drafters.drafter_file import load_drafter
from specjax.evaluation.theory import expected_speed_up, expected_tokens
from specjax.text import TextGenerator

_TARGET, _DRAFT = "autoregressive", "draft model alone"


def study(bench: Bench) -> StudyReport:
  """Decodes with every draft length at every temperature, and measures c and v beside it.

  Options: `draft_lengths`, `temperatures`, and `drafter` (a file; None is the trained draft model
  that comes with specjax).

  Raises:
    ValueError: without a trained draft model for the target.
  """
  options = bench.options
  lengths = tuple(options["draft_lengths"])
  methods = _methods(bench, lengths)
  numbers = [
    _numbers(
      bench.decode(f"temperature-{temperature:g}", methods, temperature=temperature),
      temperature,
      lengths,
    )
    for temperature in options["temperatures"]
  ]
  return StudyReport(
    title="Speculative sampling: how long a draft",
    introduction=(
      "Leviathan, Kalman, Matias (2023, arXiv 2211.17192) predict the speed-up from alpha, the "
      "probability that a drafted token is kept, and c, the seconds of a draft step over those of "
      "a target call. alpha is measured at each draft length; predictions take that of all draft "
      "lengths together. c is measured by decoding with the draft model alone. *Theorem 3.8* "
      "takes a call on a block to cost what a call on one token does; *with v* puts in the "
      "measured v, the cost of a call on 1 + gamma tokens, their draft empty. All methods decode "
      "the same prompts in turn, one prompt at a time."
    ),
    tables=[_table(part) for part in numbers],
    draw=lambda figure: _draw(figure, numbers),
    numbers=numbers,
    figure_size=(11.0, 3.8 * len(numbers)),
  )


def _methods(bench: Bench, lengths: Sequence[int]) -> list[Method]:
  target = bench.target
  path = Path(bench.options["drafter"] or find_trained("draft_model", target))
  trained, params = load_drafter(path, target.model, target.params, target_name=target.name)
  if not isinstance(trained, DraftModel):
    raise ValueError(f"drafter {path} must be a draft model, got a {type(trained).__name__}")
  draft = dataclasses.replace(target, model=trained.model, params=params)
  methods = [
    Method(_TARGET, TextGenerator(target, drafter=Empty()), lossless=True),
    Method(_DRAFT, TextGenerator(draft, drafter=Empty()), lossless=False, drafter_file=path),
  ]
  for length in lengths:
    drafter = dataclasses.replace(trained, draft_length=length)
    generator = TextGenerator(target, drafter=drafter, drafter_params=params)
    methods.append(Method(_speculative(length), generator, lossless=True, drafter_file=path))
    empty = TextGenerator(target, drafter=Empty(draft_length=length))
    methods.append(Method(_empty(length), empty, lossless=True))
  return methods


def _speculative(length: int) -> str:
  return f"gamma={length}"


def _empty(length: int) -> str:
  return f"empty gamma={length}"


def _numbers(
  rows: Mapping[str, Sequence[Row]], temperature: float, lengths: Sequence[int]
) -> dict[str, Any]:
  """What is shown of one temperature."""
  one = seconds_per_call(rows[_TARGET])
  draft = seconds_per_call(rows[_DRAFT])
  ratio = draft / one if one and draft else None
  judged = [(rows[_speculative(length)], length) for length in lengths]
  # The mean over draft lengths: each length decodes the same prompts and counts alike.
  alphas = [token_acceptance(chosen, length) for chosen, length in judged]
  known = [alpha for alpha in alphas if alpha is not None]
  alpha = float(np.mean(known)) if known else None
  cells = []
  for (chosen, length), own in zip(judged, alphas, strict=True):
    block = seconds_per_call(rows[_empty(length)])
    block_cost = block / one if one and block else None
    cell = {
      "draft_length": length,
      "alpha": own,
      "block_cost": block_cost,
      "tokens_per_call": block_efficiency(chosen),
      "speed_up": speed_up(chosen, rows[_TARGET]),
      "predicted_tokens": None,
      "predicted_speed_up": None,
      "predicted_with_block_cost": None,
    }
    if alpha is not None:
      cell["predicted_tokens"] = expected_tokens(alpha, length)
      if ratio is not None and block_cost is not None:
        cell["predicted_speed_up"] = expected_speed_up(alpha, length, ratio)
        cell["predicted_with_block_cost"] = expected_speed_up(alpha, length, ratio, block_cost)
    cells.append(cell)
  return {"temperature": temperature, "alpha": alpha, "cost_ratio": ratio, "cells": cells}


def _table(numbers: Mapping[str, Any]) -> Table:
  header = (
    "gamma",
    "alpha",
    "v",
    "tokens/call",
    "equation 1",
    "speed-up",
    "Theorem 3.8",
    "with v",
  )
  lines = [
    [
      str(cell["draft_length"]),
      percent(cell["alpha"]),
      number(cell["block_cost"]),
      number(cell["tokens_per_call"]),
      number(cell["predicted_tokens"]),
      number(cell["speed_up"], "{:.2f}x"),
      number(cell["predicted_speed_up"], "{:.2f}x"),
      number(cell["predicted_with_block_cost"], "{:.2f}x"),
    ]
    for cell in numbers["cells"]
  ]
  title = (
    f"Temperature {numbers['temperature']:g}: alpha {percent(numbers['alpha'])}, "
    f"c {number(numbers['cost_ratio'], '{:.3f}')}"
  )
  return Table(title, header, lines)


def _draw(figure: Any, numbers: Sequence[Mapping[str, Any]]) -> None:
  axes = figure.subplots(len(numbers), 2, squeeze=False)
  shown = (
    (
      "block efficiency",
      (("tokens_per_call", "measured", "o-"), ("predicted_tokens", "equation 1", "--")),
    ),
    (
      "speed-up",
      (
        ("speed_up", "measured", "o-"),
        ("predicted_speed_up", "Theorem 3.8", "--"),
        ("predicted_with_block_cost", "with v", ":"),
      ),
    ),
  )
  for part, row in zip(numbers, axes, strict=True):
    x = [cell["draft_length"] for cell in part["cells"]]
    for axis, (title, curves) in zip(row, shown, strict=True):
      for key, label, style in curves:
        axis.plot(x, [cell[key] for cell in part["cells"]], style, label=label)
      axis.set_title(f"{title}, temperature {part['temperature']:g}")
      axis.set_xlabel("draft length gamma")
      axis.grid(alpha=0.3)
      axis.legend()
