# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A draft model out of the target itself: its first layers under its own output head.

A weak draft model, but one that every target has, that shares its vocabulary, and that costs
no memory for parameters. Trained early exits (Elhoushi et al. 2024, arXiv 2404.16710) draft
better.
"""

import dataclasses

from specjax.models.transformer import Transformer
from specjax.types import Params


def truncate(model: Transformer, params: Params, num_layers: int) -> tuple[Transformer, Params]:
  """The model of the first `num_layers` layers. Its parameters are the target's own arrays.

  Args:
    model: the target.
    params: its parameters; not copied.
    num_layers: layers to keep, 1 .. `model.num_layers`.

  Raises:
    ValueError: for a number of layers that the model does not have, or another kind of model.
  """
  if not isinstance(model, Transformer):
    raise ValueError(f"only a Transformer can be truncated, got {type(model).__name__}")
  if not 1 <= num_layers <= model.num_layers:
    raise ValueError(f"num_layers must be in 1 .. {model.num_layers}, got {num_layers}")
  config = dataclasses.replace(
    model.config,
    num_layers=num_layers,
    layer_types=model.config.layer_types[:num_layers],
  )
  layers = {str(index): params["layers"][str(index)] for index in range(num_layers)}
  return dataclasses.replace(model, config=config), {**params, "layers": layers}
