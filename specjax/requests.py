# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts and limits as arrays, checked before anything is compiled.

Everything here runs on the host with NumPy: device operations of many shapes would each
compile a small program. Values that are tracers (a `generate` under the user's own jit) are
taken as they are; only their shapes can be checked.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import buckets
from specjax.arguments import check_integer
from specjax.types import Array, pytree_dataclass

Prompts = Sequence[Sequence[int]] | np.ndarray | jax.Array
# EOS sets of up to this many ids share one program.
EOS_STEP = 4


@pytree_dataclass
class Request:
  """A checked batch of prompts.

  Attributes:
    tokens: `[B, P]` int32, right-padded prompts.
    prompt_lengths: `[B]` int32.
    limit: `[B]` int32, the length (prompt included) at which a row ends.
    eos_ids: `[E]` int32, padded with -1, which is no token.
    capacity: S, static: slots of the cache and of the token buffer.
  """

  tokens: Array
  prompt_lengths: Array
  limit: Array
  eos_ids: Array
  capacity: int = dataclasses.field(metadata={"static": True})


def is_concrete(value: Any) -> bool:
  """Whether the numbers can be looked at (they are not being traced)."""
  return not isinstance(value, jax.core.Tracer)


def make_request(
  prompts: Prompts,
  *,
  prompt_lengths: Array | Sequence[int] | None,
  max_new_tokens: int | Sequence[int] | Array,
  eos_ids: Sequence[int] | Array,
  capacity: int | None,
  prompt_width: int | None = None,
  block_width: int,
  vocab_size: int,
  max_positions: int | None,
) -> Request:
  """Checks a batch, pads it and fits a capacity.

  Args:
    prompts: one list of token ids a row, or `[B, P]` right-padded with `prompt_lengths`.
    prompt_lengths: `[B]`, for padded prompts; None says that they are full.
    max_new_tokens: one number, or one a row; at least 0.
    eos_ids: ids that end a row; may be empty.
    capacity: S, or None for the smallest bucket that fits.
    prompt_width: the least P, but for a smaller capacity; None for the smallest bucket that fits.
    block_width: nodes and probes of a draft, N + M: what a block needs beyond the limit.
    vocab_size: of the target.
    max_positions: of the target; None where there is no limit.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  tokens, lengths = _pad(prompts, prompt_lengths)
  batch = tokens.shape[0]
  _check_prompts(tokens, lengths, vocab_size)
  new = _per_row("max_new_tokens", max_new_tokens, batch)
  if is_concrete(new) and (new < 0).any():
    raise ValueError(f"max_new_tokens must be >= 0, got {new.min()}")
  limit = lengths + new
  capacity = _fit_capacity(tokens, lengths, limit, capacity, block_width)
  if is_concrete(limit) and max_positions is not None and limit.max() > max_positions:
    raise ValueError(
      f"prompt and max_new_tokens need {limit.max()} positions, the model takes {max_positions}"
    )
  if prompt_width is not None:
    check_integer("prompt_width", prompt_width, 1)
  width = min(buckets.prompt_bucket(max(tokens.shape[1], prompt_width or 0)), capacity)
  return Request(
    tokens=_resize(tokens, width),
    prompt_lengths=lengths,
    limit=limit,
    eos_ids=_eos(eos_ids, vocab_size),
    capacity=capacity,
  )


def _pad(prompts: Prompts, lengths: Any) -> tuple[Any, Any]:
  """Prompts as `[B, P]` and their lengths, NumPy unless traced."""
  if isinstance(prompts, (np.ndarray, jax.Array)):
    if prompts.ndim != 2 or not np.issubdtype(prompts.dtype, np.integer):
      raise ValueError(
        f"prompts must be integers [B, P], got {prompts.dtype} of shape {prompts.shape}"
      )
    tokens = np.asarray(prompts, np.int32) if is_concrete(prompts) else prompts.astype(jnp.int32)
    if lengths is None:
      lengths = np.full(tokens.shape[0], tokens.shape[1])
    return tokens, _per_row("prompt_lengths", lengths, tokens.shape[0])
  if lengths is not None:
    raise ValueError("prompt_lengths goes with padded prompts [B, P], got it with lists of ids")
  rows = [_ids(row, index) for index, row in enumerate(prompts)]
  if not rows:
    raise ValueError("prompts must hold at least one row, got none")
  sizes = np.array([len(row) for row in rows], np.int32)
  tokens = np.zeros((len(rows), max(int(sizes.max()), 1)), np.int32)
  for row, ids in zip(tokens, rows, strict=True):
    row[: len(ids)] = ids
  return tokens, sizes


def _ids(row: Any, index: int) -> np.ndarray:
  try:
    ids = np.asarray(row)
  except ValueError:
    raise ValueError(f"prompts[{index}] must be a list of token ids, got {row!r}") from None
  if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
    raise ValueError(f"prompts[{index}] must be a list of token ids, got {row!r}")
  if ids.size and (ids.min() < np.iinfo(np.int32).min or ids.max() > np.iinfo(np.int32).max):
    raise ValueError(f"prompts[{index}] holds an id that is no int32: {ids.min()} .. {ids.max()}")
  return ids.astype(np.int32)


def _per_row(name: str, value: Any, batch: int) -> Any:
  """An int32 `[B]` of one number or one a row."""
  if not is_concrete(value):
    if value.shape not in ((), (batch,)) or not jnp.issubdtype(value.dtype, jnp.integer):
      raise ValueError(
        f"{name} must be an integer or integers [{batch}], got {value.dtype}{value.shape}"
      )
    return jnp.broadcast_to(value, (batch,)).astype(jnp.int32)
  array = np.asarray(value)
  if array.shape not in ((), (batch,)) or not np.issubdtype(array.dtype, np.integer):
    raise ValueError(f"{name} must be an integer, or one a row [{batch}], got {value!r}")
  return np.broadcast_to(array, (batch,)).astype(np.int32)


def _check_prompts(tokens: Any, lengths: Any, vocab_size: int) -> None:
  batch, width = tokens.shape
  if batch < 1 or width < 1:
    raise ValueError(f"prompts must hold at least one row of one token, got shape {tokens.shape}")
  if not is_concrete(lengths):
    return
  if lengths.min() < 1:
    row = int(np.argmin(lengths))
    raise ValueError(
      f"prompts[{row}] is empty; a prompt needs at least one token (a BOS token will do)"
    )
  if lengths.max() > width:
    raise ValueError(f"prompt_lengths must be at most {width}, got {lengths.max()}")
  if not is_concrete(tokens):
    return
  used = np.arange(width)[None, :] < lengths[:, None]
  bad = used & ((tokens < 0) | (tokens >= vocab_size))
  if bad.any():
    row, column = (int(i) for i in np.argwhere(bad)[0])
    raise ValueError(
      f"prompts[{row}][{column}] is {tokens[row, column]}, outside the vocabulary "
      f"0 .. {vocab_size - 1}"
    )


def _fit_capacity(
  tokens: Any, lengths: Any, limit: Any, capacity: int | None, block_width: int
) -> int:
  """The capacity, checked: longest limit + block width + 1 slots are needed."""
  if not is_concrete(limit):
    if capacity is None:
      raise ValueError(
        "capacity must be given when prompt_lengths or max_new_tokens is traced; it takes "
        "prompt + max_new_tokens + draft nodes + 1"
      )
    return capacity
  longest = int(np.argmax(limit))
  needed = int(limit[longest]) + block_width + 1
  if capacity is None:
    return buckets.capacity_bucket(max(needed, tokens.shape[1] if is_concrete(tokens) else 0))
  if capacity < needed:
    prompt = int(lengths[longest])
    raise ValueError(
      f"capacity must be at least {needed} (prompt {prompt} + max_new_tokens "
      f"{int(limit[longest]) - prompt} + draft nodes {block_width} + 1), got {capacity}"
    )
  return capacity


def _resize(tokens: Any, width: int) -> Any:
  missing = width - tokens.shape[1]
  if missing <= 0:
    return tokens[:, :width]
  pad = np.pad if is_concrete(tokens) else jnp.pad
  return pad(tokens, ((0, 0), (0, missing)))


def _eos(eos_ids: Any, vocab_size: int) -> Any:
  """`[E]` int32, E a multiple of `EOS_STEP`; ids of -1 are padding and end nothing."""
  if not is_concrete(eos_ids):
    return eos_ids.astype(jnp.int32)
  ids = np.atleast_1d(np.asarray(() if eos_ids is None else eos_ids))
  if ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
    raise ValueError(f"eos_ids must be a sequence of token ids, got {eos_ids!r}")
  if ids.size and not ((ids >= -1) & (ids < vocab_size)).all():
    raise ValueError(f"eos_ids must be within 0 .. {vocab_size - 1}, got {ids.tolist()}")
  padded = np.full(max(-(-ids.size // EOS_STEP), 1) * EOS_STEP, -1, np.int32)
  padded[: ids.size] = ids
  return padded
