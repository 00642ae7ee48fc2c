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

import contextlib
import dataclasses
import functools
import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags as absl_flags

from configs import base
from experiments import flags
from experiments.command import answer
from experiments.display import Display
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh
from experiments.prompts import Prompt, choose_prompts
from experiments.report import BASELINE, format_table, summarize
from experiments.results import ResultsFolder, Row, fresh_folder

_DRAFT_LENGTHS = "2,4,6,10"
_NGRAMS = "2:1,3:1,3:2,4:3"
_SECONDS_BETWEEN_LINES = 2.0
# Keys of a config that the command line of experiments.decode has as flags of its own, or that
# belong to the method.
_OTHER_KEYS = ("methods", "draft_length", "max_ngram", "min_ngram")


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


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One setting of a method.

  Attributes:
    method: as `experiments.decode` names it.
    keys: of the config, by name: what this setting sets.
    words: the setting for people, and in the names of rows.
    runnable: the `experiments.methods.Method` that decodes with it, named after the setting.
  """

  method: str
  keys: tuple[tuple[str, int], ...]
  words: str
  runnable: Any

  @property
  def name(self) -> str:
    """Of its rows: the method and its keys."""
    return self.runnable.name


@dataclasses.dataclass(frozen=True)
class Times:
  """What was measured of one candidate on one part.

  Attributes:
    tokens: of each conversation.
    seconds: of each conversation, the median over the repeats.
    calls: target calls of each conversation.
  """

  tokens: np.ndarray
  seconds: np.ndarray
  calls: np.ndarray

  @property
  def rate(self) -> float:
    """Tokens a second."""
    return float(self.tokens.sum() / self.seconds.sum())


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(lambda: tune(parse(argv)), "interrupted; nothing was decoded yet")


# --- the command line ----------------------------------------------------------------------


def parse(argv: Sequence[str]) -> Options:
  """Reads a command line; `argv[0]` is the program's name.

  Raises:
    flags.HelpRequested: for `--help`.
    ValueError: for what cannot be understood, in one line.
  """
  argv = list(argv)
  values = absl_flags.FlagValues()
  if flags.asks_for_help(argv):
    _define(values, ["tune"])
    lines = [str(__doc__), "Flags:", *flags.describe(values, flags.DEFAULT_CONFIG)]
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
    draft_lengths=_draft_lengths(values.draft_lengths),
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


def _draft_lengths(text: str) -> tuple[int, ...]:
  lengths = tuple(dict.fromkeys(_integers(text.split(","))))
  if not lengths:
    raise ValueError(f"draft_lengths must be integers >= 1, separated by commas, got {text!r}")
  return lengths


def _ngrams(text: str) -> tuple[tuple[int, int], ...]:
  pairs = []
  for part in text.split(","):
    sizes = _integers(part.split(":"))
    if len(sizes) != 2 or sizes[0] < sizes[1]:
      raise ValueError(
        "ngrams must be pairs max_ngram:min_ngram with max_ngram >= min_ngram >= 1, separated by "
        f"commas, got {text!r}"
      )
    pairs.append((sizes[0], sizes[1]))
  return tuple(dict.fromkeys(pairs))


def _integers(texts: Sequence[str]) -> list[int]:
  """The positive integers that the texts are; none if one of them is not."""
  texts = [text.strip() for text in texts]
  if not all(text.isascii() and text.isdigit() and int(text) for text in texts):
    return []
  return [int(text) for text in texts]


# --- the run -------------------------------------------------------------------------------


def tune(options: Options) -> None:
  """Chooses, reports and writes the configs.

  Raises:
    ValueError: for bad input; what can be checked before a model is loaded is.
    KeyboardInterrupt: for Ctrl-C, with a text that says how to go on.
  """
  prompts = choose_prompts((), options.prompts, options.limit)
  from experiments.decode import keep_compiled_programs
  from experiments.methods import drafter_files
  from experiments.settings import make_settings
  from specjax.models import checkpoint

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
    keep_compiled_programs(options.compilation_cache_dir)
    target = checkpoint.load(settings.model, dtype=settings.dtype, **placement)
    bench = _Bench(settings, target, output, options.repeats)
    candidates = {name: _candidates(settings, target, name, options) for name in names}
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
  print(f"\n{_choice_table(everything, times)}\n")
  print(_report_table(candidates, chosen, final, len(reporting)))
  fastest = max(names, key=lambda name: times[chosen[name].name].rate)
  for name in names:
    text = _config_text(
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


def _candidates(settings: Any, target: Any, name: str, options: Options) -> list[Candidate]:
  """The settings of one method to try, its default first."""
  from experiments.methods import build_methods

  settings = _settings_of_one(settings, name)
  build = functools.partial(build_methods, drafter_rules=options.mesh.drafter_rules)
  # Loaded once: settings that only change how a drafter is used share its parameters.
  (default,) = build(settings, target)
  drafter = default.generator.drafter
  looks_up = _lookup(drafter) is not None
  candidates = [_candidate(name, default)]
  seen = {drafter}
  # Without n-grams to look up, one pair stands for all.
  for length in options.draft_lengths:
    for sizes in options.ngrams if looks_up else options.ngrams[:1]:
      changed = _changed(drafter, length, *sizes)
      if changed is not None:
        generator = dataclasses.replace(default.generator, drafter=changed)
        method = dataclasses.replace(default, generator=generator)
      else:
        try:
          (method,) = build(dataclasses.replace(settings, draft_length=length), target)
        except ValueError:
          continue  # longer than the drafter was trained for
      if method.generator.drafter not in seen:
        seen.add(method.generator.drafter)
        candidates.append(_candidate(name, method))
  return candidates


def _settings_of_one(settings: Any, name: str) -> Any:
  """The settings with one method alone, and of the drafters' files the one that it uses."""
  from experiments.methods import drafter_files

  one = dataclasses.replace(settings, methods=(name,))
  used = []
  for path in settings.drafter:
    with contextlib.suppress(ValueError):  # the file of another method
      drafter_files(dataclasses.replace(one, drafter=(path,)))
      used.append(path)
  return dataclasses.replace(one, drafter=tuple(used))


