# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Blockwise parallel decoding against k: what was trained, on which text, and what is accepted.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), Table 1: the mean accepted block size for heads
on a frozen or a fine-tuned target, trained on original or distilled text, and for acceptance of
the target's best few tokens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.methods import Method
from experiments.report import summarize
from experiments.results import Row
from experiments.studies.bench import Bench
from experiments.studies.measures import (
  block_efficiency,
  number,
  percent,
  speed_up,
  tokens_per_second,
)
from experiments.studies.study import StudyReport, Table
from specjax.drafters import Empty
from specjax.drafters.drafter_file import load_drafter
from specjax.models import checkpoint
from specjax.models.checkpoint import Checkpoint
from specjax.text import TextGenerator
from specjax.types import Verifier
from specjax.verifiers import GreedyMatch, TopKMatch

_BASELINE = "autoregressive"


@dataclasses.dataclass(frozen=True)
class Setting:
  """A column of the paper's table.

  Attributes:
    fine_tune: whether the target is trained along.
    data_part: what of the token data is trained on: "prompts", which people wrote, is the original
      text, "answers", the target's own, the distilled one.
  """

  fine_tune: bool
  data_part: str

  @property
  def name(self) -> str:
    """The column's name."""
    target = "fine-tuned" if self.fine_tune else "frozen"
    return f"{target}, {'original' if self.data_part == 'prompts' else 'distilled'}"

  @property
  def folder(self) -> str:
    """The same for names of folders."""
    return self.name.replace(", ", "-")


FROZEN_DISTILLED = Setting(fine_tune=False, data_part="answers")
SETTINGS = (
  Setting(fine_tune=False, data_part="prompts"),
  FROZEN_DISTILLED,
  Setting(fine_tune=True, data_part="prompts"),
  Setting(fine_tune=True, data_part="answers"),
)


@dataclasses.dataclass(frozen=True)
class Decoded:
  """What was decoded with the heads of one setting.

  Attributes:
    rows: by k.
    baselines: autoregressive decoding of the target that those heads are on, in turn, by k.
  """

  rows: Mapping[int, Sequence[Row]]
  baselines: Mapping[int, Sequence[Row]]


def study(bench: Bench) -> StudyReport:
  """Trains heads in every setting and decodes with every k; frozen ones with looser rules too.

  Options: `block_sizes` (the k), `accept_top_k`, `steps`, `fine_tune_steps`,
  `fine_tune_learning_rate`, and `separate_trainings`: whether each k is trained apart.

  Raises:
    ValueError: for a k below 2, or settings that training or decoding refuses.
  """
  options = bench.options
  sizes = tuple(options["block_sizes"])
  if not sizes or not all(isinstance(size, int) and size >= 2 for size in sizes):
    raise ValueError(f"block_sizes must be integers >= 2, at least one, got {sizes}")
  files = {setting: _train(bench, setting, sizes) for setting in SETTINGS}
  exact = {setting: _decode_exact(bench, setting, files[setting]) for setting in SETTINGS}
  loose = {
    count: _decode_top_k(bench, files[FROZEN_DISTILLED], count) for count in options["accept_top_k"]
  }
  # The frozen target's own greedy text; a target that was trained along writes another.
  original = exact[FROZEN_DISTILLED].baselines[sizes[0]]
  numbers = {
    "settings": [_exact_numbers(setting, exact[setting], original) for setting in SETTINGS],
    "top_k": [_top_k_numbers(count, rows) for count, rows in loose.items()],
    "autoregressive_tokens_per_second": tokens_per_second(original),
  }
  return StudyReport(
    title="Blockwise parallel decoding: how many heads",
    introduction=_introduction(bench, sizes),
    tables=_tables(numbers),
    draw=lambda figure: _draw(figure, numbers),
    numbers=numbers,
  )


# --- training and decoding -----------------------------------------------------------------------


def _train(bench: Bench, setting: Setting, sizes: Sequence[int]) -> dict[int, Path]:
  """The folder of the training run whose heads each k uses."""
  options = bench.options
  separate = options["separate_trainings"]
  trained = {size: size if separate else max(sizes) for size in sizes}
  changes: dict[str, Any] = {"data_part": setting.data_part, "num_steps": options["steps"]}
  if setting.fine_tune:
    changes["num_steps"] = options["fine_tune_steps"]
    changes["learning_rate"] = options["fine_tune_learning_rate"]
  folders = {}
  for size in sorted(set(trained.values())):
    objective = {"draft_length": size - 1, "fine_tune": setting.fine_tune}
    name = f"{setting.folder}-k{size}"
    folders[size] = bench.train(name, "train_blockwise", {**changes, "objective": objective})
  return {size: folders[trained[size]] for size in sizes}


