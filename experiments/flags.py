# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The flags of `python -m experiments.decode`.

They live in a `FlagValues` of their own, made for each run: importing this module defines
nothing, and a test can run the command twice in one process.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from configs import base
from experiments.command import HelpRequested, asks_for_help, describe
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh
from experiments.process_flags import ProcessOptions, define_processes, read_processes

DEFAULT_CONFIG = Path(__file__).resolve().parent.parent / "configs" / "prompt_lookup.py"
DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclasses.dataclass(frozen=True)
class Options:
  """The parsed command line.

  Attributes:
    config: the `ConfigDict` with its overrides.
    settings: flags that are fields of `experiments.settings.Settings`; None where not given.
    prompt: texts of `--prompt`.
    prompts: file of `--prompts`, or None.
    limit: how many prompts to decode, or None.
    output: folder of `--output`, or None for a fresh one.
    compilation_cache_dir: folder for compiled programs; None is the default one, "" is none.
    mesh: the devices to run on.
    processes: those that run together.
  """

  config: Any
  settings: dict[str, Any]
  prompt: tuple[str, ...]
  prompts: str | None
  limit: int | None
  output: str | None
  compilation_cache_dir: str | None
  mesh: MeshOptions = dataclasses.field(default_factory=MeshOptions)
  processes: ProcessOptions = dataclasses.field(default_factory=ProcessOptions)


def parse(argv: Sequence[str]) -> Options:
  """Reads a command line; `argv[0]` is the program's name.

  Raises:
    HelpRequested: for `--help`.
    ValueError: for what cannot be understood, in one line.
  """
  argv = list(argv)
  if asks_for_help(argv):
    raise HelpRequested(help_text())
  values = flags.FlagValues()
  positional = read(values, _define, argv, base.get_config().keys())
  if positional:
    raise ValueError(f"unexpected argument {positional[0]!r}; a prompt is given as --prompt=TEXT")
  if values.limit is not None and values.limit < 1:
    raise ValueError(f"limit must be an integer >= 1, got {values.limit}")
  processes = read_processes(values)
  return Options(
    config=values.config,
    settings=settings_of(values),
    prompt=tuple(values.prompt or ()),
    prompts=values.prompts,
    limit=values.limit,
    output=values.output,
    compilation_cache_dir=values.compilation_cache_dir,
    mesh=processes.mesh(read_mesh(values)),
    processes=processes,
  )


def read(
  values: flags.FlagValues,
  define: Callable[[flags.FlagValues, list[str]], None],
  argv: list[str],
  config_keys: Iterable[str],
) -> list[str]:
  """Defines flags, one of them `config`, and reads them; returns the positional arguments.

  Args:
    values: gets the flags.
    define: defines them, from the command line that they will be read from.
    argv: the command line; `argv[0]` is the program's name.
    config_keys: what a config can have, for the message about another key.

  Raises:
    ValueError: for what cannot be understood, in one line.
  """
  try:
    define(values, argv)
    positional = values(argv)[1:]
    values.config.to_dict()  # a file that could not be loaded says so only when it is used
  except flags.Error as error:
    raise ValueError(_one_line(error)) from error
  except (KeyError, AttributeError) as error:
    key = str(error.args[0] if error.args else error).strip("'\"").split("\n")[0]
    raise ValueError(f"unknown config key: {key}; the keys are {', '.join(config_keys)}") from error
  except OSError as error:
    reason = str(error).strip().splitlines()[-1].strip()
    raise ValueError(f"the config file cannot be loaded: {reason}") from error
  except Exception as error:  # a config file is a program: it can raise anything
    raise ValueError(f"the config file cannot be run: {_one_line(error)}") from error
  return positional


def settings_of(values: flags.FlagValues) -> dict[str, Any]:
  """The flags of `define_settings` that are fields of Settings; None where not given."""
  return {name: values[name].value for name in SETTINGS} | {"stop": tuple(values.stop or ())}


# Flags that are fields of Settings under the same name.
SETTINGS = (
  "model",
  "dtype",
  "raw",
  "seed",
  "batch_size",
  "methods",
  "drafter",
  "max_new_tokens",
  "temperature",
  "top_k",
  "top_p",
  "min_p",
  "repetition_penalty",
)


