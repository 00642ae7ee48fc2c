# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Which model this is: a sample of its weights that survives rounding, but not training.

A trained drafter serves one target. The target may come from another file, in another dtype,
even rounded to 4 bits; a fine-tuned copy of it is another target. A hash of the weights cannot
tell the two apart, so a fingerprint holds some of the weights themselves, and two fingerprints are
compared up to what the coarser one of them can resolve.
"""

import base64
import dataclasses
import hashlib
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.sharding.processes import fetch
from specjax.types import Model, Params

_VERSION = "1"
# Integer formats round blocks of 32 weights in a row together (GGUF's Q4_1, Q8_0 and others).
_GROUP = 32
# 2048 weights: a change of 1 % moves some 700 of them by more than 8-bit rounding does.
_NUM_GROUPS = 64
_TOLERATED = 0.0025
_INT16_MAX = 32767


def fingerprint(model: Model, params: Params) -> str:
  """Text that identifies a target by its architecture and its weights; see `same_target`.

  About 6 KB, of which reading costs some milliseconds. Architecture means the names and shapes of
  the parameters and the size of the vocabulary.

  Args:
    model: the target.
    params: its parameters: any pytree that holds at least one floating point array.

  Raises:
    ValueError: for parameters without such an array.
  """
  leaves = [
    (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if hasattr(leaf, "shape")
  ]
  shapes = [(name, tuple(leaf.shape)) for name, leaf in leaves]
  described = json.dumps([model.vocab_size, sorted(shapes)])
  architecture = hashlib.sha256(described.encode()).hexdigest()[:12]
  # jnp's issubdtype: NumPy's does not count bfloat16 as floating point.
  sampled = [
    item for item in leaves if jnp.issubdtype(item[1].dtype, jnp.floating) and item[1].size
  ]
  sampled.sort(key=lambda item: _in_layers_order(item[0]))
  if not sampled:
    raise ValueError("params must hold at least one floating point array to be identified by")
  values = [_group(*sampled[index], serial) for serial, index in enumerate(_spread(len(sampled)))]
  return f"{_VERSION}:{architecture}:{_encode(np.stack(values))}"


def same_target(first: str, second: str) -> bool:
  """Whether two fingerprints are of one model, however its weights were rounded.

  Weights that were trained on differ: a change of 1 % of their size in every tensor is seen
  between copies in float16, bfloat16, float32 or 8 bits, and one of 3 % where a copy has 4 bits.
  Integer formats that search for the scale with the least error (GGUF's `Q4_K` and its like) may
  look like another model.

  Args:
    first: what `fingerprint` returned.
    second: what it returned for the other one.

  Raises:
    ValueError: for text that is not a fingerprint.
  """
  ours, theirs = _Parsed.of(first), _Parsed.of(second)
  if ours.architecture != theirs.architecture or ours.groups.shape != theirs.groups.shape:
    return False
  largest = np.maximum(np.abs(ours.groups), np.abs(theirs.groups))
  steps = np.maximum(_steps(ours.groups), _steps(theirs.groups))[:, None]
  # Rounding to a grid moves a weight by half a step, and up to a whole one at the end that
  # symmetric formats lack (Q4_0 has -8 .. 7).
  at_end = largest > 0.93 * np.max(largest, axis=1, keepdims=True)
  moved = steps * np.where(at_end, 1.04, 0.52)
  # Both may have been rounded to bfloat16 too, which moves a weight by 2^-9 of itself at most.
  allowed = 1.02 * (moved + largest * 2.0**-8)
  outside = np.abs(ours.groups - theirs.groups) > allowed
  return float(np.mean(outside)) <= _TOLERATED


def short_fingerprint(text: str) -> str:
  """8 characters for people: equal for equal fingerprints (rounding changes them)."""
  return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclasses.dataclass(frozen=True)
class _Parsed:
  """Attributes: `architecture`, a checksum; `groups`, `[G, 32]` float32."""

  architecture: str
  groups: np.ndarray

  @classmethod
  def of(cls, text: str) -> "_Parsed":
    parts = text.split(":")
    if len(parts) == 3 and parts[0] == _VERSION:
      try:
        return cls(parts[1], _decode(parts[2]))
      except ValueError:
        pass
    raise ValueError(f"not a fingerprint of version {_VERSION}: {text[:40]!r}")


def _spread(num_leaves: int) -> list[int]:
  """Which array each group is taken from: all over the model, every kind of array in turn."""
  # A step that shares no factor with the number of arrays visits all of them before any twice.
  step = max(round(num_leaves * 0.382), 1)
  while math.gcd(step, num_leaves) != 1:
    step += 1
  return [serial * step % num_leaves for serial in range(_NUM_GROUPS)]


def _group(name: str, leaf: Any, serial: int) -> np.ndarray:
  """32 weights in a row (fewer, from the start again, where there are no more), as float32."""
  shape = tuple(leaf.shape) or (1,)
  # Kernels are [in, out] and embeddings [V, D]; a row of a quantised matrix runs along its input.
  axis = 0 if name.endswith("kernel") else len(shape) - 1
  # Any fixed places do; multiples of large primes spread them.
  place = [serial * 7919 * (k + 1) % extent for k, extent in enumerate(shape)]
  width = min(_GROUP, shape[axis])
  begin = place[axis] // _GROUP * _GROUP
  place[axis] = min(begin, shape[axis] - width)
  leaf = leaf.reshape(shape)
  if isinstance(leaf, jax.Array):
    sizes = [width if k == axis else 1 for k in range(len(shape))]
    leaf = jax.lax.dynamic_slice(leaf, [np.int32(index) for index in place], sizes)
    row = np.asarray(fetch(leaf), np.float32).reshape(-1)
  else:
    index = [slice(p, p + width) if k == axis else p for k, p in enumerate(place)]
    row = np.asarray(leaf[tuple(index)], np.float32)
  return np.resize(row, _GROUP)


def _steps(groups: np.ndarray) -> np.ndarray:
  """`[G]`: the distance of neighbouring values in the grid that each group lies on.

  An 8-bit grid cannot be told from none, so each group has at least the step of one.
  """
  steps = np.max(np.abs(groups), axis=1) / 127
  lowest = np.min(groups, axis=1, keepdims=True)
  span = np.max(groups, axis=1, keepdims=True) - lowest
  found = span[:, 0] == 0
  for intervals in range(7, 64):  # of 3 to 6 bits
    places = (groups - lowest) / np.where(span > 0, span, 1) * intervals
    # bfloat16 moves a value by 0.06 of a step of 6 bits at most.
    on_grid = np.max(np.abs(places - np.round(places)), axis=1) < 0.1
    steps = np.where(on_grid & ~found, np.maximum(steps, span[:, 0] / intervals), steps)
    found |= on_grid
  return steps


def _encode(groups: np.ndarray) -> str:
  """Each group as 16-bit integers in units of its largest weight."""
  scale = np.max(np.abs(groups), axis=1).astype("<f4")
  safe = np.where(scale > 0, scale, 1)[:, None]
  whole = np.round(groups / safe * _INT16_MAX).astype("<i2")
  return base64.b64encode(scale.tobytes() + whole.tobytes()).decode()


def _decode(text: str) -> np.ndarray:
  data = base64.b64decode(text, validate=True)
  if len(data) != _NUM_GROUPS * (4 + 2 * _GROUP):
    raise ValueError("another length")
  scale = np.frombuffer(data[: 4 * _NUM_GROUPS], "<f4")
  whole = np.frombuffer(data[4 * _NUM_GROUPS :], "<i2").reshape(_NUM_GROUPS, _GROUP)
  return whole.astype(np.float32) * scale[:, None] / _INT16_MAX


def _in_layers_order(name: str) -> tuple[Any, ...]:
  """Numbers in names compare as numbers: layer 2 comes before layer 10."""
  return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split("/"))
