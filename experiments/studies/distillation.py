# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The acceptance rate of a draft model that was distilled by each loss on each source of text.

Zhou et al. (2023, DistillSpec, arXiv 2310.08461), section 5: how well draft and target models
agree after distillation with several divergences, on text of the target (the teacher), of the draft
model itself (the student, on-policy), or of both.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.methods import Method
from experiments.results import Row
from experiments.studies.bench import Bench
from experiments.studies.measures import block_efficiency, number, percent, token_acceptance
from experiments.studies.study import StudyReport, Table
from specjax.drafters.drafter_file import load_drafter, read_drafter, save_drafter
from specjax.models.checkpoint import Checkpoint
from specjax.models.vocabulary_subset import TokenSubset
from specjax.text import TextGenerator
from specjax.training.distillation_objective import (
  CRITERIA,
  DATA_SOURCES,
  DistillationObjective,
)
from specjax.training.objective import TrainedDrafter

# The loss that learns the teacher's tokens, not its distribution.
_LABELS = "cross_entropy"


@dataclasses.dataclass(frozen=True)
class Recipe:
  """One way to distil.

  Attributes:
    loss: a name of `CRITERIA`, or None for the draft model that was not trained.
    source: a name of `DATA_SOURCES`: whose text it was trained on; None without training.
  """

  loss: str | None = None
  source: str | None = None

  @property
  def name(self) -> str:
    """For folders and rows."""
    return "undistilled" if self.loss is None else f"{self.loss}-{self.source}"


UNDISTILLED = Recipe()


def study(bench: Bench) -> StudyReport:
  """Trains with every loss on every source of text and measures each at every temperature.

  Options: `losses`, `sources`, `steps`, `draft_length`, `temperatures`.

  Raises:
    ValueError: for an unknown loss or source, or settings that training or decoding refuses.
  """
  options = bench.options
  recipes = _recipes(options["losses"], options["sources"])
  files = {recipe: _train(bench, recipe) / "drafter.safetensors" for recipe in recipes}
  files = {UNDISTILLED: _save_undistilled(bench, files[recipes[0]]), **files}
  methods = [_method(bench, recipe, file) for recipe, file in files.items()]
  numbers = []
  for temperature in options["temperatures"]:
    name = f"temperature-{temperature:g}"
    rows = bench.decode(name, methods, verifier="rejection_sampling", temperature=temperature)
    by_recipe = {recipe: rows[recipe.name] for recipe in files}
    cells = _cells(by_recipe, options["draft_length"])
    numbers.append({"temperature": temperature, "cells": cells})
  return StudyReport(
    title="Distillation: losses and sources of text",
    introduction=_introduction(options),
    tables=[_table(part) for part in numbers],
    draw=lambda figure: _draw(figure, numbers),
    numbers=numbers,
    figure_size=(8.0 * len(numbers), 4.0),
  )


# --- training ------------------------------------------------------------------------------------


def _recipes(losses: Sequence[str], sources: Sequence[str]) -> list[Recipe]:
  """Every loss with every source; the cross-entropy, which is of the teacher's tokens, once."""
  for name, values, known in (("losses", losses, CRITERIA), ("sources", sources, DATA_SOURCES)):
    if not values or any(value not in known for value in values):
      raise ValueError(f"{name} must name some of {', '.join(known)}, got {tuple(values)}")
  pairs = [
    (loss, source) for loss in losses for source in (("teacher",) if loss == _LABELS else sources)
  ]
  return [Recipe(*pair) for pair in dict.fromkeys(pairs)]


def _train(bench: Bench, recipe: Recipe) -> Path:
  """The folder of a training run; all of them begin with the same draft model."""
  options = bench.options
  objective = {
    "criterion": recipe.loss,
    "data_source": recipe.source,
    "teacher": "labels" if recipe.loss == _LABELS else "recompute",
    "draft_length": options["draft_length"],
  }
  changes = {"num_steps": options["steps"], "objective": objective}
  return bench.train(recipe.name, "train_draft_model", changes)


def _save_undistilled(bench: Bench, trained_file: Path) -> Path:
  """Writes the draft model that training begins with; returns its file.

  Args:
    bench: of the study.
    trained_file: any of the trained ones: what layers and which tokens it has is what all have.
  """
  trained, _ = read_drafter(trained_file)
  path = bench.work / "undistilled.safetensors"
  target = bench.target
  save_drafter(path, undistilled(trained, target), target.model, target.params, target.name)
  return path


def undistilled(trained: TrainedDrafter, target: Checkpoint) -> TrainedDrafter:
  """The draft model of the same layers and the same draft vocabulary before its training."""
  settings = trained.settings
  kept = trained.arrays.get("kept")
  objective = DistillationObjective(
    target.model,
    layers=tuple(settings["layers"]),
    draft_vocabulary=None if kept is None else TokenSubset.of(np.asarray(kept)),
    rank=settings["rank"],
    storage=settings["storage"],
    draft_length=settings["draft_length"],
  )
  start = objective.init(jax.random.key(0), target.params)
  return objective.export(start, target.params)


def _method(bench: Bench, recipe: Recipe, file: Path) -> Method:
  target = bench.target
  drafter, params = load_drafter(
    file,
    target.model,
    target.params,
    target_name=target.name,
    draft_length=bench.options["draft_length"],
  )
  raw = bench.decode_settings.get("raw", False)
  generator = TextGenerator(target, drafter=drafter, drafter_params=params, raw=raw)
  return Method(recipe.name, generator, lossless=True, drafter_file=file)


