# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""From a method's name to its drafter, with the settings that the config has for it."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.settings import METHODS, Settings
from specjax import sharding
from specjax.drafters import DraftModel, Empty, Fallback, PromptLookup
from specjax.drafters.drafter_file import load_drafter, read_header
from specjax.drafters.shipped import find_shipped
from specjax.models import cached_files
from specjax.models import checkpoint as checkpoints
from specjax.models.checkpoint import Checkpoint
from specjax.models.tokenizer import check_compatible
from specjax.models.truncation import truncate
from specjax.text import TextGenerator
from specjax.types import Drafter, Params


@dataclasses.dataclass(frozen=True)
class Method:
  """One way to decode.

  Attributes:
    name: a key of `experiments.settings.METHODS`.
    generator: the checkpoint with this method's drafter and verifier.
    lossless: whether its output has the law of autoregressive decoding.
    drafter_file: the file of its trained drafter; None where it has none.
  """

  name: str
  generator: TextGenerator
  lossless: bool
  drafter_file: Path | None = None

  @functools.cached_property
  def drafter_checksum(self) -> str | None:
    """SHA-256 of the drafter's file: a file may be trained on between two runs."""
    return None if self.drafter_file is None else cached_files.sha256(self.drafter_file)


def build_methods(
  settings: Settings,
  target: Checkpoint,
  left_out: dict[str, str] | None = None,
  drafter_rules: str | None = None,
) -> list[Method]:
  """The methods that the settings name, in that order.

  Args:
    settings: of the run.
    target: who is decoded.
    left_out: gets the reason for each method that cannot be built for this target, such as one
      whose drafter was not trained for it; None raises it.
    drafter_rules: how drafters lie on the target's mesh of devices; None is like the target.

  Raises:
    ValueError: naming the setting that does not fit.
  """
  parts = _Parts(settings, target, drafter_rules)
  verifier = settings.make_verifier()
  methods = []
  for name in settings.methods:
    parts.used_file = None
    try:
      drafter, params = BUILDERS[name](parts)
      drafter.check(target.model)
    except ValueError as error:
      if left_out is None:
        raise
      left_out[name] = str(error)
      continue
    if target.mesh is not None:
      placed = target.rules if drafter_rules is None else drafter_rules
      params = sharding.shard(params, target.mesh, placed, model=drafter)
    generator = TextGenerator(
      target,
      drafter=drafter,
      drafter_params=params,
      verifier=verifier,
      raw=settings.raw,
      drafter_rules=drafter_rules,
    )
    # With nothing drafted there is nothing to accept: the target's own law, whatever the rule.
    lossless = verifier.lossless or drafter.num_nodes == 0
    methods.append(Method(name, generator, lossless, drafter_file=parts.used_file))
  return methods


def drafter_files(settings: Settings) -> dict[str, Path]:
  """The files of the setting `drafter`, by the scheme that each says it is of.

  Raises:
    ValueError: for a file that is no drafter's, or that no method of the settings uses.
  """
  files: dict[str, Path] = {}
  for path in map(Path, settings.drafter):
    scheme = read_header(path).scheme
    if scheme in files:
      raise ValueError(
        f"drafter must name one file of each scheme, {files[scheme]} and {path} are both of "
        f"{scheme!r}"
      )
    files[scheme] = path
    users = {name for name, drafter in METHODS.items() if drafter == scheme}
    if scheme == "draft_model":
      users |= {"fallback"}
      if _names_draft_model(settings):
        raise ValueError(
          f"draft_checkpoint, draft_layers and drafter ({path}) each name a draft model; choose one"
        )
    if not users & set(settings.methods):
      raise ValueError(
        f"drafter {path} is of the scheme {scheme!r}, which none of the methods "
        f"{', '.join(settings.methods)} uses"
      )
  return files


def _names_draft_model(settings: Settings) -> bool:
  """Whether the settings name a draft model that is no trained drafter's file."""
  return bool(settings.draft_checkpoint or settings.draft_layers)


def find_trained(scheme: str, target: Checkpoint) -> Path:
  """The file of the trained drafter of a scheme that comes with specjax for a target.

  Raises:
    ValueError: where there is none, saying how to get one.
  """
  path = find_shipped(scheme, target.model, target.params)
  if path is None:
    others = ", or set draft_checkpoint or draft_layers" if scheme == "draft_model" else ""
    raise ValueError(
      f"no trained {scheme} drafter comes with specjax for {target.name}: train one with python "
      f"-m experiments.train --config=configs/train_{scheme}.py, or name one with "
      f"--drafter=FILE{others}"
    )
  return path


