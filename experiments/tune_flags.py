# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The command line of experiments.tune."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from absl import flags as absl_flags

from configs import base
from experiments import flags
from experiments.command import positive_integers, read_integers
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh

_DRAFT_LENGTHS = "2,4,6,10"
_NGRAMS = "2:1,3:1,3:2,4:3"


@dataclasses.dataclass(frozen=True)
class Options:
  """The parsed command line.

  Attributes:
    config: the `ConfigDict` with its overrides.
    settings: flags that are fields of `experiments.settings.Settings`.
    prompts: file of prompts, or None for the built-in ones.
    limit: how many prompts to take, or None.
    draft_lengths: to try.
    ngrams: pairs (max_ngram, min_ngram) to try.
    repeats: how often everything is decoded.
    held_out: share of the prompts that the chosen setting is reported on.
    output: folder, or None for a fresh one.
    compilation_cache_dir: as in `experiments.flags.Options`.
    mesh: the devices to run on.
  """

  config: Any
  settings: dict[str, Any]
  prompts: str | None
  limit: int | None
  draft_lengths: tuple[int, ...]
  ngrams: tuple[tuple[int, int], ...]
  repeats: int
  held_out: float
  output: str | None
  compilation_cache_dir: str | None
  mesh: MeshOptions


def parse(argv: Sequence[str], text: str) -> Options:
  """Reads a command line.

  Args:
    argv: the command line; `argv[0]` is the program's name.
    text: what `--help` says before it lists the flags.

  Raises:
    flags.HelpRequested: for `--help`.
    ValueError: for what cannot be understood, in one line.
  """
  argv = list(argv)
  values = absl_flags.FlagValues()
  if flags.asks_for_help(argv):
    _define(values, ["tune"])
    lines = [text, "Flags:", *flags.describe(values, flags.DEFAULT_CONFIG)]
    raise flags.HelpRequested("\n".join(lines))
  positional = flags.read(values, _define, argv, base.get_config().keys())
  if positional:
    raise ValueError(f"unexpected argument {positional[0]!r}")
  for name in ("limit", "repeats"):
    value: Any = values[name].value
    if value is not None and value < 1:
      raise ValueError(f"{name} must be an integer >= 1, got {value}")
  if not 0 < values.held_out < 1:
    raise ValueError(f"held_out must be in (0, 1), got {values.held_out}")
  settings = flags.settings_of(values)
  if settings["methods"] is None:
    settings["methods"] = ["prompt_lookup"]
  return Options(
    config=values.config,
    settings=settings,
    prompts=values.prompts,
    limit=values.limit,
    draft_lengths=read_integers("draft_lengths", values.draft_lengths.split(",")),
    ngrams=_ngrams(values.ngrams),
    repeats=values.repeats,
    held_out=values.held_out,
    output=values.output,
    compilation_cache_dir=values.compilation_cache_dir,
    mesh=read_mesh(values),
  )


def _define(values: absl_flags.FlagValues, argv: list[str]) -> None:
  flags.define_settings(values, argv)
  define_mesh(values)

  def string(name: str, default: str | None, text: str) -> None:
    absl_flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name: str, default: int | None, text: str) -> None:
    absl_flags.DEFINE_integer(name, default, text, flag_values=values)

  string(
    "prompts",
    None,
    "JSONL file of prompts: objects with 'prompt', or Spec-Bench's 'turns'. The default is a few "
    "built-in ones: too few to choose by.",
  )
  integer("limit", None, "Takes only this many prompts, from the first one on.")
  string("draft_lengths", _DRAFT_LENGTHS, "Draft lengths to try, separated by commas.")
  string(
    "ngrams",
    _NGRAMS,
    "For methods that look n-grams up: pairs max_ngram:min_ngram to try, separated by commas.",
  )
  integer("repeats", 3, "Decodes everything this many times; medians count.")
  absl_flags.DEFINE_float(
    "held_out",
    0.5,
    "Share of the prompts on which the choice is reported; the others make it.",
    flag_values=values,
  )


def _ngrams(text: str) -> tuple[tuple[int, int], ...]:
  pairs = []
  for part in text.split(","):
    sizes = positive_integers(part.split(":"))
    if len(sizes) != 2 or sizes[0] < sizes[1]:
      raise ValueError(
        "ngrams must be pairs max_ngram:min_ngram with max_ngram >= min_ngram >= 1, separated by "
        f"commas, got {text!r}"
      )
    pairs.append((sizes[0], sizes[1]))
  return tuple(dict.fromkeys(pairs))