def _decode_exact(bench: Bench, setting: Setting, folders: Mapping[int, Path]) -> Decoded:
  """Decodes with every k and autoregressively, target by target."""
  by_target: dict[Path | None, dict[int, Path]] = {}
  for size, folder in folders.items():
    path = folder / "target" if setting.fine_tune else None
    by_target.setdefault(path, {})[size] = folder
  rows: dict[int, Sequence[Row]] = {}
  baselines: dict[int, Sequence[Row]] = {}
  for path, chosen in by_target.items():
    target = bench.target if path is None else _tuned_target(bench, path)
    methods = _methods(bench, target, chosen, GreedyMatch())
    name = f"exact-{_names(chosen)}"
    found = bench.decode(name, methods, target=target, verifier="greedy_match", temperature=0.0)
    for size in chosen:
      rows[size], baselines[size] = found[f"k={size}"], found[_BASELINE]
  return Decoded(rows, baselines)


def _tuned_target(bench: Bench, folder: Path) -> Checkpoint:
  """The target that was trained along with its heads."""
  target = checkpoint.load(str(folder), dtype=bench.dtype)
  # Orbax ties arrays to a device, and for such arrays all programs would be compiled again.
  params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), target.params)
  return dataclasses.replace(target, params=params)


def _decode_top_k(
  bench: Bench, folders: Mapping[int, Path], count: int
) -> dict[int, Sequence[Row]]:
  """Decodes with every k, keeping a token that is among the target's `count` best."""
  methods = _methods(bench, bench.target, folders, TopKMatch(count))[1:]
  settings: dict[str, Any] = {
    "verifier": "top_k_match",
    "accept_top_k": count,
    "temperature": 0.0,
  }
  found = bench.decode(f"top-{count}-{_names(folders)}", methods, **settings)
  return {size: found[f"k={size}"] for size in folders}


def _names(folders: Mapping[int, Path]) -> str:
  """For the folder of what is decoded with these trainings: others have rows of their own."""
  return "+".join(sorted({folder.name for folder in folders.values()}))


def _methods(
  bench: Bench, target: Checkpoint, folders: Mapping[int, Path], verifier: Verifier
) -> list[Method]:
  """Autoregressive decoding first, then a method for each k."""
  raw = bench.decode_settings.get("raw", False)
  plain = TextGenerator(target, drafter=Empty(), verifier=verifier, raw=raw)
  methods = [Method(_BASELINE, plain, lossless=True)]
  for size, folder in folders.items():
    file = folder / "drafter.safetensors"
    drafter, params = load_drafter(
      file, target.model, target.params, target_name=target.name, draft_length=size - 1
    )
    generator = TextGenerator(
      target, drafter=drafter, drafter_params=params, verifier=verifier, raw=raw
    )
    methods.append(Method(f"k={size}", generator, verifier.lossless, drafter_file=file))
  return methods


# --- numbers -------------------------------------------------------------------------------------


def _exact_numbers(setting: Setting, decoded: Decoded, original: Sequence[Row]) -> dict[str, Any]:
  """What is shown of one setting."""
  cells = [
    {
      "k": size,
      "block_size": block_efficiency(rows),
      "speed_up": speed_up(rows, decoded.baselines[size]),
      "text_kept": text_kept(rows, original),
    }
    for size, rows in decoded.rows.items()
  ]
  return {"name": setting.name, "cells": cells}


def _top_k_numbers(count: int, rows: Mapping[int, Sequence[Row]]) -> dict[str, Any]:
  """What is shown of one acceptance rule."""
  cells = []
  for size, chosen in rows.items():
    summary = summarize(chosen)
    per_token = summary.deviations / summary.new_tokens if summary.new_tokens else None
    cells.append(
      {"k": size, "block_size": summary.block_efficiency, "deviations_per_token": per_token}
    )
  return {"accept_top_k": count, "cells": cells}


def text_kept(rows: Sequence[Row], original: Sequence[Row]) -> float | None:
  """How much of the original text stands before the first token that differs from it.

  Args:
    rows: of any decoding.
    original: of the same prompts, autoregressively by the original target.

  Returns:
    The share over all rows; None where the original has no token.
  """
  ours = {(row["prompt_index"], row["turn"]): row["token_ids"] for row in rows}
  kept = 0
  for row in original:
    for ours_here, theirs_here in zip(
      ours[row["prompt_index"], row["turn"]], row["token_ids"], strict=False
    ):
      if ours_here != theirs_here:
        break
      kept += 1
  total = sum(len(row["token_ids"]) for row in original)
  return kept / total if total else None


