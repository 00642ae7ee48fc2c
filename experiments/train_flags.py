# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The flags of `python -m experiments.train`, laid over its config, and checked."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from configs import train_base
from experiments.flags import DEFAULT_MODEL, HelpRequested, asks_for_help, describe, read
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh
from experiments.process_flags import ProcessOptions, define_processes, read_processes

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "train_blockwise.py"

# Flags that are keys of the config, under the flag's name.
_KEYS = {
  "steps": "num_steps",
  "learning_rate": "learning_rate",
  "batch_size": "batch_size",
  "window": "window",
  "accumulate": "accumulate",
  "max_rows": "max_rows",
  "seed": "seed",
}

__all__ = ["HelpRequested", "TrainOptionsRead", "loop_options", "parse"]


@dataclasses.dataclass(frozen=True)
class TrainOptionsRead:
  """The parsed command line.

  Attributes:
    settings: the config with the flags laid over it, by the keys of `configs/train_base.py`.
    data: folder of the token data.
    output: folder of the run, or None for a fresh one.
    model: the target.
    dtype: of its weights; None suits the device.
    mesh: the devices to train on.
    processes: those that train together.
  """

  settings: dict[str, Any]
  data: str
  output: str | None
  model: str
  dtype: str | None
  mesh: MeshOptions = dataclasses.field(default_factory=MeshOptions)
  processes: ProcessOptions = dataclasses.field(default_factory=ProcessOptions)


def parse(argv: Sequence[str]) -> TrainOptionsRead:
  """Reads a command line; `argv[0]` is the program's name.

  Raises:
    HelpRequested: for `--help`.
    ValueError: for what cannot be understood, in one line.
  """
  argv = list(argv)
  if asks_for_help(argv):
    raise HelpRequested(help_text())
  values = flags.FlagValues()
  positional = read(values, _define, argv, train_base.get_config().keys())
  config = values.config.to_dict()
  if positional:
    raise ValueError(f"unexpected argument {positional[0]!r}")
  if not values.data:
    raise ValueError("--data must name a folder that experiments.generate_data made")
  for flag, key in _KEYS.items():
    if values[flag].value is not None:
      config[key] = values[flag].value
  processes = read_processes(values)
  return TrainOptionsRead(
    settings=_checked(config),
    data=values.data,
    output=values.output,
    model=values.model,
    dtype=values.dtype,
    mesh=processes.mesh(read_mesh(values)),
    processes=processes,
  )


def loop_options(settings: dict[str, Any]) -> Any:
  """`TrainOptions` of the settings.

  Raises:
    ValueError: naming the setting that does not fit.
  """
  from specjax.training.optimizer import OptimizerOptions
  from specjax.training.train_loop import TrainOptions

  def pick(kind: type) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: settings[name] for name in names if name in settings}

  return TrainOptions(**pick(TrainOptions), optimizer=OptimizerOptions(**pick(OptimizerOptions)))


def help_text() -> str:
  """The text of `--help`: every flag with its sentence."""
  values = flags.FlagValues()
  _define(values, ["train"])
  return "\n".join(
    [
      "Trains a drafter on the target's own answers; see experiments.generate_data.",
      "",
      "  python -m experiments.train --config=configs/train_blockwise.py --data=runs/data",
      "",
      "Flags:",
      *describe(values, DEFAULT_CONFIG),
    ]
  )


def _checked(config: dict[str, Any]) -> dict[str, Any]:
  """The config with defaults for what it lacks."""
  known = train_base.get_config().to_dict()
  for key in config:
    if key not in known:
      raise ValueError(f"unknown config key {key!r}; the keys are {', '.join(known)}")
  settings = known | config
  seed = settings["seed"]
  if not isinstance(seed, int) or not 0 <= seed < 2**32:
    raise ValueError(f"seed must be in 0 .. 2^32 - 1, got {seed!r}")
  objective = settings["objective"]
  if isinstance(objective, ConfigDict):
    settings["objective"] = objective.to_dict()
  return settings


def _define(values: flags.FlagValues, argv: list[str]) -> None:
  def string(name: str, default: str | None, text: str) -> None:
    flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name: str, text: str) -> None:
    flags.DEFINE_integer(name, None, text, flag_values=values)

  config_flags.DEFINE_config_file(
    "config",
    str(DEFAULT_CONFIG),
    "Python file whose get_config() states what is trained and how. A key of it is overridden "
    "with --config.KEY=VALUE, for example --config.objective.draft_length=3.",
    flag_values=values,
    sys_argv=argv,
  )
  string(
    "data",
    None,
    "Folder of token data that experiments.generate_data made; several, parted by commas, are "
    "trained on together.",
  )
  string(
    "output",
    None,
    "Folder for checkpoints, metrics and the drafter. The same command in the same folder goes on "
    "where it stopped. The default is a fresh folder under runs/.",
  )
  string("model", DEFAULT_MODEL, "Target model: a short name, hub id, folder or file.")
  string("dtype", None, "Number format of the target. The default suits the device.")
  define_mesh(values, drafter=False)
  define_processes(values)
  integer("steps", "Optimiser updates in all.")
  flags.DEFINE_float(
    "learning_rate", None, "Highest learning rate, after the warm-up.", flag_values=values
  )
  integer("batch_size", "Windows of a batch.")
  integer("window", "Tokens of a window, which is packed with several prompts and answers.")
  integer("accumulate", "Batches whose gradients one update adds up.")
  integer("max_rows", "Trains on the first rows of the data only.")
  integer("seed", "Seed of the shuffle, the initial values and all random draws.")
