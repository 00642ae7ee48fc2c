# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Spec-Bench: every method on the same target and questions, by groups of tasks.

  python -m experiments.spec_bench --questions=question.jsonl --limit=5 --output=runs/spec_bench
  python -m experiments.spec_bench --questions=question.jsonl --limit=5 --output=runs/spec_bench \
    --methods=autoregressive,prompt_lookup --peers=transformers --report
  python -m experiments.spec_bench --report runs/a runs/b --output=runs/report

Methods take turns question by question, and each is fed its own answers in a conversation. The
output folder gets `results.jsonl` row by row, `spec_bench/<method>.jsonl` for Spec-Bench's own
tools (Xia et al. 2024, arXiv 2401.07851) and, with --report, report.md, report.html and figures.
The same command goes on where it stopped. Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments import compiled_programs, spec_bench_flags
from experiments.command import answer
from experiments.decode import Interrupted
from experiments.prompts import Prompt, prompts_fingerprint
from experiments.spec_bench_flags import Options
from experiments.spec_bench_questions import read_questions

if TYPE_CHECKING:  # JAX starts slowly: a mistyped flag is answered before it does
  from experiments.methods import Method
  from experiments.peers import PeerMethod
  from experiments.settings import Settings
  from specjax.models.checkpoint import Checkpoint


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: spec_bench(spec_bench_flags.parse(argv), argv),
    "interrupted before anything was decoded",
  )


def spec_bench(options: Options, argv: Sequence[str]) -> None:
  """Decodes what is asked for, and writes what is asked for about it.

  Raises:
    ValueError: for bad input; what can be checked before a model is loaded is.
    Interrupted: for Ctrl-C after results began.
  """
  command = shlex.join(["python", "-m", "experiments.spec_bench", *argv[1:]])
  folders, output = list(options.folders), options.output
  if options.questions is not None:
    if options.report:
      from experiments.studies.study_files import check_plots

      check_plots()  # before hours of work, not after them
    questions = read_questions(options.questions, options.limit)
    output = run(options, questions, command)
    folders.insert(0, output)
  if not options.report:
    return
  from experiments.spec_bench_report import write_report

  if not folders and output is not None:
    folders.append(output)
  page = write_report(folders, output or folders[0], command)
  print(f"Report: {page} and {Path(page).with_suffix('.md').name} beside it")


def run(options: Options, questions: Sequence[Prompt], command: str) -> Path:
  """Decodes the questions with every method in turn; returns the folder of the results.

  Raises:
    ValueError: for bad input; what can be checked before a model is loaded is.
    Interrupted: for Ctrl-C after results began.
  """
  # Imported late: a mistyped flag is answered at once, not after JAX has started.
  from experiments.differences import measure_margins
  from experiments.display import make_display
  from experiments.methods import build_methods, drafter_files
  from experiments.results import ResultsFolder, fresh_folder
  from experiments.runner import Runner
  from experiments.spec_bench_files import write_spec_bench_files
  from experiments.spec_bench_report import summary_text
  from experiments.target import load_target
  from specjax.models import cached_files

  settings, wants_all = _settings(options)
  _check_peers(options, settings)
  drafter_files(settings)  # for its errors, before a model is loaded
  placement = options.mesh.load_options(settings.batch_size)
  output = options.output or fresh_folder()
  described = settings.to_json() | {
    "prompts": prompts_fingerprint(questions),
    "peers": list(options.peers),
  }
  results = ResultsFolder(output, described)
  try:
    compiled_programs.keep_on_disk(options.compilation_cache_dir)
    target = load_target(settings, questions, **placement)
    results.check_source(target.source)
    left_out: dict[str, str] = {}
    ours = build_methods(
      settings, target, left_out if wants_all else None, options.mesh.drafter_rules
    )
    for name, reason in left_out.items():
      print(f"left out: {name} ({reason})")
    methods: list[Method | PeerMethod] = [*ours, *_peers(options, target, ours, output)]
    results.check_drafters({method.name: method.drafter_checksum for method in methods})
    print(f"{target.name} from {target.source}; results go to {output}")
    runner = Runner(settings, target, methods, questions, results, make_display(texts=False))
    runner.run()
    cached_files.write_text(output / "command.txt", command + "\n")
    if settings.greedy:
      measure_margins(output, results.rows, target, runner.read_turn)
  except KeyboardInterrupt:
    raise Interrupted(
      f"interrupted: {len(results.rows)} finished rows are in {output}; to go on, run the same "
      f"command with --output={output}"
    ) from None
  write_spec_bench_files(output, results.rows.values())
  print(f"\n{summary_text(output)}\n\nResults: {output / 'results.jsonl'}")
  return output


def _settings(options: Options) -> tuple["Settings", bool]:
  """The settings of the run, and whether they ask for all methods that there are."""
  from experiments.settings import METHODS, make_settings

  config, given = options.config, dict(options.settings)
  wants_all = tuple(given["methods"] or config.methods) == (spec_bench_flags.ALL,)
  if wants_all:
    given["methods"] = tuple(METHODS)
  return make_settings(config, given), wants_all


def _check_peers(options: Options, settings: "Settings") -> None:
  """Refuses what another system would do otherwise, before a model is loaded."""
  from experiments.peers import PEERS, check_peer_packages

  for name in options.peers:
    if name not in PEERS:
      raise ValueError(f"peers: unknown name {name!r}; the names are {', '.join(PEERS)}")
  if not options.peers:
    return
  for name, value, taken in (
    ("temperature", settings.temperature, 0),
    ("repetition_penalty", settings.repetition_penalty, 1),
    ("batch_size", settings.batch_size, 1),
    ("stop", settings.stop, ()),
  ):
    if value != taken:
      raise ValueError(
        f"peers decode greedily, one prompt at a time: {name} must be {taken}, got {value}"
      )
  check_peer_packages()


def _peers(
  options: Options, target: "Checkpoint", methods: Sequence["Method"], output: Path
) -> list["PeerMethod"]:
  """The other systems' methods."""
  from experiments.peers import build_peers

  if not options.peers:
    return []
  # Beside the results, where the next run finds it if this one is killed.
  folder = output / "peer_weights"
  shutil.rmtree(folder, ignore_errors=True)
  try:
    return build_peers(target, methods, folder)
  finally:
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
  sys.exit(main(sys.argv))