def _candidate(name: str, method: Any) -> Candidate:
  """A method as built, named after what its drafter says of itself."""
  from specjax.drafters import Fallback

  drafter = method.generator.drafter
  lengths = [getattr(drafter, "look_ahead", drafter.num_nodes)]
  if isinstance(drafter, Fallback):
    lengths = list(dict.fromkeys((drafter.first.num_nodes, drafter.second.num_nodes)))
  # Two stages at their own defaults: no draft_length of a config says that, but its absence.
  keys: dict[str, int] = {"draft_length": lengths[0]} if len(lengths) == 1 else {}
  words = [f"draft_length={' then '.join(map(str, lengths))}"]
  lookup = _lookup(drafter)
  if lookup is not None:
    keys |= {"max_ngram": lookup.max_ngram, "min_ngram": lookup.min_ngram}
    words.append(f"max_ngram={lookup.max_ngram} min_ngram={lookup.min_ngram}")
  text = " ".join(words)
  named = dataclasses.replace(method, name=f"{name} {text}")
  return Candidate(name, tuple(keys.items()), text, named)


def _lookup(drafter: Any) -> Any:
  """The prompt lookup in a drafter; None if it has none."""
  from specjax.drafters import Fallback, PromptLookup

  if isinstance(drafter, Fallback):
    return _lookup(drafter.first)
  return drafter if isinstance(drafter, PromptLookup) else None


def _changed(drafter: Any, length: int, max_ngram: int, min_ngram: int) -> Any:
  """The drafter with other settings and the same parameters; None for one to be built anew."""
  from specjax.drafters import DraftModel, Fallback, PromptLookup

  if isinstance(drafter, PromptLookup):
    return dataclasses.replace(
      drafter, draft_length=length, max_ngram=max_ngram, min_ngram=min_ngram
    )
  if isinstance(drafter, DraftModel):
    return dataclasses.replace(drafter, draft_length=length)
  if isinstance(drafter, Fallback):
    first, second = (
      _changed(part, length, max_ngram, min_ngram) for part in (drafter.first, drafter.second)
    )
    if first is not None and second is not None:
      return dataclasses.replace(drafter, first=first, second=second)
  return None


