# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Reproduces a published table at the scale of one machine: trains, decodes, writes a report.

  python -m experiments.reproduce --config=configs/reproduce_pass.py
  python -m experiments.reproduce --config=configs/reproduce_blockwise.py --prompts=questions.jsonl

The report (README.md, figure.png, numbers.json) goes to --output, by default
experiments/results/<study>. Whatever lets a study go on after it was stopped is in --work.
Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import dataclasses
import importlib
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags
from ml_collections import config_flags

from configs import reproduce_base
from experiments import flags
from experiments.command import answer
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh

ROOT = Path(__file__).resolve().parent

# By study: the module whose `study` takes a Bench and returns a StudyReport. One that trains a
# target of its own says `NEEDS_TARGET = False`.
STUDIES = {
  "blockwise": "experiments.studies.blockwise",
  "distillation": "experiments.studies.distillation",
  "pass": "experiments.studies.pass_look_ahead",
  "speculative_sampling": "experiments.studies.speculative_sampling",
  "super_resolution": "experiments.studies.super_resolution",
}
_DEFAULT_DATA = ROOT / "token_data" / "smollm2-135m-instruct"


@dataclasses.dataclass(frozen=True)
class Options:
  """The parsed command line.

  Attributes:
    config: by the keys of `configs/reproduce_base.py`.
    prompts: JSONL file of prompts, or None for the built-in ones.
    limit: how many prompts, or None.
    every: takes every so-many-th prompt of the file.
    model: the target.
    dtype: of its weights, or None.
    data: folder of token data.
    output: folder of the report.
    work: folder of what lets the study resume.
    compilation_cache_dir: as in `experiments.flags.Options`.
    mesh: the devices to run on.
  """

  config: dict[str, Any]
  prompts: str | None
  limit: int | None
  every: int
  model: str
  dtype: str | None
  data: Path
  output: Path
  work: Path
  compilation_cache_dir: str | None = None
  mesh: MeshOptions = dataclasses.field(default_factory=MeshOptions)


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: reproduce(parse(argv), argv), "interrupted; the same command goes on from there"
  )


def parse(argv: Sequence[str]) -> Options:
  """Reads a command line; `argv[0]` is the program's name.

  Raises:
    HelpRequested: for `--help`.
    ValueError: for what cannot be understood, in one line.
  """
  argv = list(argv)
  if flags.asks_for_help(argv):
    raise flags.HelpRequested(help_text())
  values = absl_flags.FlagValues()
  known = reproduce_base.get_config().to_dict()
  positional = flags.read(values, _define, argv, known)
  if positional:
    raise ValueError(f"unexpected argument {positional[0]!r}")
  config = values.config.to_dict()
  for key in config:
    if key not in known:
      raise ValueError(f"unknown config key {key!r}; the keys are {', '.join(known)}")
  config = known | config
  study = config["study"]
  if study not in STUDIES:
    raise ValueError(f"study must be one of {', '.join(STUDIES)}, got {study!r}")
  for name in ("limit", "every"):
    value: Any = values[name].value
    if value is not None and value < 1:
      raise ValueError(f"{name} must be an integer >= 1, got {value}")
  return Options(
    config=config,
    prompts=values.prompts,
    limit=values.limit,
    every=values.every,
    model=values.model,
    dtype=values.dtype,
    data=Path(values.data or _DEFAULT_DATA),
    output=Path(values.output or ROOT / "results" / study),
    work=Path(values.work or Path("runs") / f"reproduce_{study}"),
    compilation_cache_dir=values.compilation_cache_dir,
    mesh=read_mesh(values),
  )


def reproduce(options: Options, argv: Sequence[str]) -> None:
  """Runs the study and writes its report.

  Raises:
    ValueError: for bad input.
    ImportError: where matplotlib is missing.
  """
  from experiments.prompts import choose_prompts

  # Every n-th: files are sorted by category, and a sample is to have all of them.
  prompts = choose_prompts((), options.prompts, None)[:: options.every][: options.limit]
  # Imported late: a mistyped flag is answered at once, not after JAX has started.
  from experiments import compiled_programs
  from experiments.display import make_display
  from experiments.studies.bench import Bench
  from experiments.studies.study_files import check_plots, write_report
  from specjax.models import checkpoint

  check_plots()
  compiled_programs.keep_on_disk(options.compilation_cache_dir)
  module = importlib.import_module(STUDIES[options.config["study"]])
  target = None
  placement = options.mesh.load_options(options.config["decode"].get("batch_size", 1))
  if getattr(module, "NEEDS_TARGET", True):
    target = checkpoint.load(options.model, dtype=options.dtype, **placement)
  elif placement:
    raise ValueError(
      f"--mesh: the study {options.config['study']} trains small targets of its own, on one device"
    )
  bench = Bench(
    options=options.config["options"],
    target=target,
    prompts=prompts,
    data=options.data,
    work=options.work,
    decode_settings=options.config["decode"],
    train_settings=options.config["train"],
    dtype=options.dtype,
    display=make_display(),
    mesh=options.mesh,
  )
  report = module.study(bench)
  command = shlex.join(["python", "-m", "experiments.reproduce", *argv[1:]])
  measured_with = report.measured_with
  if target is not None:
    file = Path(options.prompts).name if options.prompts else "those built in"
    measured_with = measured_with or f"{target.name}, {len(prompts)} prompts of {file}"
  facts = f"{measured_with}, {os.cpu_count()} CPU cores, {_versions()}"
  text = write_report(options.output, report, command, facts)
  print(f"\n{text}\nReport: {options.output / 'README.md'}")


def help_text() -> str:
  """The text of `--help`: every flag with its sentence."""
  values = absl_flags.FlagValues()
  _define(values, ["reproduce"])
  return "\n".join(
    [
      "Reproduces a published table: trains and decodes what it needs, then writes a report.",
      "",
      "  python -m experiments.reproduce --config=configs/reproduce_pass.py",
      "",
      "Flags:",
      *flags.describe(values),
    ]
  )


def _define(values: absl_flags.FlagValues, argv: list[str]) -> None:
  def string(name: str, default: str | None, text: str) -> None:
    absl_flags.DEFINE_string(name, default, text, flag_values=values)

  config_flags.DEFINE_config_file(
    "config",
    str(ROOT.parent / "configs" / "reproduce_pass.py"),
    "Python file whose get_config() names the study and its scale. A key of it is overridden with "
    "--config.KEY=VALUE, for example --config.decode.max_new_tokens=32.",
    flag_values=values,
    sys_argv=argv,
  )
  string("prompts", None, "JSONL file of prompts; the default is a few built-in ones.")
  absl_flags.DEFINE_integer("limit", None, "Takes only this many prompts.", flag_values=values)
  absl_flags.DEFINE_integer(
    "every", 1, "Takes every so-many-th prompt of the file, from the first on.", flag_values=values
  )
  string("model", flags.DEFAULT_MODEL, "Target model: a short name, hub id, folder or file.")
  string("dtype", None, "Number format of the target. The default suits the device.")
  string("data", None, "Folder of token data to train on. The default is what comes with specjax.")
  string("output", None, "Folder of the report. The default is experiments/results/<study>.")
  define_mesh(values, drafter=False)
  string("work", None, "Folder of what lets a study go on. The default is runs/reproduce_<study>.")
  flags.define_compilation_cache(values)


def _versions() -> str:
  import jax

  device = jax.devices()[0].device_kind
  return f"JAX {jax.__version__} on {device}, Python {platform.python_version()}"


if __name__ == "__main__":
  sys.exit(main(sys.argv))
