# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The decoder's Flax NNX modules. `specjax.models.Transformer` turns them into pure functions."""

import functools
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from specjax.models import kv_cache, rotary
from specjax.models.attention import attend
from specjax.models.config import TransformerConfig
from specjax.types import Array, pytree_dataclass

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  "silu": jax.nn.silu,
  "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
  "gelu": functools.partial(jax.nn.gelu, approximate=False),
}


@pytree_dataclass
class BlockView:
  """What every layer of one kind needs to know of a block; computed once per block.

  Attributes:
    slots: `[B, T]` int32, where to write; S where nowhere.
    visible: `[B, T, S]` bool.
    cosines: `[B, T, 1, head_dim / 2]` float32.
    sines: `[B, T, 1, head_dim / 2]` float32.
  """

  slots: Array
  visible: Array
  cosines: Array
  sines: Array


class RMSNorm(nnx.Module):
  """Root mean square normalisation (Zhang & Sennrich 2019) over the last axis, in float32."""

  def __init__(self, size: int, config: TransformerConfig, dtype: jnp.dtype):
    fill = jnp.zeros if config.norm_plus_one else jnp.ones
    self.scale = nnx.Param(fill((size,), dtype))
    self.epsilon = config.rms_norm_eps
    self.plus_one = config.norm_plus_one

  def __call__(self, x: Array) -> Array:
    """Normalises `x [..., size]`; keeps its dtype."""
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
    scale = self.scale[...].astype(jnp.float32)
    if self.plus_one:
      scale = 1.0 + scale
    return (wide * jnp.expand_dims(scale, tuple(range(x.ndim - 1)))).astype(x.dtype)


class Embedding(nnx.Module):
  """Token embeddings, scaled where the family does so."""

  def __init__(self, config: TransformerConfig, dtype: jnp.dtype, rngs: nnx.Rngs):
    shape = (config.vocab_size, config.hidden_size)
    std = config.hidden_size**-0.5
    self.embedding = nnx.Param(std * jax.random.normal(rngs.params(), shape, dtype))
    self.scale = config.embedding_scale

  def __call__(self, tokens: Array) -> Array:
    """`[B, T]` int32 to `[B, T, D]`. An id outside the vocabulary reads the nearest end."""
    x = self.embedding[...].at[tokens].get(mode="clip")
    # The factor is rounded to the dtype first, as the checkpoints were trained.
    return x if self.scale is None else x * jnp.asarray(self.scale, x.dtype)


class Attention(nnx.Module):
  """Grouped-query self-attention that writes the block to its cache, then reads the cache."""

  def __init__(
    self,
    config: TransformerConfig,
    dtype: jnp.dtype,
    precision: str | None,
    rngs: nnx.Rngs,
  ):
    linear = functools.partial(
      nnx.Linear, dtype=dtype, param_dtype=dtype, precision=precision, rngs=rngs
    )
    width, bias = config.hidden_size, config.qkv_bias
    self.query = linear(width, config.query_size, use_bias=bias)
    self.key = linear(width, config.kv_size, use_bias=bias)
    self.value = linear(width, config.kv_size, use_bias=bias)
    self.output = linear(config.query_size, width, use_bias=config.output_bias)
    self.qk_norm = config.qk_norm
    if config.qk_norm:
      self.query_norm = RMSNorm(config.head_dim, config, dtype)
      self.key_norm = RMSNorm(config.head_dim, config, dtype)
    self.head_dim = config.head_dim
    self.scale = config.head_dim**-0.5 if config.query_scale is None else config.query_scale
    self.soft_cap = config.attention_soft_cap
    self.precision = precision

  def __call__(
    self, x: Array, view: BlockView, keys: Array, values: Array
  ) -> tuple[Array, Array, Array]:
    """`x [B, T, D]` and the layer's cache to `[B, T, D]` and the cache with the block."""
    heads = (*x.shape[:2], -1, self.head_dim)
    query = self.query(x).reshape(heads)
    key = self.key(x).reshape(heads)
    value = self.value(x).reshape(heads)
    if self.qk_norm:
      query, key = self.query_norm(query), self.key_norm(key)
    query = rotary.rotate(query, view.cosines, view.sines)
    key = rotary.rotate(key, view.cosines, view.sines)
    # Written first: then one attention over the buffer covers context and block alike.
    keys = kv_cache.write(keys, key, view.slots)
    values = kv_cache.write(values, value, view.slots)
    mixed = attend(
      query,
      keys,
      values,
      view.visible,
      scale=self.scale,
      soft_cap=self.soft_cap,
      precision=self.precision,
    )
    return self.output(mixed), keys, values