class _Bench:
  """Measures candidates on prompts, and keeps the rows."""

  def __init__(self, settings: Any, target: Any, output: Path, repeats: int):
    from experiments.methods import build_methods

    self._settings = settings
    self._target = target
    self._output = output
    self._repeats = repeats
    plain = dataclasses.replace(settings, methods=(BASELINE,), drafter=())
    (self._baseline,) = build_methods(plain, target)

  def measure(
    self, part: str, prompts: Sequence[Prompt], candidates: Sequence[Candidate]
  ) -> dict[str, Times]:
    """The times of candidates and of autoregressive decoding, by name."""
    from experiments.runner import Runner
    from experiments.studies.bench import prompts_fingerprint

    methods = [self._baseline, *(candidate.runnable for candidate in candidates)]
    described = self._settings.to_json() | {"prompts": prompts_fingerprint(prompts)}
    for name in ("methods", "draft_length", "max_ngram", "min_ngram"):
      del described[name]  # the names of the rows say so
    turns = sum(len(prompt.turns) for prompt in prompts)
    display = _Progress(part, len(methods) * turns * self._repeats)
    repeats = []
    for repeat in range(self._repeats):
      results = ResultsFolder(self._output / part / f"repeat-{repeat}", described)
      results.check_source(self._target.source)
      known = {row["method"]: row["drafter_sha256"] for row in results.rows.values()}
      results.check_drafters(known | {method.name: method.drafter_checksum for method in methods})
      # Another order each time: whoever follows a heavy neighbour changes.
      shift = repeat * len(methods) // self._repeats
      order = methods[shift:] + methods[:shift]
      Runner(self._settings, self._target, order, prompts, results, display).run()
      repeats.append(list(results.rows.values()))
    return {method.name: collect(repeats, method.name) for method in methods}


def collect(repeats: Sequence[Sequence[Row]], method: str) -> Times:
  """Medians over repeats of what one method took for each conversation (or batch of them).

  Args:
    repeats: the rows of each repeat.
    method: whose rows.

  Raises:
    ValueError: where nothing was decoded.
  """
  tables: list[dict[int, Any]] = []
  for rows in repeats:
    parts: dict[int, list[Row]] = {}
    for row in rows:
      if row["method"] == method:
        parts.setdefault(row["batch_index"], []).append(row)
    tables.append({index: summarize(part) for index, part in parts.items()})
  keys = sorted(tables[0])
  seconds = [[table[key].decode_seconds for key in keys] for table in tables]
  times = Times(
    tokens=np.array([tables[0][key].new_tokens for key in keys]),
    seconds=np.median(np.array(seconds), axis=0),
    calls=np.array([tables[0][key].target_calls for key in keys]),
  )
  if not times.tokens.sum() or not times.seconds.sum() > 0:
    raise ValueError(f"{method} decoded no token; max_new_tokens must be >= 1 to measure time")
  return times


def ratio_interval(ours: Times, theirs: Times) -> tuple[float, float, float]:
  """How much faster one is, and the 95 % bootstrap interval over conversations (Efron 1979).

  Returns:
    The ratio of tokens a second, and its interval's ends: both measured on the same prompts.
  """
  draws = np.random.default_rng(0).integers(len(ours.tokens), size=(2000, len(ours.tokens)))

  def rate(times: Times) -> np.ndarray:
    return times.tokens[draws].sum(axis=1) / np.maximum(times.seconds[draws].sum(axis=1), 1e-12)

  ratios = rate(ours) / np.maximum(rate(theirs), 1e-12)
  low, high = np.quantile(ratios, (0.025, 0.975))
  return ours.rate / theirs.rate, float(low), float(high)


# --- what is shown and written -------------------------------------------------------------


class _Progress(Display):
  """One line every few seconds: what is done, and how long the rest takes."""

  def __init__(self, part: str, total: int):
    super().__init__()
    self._part, self._method = part, ""
    self._noted: set[str] = set()
    self._all, self._finished, self._fresh = total, 0, 0
    self._started, self._written = time.perf_counter(), -np.inf

  @contextlib.contextmanager
  def open(self, total: int, done: int) -> Iterator[None]:
    """A repeat begins."""
    del total
    self._finished += done
    yield

  def begin(self, method: str, prompts: Sequence[tuple[int, Prompt]], turn: int) -> None:
    """Nothing is shown of a single answer."""
    self._method = method

  def note(self, text: str) -> None:
    """What takes long: compiling, once for each setting."""
    line = f"{self._part}: {self._method}: {text}\n"
    if line not in self._noted:
      self._noted.add(line)
      self._write(line)

  def show(self, pieces: Sequence[str]) -> None:
    """Nor is its text."""

  def end(self, rows: Sequence[Row]) -> None:
    """Rows are done."""
    self._finished += len(rows)
    self._fresh += len(rows)
    now = time.perf_counter()
    last = self._finished >= self._all
    if now - self._written < _SECONDS_BETWEEN_LINES and not last:
      return
    self._written = now
    left = (self._all - self._finished) * (now - self._started) / self._fresh
    self._write(
      f"{self._part}: {self._finished} of {self._all} answers, "
      f"about {_duration(max(left, 0))} left\n"
    )


