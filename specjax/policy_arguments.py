# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a user may hand to a sampling policy, checked and turned into `[B]` arrays.

Concrete values become NumPy arrays: device operations of many shapes would each compile a small
program. Values that are tracers are taken as they are; only shape and dtype can be checked.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.types import Array

# Lists of up to this many ids share one program; longer ones go by powers of two.
_FEWEST_IDS = 4

_Check = Callable[[np.ndarray], np.ndarray]
# For each number: its dtype, which values it takes, and that in words.
_NUMBERS: dict[str, tuple[Any, _Check, str]] = {
  "temperature": (np.float32, lambda v: np.isfinite(v) & (v >= 0), "a finite number >= 0"),
  "top_k": (np.int32, lambda v: v >= 0, "an integer >= 0 (0 keeps every token)"),
  "top_p": (np.float32, lambda v: (v > 0) & (v <= 1), "a number above 0 and up to 1"),
  "min_p": (np.float32, lambda v: (v >= 0) & (v <= 1), "a number from 0 to 1"),
  "repetition_penalty": (np.float32, lambda v: np.isfinite(v) & (v > 0), "a finite number > 0"),
  "presence_penalty": (np.float32, np.isfinite, "a finite number"),
  "frequency_penalty": (np.float32, np.isfinite, "a finite number"),
  "min_new_tokens": (np.int32, lambda v: v >= 0, "an integer >= 0"),
  "logit_bias": (np.float32, lambda v: v < np.inf, "a bias below infinity for each token id"),
}


def is_concrete(value: Any) -> bool:
  """Whether the numbers can be looked at (they are not being traced)."""
  return not isinstance(value, jax.core.Tracer)


def numbers(name: str, value: Any, batch: int) -> Any:
  """One number, or one a row, as `[B]` of the field's dtype.

  Raises:
    ValueError: for a value outside the range of the field `name`, or of another shape.
  """
  dtype, check, takes = _NUMBERS[name]
  whole = dtype is np.int32
  kind = jnp.integer if whole else jnp.number
  error = f"{name} must be {takes}, or one of these per row [{batch}], got "
  if not is_concrete(value):
    if value.shape not in ((), (batch,)) or not jnp.issubdtype(value.dtype, kind):
      raise ValueError(f"{error}{value.dtype} of shape {value.shape}")
    return jnp.broadcast_to(value, (batch,)).astype(dtype)
  try:
    array = np.asarray(value)
  except ValueError:  # a ragged list
    raise ValueError(f"{error}{value!r}") from None
  if array.shape not in ((), (batch,)) or not jnp.issubdtype(array.dtype, kind):
    raise ValueError(f"{error}{value!r}")
  wide = array.astype(np.int64 if whole else np.float64)
  with np.errstate(over="ignore"):
    narrow = (np.minimum(wide, np.iinfo(np.int32).max) if whole else wide).astype(dtype)
  if not (check(wide) & check(narrow)).all():
    raise ValueError(f"{error}{value!r}")
  return np.broadcast_to(narrow, (batch,))


def tail(top_p: Any, batch: int) -> Any:
  """1 - top_p, `[B]` float32, rounded once.

  Subtracting from a top_p that is already rounded to float32 would move the boundary by more
  than the probability of equally likely tokens differs from it: 1 - 0.8 is not 0.2 in float32.
  """
  if not is_concrete(top_p):
    return 1 - numbers("top_p", top_p, batch)
  rest = 1 - np.asarray(top_p).astype(np.float64)
  return np.broadcast_to(rest, (batch,)).astype(np.float32)


