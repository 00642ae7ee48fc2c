# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The times that experiments.tune chooses by: medians over repeats, settings in turn."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.display import Display
from experiments.methods import build_methods
from experiments.prompts import Prompt, prompts_fingerprint
from experiments.report import BASELINE, summarize
from experiments.results import ResultsFolder, Row
from experiments.runner import Runner
from experiments.tune_candidates import Candidate

_SECONDS_BETWEEN_LINES = 2.0


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


class Stopwatch:
  """Measures candidates on prompts, and keeps the rows."""

  def __init__(self, settings: Any, target: Any, output: Path, repeats: int):
    """Nothing is decoded yet.

    Args:
      settings: of the run, an `experiments.settings.Settings`.
      target: the checkpoint that is decoded with.
      output: folder of the rows, a folder in it for each part.
      repeats: how often everything is decoded.
    """
    self._settings = settings
    self._target = target
    self._output = output
    self._repeats = repeats
    plain = dataclasses.replace(settings, methods=(BASELINE,), drafter=())
    (self._baseline,) = build_methods(plain, target)

  def measure(
    self, part: str, prompts: Sequence[Prompt], candidates: Sequence[Candidate]
  ) -> dict[str, Times]:
    """The times of candidates and of autoregressive decoding, by name.

    Args:
      part: name of the folder of rows.
      prompts: what to decode.
      candidates: the settings; they take turns.

    Raises:
      ValueError: if the folder holds rows of another run.
    """
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
