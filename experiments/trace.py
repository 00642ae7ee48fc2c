# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows one decode step by step: on the terminal, as a page, and as JSON.

  python -m experiments.trace --prompt="Why is the sky blue?"
  python -m experiments.trace --method=draft_model --temperature=0.8 --output=runs/trace

The folder gets trace.html, which opens without a network (arrow keys and the slider go through the
steps), and trace.json. Ctrl-C writes what has been decoded so far.
Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags as absl_flags

from configs import base
from experiments import flags
from experiments.command import answer
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh

_NEW_TOKENS = 64
# Flags of the commands that decode many prompts.
_NOT_HERE = ("methods", "batch_size", "stop")


@dataclasses.dataclass(frozen=True)
class Options:
  """The parsed command line.

  Attributes:
    config: the `ConfigDict` with its overrides.
    settings: flags that are fields of `experiments.settings.Settings`; None where not given.
    method: the method to trace.
    prompt: the text to answer; None is a built-in one.
    output: folder of `--output`, or None for a fresh one.
    compilation_cache_dir: see `experiments.compiled_programs.keep_on_disk`.
    mesh: the devices to run on.
  """

  config: Any
  settings: dict[str, Any]
  method: str
  prompt: str | None
  output: str | None
  compilation_cache_dir: str | None
  mesh: MeshOptions


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(lambda: trace(parse(argv)), "interrupted before anything was decoded")


def parse(argv: Sequence[str]) -> Options:
  """Reads a command line; `argv[0]` is the program's name.

  Raises:
    HelpRequested: for `--help`.
    ValueError: for what cannot be understood, in one line.
  """
  argv = list(argv)
  if flags.asks_for_help(argv):
    raise flags.HelpRequested(_help_text())
  values = absl_flags.FlagValues()
  positional = flags.read(values, _define, argv, base.get_config().keys())
  if positional:
    raise ValueError(f"unexpected argument {positional[0]!r}; a prompt is given as --prompt=TEXT")
  for name in _NOT_HERE:
    if values[name].present:
      raise ValueError(f"Unknown command line flag '{name}': one prompt is traced by one --method")
  if values.prompt == "":
    raise ValueError("prompt must hold some text, got ''")
  return Options(
    config=values.config,
    settings=flags.settings_of(values),
    method=values.method or _first_that_drafts(values.config),
    prompt=values.prompt,
    output=values.output,
    compilation_cache_dir=values.compilation_cache_dir,
    mesh=read_mesh(values),
  )


