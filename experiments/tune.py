# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Picks draft length and n-gram sizes for a target, drafter and prompts, by measured time.

  python -m experiments.tune --prompts=questions.jsonl --methods=prompt_lookup --output=runs/tuned
  python -m experiments.decode --config=runs/tuned/tuned.py --prompts=questions.jsonl

Every setting decodes one part of the prompts, in turn with all others and several times over; the
fastest one by the medians is then compared with the method's default on the other part, which had
no say in the choice. --output gets `tuned.py`, a config of the fastest method, and one of each
method where there are several; `choose/` and `report/` hold the rows. The same command in the same
folder goes on where it stopped. Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import dataclasses
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.command import answer
from experiments.prompts import Prompt, choose_prompts
from experiments.report import BASELINE
from experiments.results import fresh_folder
from experiments.tune_flags import Options, parse


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(lambda: tune(parse(argv, str(__doc__))), "interrupted; nothing was decoded yet")


def tune(options: Options) -> None:
  """Chooses, reports and writes the configs.

  Raises:
    ValueError: for bad input; what can be checked before a model is loaded is.
    KeyboardInterrupt: for Ctrl-C, with a text that says how to go on.
  """
  prompts = choose_prompts((), options.prompts, options.limit)
  # Imported late: a mistyped flag is answered at once, not after JAX has started.
  from experiments import compiled_programs
  from experiments.methods import drafter_files
  from experiments.settings import make_settings
  from experiments.target import load_target
  from experiments.tune_candidates import find_candidates
  from experiments.tune_measure import Stopwatch
  from experiments.tune_report import choice_table, config_text, report_table

  settings = make_settings(options.config, options.settings)
  names = tuple(name for name in settings.methods if name != BASELINE)
  if not names:
    raise ValueError(f"methods must name at least one that drafts, got {BASELINE}")
  settings = dataclasses.replace(settings, methods=names)
  drafter_files(settings)  # for its errors, before a model is loaded
  placement = options.mesh.load_options(settings.batch_size)
  choosing, reporting = split_prompts(prompts, options.held_out, settings.seed)
  output = Path(options.output) if options.output else fresh_folder()
  try:
    compiled_programs.keep_on_disk(options.compilation_cache_dir)
    target = load_target(settings, prompts, **placement)
    bench = Stopwatch(settings, target, output, options.repeats)
    candidates = {name: find_candidates(settings, target, name, options) for name in names}
    number = sum(map(len, candidates.values()))
    print(
      f"{target.name}: {number} settings on {len(choosing)} prompts, {options.repeats} times; "
      f"{len(reporting)} prompts held out; rows go to {output}"
    )
    everything = [candidate for group in candidates.values() for candidate in group]
    times = bench.measure("choose", choosing, everything)
    chosen = {
      name: max(group, key=lambda candidate: times[candidate.name].rate)
      for name, group in candidates.items()
    }
    finalists = {
      candidate.name: candidate
      for name in names
      for candidate in (candidates[name][0], chosen[name])
    }
    final = bench.measure("report", reporting, list(finalists.values()))
  except KeyboardInterrupt:
    raise KeyboardInterrupt(
      f"interrupted; finished rows are in {output}; to go on, run the same command with "
      f"--output={output}"
    ) from None
  print(f"\n{choice_table(everything, times)}\n")
  print(report_table(candidates, chosen, final, len(reporting)))
  fastest = max(names, key=lambda name: times[chosen[name].name].rate)
  for name in names:
    text = config_text(
      settings, chosen[name], candidates[name][0], final, target.name, options, len(reporting)
    )
    files = ["tuned.py"] if name == fastest else []
    files += [f"tuned_{name}.py"] if len(names) > 1 else []
    for file in files:
      _write(output / file, text)
  print(f"\nThe choice: {fastest} with {chosen[fastest].words}")
  if final[chosen[fastest].name].rate <= final[BASELINE].rate:
    print("It is no faster than autoregressive decoding on the held-out prompts.")
  command = ["python", "-m", "experiments.decode", f"--config={output / 'tuned.py'}"]
  command.append(f"--model={settings.model}")
  if options.prompts:
    command.append(f"--prompts={options.prompts}")
  print(f"Decode with it: {shlex.join(command)}")


def split_prompts(
  prompts: Sequence[Prompt], held_out: float, seed: int
) -> tuple[list[Prompt], list[Prompt]]:
  """Shuffles prompts and parts them: those that choose, and those held out.

  Args:
    prompts: all of them.
    held_out: share of the second part, which gets at least one prompt, as does the first.
    seed: of the shuffle.

  Raises:
    ValueError: for fewer than two prompts.
  """
  if len(prompts) < 2:
    raise ValueError(
      f"prompts must be at least 2, one to choose by and one to report on, got {len(prompts)}"
    )
  order = np.random.default_rng(seed).permutation(len(prompts))
  count = min(max(round(len(prompts) * held_out), 1), len(prompts) - 1)
  parts = sorted(order[count:]), sorted(order[:count])  # in the file's order, which is by topic
  return [prompts[i] for i in parts[0]], [prompts[i] for i in parts[1]]


def _write(path: Path, text: str) -> None:
  from specjax.models import cached_files

  path.parent.mkdir(parents=True, exist_ok=True)
  cached_files.write_text(path, text)


if __name__ == "__main__":
  sys.exit(main(sys.argv))
