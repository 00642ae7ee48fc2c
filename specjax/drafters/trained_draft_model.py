# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The draft model that `DistillationObjective` trained, out of its file and the target."""

import numpy as np

from specjax.drafters.draft_model import DraftModel
from specjax.models.truncation import select_layers
from specjax.models.vocabulary_subset import TokenSubset, restrict_vocabulary
from specjax.models.weight_changes import decode_changes
from specjax.training.objective import TrainedDrafter
from specjax.types import Model, Params


def from_trained(
  trained: TrainedDrafter, model: Model, params: Params, *, draft_length: int | None = None
) -> tuple[DraftModel, Params]:
  """The drafter of a trained file for its target.

  Args:
    trained: what `DistillationObjective.export` returned, scheme "draft_model".
    model: the target that it was trained for.
    params: its parameters. Embedding and unchanged weights are shared, not copied.
    draft_length: tokens to draft a round; None is what it was trained with.

  Raises:
    ValueError: for another scheme, or settings or arrays that do not fit this target.
  """
  if trained.scheme != "draft_model":
    raise ValueError(f"trained must be of scheme 'draft_model', got {trained.scheme!r}")
  missing = sorted({"layers", "draft_length"} - set(trained.settings))
  if missing:
    raise ValueError(f"the settings of the trained draft model lack {', '.join(missing)}")
  changes = {name: values for name, values in trained.arrays.items() if name != "kept"}
  draft_model: Model
  draft_model, draft_params = select_layers(model, params, trained.settings["layers"])
  draft_params = decode_changes(draft_params, changes)
  if "kept" in trained.arrays:
    kept = TokenSubset.of(np.asarray(trained.arrays["kept"]))
    draft_model, draft_params = restrict_vocabulary(draft_model, draft_params, kept)
  length = int(trained.settings["draft_length"]) if draft_length is None else draft_length
  return DraftModel(model=draft_model, draft_length=length), draft_params