def trace(options: Options) -> int:
  """Decodes and shows what the command line asks for; returns the exit code.

  Raises:
    ValueError: for bad input; what can be checked before a model is loaded is.
  """
  # Imported late: a mistyped flag is answered at once, not after JAX has started.
  from experiments import compiled_programs
  from experiments.methods import build_methods, drafter_files
  from experiments.prompts import BUILT_IN, Prompt
  from experiments.results import fresh_folder
  from experiments.settings import make_settings
  from experiments.target import load_target
  from experiments.trace_record import TraceRecord
  from experiments.trace_terminal import TraceTerminal
  from specjax import tracing

  given = {"max_new_tokens": _NEW_TOKENS} | {
    name: value for name, value in options.settings.items() if value is not None
  }
  settings = make_settings(options.config, given | {"methods": (options.method,)})
  if settings.max_new_tokens < 1:
    raise ValueError(f"max_new_tokens must be an integer >= 1, got {settings.max_new_tokens}")
  drafter_files(settings)  # for its errors, before a model is loaded
  output = Path(options.output) if options.output else fresh_folder()
  if output.exists() and not output.is_dir():
    raise ValueError(f"output must be a folder, {output} is a file")
  compiled_programs.keep_on_disk(options.compilation_cache_dir)
  # As many rows as the mesh cuts a batch into, all of the one prompt; the first is shown.
  rows = options.mesh.batch_shards()
  placement = options.mesh.load_options(rows)
  prompt = Prompt((options.prompt,), origin="--prompt") if options.prompt else BUILT_IN[0]
  target = load_target(settings, [prompt], **placement)
  (method,) = build_methods(settings, target, drafter_rules=options.mesh.drafter_rules)
  generator = method.generator
  prompt_ids = generator.encode(prompt.turns[0])
  terminal = TraceTerminal()
  terminal.note(f"{method.name} on {target.name} from {target.source}; compiling")
  session = tracing.open_trace(
    target.model,
    target.params,
    [prompt_ids] * rows,
    drafter=generator.drafter,
    drafter_params=generator.drafter_params,
    verifier=generator.verifier,
    policy=settings.policy(),
    max_new_tokens=settings.max_new_tokens,
    eos_ids=target.eos_ids,
    key=settings.seed,
    drafter_rules=options.mesh.drafter_rules,
    **target.placement,
  )
  facts = {
    "method": method.name,
    "model": target.name,
    "source": target.source,
    "lossless": method.lossless,
    "greedy": settings.greedy,
    "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    "settings": settings.to_json(),
  }
  certain_nodes = session.scheme.drafter.certain_nodes
  record = TraceRecord(generator.tokenizer, prompt_ids, facts, certain_nodes)
  terminal.legend()
  interrupted = False
  try:
    for one in session.rounds():
      if one.steps[0] is None:
        break  # sampled rows do not end together
      terminal.step(record.add(one))
  except KeyboardInterrupt:
    if not record.steps:
      raise
    interrupted = True
  _write(output, record.to_json())
  terminal.note("")
  terminal.text(record.steps)
  terminal.note(f"\n{_summary_line(record.to_json()['summary'])}")
  terminal.note(f"Page: {output / 'trace.html'}")
  if interrupted:
    print("interrupted: the page shows the steps so far", file=sys.stderr)
  return 130 if interrupted else 0


def _write(output: Path, trace: dict[str, Any]) -> None:
  """Writes both files, each in one step."""
  from experiments.trace_page import trace_page
  from specjax.models.cached_files import write_text

  output.mkdir(parents=True, exist_ok=True)
  write_text(output / "trace.json", json.dumps(trace, ensure_ascii=False, indent=1) + "\n")
  write_text(output / "trace.html", trace_page(trace))


def _summary_line(summary: dict[str, Any]) -> str:
  text = (
    f"{summary['new_tokens']} tokens in {summary['target_calls']} target calls "
    f"({summary['block_efficiency']:.2f} a call), {summary['seconds']:.2f} s"
  )
  if summary["drafted_tokens"]:
    text += f"; {summary['accepted_tokens']} of {summary['drafted_tokens']} drafted tokens accepted"
  return text


def _first_that_drafts(config: Any) -> str:
  """The first method of a config that is not plain decoding."""
  names = config.get("methods") or base.get_config().methods
  names = (names,) if isinstance(names, str) else tuple(names)
  return next((name for name in names if name != "autoregressive"), names[0])


def _define(values: absl_flags.FlagValues, argv: list[str]) -> None:
  absl_flags.DEFINE_string(
    "method",
    None,
    "The method to trace, by a name of specjax.drafters.REGISTRY or pass_merged. The default is "
    "the first of the config's that drafts.",
    flag_values=values,
  )
  absl_flags.DEFINE_string(
    "prompt", None, "The prompt to answer; the default is a built-in one.", flag_values=values
  )
  flags.define_settings(values, argv)
  define_mesh(values)
  values["output"].help = (
    "Folder for trace.html and trace.json, which are replaced if they are there. The default is a "
    "fresh folder under runs/."
  )
  values[
    "max_new_tokens"
  ].help = f"Ends the answer after this many tokens; {_NEW_TOKENS} if not given."


def _help_text() -> str:
  values = absl_flags.FlagValues()
  _define(values, ["trace"])
  for name in _NOT_HERE:
    delattr(values, name)
  return "\n".join([f"{__doc__}\nFlags:", *flags.describe(values, flags.DEFAULT_CONFIG)])


if __name__ == "__main__":
  sys.exit(main(sys.argv))
