# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""From a scheme's name to its training objective, with the settings that the config has for it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from specjax.models.checkpoint import Checkpoint
from specjax.models.vocabulary_subset import TokenSubset
from specjax.training.blockwise_objective import BlockwiseObjective
from specjax.training.distillation_objective import DistillationObjective
from specjax.training.objective import Objective
from specjax.training.pass_objective import PaSSObjective

OBJECTIVES: dict[str, Callable[..., Objective]] = {
  "blockwise": BlockwiseObjective,
  "draft_model": DistillationObjective,
  "pass": PaSSObjective,
}


def make_objective(
  scheme: str | None,
  settings: Mapping[str, Any],
  target: Checkpoint,
  token_counts: Callable[[], np.ndarray],
) -> Objective:
  """The objective of a scheme.

  Args:
    scheme: a key of `OBJECTIVES`.
    settings: values for the fields of its dataclass, beside `model`. `draft_vocabulary` is a
      number of tokens here.
    target: the target.
    token_counts: gives `[V]`, how often each token stands in the data's answers.

  Raises:
    ValueError: for an unknown scheme or setting, or naming the setting that does not fit.
  """
  if scheme not in OBJECTIVES:
    raise ValueError(f"scheme must be one of {', '.join(sorted(OBJECTIVES))}, got {scheme!r}")
  kind = OBJECTIVES[scheme]
  known = {field.name for field in dataclasses.fields(kind)} - {"model"}  # type: ignore[arg-type]
  for name in settings:
    if name not in known:
      raise ValueError(
        f"objective has no setting {name!r} for {scheme}; the settings are "
        f"{', '.join(sorted(known))}"
      )
  values: dict[str, Any] = {
    name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()
  }
  size = values.get("draft_vocabulary")
  if size is not None:
    values["draft_vocabulary"] = TokenSubset.most_frequent(
      token_counts(), size, always=target.eos_ids
    )
  try:
    return kind(model=target.model, **values)
  except TypeError as error:
    raise ValueError(f"the settings of {scheme} do not fit: {error}") from error
