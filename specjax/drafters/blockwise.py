# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Blockwise parallel decoding: heads on the target's last hidden state propose a block.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115). Of the paper's k heads, p_1 is the target
itself and p_i predicts the token i places ahead from the same hidden state (section 3; the
architecture is that of section 6: one feed-forward layer, a residual from its input to each of
its outputs, the target's own vocabulary projection on top). Verification and the next prediction
are one target call, as in section 4: k tokens a call at best, m / k + 1 calls for m tokens.

The paper sends p_1 through the learned layer too. Here p_1 is the target unchanged, so that the
exact rule gives the target's own greedy text.

The projection may be restricted to a *draft vocabulary* of the most frequent tokens (Zhao et al.
2025, FR-Spec, arXiv 2502.14856): it costs in proportion, and the other tokens are never proposed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import processors
from specjax.drafters.base import ChainDrafter, check_draft_length
from specjax.models.vocabulary_subset import TokenSubset, restrict_vocabulary
from specjax.training.objective import TrainedDrafter
from specjax.types import Array, Context, Draft, Model, Params, PyTree

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  "relu": jax.nn.relu,
  "silu": jax.nn.silu,
  "gelu": jax.nn.gelu,
}


@dataclasses.dataclass(frozen=True)
class Blockwise(ChainDrafter):
  """Proposes the k - 1 tokens after the pending one with heads 2 .. k, a point mass each.

  Its parameters are `{"heads": ...}` as `init_heads` makes them (k - 1 outputs or more), and for a
  draft vocabulary of R tokens also `"kept"`, their ids `[R]` int32, and `"head"`, the columns
  `[D, R]` of the target's output head that belong to them.

  Attributes:
    model: the target, whose output head the heads share.
    draft_length: k - 1. 0 is plain decoding.
    activation: of the feed-forward layer, a name of `ACTIVATIONS`.
  """

  model: Model
  draft_length: int = 5
  activation: str = "silu"

  def __post_init__(self):
    check_draft_length(self.draft_length, minimum=0)
    check_activation(self.activation)

  @classmethod
  def from_trained(
    cls,
    trained: TrainedDrafter,
    model: Model,
    params: Params,
    draft_length: int | None = None,
  ) -> tuple["Blockwise", Params]:
    """The drafter of a trained file and its parameters, in the target's dtype.

    Args:
      trained: what `BlockwiseObjective.export` made.
      model: the target.
      params: the target's parameters, for the columns of a draft vocabulary.
      draft_length: how many of the heads to use, the nearest first; None uses all.

    Raises:
      ValueError: where the file is of another scheme or target, an array is missing or has
        another shape, or there are fewer heads than `draft_length`.
    """
    if trained.scheme != "blockwise":
      raise ValueError(f"trained must be a 'blockwise' drafter, got {trained.scheme!r}")
    heads, kept = _read_arrays(trained, model)
    num_heads = heads["output"]["kernel"].shape[0]
    if draft_length is None:
      draft_length = num_heads
    check_draft_length(draft_length, minimum=0)
    if draft_length > num_heads:
      raise ValueError(
        f"draft_length must be at most {num_heads}, the heads of this drafter, got {draft_length}"
      )
    heads["output"] = {name: value[:draft_length] for name, value in heads["output"].items()}
    drafter = cls(model, draft_length, str(trained.settings.get("activation", cls.activation)))
    dtype = getattr(model, "dtype", jnp.float32)
    drafter_params = {"heads": jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), heads)}
    if kept is not None:
      drafter_params["kept"] = jnp.asarray(kept.ids, jnp.int32)
      drafter_params["head"] = gather_columns(model, params, kept)
    return drafter, drafter_params

  def check(self, model: Model) -> None:
    """Raises ValueError for a target other than the one that the heads were made for."""
    for name in ("hidden_size", "vocab_size"):
      ours, others = getattr(self.model, name), getattr(model, name)
      if ours != others:
        raise ValueError(
          f"the heads of a Blockwise drafter are made for a target of {name} {ours}, got {others}"
        )

  def draft(self, params: Params, state: PyTree, context: Context) -> tuple[Draft, PyTree]:
    """One feed-forward layer and one projection for the whole draft."""
    hidden = head_outputs(params["heads"], context.hidden, self.activation)
    hidden = hidden[:, : self.draft_length]
    logits = head_logits(self.model, context.params, hidden, params.get("head"))
    tokens = jax.vmap(jax.vmap(processors.first_argmax))(logits)
    if "kept" in params:
      tokens = params["kept"][tokens]
    # A prompt of one token comes without the state that would have predicted it.
    valid = jnp.broadcast_to((context.length > 1)[:, None], tokens.shape)
    return Draft.chain(tokens, valid), state


