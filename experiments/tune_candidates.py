# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The settings that experiments.tune tries: each a method that is ready to decode."""

import contextlib
import dataclasses
import functools
from typing import Any

from experiments.methods import build_methods, drafter_files
from experiments.tune_flags import Options
from specjax.drafters import DraftModel, Fallback, PromptLookup


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


def find_candidates(settings: Any, target: Any, name: str, options: Options) -> list[Candidate]:
  """The settings of one method to try, its default first.

  Args:
    settings: of the run, an `experiments.settings.Settings`.
    target: the checkpoint that is decoded with.
    name: of the method.
    options: what to try.

  Raises:
    ValueError: for a method that has no drafter for this target.
  """
  settings = settings_of_one(settings, name)
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


def settings_of_one(settings: Any, name: str) -> Any:
  """The settings with one method alone, and of the drafters' files the one that it uses.

  Args:
    settings: of the run.
    name: of the method.
  """
  one = dataclasses.replace(settings, methods=(name,))
  used = []
  for path in settings.drafter:
    with contextlib.suppress(ValueError):  # the file of another method
      drafter_files(dataclasses.replace(one, drafter=(path,)))
      used.append(path)
  return dataclasses.replace(one, drafter=tuple(used))


def _candidate(name: str, method: Any) -> Candidate:
  """A method as built, named after what its drafter says of itself."""
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
  if isinstance(drafter, Fallback):
    return _lookup(drafter.first)
  return drafter if isinstance(drafter, PromptLookup) else None


def _changed(drafter: Any, length: int, max_ngram: int, min_ngram: int) -> Any:
  """The drafter with other settings and the same parameters; None for one to be built anew."""
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
