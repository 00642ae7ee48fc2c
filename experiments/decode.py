# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The main command: decode prompts with several methods and compare them.

  python -m experiments.decode
  python -m experiments.decode --config=configs/speculative_sampling.py \
    --config.draft_length=6 --prompt="Why is the sky blue?"
  python -m experiments.decode --prompts=questions.jsonl --output=runs/questions

`--help` explains every flag. Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import flags
from experiments.command import answer
from experiments.prompts import Prompt, choose_prompts, prompts_fingerprint


class Interrupted(KeyboardInterrupt):
  """The user stopped the run; the text says how to go on."""


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(lambda: decode(flags.parse(argv)), "interrupted before anything was decoded")


def decode(options: flags.Options) -> None:
  """Decodes what the command line asks for, and prints the tables.

  Raises:
    ValueError: for bad input; what can be checked before a model is loaded is.
    Interrupted: for Ctrl-C after results began.
  """
  prompts = choose_prompts(options.prompt, options.prompts, options.limit)
  with options.processes.joined():
    _decode(options, prompts)


def _decode(options: flags.Options, prompts: Sequence[Prompt]) -> None:
  # Imported late: a mistyped flag is answered at once, not after JAX has started.
  from experiments import compiled_programs
  from experiments.display import make_display
  from experiments.methods import build_methods, drafter_files
  from experiments.report import report
  from experiments.results import ResultsFolder
  from experiments.runner import Runner
  from experiments.settings import make_settings
  from experiments.target import load_target

  settings = make_settings(options.config, options.settings)
  drafter_files(settings)  # for its errors, before a model is loaded
  placement = options.mesh.load_options(settings.batch_size)
  results = ResultsFolder.of_run(
    Path(options.output) if options.output else None,
    settings.to_json() | {"prompts": prompts_fingerprint(prompts)},
  )
  output = results.path
  try:
    compiled_programs.keep_on_disk(options.compilation_cache_dir)
    target = load_target(settings, prompts, **placement)
    results.check_source(target.source)
    methods = build_methods(settings, target, drafter_rules=options.mesh.drafter_rules)
    results.check_drafters({method.name: method.drafter_checksum for method in methods})
    print(f"{target.name} from {target.source}; results go to {output}")
    Runner(settings, target, methods, prompts, results, make_display()).run()
  except KeyboardInterrupt:
    raise Interrupted(
      f"interrupted: {len(results.rows)} finished rows are in {output}; to go on, run the same "
      f"command with --output={output}"
    ) from None
  rows = list(results.rows.values())
  print(f"\n{report(rows, settings.methods, greedy=settings.greedy)}")
  print(f"\nResults: {output / 'results.jsonl'}")


if __name__ == "__main__":
  sys.exit(main(sys.argv))