class FeedForward(nnx.Module):
  """The gated feed-forward layer (Shazeer 2020): down(act(gate(x)) * up(x))."""

  def __init__(
    self,
    config: TransformerConfig,
    dtype: jnp.dtype,
    precision: str | None,
    rngs: nnx.Rngs,
  ):
    linear = functools.partial(
      nnx.Linear,
      dtype=dtype,
      param_dtype=dtype,
      precision=precision,
      use_bias=config.mlp_bias,
      rngs=rngs,
    )
    self.gate = linear(config.hidden_size, config.intermediate_size)
    self.up = linear(config.hidden_size, config.intermediate_size)
    self.down = linear(config.intermediate_size, config.hidden_size)
    self.activation = config.activation

  def __call__(self, x: Array) -> Array:
    """`[B, T, D]` to `[B, T, D]`."""
    return self.down(_ACTIVATIONS[self.activation](self.gate(x)) * self.up(x))


class DecoderLayer(nnx.Module):
  """Attention and feed-forward layer, each normalised before (Gemma: and after) and added."""

  def __init__(
    self,
    config: TransformerConfig,
    dtype: jnp.dtype,
    precision: str | None,
    rngs: nnx.Rngs,
  ):
    self.attention_norm = RMSNorm(config.hidden_size, config, dtype)
    self.attention = Attention(config, dtype, precision, rngs)
    self.mlp_norm = RMSNorm(config.hidden_size, config, dtype)
    self.mlp = FeedForward(config, dtype, precision, rngs)
    self.post_norms = config.post_norms
    if config.post_norms:
      self.post_attention_norm = RMSNorm(config.hidden_size, config, dtype)
      self.post_mlp_norm = RMSNorm(config.hidden_size, config, dtype)

  def __call__(
    self, x: Array, view: BlockView, keys: Array, values: Array
  ) -> tuple[Array, Array, Array]:
    """The residual stream `[B, T, D]` after this layer, and the layer's cache."""
    mixed, keys, values = self.attention(self.attention_norm(x), view, keys, values)
    x = x + (self.post_attention_norm(mixed) if self.post_norms else mixed)
    fed = self.mlp(self.mlp_norm(x))
    return x + (self.post_mlp_norm(fed) if self.post_norms else fed), keys, values


class Decoder(nnx.Module):
  """Embedding, layers, final norm and output head. The head is a leaf of its own.

  Also where it is tied: `x @ W` with W `[D, V]` streams the weights, while the product with the
  transposed embedding table is many times slower for a few tokens on the CPU.
  """

  def __init__(
    self,
    config: TransformerConfig,
    dtype: jnp.dtype,
    precision: str | None,
    rngs: nnx.Rngs,
  ):
    self.embed = Embedding(config, dtype, rngs)
    self.layers = nnx.Dict(
      {str(i): DecoderLayer(config, dtype, precision, rngs) for i in range(config.num_layers)}
    )
    self.final_norm = RMSNorm(config.hidden_size, config, dtype)
    self.head = nnx.Linear(
      config.hidden_size,
      config.vocab_size,
      use_bias=False,
      dtype=dtype,
      param_dtype=dtype,
      precision=precision,
      preferred_element_type=jnp.float32,
      rngs=rngs,
    )
    if config.tie_embeddings:
      self.head.kernel = nnx.Param(self.embed.embedding[...].T)
    self.soft_cap = config.final_soft_cap

  def run(
    self,
    x: Array,
    views: Mapping[str, BlockView],
    layer_types: Mapping[int, str],
    cache: kv_cache.KVCache,
  ) -> tuple[dict[int, Array], Array, kv_cache.KVCache]:
    """Runs the layers that `layer_types` names, in its order.

    Args:
      x: `[B, T, D]`.
      views: for each layer type, what its layers need to know of the block.
      layer_types: the type of each layer to run. The other layers' caches stay untouched.
      cache: the whole cache.

    Returns:
      The residual stream after each layer, the last of them, and the cache.
    """
    keys, values = list(cache.keys), list(cache.values)
    states = {}
    for i, kind in layer_types.items():
      x, keys[i], values[i] = self.layers[str(i)](x, views[kind], keys[i], values[i])
      states[i] = x
    return states, x, kv_cache.KVCache(keys=tuple(keys), values=tuple(values))

  def logits(self, hidden: Array) -> Array:
    """Normalised hidden states `[..., D]` to float32 logits `[..., V]`."""
    logits = self.head(hidden).astype(jnp.float32)
    if self.soft_cap is not None:
      logits = self.soft_cap * jnp.tanh(logits / self.soft_cap)
    return logits
