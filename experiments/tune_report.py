# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What experiments.tune shows, and the configs that it writes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs import base
from experiments.report import BASELINE, format_table
from experiments.tune_candidates import Candidate, settings_of_one
from experiments.tune_flags import Options
from experiments.tune_measure import Times, ratio_interval

# Keys of a config that the command line of experiments.decode has as flags of its own, or that
# belong to the method.
_OTHER_KEYS = ("methods", "draft_length", "max_ngram", "min_ngram")


def choice_table(candidates: Sequence[Candidate], times: dict[str, Times]) -> str:
  """All settings on the part that chose, the fastest first.

  Args:
    candidates: the settings.
    times: of them, and of autoregressive decoding, by name.
  """
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


def report_table(
  candidates: dict[str, list[Candidate]],
  chosen: dict[str, Candidate],
  final: dict[str, Times],
  number: int,
) -> str:
  """The chosen settings beside the defaults, on the part that was held out.

  Args:
    candidates: of each method, by its name, the default first.
    chosen: of each method.
    final: times of defaults and chosen ones, and of autoregressive decoding, by name.
    number: of prompts.
  """
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


def config_text(
  settings: Any,
  chosen: Candidate,
  default: Candidate,
  final: dict[str, Times],
  target: str,
  options: Options,
  number: int,
) -> str:
  """A config file of the chosen setting, and of all other settings that are not the base's.

  Args:
    settings: of the run.
    chosen: the setting.
    default: that of the same method.
    final: their times, and of autoregressive decoding, by name.
    target: the model's name.
    options: of the command.
    number: of held-out prompts.
  """
  ours, plain = final[chosen.name], final[BASELINE]
  against = f"{_interval(ours, final[default.name])} of the default ({default.words})"
  if chosen.name == default.name:
    against = "the method's default"
  known = base.get_config().to_dict()
  settings = settings_of_one(settings, chosen.method)
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
