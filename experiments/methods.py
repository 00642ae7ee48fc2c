# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""From a method's name to its drafter, with the settings that the config has for it."""

import dataclasses
from collections.abc import Callable
from typing import Any

from experiments.settings import Settings
from specjax import verifiers
from specjax.drafters import DraftModel, Empty, Fallback, PromptLookup
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
    name: a name of `specjax.drafters.REGISTRY`.
    generator: the checkpoint with this method's drafter and verifier.
    lossless: whether its output has the law of autoregressive decoding.
  """

  name: str
  generator: TextGenerator
  lossless: bool


def build_methods(settings: Settings, target: Checkpoint) -> list[Method]:
  """The methods that the settings name, in that order.

  Raises:
    ValueError: naming the setting that does not fit.
  """
  parts = _Parts(settings, target)
  verifier = verifiers.REGISTRY[settings.verifier]()
  methods = []
  for name in settings.methods:
    drafter, params = BUILDERS[name](parts)
    drafter.check(target.model)
    generator = TextGenerator(
      target, drafter=drafter, drafter_params=params, verifier=verifier, raw=settings.raw
    )
    # With nothing drafted there is nothing to accept: the target's own law, whatever the rule.
    lossless = verifier.lossless or drafter.num_nodes == 0
    methods.append(Method(name=name, generator=generator, lossless=lossless))
  return methods


class _Parts:
  """What builders take their pieces from; the draft model is loaded once."""

  def __init__(self, settings: Settings, target: Checkpoint):
    self.settings = settings
    self._target = target
    self._draft_model: tuple[Any, Params, bool] | None = None

  def draft_length(self, default: int) -> int:
    """The setting, or a drafter's own default."""
    return self.settings.draft_length or default

  def draft_model(self) -> tuple[Any, Params, bool]:
    """The draft model, its parameters, and whether its vocabulary has another length."""
    if self._draft_model is None:
      self._draft_model = self._load_draft_model()
    return self._draft_model

  def _load_draft_model(self) -> tuple[Any, Params, bool]:
    settings, target = self.settings, self._target
    if settings.draft_checkpoint:
      draft = checkpoints.load(settings.draft_checkpoint, dtype=settings.dtype)
      if draft.tokenizer is None or target.tokenizer is None:
        raise ValueError("draft_checkpoint and model must both have a tokenizer to compare")
      check_compatible(target.tokenizer, draft.tokenizer)
      return draft.model, draft.params, draft.model.vocab_size != target.model.vocab_size
    if settings.draft_layers is None:
      raise ValueError("draft_checkpoint or draft_layers must name a draft model, got neither")
    if settings.draft_layers > target.model.num_layers:
      raise ValueError(
        f"draft_layers must be at most {target.model.num_layers}, the layers of the target, "
        f"got {settings.draft_layers}"
      )
    return *truncate(target.model, target.params, settings.draft_layers), False


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
  model, params, pad_vocabulary = parts.draft_model()
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


# A test compares the names with those of specjax.drafters.REGISTRY.
BUILDERS: dict[str, Callable[[_Parts], tuple[Drafter, Params]]] = {
  "autoregressive": _autoregressive,
  "prompt_lookup": _prompt_lookup,
  "draft_model": _draft_model,
  "fallback": _fallback,
}
