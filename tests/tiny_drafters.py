# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Drafter files for any small target, of every scheme, without training.

The draft model is the target's own layers unchanged, so that a full set of them is never rejected;
the other schemes draft noise.
"""

import jax
import numpy as np

from specjax.drafters.blockwise import init_heads
from specjax.drafters.drafter_file import save_drafter
from specjax.models.truncation import select_layers
from specjax.models.weight_changes import encode_changes, init_changes
from specjax.training.objective import TrainedDrafter

SCHEMES = ("blockwise", "draft_model", "pass")
LENGTH = 3


def trained(scheme, model, params):
  """A drafter of the scheme for that target, which drafts `LENGTH` tokens."""
  width = model.hidden_size
  if scheme == "pass":
    arrays = {"look_ahead": np.random.default_rng(0).normal(size=(LENGTH, width))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return TrainedDrafter("pass", {"look_ahead": LENGTH}, arrays)
  if scheme == "blockwise":
    heads = init_heads(jax.random.key(0), LENGTH, width, 8)
    arrays = {f"{a}/{b}": leaf for a, leaves in heads.items() for b, leaf in leaves.items()}
    return TrainedDrafter("blockwise", {"draft_length": LENGTH, "activation": "silu"}, arrays)
  layers = list(range(model.num_layers))
  _, selected = select_layers(model, params, layers)
  part = {"layers": selected["layers"], "final_norm": params["final_norm"]}
  arrays = encode_changes(part, init_changes(jax.random.key(0), part, 2), "bfloat16")
  return TrainedDrafter("draft_model", {"layers": layers, "draft_length": LENGTH}, arrays)


def write(path, scheme, model, params, target_name="tiny"):
  """Writes the file and returns its path."""
  save_drafter(path, trained(scheme, model, params), model, params, target_name)
  return path
