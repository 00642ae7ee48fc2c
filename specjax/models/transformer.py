# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`Transformer`: a decoder transformer of any supported family as pure functions."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models import kv_cache, rotary
from specjax.models.attention import visible_slots
from specjax.models.config import SLIDING, TransformerConfig
from specjax.models.kv_cache import KVCache
from specjax.models.layers import BlockView, Decoder
from specjax.types import Array, Block, ModelOutput, Params


def default_dtype() -> jnp.dtype:
  """bfloat16 on GPU and TPU; float32 on the CPU, where bfloat16 is far slower."""
  return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)


@dataclasses.dataclass(frozen=True)
class Transformer:
  """A decoder transformer that satisfies `specjax.types.Model`. Hashable; holds no arrays.

  Its parameters are a nested dictionary of arrays, for example
  `params["layers"]["0"]["attention"]["query"]["kernel"]` `[in, out]`, and a tied output head is
  stored twice: as `embed/embedding` `[V, D]` and as `head/kernel` `[D, V]`.

  Attributes:
    config: the architecture.
    dtype: of parameters, activations and cache. Norms, softmax and logits are in float32.
      None takes `default_dtype()`.
    precision: of all matrix products, as `jax.lax.dot_general` takes it; None leaves it to
      `jax.default_matmul_precision`.
  """

  config: TransformerConfig
  dtype: Any = None
  precision: str | None = None

  def __post_init__(self):
    dtype = default_dtype() if self.dtype is None else jnp.dtype(self.dtype)
    if not jnp.issubdtype(dtype, jnp.floating):
      raise ValueError(f"dtype must be a floating point type, got {dtype}")
    object.__setattr__(self, "dtype", dtype)
    if self.precision is not None:
      try:
        jax.lax.Precision(self.precision)
      except ValueError:
        raise ValueError(
          f"precision must be None, 'default', 'high' or 'highest', got {self.precision!r}"
        ) from None

  @property
  def vocab_size(self) -> int:
    """V."""
    return self.config.vocab_size

  @property
  def hidden_size(self) -> int:
    """D."""
    return self.config.hidden_size

  @property
  def num_layers(self) -> int:
    """How many decoder layers there are."""
    return self.config.num_layers

  @property
  def max_positions(self) -> int | None:
    """The longest sequence that the model was made for."""
    return self.config.max_positions

  @property
  def position_addressed(self) -> bool:
    """True: rejected tokens are undone by length alone."""
    return True

  def init(self, key: Array) -> Params:
    """Random parameters from a typed key: norms at one, matrices scaled to their fan-in."""
    decoder = _build(self, nnx.Rngs(params=key))
    return nnx.to_pure_dict(nnx.state(decoder, nnx.Param))

  def param_shapes(self) -> Params:
    """The parameters' pytree with a `jax.ShapeDtypeStruct` in the place of each array."""
    return _split(self)[1]

  def init_cache(self, batch: int, capacity: int) -> KVCache:
    """An empty cache of `capacity` slots for each of `batch` rows."""
    config = self.config
    return KVCache.zeros(
      config.num_layers, batch, config.num_kv_heads, capacity, config.head_dim, self.dtype
    )

  def embed(self, params: Params, tokens: Array) -> Array:
    """Token ids `[B, T]` int32 to scaled embeddings `[B, T, D]`, as `apply` takes them."""
    return self._decoder(params).embed(tokens)

  def apply(
    self,
    params: Params,
    inputs: Array,
    block: Block,
    cache: KVCache,
    *,
    hidden_layers: tuple[int, ...] = (),
    layers: Sequence[int] | None = None,
    final_norm: bool = True,
  ) -> ModelOutput:
    """Runs the model on a block, writing its keys and values to the cache.

    Args:
      params: the parameters.
      inputs: token ids `[B, T]` of an integer type, or embeddings `[B, T, D]` as `embed`
        returns them.
      block: where the tokens stand and what they see.
      cache: of at least one slot; entries past its capacity are dropped.
      hidden_layers: layers whose output (the residual stream `[B, T, D]`, not normalised) is
        returned too; -1 is the last layer.
      layers: the layers to run, in this order; None runs all. The caches of layers that are
        not run pass through unchanged.
      final_norm: whether to normalise `hidden`, as `logits` expects it.

    Raises:
      ValueError: for a layer that does not exist or is not run, or inputs of another shape.
    """
    run = tuple(range(self.num_layers)) if layers is None else self._indices("layers", layers)
    if len(set(run)) != len(run):
      raise ValueError(f"layers must name each layer once, got {tuple(layers or ())}")
    wanted = self._indices("hidden_layers", hidden_layers)
    unrun = sorted(set(wanted) - set(run))
    if unrun:
      raise ValueError(f"hidden_layers must be among the layers that run {run}, got {unrun}")
    self._check_inputs(inputs, block)
    decoder = self._decoder(params)
    if jnp.issubdtype(inputs.dtype, jnp.integer):
      x = decoder.embed(inputs)
    else:
      x = inputs.astype(self.dtype)
    kinds = {i: self.config.layer_types[i] for i in run}
    views = {kind: self._view(block, cache.capacity, kind) for kind in set(kinds.values())}
    states, x, cache = decoder.run(x, views, kinds, cache)
    hidden = decoder.final_norm(x) if final_norm else x
    return ModelOutput(hidden=hidden, cache=cache, layer_hidden=tuple(states[i] for i in wanted))

  def normalize(self, params: Params, hidden: Array) -> Array:
    """The final norm: the residual stream `[..., D]` to what `logits` takes."""
    return self._decoder(params).final_norm(hidden)

  def logits(self, params: Params, hidden: Array) -> Array:
    """Normalised hidden states `[..., D]` to float32 logits `[..., V]`."""
    return self._decoder(params).logits(hidden)

  def keep(self, cache: KVCache, block: Block, path: Array, kept: Array) -> KVCache:
    """Moves the kept path's entries to where the committed sequence goes on. See `Model`."""
    source, target = kv_cache.path_slots(block, path, kept, cache.capacity)
    return jax.tree.map(lambda buffer: kv_cache.compact(buffer, source, target), cache)

  def _decoder(self, params: Params) -> Decoder:
    return nnx.merge(_split(self)[0], params)

  def _view(self, block: Block, capacity: int, kind: str) -> BlockView:
    """What the layers of one kind need to know of the block."""
    config, local = self.config, kind == SLIDING
    theta, scaling = config.rope_theta, config.rope_scaling
    if local and config.rope_theta_local is not None:
      theta, scaling = config.rope_theta_local, None
    frequencies = rotary.inverse_frequencies(config.head_dim, theta, scaling)
    cosines, sines = rotary.rotation(block.positions, frequencies)
    window = config.sliding_window if local else None
    return BlockView(
      slots=block.slots(capacity),
      visible=visible_slots(block, capacity, window),
      cosines=cosines,
      sines=sines,
    )

  def _indices(self, name: str, layers: Sequence[int]) -> tuple[int, ...]:
    """Layer indices with negative ones counted from the end."""
    for i in layers:
      if not -self.num_layers <= i < self.num_layers:
        raise ValueError(
          f"{name} must be between {-self.num_layers} and {self.num_layers - 1}, got {i}"
        )
    return tuple(int(i) % self.num_layers for i in layers)

  def _check_inputs(self, inputs: Array, block: Block) -> None:
    shape = block.positions.shape
    expected = shape
    if not jnp.issubdtype(inputs.dtype, jnp.integer):
      expected = (*shape, self.hidden_size)
    if inputs.shape != expected:
      raise ValueError(
        f"inputs of type {inputs.dtype} must have shape {expected} for this block, got "
        f"{inputs.shape}"
      )


def _build(model: Transformer, rngs: nnx.Rngs) -> Decoder:
  return Decoder(model.config, model.dtype, model.precision, rngs)


@functools.lru_cache(maxsize=64)
def _split(model: Transformer) -> tuple[nnx.GraphDef, Params]:
  """The graph definition of a model and the shapes of its parameters, without any arrays."""
  abstract = nnx.eval_shape(lambda: _build(model, nnx.Rngs(params=jax.random.key(0))))
  graph, state = nnx.split(abstract)
  return graph, nnx.to_pure_dict(state)