class _Parts:
  """What builders take their pieces from. What several methods share is loaded once.

  Attributes:
    settings: of the run.
    used_file: the file of the trained drafter that was last asked for.
  """

  def __init__(self, settings: Settings, target: Checkpoint, drafter_rules: str | None = None):
    self.settings = settings
    self._placement = dict(target.placement)
    if target.mesh is not None and drafter_rules is not None:
      self._placement["rules"] = drafter_rules
    self.used_file: Path | None = None
    self._target = target
    self._files = drafter_files(settings)
    self._trained: dict[Any, tuple[Drafter, Params]] = {}

  def draft_length(self, default: int) -> int:
    """The setting, or a drafter's own default."""
    return self.settings.draft_length or default

  def trained(self, scheme: str, **options: Any) -> tuple[Drafter, Params]:
    """The trained drafter of a scheme: the one that the settings name, or the shipped one.

    Args:
      scheme: a key of `specjax.drafters.drafter_file.BUILDERS`.
      **options: for its builder; those that are None are left out.

    Raises:
      ValueError: where there is none for this target, saying how to get one.
    """
    target = self._target
    path = self._files.get(scheme) or find_trained(scheme, target)
    self.used_file = path
    given = {name: value for name, value in options.items() if value is not None}
    key = (scheme, tuple(given.items()))
    if key not in self._trained:
      self._trained[key] = load_drafter(
        path, target.model, target.params, target_name=target.name, **given
      )
    return self._trained[key]

  @functools.cached_property
  def draft_model(self) -> tuple[Any, Params, bool]:
    """The draft model that the settings name, its parameters, and whether to pad its vocabulary."""
    settings, target = self.settings, self._target
    if settings.draft_checkpoint:
      draft = checkpoints.load(settings.draft_checkpoint, dtype=settings.dtype, **self._placement)
      if draft.tokenizer is None or target.tokenizer is None:
        raise ValueError("draft_checkpoint and model must both have a tokenizer to compare")
      check_compatible(target.tokenizer, draft.tokenizer)
      return draft.model, draft.params, draft.model.vocab_size != target.model.vocab_size
    layers = settings.draft_layers or 0
    if layers > target.model.num_layers:
      raise ValueError(
        f"draft_layers must be at most {target.model.num_layers}, the layers of the target, "
        f"got {layers}"
      )
    return *truncate(target.model, target.params, layers), False


def _autoregressive(parts: _Parts) -> tuple[Drafter, Params]:
  del parts
  return Empty(), None


def _prompt_lookup(parts: _Parts) -> tuple[Drafter, Params]:
  settings = parts.settings
  drafter = PromptLookup(
    draft_length=parts.draft_length(PromptLookup.draft_length),
    max_ngram=settings.max_ngram,
    min_ngram=settings.min_ngram,
    occurrence=settings.occurrence,
    wrap=settings.wrap,
  )
  return drafter, None


def _draft_model(parts: _Parts) -> tuple[Drafter, Params]:
  if not _names_draft_model(parts.settings):
    trained, params = parts.trained("draft_model", draft_length=parts.settings.draft_length)
    assert isinstance(trained, DraftModel)
    return dataclasses.replace(trained, temperature=parts.settings.draft_temperature), params
  model, params, pad_vocabulary = parts.draft_model
  drafter = DraftModel(
    model=model,
    draft_length=parts.draft_length(DraftModel.draft_length),
    temperature=parts.settings.draft_temperature,
    pad_vocabulary=pad_vocabulary,
  )
  return drafter, params


def _fallback(parts: _Parts) -> tuple[Drafter, Params]:
  (first, first_params), (second, second_params) = _prompt_lookup(parts), _draft_model(parts)
  drafter = Fallback(first=first, second=second, min_tokens=parts.settings.fallback_min_tokens)
  return drafter, (first_params, second_params)


def _blockwise(parts: _Parts) -> tuple[Drafter, Params]:
  return parts.trained("blockwise", draft_length=parts.settings.draft_length)


def _pass(parts: _Parts) -> tuple[Drafter, Params]:
  return parts.trained("pass", look_ahead=parts.settings.draft_length)


def _pass_merged(parts: _Parts) -> tuple[Drafter, Params]:
  return parts.trained("pass", look_ahead=parts.settings.draft_length, merged=True)


# A test compares the names with those of experiments.settings.METHODS.
BUILDERS: dict[str, Callable[[_Parts], tuple[Drafter, Params]]] = {
  "autoregressive": _autoregressive,
  "prompt_lookup": _prompt_lookup,
  "draft_model": _draft_model,
  "fallback": _fallback,
  "blockwise": _blockwise,
  "pass": _pass,
  "pass_merged": _pass_merged,
}