def check_activation(activation: str) -> None:
  """Raises ValueError unless `activation` is a name of `ACTIVATIONS`."""
  if activation not in ACTIVATIONS:
    raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def init_heads(key: Array, num_heads: int, hidden_size: int, head_width: int) -> Params:
  """The feed-forward layer at step 0: its output is zero, so that every head is the target.

  Args:
    key: a typed key.
    num_heads: k - 1.
    hidden_size: D.
    head_width: H, the size of the hidden layer (in the paper k times D).

  Returns:
    `hidden/kernel [D, H]`, `hidden/bias [H]`, `output/kernel [k - 1, H, D]` and
    `output/bias [k - 1, D]`, float32, as nested dictionaries.
  """
  kernel = jax.random.normal(key, (hidden_size, head_width), jnp.float32)
  return {
    "hidden": {"kernel": kernel * hidden_size**-0.5, "bias": jnp.zeros((head_width,))},
    "output": {
      "kernel": jnp.zeros((num_heads, head_width, hidden_size)),
      "bias": jnp.zeros((num_heads, hidden_size)),
    },
  }


def feed_forward(heads: Params, hidden: Array, activation: str) -> Array:
  """The hidden layer that all heads share: `[..., D]` to `[..., H]`."""
  layer = jax.tree.map(lambda leaf: leaf.astype(hidden.dtype), heads["hidden"])
  bias = jnp.expand_dims(layer["bias"], tuple(range(hidden.ndim - 1)))
  return ACTIVATIONS[activation](hidden @ layer["kernel"] + bias)


def one_output(output: Params, inner: Array, hidden: Array) -> Array:
  """One head's hidden state `[..., D]`.

  Args:
    output: the head's own `kernel [H, D]` and `bias [D]`.
    inner: `[..., H]`, what `feed_forward` returned.
    hidden: `[..., D]`, its input, for the residual.
  """
  output = jax.tree.map(lambda leaf: leaf.astype(hidden.dtype), output)
  bias = jnp.expand_dims(output["bias"], tuple(range(hidden.ndim - 1)))
  return hidden + inner @ output["kernel"] + bias


def head_outputs(heads: Params, hidden: Array, activation: str) -> Array:
  """All heads' hidden states `[..., k - 1, D]` from the target's, `[..., D]`."""
  inner = feed_forward(heads, hidden, activation)
  return jax.vmap(one_output, (0, None, None), hidden.ndim - 1)(heads["output"], inner, hidden)


def head_logits(model: Model, params: Params, hidden: Array, columns: Array | None) -> Array:
  """Logits `[..., V]`, or `[..., R]` through the `columns [D, R]` of `gather_columns`."""
  if columns is not None:
    params = {**params, "head": {"kernel": columns}}
  return model.logits(params, hidden)


def gather_columns(model: Model, params: Params, tokens: TokenSubset) -> Array:
  """`[D, R]`: the columns of the target's output head for a draft vocabulary.

  Raises:
    ValueError: as `specjax.models.vocabulary_subset.restrict_vocabulary`.
  """
  _, restricted = restrict_vocabulary(model, params, tokens)
  return restricted["model"]["head"]["kernel"]


def _read_arrays(trained: TrainedDrafter, model: Model) -> tuple[Params, TokenSubset | None]:
  """The heads and the draft vocabulary of a trained file, checked against the target."""
  arrays = dict(trained.arrays)
  ids = arrays.pop("kept", None)
  kept = None if ids is None else TokenSubset.of(np.asarray(ids))
  if "output/bias" not in arrays or np.ndim(arrays["output/bias"]) != 2:
    raise ValueError("the array 'output/bias' [k - 1, D] is missing from the trained drafter")
  if "hidden/bias" not in arrays or np.ndim(arrays["hidden/bias"]) != 1:
    raise ValueError("the array 'hidden/bias' [H] is missing from the trained drafter")
  num_heads, width = arrays["output/bias"].shape[0], arrays["hidden/bias"].shape[0]
  shapes = jax.eval_shape(
    lambda: init_heads(jax.random.key(0), num_heads, model.hidden_size, width)
  )
  heads: dict[str, dict[str, Any]] = {}
  for layer, leaves in shapes.items():
    for leaf, shape in leaves.items():
      name = f"{layer}/{leaf}"
      if name not in arrays:
        raise ValueError(f"the array {name!r} is missing from the trained drafter")
      found = arrays.pop(name)
      if found.shape != shape.shape:
        raise ValueError(
          f"the trained drafter's {name!r} has shape {found.shape}; for this target (hidden size "
          f"{model.hidden_size}) it takes {shape.shape}"
        )
      heads.setdefault(layer, {})[leaf] = found
  if arrays:
    raise ValueError(f"a blockwise drafter has no array {min(arrays)!r}")
  return heads, kept
