# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What the commands of this folder have in common: help, errors of one line, exit codes."""

import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import flags

_HELP = ("--help", "-help", "-h", "--helpfull", "--helpshort")


class HelpRequested(Exception):  # noqa: N818 (a request, not an error)
  """The command line asked for the text of `--help`, which this carries."""


def answer(run: Callable[[], int | None], interrupted: str) -> int:
  """Runs a command; returns its exit code.

  Args:
    run: reads the command line and does what it asks for; returns the exit code, None for 0.
    interrupted: what is told after Ctrl-C, where the `KeyboardInterrupt` carries no text.

  Returns:
    2 for bad input, told in one line; 130 for Ctrl-C; else what `run` returns.
  """
  try:
    return run() or 0
  except HelpRequested as request:
    print(request)
    return 0
  except (flags.Error, ValueError, OSError, ImportError) as error:
    print_error(error)
    return 2
  except KeyboardInterrupt as stop:
    print(str(stop) or interrupted, file=sys.stderr)
    return 130


def read_flags(
  argv: Sequence[str], define: Callable[[flags.FlagValues], None], description: str | None
) -> flags.FlagValues:
  """The flags of a command that has no config file; `argv[0]` is the program's name.

  They live in a `FlagValues` of their own, made for each run.

  Args:
    argv: the command line.
    define: adds the command's flags.
    description: what `--help` begins with: the module's docstring.

  Raises:
    HelpRequested: for `--help`.
    flags.Error: for what cannot be understood.
    ValueError: for an argument that is no flag.
  """
  values = flags.FlagValues()
  define(values)
  if asks_for_help(argv):
    raise HelpRequested("\n".join([str(description), "Flags:", *describe(values)]))
  positional = values(list(argv))[1:]
  if positional:
    raise ValueError(f"unexpected argument {positional[0]!r}")
  return values


def read_integers(name: str, texts: Sequence[str]) -> tuple[int, ...]:
  """What a list flag of positive integers says, in its order and each once.

  Raises:
    ValueError: naming the flag, for anything else or nothing.
  """
  numbers = positive_integers(texts)
  if not numbers:
    text = ",".join(texts)
    raise ValueError(f"{name} must be integers >= 1, separated by commas, got {text!r}")
  return tuple(dict.fromkeys(numbers))


def positive_integers(texts: Sequence[str]) -> list[int]:
  """The integers >= 1 that the texts are, in decimal digits; none if one of them is not."""
  texts = [text.strip() for text in texts]
  if not all(text.isascii() and text.isdigit() and int(text) for text in texts):
    return []
  return [int(text) for text in texts]


def asks_for_help(argv: Sequence[str]) -> bool:
  """Whether a command line asks for `--help`."""
  return any(argument in _HELP for argument in argv[1:])


def describe(values: flags.FlagValues, default_config: Path | None = None) -> list[str]:
  """Every flag with its sentence and its default, for `--help`."""
  lines = []
  for name in values:
    flag = values[name]
    text = flag.help.split(";\n")[0]  # absl appends how to repeat a flag
    if flag.default in (None, ""):
      default = ""
    elif name == "config" and default_config is not None:
      default = f" (default: {default_config.parent.name}/{default_config.name})"
    else:
      default = f" (default: {flag.default})"
    switch = f"--[no]{name}" if flag.boolean else f"--{name}"
    lines.append(f"  {switch}")
    lines += textwrap.wrap(
      text + default, width=88, initial_indent="      ", subsequent_indent="      "
    )
  return lines


def print_error(error: Exception) -> None:
  """Tells people of bad input: one line on standard error."""
  message = "; ".join(part.strip() for part in str(error).splitlines() if part.strip())
  print(f"error: {message}", file=sys.stderr)
