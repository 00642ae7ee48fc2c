# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`FunctionModel`: a model made of a user's pure function."""

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp

from specjax.models.kv_cache import path_slots
from specjax.types import Array, Block, Cache, ModelOutput, Params

# Large, so that a ring buffer or window that stops growing is not taken for addressed by slot.
_CAPACITIES = (1 << 20, 1 << 21)


@dataclasses.dataclass(frozen=True)
class LeafAxes:
  """Which axis of a cache leaf is the batch and which the slots; None where there is none."""

  batch: int | None
  slots: int | None


@dataclasses.dataclass(frozen=True)
class FunctionModel:
  """Makes a `specjax.types.Model` of a pure function. Hashable if the functions are.

  Define the functions once, at module level: a new lambda is a new model, compiled anew.

  Attributes:
    apply_fn: `(params, tokens [B, T] int32, block, cache) -> (logits [B, T, V], cache)`. Token t
      goes to slot `block.start + t` (`block.slots(capacity)`) and sees the slots below
      `block.start` and what `block.mask` shows it. It may return `(logits, hidden [B, T, D],
      cache)` instead if `logits_fn` is given.
    init_cache_fn: `(batch, capacity) -> cache`, any pytree of arrays (`()` for none).
    vocab_size: V.
    hidden_size: D of the hidden states that `apply_fn` returns. None: it returns none, and the
      logits take their place.
    logits_fn: `(params, hidden [..., D]) -> logits [..., V]`; goes with `hidden_size`. Logits
      are always taken from it then; those that `apply_fn` returns are not used.
    embed_fn: `(params, tokens [B, T]) -> embeddings`; where it is given `apply_fn` must also
      take embeddings in the place of tokens.
    max_positions: the longest sequence, or None.
    rollback: `(cache, path [B, K], kept [B]) -> cache`, for a cache that is not addressed by
      slots, such as a recurrent state: what the cache is when only the block's tokens
      `path[b, :kept[b]]` were read. `apply_fn` has to leave in the cache what that needs, for
      example the state before each token of the block.
    max_block: the widest block that `rollback` can undo, or None. Prompts are read in chunks of
      at most that many tokens; a drafter whose block is wider is refused.
  """

  apply_fn: Callable[..., Any]
  init_cache_fn: Callable[[int, int], Cache]
  vocab_size: int
  _: dataclasses.KW_ONLY
  hidden_size: int = None  # type: ignore[assignment]  # an integer once constructed
  logits_fn: Callable[[Params, Array], Array] | None = None
  embed_fn: Callable[[Params, Array], Array] | None = None
  max_positions: int | None = None
  rollback: Callable[[Cache, Array, Array], Cache] | None = None
  max_block: int | None = None
  axes: tuple[LeafAxes, ...] = dataclasses.field(init=False, repr=False, compare=False)

  def __post_init__(self):
    if self.vocab_size < 1:
      raise ValueError(f"vocab_size must be >= 1, got {self.vocab_size}")
    if self.max_block is not None and self.max_block < 1:
      raise ValueError(f"max_block must be >= 1 or None, got {self.max_block}")
    # The logits' own width is allowed without logits_fn: dataclasses.replace passes it on.
    own_width = self.hidden_size in (None, self.vocab_size)
    complete = own_width if self.logits_fn is None else self.hidden_size is not None
    if not complete:
      raise ValueError(
        "hidden_size and logits_fn must be given together, got "
        f"hidden_size={self.hidden_size}, logits_fn={self.logits_fn}"
      )
    if self.hidden_size is None:
      object.__setattr__(self, "hidden_size", self.vocab_size)
    object.__setattr__(self, "axes", _find_axes(self.init_cache_fn, self.max_positions))
    if self.rollback is None:
      self._check_addressed()

  def _check_addressed(self) -> None:
    for axes, (name, shape) in zip(self.axes, _leaf_shapes(self.init_cache_fn), strict=True):
      if axes.batch is None or axes.slots is None:
        raise ValueError(
          f"init_cache_fn: cache leaf {name} {shape} (batch 2, capacity 4) must have one axis of "
          "the batch's size and one that grows with the capacity. Without, rejected tokens "
          "could not be undone: give rollback"
        )

  @property
  def position_addressed(self) -> bool:
    """Whether rejected tokens are undone by length alone: if there is no `rollback`."""
    return self.rollback is None

  def init_cache(self, batch: int, capacity: int) -> Cache:
    """What `init_cache_fn` returns."""
    return self.init_cache_fn(batch, capacity)

  def embed(self, params: Params, tokens: Array) -> Array:
    """What `embed_fn` returns. Raises ValueError where there is none."""
    if self.embed_fn is None:
      raise ValueError("this FunctionModel takes no embeddings: give embed_fn")
    return self.embed_fn(params, tokens)

  def apply(
    self,
    params: Params,
    inputs: Array,
    block: Block,
    cache: Cache,
    *,
    hidden_layers: tuple[int, ...] = (),
  ) -> ModelOutput:
    """Calls `apply_fn` and checks what it returns. See `Model.apply`."""
    if hidden_layers:
      raise ValueError(f"a FunctionModel has no layers to look into, got {hidden_layers}")
    if not jnp.issubdtype(inputs.dtype, jnp.integer) and self.embed_fn is None:
      raise ValueError("this FunctionModel takes token ids only: give embed_fn")
    if self.max_block is not None and block.num_tokens > self.max_block:
      raise ValueError(
        f"this FunctionModel takes blocks of at most max_block={self.max_block} tokens, got "
        f"{block.num_tokens}: use a smaller draft or raise max_block"
      )
    result = self.apply_fn(params, inputs, block, cache)
    if not isinstance(result, tuple) or len(result) not in (2, 3):
      raise ValueError(
        "apply_fn must return (logits, cache) or (logits, hidden, cache), got "
        f"{type(result).__name__}" + (f" of {len(result)}" if isinstance(result, tuple) else "")
      )
    if (len(result) == 3) != (self.logits_fn is not None):
      raise ValueError(
        "apply_fn must return (logits, hidden, cache) if and only if hidden_size and logits_fn "
        f"are given, got {len(result)} values with logits_fn={self.logits_fn}"
      )
    batch, num_tokens = block.positions.shape
    _check_shape("logits", result[0], (batch, num_tokens, self.vocab_size))
    if len(result) == 3:
      _check_shape("hidden", result[1], (batch, num_tokens, self.hidden_size))
    _check_cache(result[-1], cache)
    return ModelOutput(hidden=result[-2], cache=result[-1])

  def logits(self, params: Params, hidden: Array) -> Array:
    """Hidden states `[..., D]` to float32 logits `[..., V]`."""
    if self.logits_fn is None:
      return hidden.astype(jnp.float32)
    logits = self.logits_fn(params, hidden)
    _check_shape("logits", logits, (*hidden.shape[:-1], self.vocab_size), "logits_fn")
    return logits.astype(jnp.float32)

  def keep(self, cache: Cache, block: Block, path: Array, kept: Array) -> Cache:
    """`rollback`, or the kept slots moved to where the committed sequence goes on."""
    if self.rollback is not None:
      result = self.rollback(cache, path, kept)
      _check_cache(result, cache, "rollback")
      return result
    leaves, structure = jax.tree.flatten(cache)
    moved = [
      _compact(leaf, axes, block, path, kept) for leaf, axes in zip(leaves, self.axes, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


def _compact(leaf: Array, axes: LeafAxes, block: Block, path: Array, kept: Array) -> Array:
  """Moves the path's slots along the leaf's slot axis, row by row along its batch axis."""
  # What construction has checked, told to the type checker.
  slots_axis, batch_axis = cast(int, axes.slots), cast(int, axes.batch)
  source, target = path_slots(block, path, kept, leaf.shape[slots_axis])

  def move(row: Array, source: Array, target: Array) -> Array:
    # vmap has removed the batch axis in front of the slots or behind them.
    before = slots_axis - (batch_axis < slots_axis)
    index = (slice(None),) * before
    entries = row.at[(*index, source)].get(mode="promise_in_bounds")
    return row.at[(*index, target)].set(entries, mode="drop")

  return jax.vmap(move, in_axes=(batch_axis, 0, 0), out_axes=batch_axis)(leaf, source, target)


def _leaf_shapes(
  init_cache_fn: Callable[[int, int], Cache], batch: int = 2, capacity: int = 4
) -> list[tuple[str, tuple[int, ...]]]:
  """Name and shape of each leaf, without allocating anything."""
  shapes = jax.eval_shape(lambda: init_cache_fn(batch, capacity))
  leaves, _ = jax.tree_util.tree_flatten_with_path(shapes)
  return [(jax.tree_util.keystr(path) or "(the cache)", leaf.shape) for path, leaf in leaves]


def _find_axes(
  init_cache_fn: Callable[[int, int], Cache], max_positions: int | None
) -> tuple[LeafAxes, ...]:
  """The axes of each leaf, found by comparing the shapes of caches of different sizes."""
  small, large = _CAPACITIES
  if max_positions is not None:
    # A model may refuse a cache that is longer than it can read.
    large = min(large, max(max_positions, 2))
    small = large // 2
  base = _leaf_shapes(init_cache_fn, 2, small)
  wider = _leaf_shapes(init_cache_fn, 3, small)
  longer = _leaf_shapes(init_cache_fn, 2, large)
  if not len(base) == len(wider) == len(longer):
    raise ValueError("init_cache_fn must return the same pytree for every batch and capacity")
  found = []
  for (name, first), (_, more_rows), (_, more_slots) in zip(base, wider, longer, strict=True):
    if not len(first) == len(more_rows) == len(more_slots):
      raise ValueError(f"init_cache_fn: the rank of cache leaf {name} must not change")
    rows = _changed(first, more_rows)
    slots = [i for i in _changed(first, more_slots) if first[i] >= small and more_slots[i] >= large]
    found.append(
      LeafAxes(
        batch=rows[0] if len(rows) == 1 and first[rows[0]] == 2 else None,
        slots=slots[0] if len(slots) == 1 else None,
      )
    )
  return tuple(found)


def _changed(first: tuple[int, ...], second: tuple[int, ...]) -> list[int]:
  return [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]


def _check_shape(
  name: str, value: Any, expected: tuple[int, ...], function: str = "apply_fn"
) -> None:
  got = getattr(value, "shape", None)
  if got != expected:
    raise ValueError(f"{function} must return {name} of shape {expected}, got {got}")
  if not jnp.issubdtype(value.dtype, jnp.floating):
    raise ValueError(f"{function} must return {name} of a floating type, got {value.dtype}")


def _check_cache(got: Cache, expected: Cache, function: str = "apply_fn") -> None:
  """The loop carries the cache: its structure, shapes and dtypes must not change."""

  def describe(cache: Cache) -> Any:
    return jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", cache)

  # Trees of strings: equal if and only if structures, shapes and dtypes are.
  if describe(got) != describe(expected):
    raise ValueError(
      f"{function} must return a cache like the one it got, {describe(expected)}, got "
      f"{describe(got)}"
    )