# --- numbers -------------------------------------------------------------------------------------


def _cells(rows: Mapping[Recipe, Sequence[Row]], draft_length: int) -> list[dict[str, Any]]:
  """What is shown of one temperature, the undistilled draft model first."""
  cells = []
  for recipe, chosen in rows.items():
    gain, error = acceptance_gain(chosen, rows[UNDISTILLED], draft_length)
    trained = recipe != UNDISTILLED
    cells.append(
      {
        "loss": recipe.loss,
        "source": recipe.source,
        "alpha": token_acceptance(chosen, draft_length),
        "gain": gain if trained else None,
        "gain_standard_error": error if trained else None,
        "tokens_per_call": block_efficiency(chosen),
      }
    )
  return cells


def acceptance_gain(
  rows: Sequence[Row], baseline: Sequence[Row], draft_length: int
) -> tuple[float | None, float | None]:
  """How much higher alpha is than a baseline's on the same prompts, and the standard error of it.

  The standard error is the jackknife's over prompts: blocks of one text are no independent draws.

  Args:
    rows: of one draft model.
    baseline: of another.
    draft_length: L, of both.

  Returns:
    The gain, None where nothing was drafted; its standard error, None for fewer than two prompts.
  """

  def gain(without: int | None = None) -> float | None:
    parts = ([row for row in part if row["prompt_index"] != without] for part in (rows, baseline))
    ours, theirs = (token_acceptance(part, draft_length) for part in parts)
    return None if ours is None or theirs is None else ours - theirs

  prompts = sorted({row["prompt_index"] for row in rows})
  left = [value for prompt in prompts if (value := gain(prompt)) is not None]
  if len(left) < 2:
    return gain(), None
  return gain(), float(np.sqrt((len(left) - 1) * np.var(left)))


# --- report --------------------------------------------------------------------------------------


def _introduction(options: Mapping[str, Any]) -> str:
  return (
    "Zhou et al. (2023, DistillSpec, arXiv 2310.08461) distil a target into its draft model so "
    "that more of its tokens are kept, and compare losses and sources of text. Here the draft "
    "model is some of the target's own layers under its output head, restricted to a draft "
    f"vocabulary; every line is trained from there, for {options['steps']} steps. *teacher* is the "
    "target's own greedy text, *student* is text that the draft model samples while it is trained, "
    "scored by the target, and *mix* takes either for a step, at random; the paper's ground truth "
    "texts are left out. The cross-entropy learns the tokens of the teacher's text without its "
    "distribution. "
    "alpha is how often a drafted token is kept whose predecessors were, at draft length "
    f"{options['draft_length']}; tokens/call is the block efficiency, the target's own token "
    "included. All draft for the same prompts with the same random keys. The gain in alpha over "
    "the undistilled draft model comes with its standard error over prompts (jackknife)."
  )


def _table(numbers: Mapping[str, Any]) -> Table:
  header = ("loss", "text", "alpha", "gain", "standard error", "tokens/call")
  lines = [
    (
      _words(cell["loss"]),
      cell["source"] or "-",
      percent(cell["alpha"]),
      number(cell["gain"], "{:+.1%}"),
      percent(cell["gain_standard_error"]),
      number(cell["tokens_per_call"]),
    )
    for cell in numbers["cells"]
  ]
  greedy = " (greedy)" if numbers["temperature"] == 0 else ""
  return Table(f"Temperature {numbers['temperature']:g}{greedy}", header, lines)


def _words(loss: str | None) -> str:
  return "undistilled" if loss is None else loss.replace("_", " ")


def _draw(figure: Any, numbers: Sequence[Mapping[str, Any]]) -> None:
  """A group of bars for each loss, and lines for what has no source of text to compare."""
  axes = figure.subplots(1, len(numbers), squeeze=False, sharey=True)[0]
  for axis, part in zip(axes, numbers, strict=True):
    bars = [cell for cell in part["cells"] if cell["loss"] not in (None, _LABELS)]
    losses = list(dict.fromkeys(cell["loss"] for cell in bars))
    sources = list(dict.fromkeys(cell["source"] for cell in bars))
    width = 0.8 / max(len(sources), 1)
    for index, source in enumerate(sources):
      chosen = [cell for cell in bars if cell["source"] == source]
      shift = (index - (len(sources) - 1) / 2) * width
      axis.bar(
        [losses.index(cell["loss"]) + shift for cell in chosen],
        [cell["alpha"] or 0.0 for cell in chosen],
        width,
        label=f"{source}'s text" if source != "mix" else "a mix of both",
        color=f"C{index}",
      )
    for cell, style in zip(
      (cell for cell in part["cells"] if cell["loss"] in (None, _LABELS)), ("--", ":"), strict=False
    ):
      if cell["alpha"] is not None:
        axis.axhline(cell["alpha"], color="black", linestyle=style, label=_words(cell["loss"]))
    axis.set_xticks(range(len(losses)), [_words(loss) for loss in losses])
    axis.set_title(f"acceptance rate, temperature {part['temperature']:g}")
    axis.grid(axis="y", alpha=0.3)
    # Above the bars: they fill the axes.
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=5, frameon=False)
