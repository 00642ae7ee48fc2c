# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A draft model out of the target itself: some of its layers under its own output head.

A weak draft model, but one that every target has, that shares its vocabulary, and that costs
no memory for parameters. Trained early exits (Elhoushi et al. 2024, arXiv 2404.16710) draft
better, and so do chosen layers that are distilled (`specjax.training.distillation_objective`).
"""

import dataclasses
from collections.abc import Sequence

from specjax.models.transformer import Transformer
from specjax.types import Model, Params, check_sequence


def truncate(model: Model, params: Params, num_layers: int) -> tuple[Transformer, Params]:
  """The model of the first `num_layers` layers. Its parameters are the target's own arrays.

  Args:
    model: the target.
    params: its parameters; not copied.
    num_layers: layers to keep, 1 .. `model.num_layers`.

  Raises:
    ValueError: for a number of layers that the model does not have, or another kind of model.
  """
  transformer = _transformer(model)
  if not 1 <= num_layers <= transformer.num_layers:
    raise ValueError(f"num_layers must be in 1 .. {transformer.num_layers}, got {num_layers}")
  return select_layers(model, params, range(num_layers))


def select_layers(
  model: Model, params: Params, layers: Sequence[int]
) -> tuple[Transformer, Params]:
  """The model of some of the layers, in the order of the target.

  Args:
    model: the target.
    params: its parameters; not copied.
    layers: indices of layers in rising order, at least one; -1 is the last layer.

  Returns:
    The model, whose layer i is the target's layer `layers[i]`, and its parameters: the target's
    own arrays.

  Raises:
    ValueError: for layers that the model does not have, twice the same or out of order, or
      another kind of model.
  """
  transformer = _transformer(model)
  kept = layer_indices(transformer, layers)
  types = tuple(transformer.config.layer_types[layer] for layer in kept)
  config = dataclasses.replace(transformer.config, num_layers=len(kept), layer_types=types)
  selected = {str(index): params["layers"][str(layer)] for index, layer in enumerate(kept)}
  return dataclasses.replace(transformer, config=config), {**params, "layers": selected}


def layer_indices(model: Model, layers: Sequence[int]) -> tuple[int, ...]:
  """`layers` with negative ones counted from the end, checked as in `select_layers`."""
  total = _transformer(model).num_layers
  given = check_sequence("layers", layers)
  kept = tuple(layer + total if layer < 0 else layer for layer in given)
  if not kept or any(not 0 <= layer < total for layer in kept):
    raise ValueError(f"layers must name at least one of the layers 0 .. {total - 1}, got {given}")
  if list(kept) != sorted(set(kept)):
    raise ValueError(f"layers must be in rising order, each once, got {given}")
  return kept


def _transformer(model: Model) -> Transformer:
  if not isinstance(model, Transformer):
    raise ValueError(f"only a Transformer can be truncated, got {type(model).__name__}")
  return model