def _duration(seconds: float) -> str:
  return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _choice_table(candidates: Sequence[Candidate], times: dict[str, Times]) -> str:
  """All settings on the part that chose, the fastest first."""
  plain = times[BASELINE]
  lines = [(BASELINE, "", *_figures(plain, plain))]
  ordered = sorted(candidates, key=lambda candidate: -times[candidate.name].rate)
  lines += [
    (candidate.method, candidate.words, *_figures(times[candidate.name], plain))
    for candidate in ordered
  ]
  return "Prompts that chose\n" + format_table(
    ("method", "setting", "tokens/call", "tokens/s", "speed-up"), lines
  )


def _figures(times: Times, plain: Times) -> tuple[str, str, str]:
  return (
    f"{times.tokens.sum() / max(times.calls.sum(), 1):.2f}",
    f"{times.rate:.1f}",
    f"{times.rate / plain.rate:.2f}x",
  )


def _report_table(
  candidates: dict[str, list[Candidate]],
  chosen: dict[str, Candidate],
  final: dict[str, Times],
  number: int,
) -> str:
  """The chosen settings beside the defaults, on the part that was held out."""
  plain = final[BASELINE]
  lines = [(BASELINE, "", *_figures(plain, plain), "")]
  for name, choice in chosen.items():
    default = candidates[name][0]
    lines.append((name, f"default: {default.words}", *_figures(final[default.name], plain), ""))
    against = "the default is the choice"
    if choice.name != default.name:
      against = _interval(final[choice.name], final[default.name])
    lines.append((name, f"chosen: {choice.words}", *_figures(final[choice.name], plain), against))
  header = ("method", "setting", "tokens/call", "tokens/s", "speed-up", "over the default (95 %)")
  return f"Held-out prompts ({number})\n" + format_table(header, lines)


def _interval(ours: Times, theirs: Times) -> str:
  ratio, low, high = ratio_interval(ours, theirs)
  if len(ours.tokens) < 3:
    return f"{ratio:.2f}x (too few prompts for an interval)"
  return f"{ratio:.2f}x ({low:.2f} to {high:.2f})"


def _config_text(
  settings: Any,
  chosen: Candidate,
  default: Candidate,
  final: dict[str, Times],
  target: str,
  options: Options,
  number: int,
) -> str:
  """A config file of the chosen setting, and of all other settings that are not the base's."""
  ours, plain = final[chosen.name], final[BASELINE]
  against = f"{_interval(ours, final[default.name])} of the default ({default.words})"
  if chosen.name == default.name:
    against = "the method's default"
  known = base.get_config().to_dict()
  settings = _settings_of_one(settings, chosen.method)
  keys = {
    name: getattr(settings, name)
    for name in known
    if name not in _OTHER_KEYS and getattr(settings, name) != known[name]
  }
  keys = {"methods": (BASELINE, chosen.method), **keys, **dict(chosen.keys)}
  assignments = [f"  config.{name} = {_literal(value)}" for name, value in keys.items()]
  source = Path(options.prompts).name if options.prompts else "the built-in prompts"
  return "\n".join(
    [
      "# Copyright 2026 The specjax authors.",
      "# SPDX-License-Identifier: Apache-2.0",
      # Names come from outside: they must not end the docstring.
      f'"""{chosen.method} as experiments.tune chose it for {_plain(target)}.',
      "",
      f"On {number} held-out prompts of {_plain(source)}: {ours.rate:.1f} tokens/s,",
      f"{_interval(ours, plain)} of autoregressive decoding,",
      f"{against}.",
      '"""',
      "",
      "from ml_collections import ConfigDict",
      "",
      "from configs import base",
      "",
      "",
      "def get_config() -> ConfigDict:",
      "  config = base.get_config()",
      *assignments,
      "  return config",
      "",
    ]
  )


def _literal(value: Any) -> str:
  """A setting as Python source, strings in double quotes."""
  if isinstance(value, tuple | list):
    items = ", ".join(map(_literal, value))
    return f"({items},)" if len(value) == 1 else f"({items})"
  return json.dumps(value) if isinstance(value, str) else repr(value)


def _plain(text: str) -> str:
  return text.replace("\\", "/").replace('"', "'")


def _write(path: Path, text: str) -> None:
  from specjax.models import cached_files

  path.parent.mkdir(parents=True, exist_ok=True)
  cached_files.write_text(path, text)


if __name__ == "__main__":
  sys.exit(main(sys.argv))
