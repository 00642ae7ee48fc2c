# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The target of a run: prompts that do not fit it are refused before its weights are read."""

from collections.abc import Sequence
from typing import Any

from experiments.prompts import Prompt, check_fit
from experiments.settings import Settings
from specjax.models import checkpoint
from specjax.models.checkpoint import Checkpoint
from specjax.text import TextGenerator


def load_target(settings: Settings, prompts: Sequence[Prompt], **placement: Any) -> Checkpoint:
  """Loads the model that a run decodes with.

  Args:
    settings: of the run.
    prompts: what is to be answered.
    **placement: `mesh` and `rules`, as `specjax.models.checkpoint.load` takes them.

  Raises:
    ValueError: for a checkpoint that cannot be loaded, one without a tokenizer, or a prompt that
      does not fit its context.
    ConnectionError: when it could not be fetched.
  """
  outline = checkpoint.read(settings.model, dtype=settings.dtype)
  check_prompts(settings, outline, prompts)
  return checkpoint.load_weights(outline, **placement)


def check_prompts(settings: Settings, target: Checkpoint, prompts: Sequence[Prompt]) -> None:
  """Checks that each prompt's turns fit the target's context; see `check_fit`.

  Args:
    settings: of the run.
    target: with or without its weights.
    prompts: what is to be answered.

  Raises:
    ValueError: naming the prompt.
  """
  encode = TextGenerator(target, raw=settings.raw).encode
  check_fit(prompts, encode, target.model.max_positions, settings.max_new_tokens)