def _define(values: flags.FlagValues, argv: list[str]) -> None:
  define_settings(values, argv)
  define_mesh(values)
  define_processes(values)
  flags.DEFINE_multi_string(
    "prompt",
    None,
    "A prompt to answer. It can be given several times. Without --prompt and --prompts, a few "
    "built-in prompts are answered.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "prompts",
    None,
    "JSONL file of prompts: objects with 'prompt', or Spec-Bench's 'turns', whose answers are "
    "fed back before the next turn.",
    flag_values=values,
  )
  flags.DEFINE_integer(
    "limit", None, "Answers only this many prompts, from the first one on.", flag_values=values
  )


def define_settings(
  values: flags.FlagValues, argv: list[str], default_config: Path = DEFAULT_CONFIG
) -> None:
  """Defines the flags that every command has which decodes: model, methods, policy, output.

  Args:
    values: gets the flags.
    argv: the command line that they will be read from.
    default_config: the file that --config names by default.
  """

  def string(name: str, default: str | None, text: str) -> None:
    flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name: str, default: int | None, text: str) -> None:
    flags.DEFINE_integer(name, default, text, flag_values=values)

  def number(name: str, text: str) -> None:
    flags.DEFINE_float(name, None, text, flag_values=values)

  config_flags.DEFINE_config_file(
    "config",
    str(default_config),
    "Python file whose get_config() states the experiment. A key of it is overridden with "
    "--config.KEY=VALUE, for example --config.draft_length=6.",
    flag_values=values,
    sys_argv=argv,
  )
  flags.DEFINE_list(
    "methods",
    None,
    "Decoding methods to run and compare, separated by commas: the names of "
    "specjax.drafters.REGISTRY, and pass_merged. The default is what the config names.",
    flag_values=values,
  )
  flags.DEFINE_multi_string(
    "drafter",
    None,
    "File of a trained drafter, as experiments.train writes it, for the method of its scheme in "
    "place of the one that comes with specjax. It can be given several times.",
    flag_values=values,
  )
  string("model", DEFAULT_MODEL, "Target model: a short name, a hub id, a folder or a GGUF file.")
  string("dtype", None, "Number format of weights and caches. The default suits the device.")
  flags.DEFINE_boolean(
    "raw",
    False,
    "Takes prompts as plain text, even if the checkpoint has a chat template.",
    flag_values=values,
  )
  integer("max_new_tokens", None, "Ends an answer after this many tokens.")
  number("temperature", "Divides the logits before sampling. 0 decodes greedily.")
  integer("top_k", None, "Samples from this many likeliest tokens only. 0 keeps all.")
  number("top_p", "Samples from the likeliest tokens that hold this much probability only.")
  number("min_p", "Samples only from tokens at least this likely, relative to the likeliest.")
  number("repetition_penalty", "Makes tokens that have occurred less likely; 1 does not.")
  integer("seed", 0, "Seed of all random draws. The same seed gives the same tokens.")
  integer("batch_size", 1, "Decodes this many prompts at a time.")
  flags.DEFINE_multi_string(
    "stop",
    None,
    "Ends an answer before this string. It can be given several times.",
    flag_values=values,
  )
  string(
    "output",
    None,
    "Folder for results.jsonl and config.json. The same command in the same folder goes on "
    "where it stopped. The default is a fresh folder under runs/.",
  )
  define_compilation_cache(values)


def define_compilation_cache(values: flags.FlagValues) -> None:
  """The flag for `experiments.compiled_programs.keep_on_disk`."""
  flags.DEFINE_string(
    "compilation_cache_dir",
    None,
    "Folder that keeps compiled programs for the next run; an empty string keeps none. The "
    "default is in the user's cache folder.",
    flag_values=values,
  )


def help_text() -> str:
  """The text of `--help`: every flag with its sentence."""
  values = flags.FlagValues()
  _define(values, ["decode"])
  lines = [
    "Decodes prompts with several methods, compares them, and writes results.jsonl.",
    "",
    "  python -m experiments.decode",
    '  python -m experiments.decode --config=configs/speculative_sampling.py --prompt="Hello!"',
    "",
    "Flags:",
    *describe(values, DEFAULT_CONFIG),
  ]
  return "\n".join(lines)


def _one_line(error: BaseException) -> str:
  return " ".join(f"{error}".split()) or type(error).__name__