def ids(name: str, value: Any, batch: int, vocab_size: int) -> Any:
  """Token ids for all rows, or one list a row, as `[B, L]` int32 padded with -1.

  Args:
    name: the argument, for messages.
    value: ids `[L]` or `[B, L]`, a list of ids, or one list a row; -1 is no token.
    batch: B.
    vocab_size: V.

  Returns:
    The ids, or None where there is no token at all.

  Raises:
    ValueError: for an id outside the vocabulary, or another shape or dtype.
  """
  if not is_concrete(value):
    if value.shape[:-1] not in ((), (batch,)) or not jnp.issubdtype(value.dtype, jnp.integer):
      raise ValueError(
        f"{name} must be token ids [L] or [{batch}, L], got {value.dtype} of shape {value.shape}"
      )
    return jnp.broadcast_to(value, (batch, value.shape[-1])).astype(jnp.int32)
  rows = [_id_list(name, row) for row in _rows(name, value, batch)]
  for row in rows:
    if row.size and (row.min() < -1 or row.max() >= vocab_size):
      raise ValueError(
        f"{name} must hold token ids from 0 to {vocab_size - 1} (-1 is no token), "
        f"got {row.min() if row.min() < -1 else row.max()}"
      )
  if not any((row >= 0).any() for row in rows):
    return None
  padded = np.full((len(rows), _bucket(max(row.size for row in rows))), -1, np.int32)
  for target, row in zip(padded, rows, strict=True):
    target[: row.size] = row
  return np.broadcast_to(padded, (batch, padded.shape[1]))


def _rows(name: str, value: Any, batch: int) -> list[Any]:
  """One entry for all rows, or one a row."""
  if isinstance(value, np.ndarray | jax.Array):
    nested = value.ndim == 2
  elif isinstance(value, Sequence) and not isinstance(value, str):
    nested = any(isinstance(row, Sequence | np.ndarray) and np.ndim(row) for row in value)
  else:
    raise ValueError(f"{name} must be a list of token ids, or one list per row, got {value!r}")
  if nested and len(value) != batch:
    raise ValueError(f"{name} must have one list per row ({batch}), got {len(value)}")
  return list(value) if nested else [value]


def _id_list(name: str, value: Any) -> np.ndarray:
  try:
    row = np.asarray(value)
  except ValueError:  # a ragged list
    row = np.asarray(str(value))
  if row.ndim != 1 or (row.size and not np.issubdtype(row.dtype, np.integer)):
    raise ValueError(f"{name} must be a list of token ids, or one list per row, got {value!r}")
  return row.astype(np.int64)


def _bucket(size: int) -> int:
  """The length that `size` ids are padded to."""
  return max(_FEWEST_IDS, 1 << (size - 1).bit_length())


def biases(value: Any, batch: int, vocab_size: int) -> tuple[Any, Any] | None:
  """`{id: bias}` as ids `[B, L]` int32 (padded with -1) and biases `[B, L]` float32.

  Each bias is a number or one value per row. None where all are 0.

  Raises:
    ValueError: for anything else, an id outside the vocabulary, or a bias of +inf or NaN.
  """
  if not isinstance(value, Mapping):
    raise ValueError(f"logit_bias must map token ids to biases, got {value!r}")
  tokens = ids("logit_bias", list(value), batch, vocab_size)
  if tokens is None:
    return None
  columns: list[Any] = [numbers("logit_bias", bias, batch) for bias in value.values()]
  columns += [np.zeros((batch,), np.float32)] * (tokens.shape[1] - len(columns))
  if all(is_concrete(column) for column in columns):
    stacked = np.stack(columns, axis=1)
    return (tokens, stacked) if stacked.any() else None
  return tokens, jnp.stack(columns, axis=1)


def check_processor(processor: Any) -> None:
  """Raises ValueError unless `processor` is None or a hashable function."""
  if processor is None:
    return
  if not callable(processor):
    raise ValueError(
      "processor must be a function (scores [V], context) -> scores [V], "
      f"got {type(processor).__name__}"
    )
  try:
    hash(processor)
  except TypeError:
    raise ValueError(
      "processor must be hashable (a function, or a frozen dataclass with __call__), "
      f"got {type(processor).__name__}"
    ) from None


def check_something_is_left(forbidden: Array, forced: Array | None, vocab_size: int) -> None:
  """Raises ValueError where `forbidden [B, L]` leaves no token, or not the `forced [B, L]` one."""
  if not is_concrete(forbidden) or not is_concrete(forced):
    return
  for index, row in enumerate(np.asarray(forbidden)):
    banned = set(row[row >= 0].tolist())
    if len(banned) == vocab_size:
      raise ValueError(
        f"forbidden_tokens must leave a token to row {index}, got all {vocab_size} of them"
      )
    both = banned.intersection([] if forced is None else np.asarray(forced)[index].tolist())
    if both:
      raise ValueError(
        f"forced_tokens must not be in forbidden_tokens too, got {min(both)} in row {index}"
      )