# --- report --------------------------------------------------------------------------------------


def _introduction(bench: Bench, sizes: Sequence[int]) -> str:
  options = bench.options
  if options["separate_trainings"]:
    heads = "Each k is trained apart, as in the paper."
  else:
    heads = (
      f"The paper trains each k apart; here the heads of k = {max(sizes)} are trained once in each "
      "setting, and a smaller k uses the first of them (--config.options.separate_trainings=True "
      "does as the paper)."
    )
  return (
    "Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115) give in Table 1 the mean accepted block "
    "size against k, the number of heads with the target's own: how many tokens a target call "
    "commits. *frozen* trains the heads alone, *fine-tuned* the target along with them. "
    "*distilled* is text that the target wrote itself, greedily; *original* is text that people "
    "wrote, for which the prompts of the same data stand in, their chat template included (the "
    f"paper has reference translations). {heads} Training took {options['steps']} steps for the "
    f"heads alone and {options['fine_tune_steps']} for heads and target together, far fewer than "
    "the paper's, so that columns of different lengths of training compare with care. The first "
    "head is the target unchanged, where the paper sends it through the learned layer too. "
    "Decoding is greedy. The paper's distance rule needs an ordinal vocabulary: the study "
    "super_resolution has it."
  )


def _tables(numbers: Mapping[str, Any]) -> list[Table]:
  settings, loose = numbers["settings"], numbers["top_k"]
  header = ["k", *(part["name"] for part in settings)]

  def lines(key: str, pattern: str) -> list[list[str]]:
    columns = [[number(cell[key], pattern) for cell in part["cells"]] for part in settings]
    sizes = [str(cell["k"]) for cell in settings[0]["cells"]]
    return [list(line) for line in zip(sizes, *columns, strict=True)]

  last = ["text kept", *(percent(part["cells"][-1]["text_kept"]) for part in settings)]
  rate = number(numbers["autoregressive_tokens_per_second"], "{:.1f}")
  tables = [
    Table(
      "Mean accepted block size, exact acceptance",
      header,
      [*lines("block_size", "{:.2f}"), last],
      "Exact acceptance gives the greedy text of the target that the heads are on. A fine-tuned "
      "target is another target: *text kept* is the share of the original target's greedy text "
      "that stands before the first token that differs, at the last k (where less than all is kept "
      "with a frozen target, two tokens were equally good up to rounding).",
    ),
    Table(
      "Speed-up over autoregressive decoding of the same target",
      header,
      lines("speed_up", "{:.2f}x"),
      f"Both in the same batches; {rate} tokens a second without drafting.",
    ),
  ]
  if loose:
    exact = next(part for part in settings if part["name"] == FROZEN_DISTILLED.name)
    columns = ["k", "exact"]
    for part in loose:
      columns += [f"top-{part['accept_top_k']}", "deviations/token"]
    body = []
    for index, cell in enumerate(exact["cells"]):
      line = [str(cell["k"]), number(cell["block_size"])]
      for part in loose:
        other = part["cells"][index]
        line += [number(other["block_size"]), number(other["deviations_per_token"], "{:.3f}")]
      body.append(line)
    tables.append(
      Table(
        f"Mean accepted block size, looser acceptance ({FROZEN_DISTILLED.name})",
        columns,
        body,
        "A drafted token is kept if it is among the target's best few. A deviation is a token that "
        "was kept though another one is the target's best after the tokens before it.",
      )
    )
  return tables


def _draw(figure: Any, numbers: Mapping[str, Any]) -> None:
  exact_axis, loose_axis = figure.subplots(1, 2, sharey=True)

  def plot(axis: Any, cells: Sequence[Mapping[str, Any]], label: str) -> None:
    axis.plot(
      [cell["k"] for cell in cells], [cell["block_size"] for cell in cells], "o-", label=label
    )

  for part in numbers["settings"]:
    plot(exact_axis, part["cells"], part["name"])
    if part["name"] == FROZEN_DISTILLED.name:
      plot(loose_axis, part["cells"], "exact")
  for part in numbers["top_k"]:
    plot(loose_axis, part["cells"], f"top-{part['accept_top_k']}")
  exact_axis.set_title("mean accepted block size, exact acceptance")
  loose_axis.set_title(f"looser acceptance, {FROZEN_DISTILLED.name}")
  for axis in (exact_axis, loose_axis):
    axis.set_xticks([cell["k"] for cell in numbers["settings"][0]["cells"]])
    axis.set_xlabel("block size k")
    axis.grid(alpha=0.3)
    axis.legend()
