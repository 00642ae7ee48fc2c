# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The flags of `python -m experiments.spec_bench`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from configs import base
from experiments import flags
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh

DEFAULT_CONFIG = flags.DEFAULT_CONFIG.with_name("spec_bench.py")
# In place of the names of methods: all that there are.
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Options:
  """The parsed command line.

  Attributes:
    config: the `ConfigDict` with its overrides.
    settings: flags that are fields of `experiments.settings.Settings`; None where not given.
    questions: file of `--questions`, or None for a report alone.
    limit: questions a category, or None.
    peers: other systems to run, by name.
    report: whether to write the pages.
    folders: result folders to report on, beside the run's own.
    output: folder of `--output`, or None.
    compilation_cache_dir: as for `experiments.decode`.
    mesh: the devices to run on.
  """

  config: Any
  settings: dict[str, Any]
  questions: Path | None
  limit: int | None
  peers: tuple[str, ...]
  report: bool
  folders: tuple[Path, ...]
  output: Path | None
  compilation_cache_dir: str | None
  mesh: MeshOptions


def parse(argv: Sequence[str]) -> Options:
  """Reads a command line; `argv[0]` is the program's name.

  Raises:
    flags.HelpRequested: for `--help`.
    ValueError: for what cannot be understood, in one line.
  """
  argv = list(argv)
  if flags.asks_for_help(argv):
    raise flags.HelpRequested(help_text())
  values = absl_flags.FlagValues()
  positional = flags.read(values, _define, argv, base.get_config().keys())
  if positional and not values.report:
    raise ValueError(f"unexpected argument {positional[0]!r}; result folders come with --report")
  if values.limit is not None and values.limit < 1:
    raise ValueError(f"limit must be an integer >= 1, got {values.limit}")
  if not values.questions and not values.report:
    raise ValueError("--questions must name a question file (or --report result folders)")
  if not values.questions and not positional and not values.output:
    raise ValueError("--report needs result folders: name them after it, or with --output")
  return Options(
    config=values.config,
    settings=flags.settings_of(values),
    questions=Path(values.questions) if values.questions else None,
    limit=values.limit,
    peers=tuple(name.strip() for name in values.peers or ()),
    report=values.report,
    folders=tuple(map(Path, positional)),
    output=Path(values.output) if values.output else None,
    compilation_cache_dir=values.compilation_cache_dir,
    mesh=read_mesh(values),
  )


def help_text() -> str:
  """The text of `--help`: every flag with its sentence."""
  values = absl_flags.FlagValues()
  _define(values, ["spec_bench"])
  return "\n".join(
    [
      "Spec-Bench: questions of six groups of tasks, every method on the same target in turn.",
      "",
      "  python -m experiments.spec_bench --questions=question.jsonl --limit=5 --output=runs/a",
      "  python -m experiments.spec_bench --report runs/a runs/b --output=runs/report",
      "",
      "--methods=all (the default) takes every method that this target has a drafter for.",
      "",
      "Flags:",
      *flags.describe(values, DEFAULT_CONFIG),
    ]
  )


def _define(values: absl_flags.FlagValues, argv: list[str]) -> None:
  flags.define_settings(values, argv, DEFAULT_CONFIG)
  define_mesh(values)
  absl_flags.DEFINE_string(
    "questions",
    None,
    "JSONL file of questions in Spec-Bench's format: question_id, category, turns.",
    flag_values=values,
  )
  absl_flags.DEFINE_integer(
    "limit",
    None,
    "Takes only this many questions of each category, the first ones of the file. Multi-turn "
    "conversation has eight categories (writing, roleplay, ...), the other groups have one each.",
    flag_values=values,
  )
  absl_flags.DEFINE_boolean(
    "report",
    False,
    "Writes report.md, report.html and figures to --output (or else the first folder): of this "
    "run, and of any result folders that are named after the flags. Without --questions it only "
    "does that.",
    flag_values=values,
  )
  absl_flags.DEFINE_list(
    "peers",
    None,
    "Other systems to run on the same questions and weights, in turn with ours: transformers "
    "(plain, prompt lookup, and with the draft model as its assistant model).",
    flag_values=values,
  )
