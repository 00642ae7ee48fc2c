# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What distinguishes one decoder transformer from another: `TransformerConfig`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

FULL = "full"
SLIDING = "sliding"
ACTIVATIONS = ("silu", "gelu_tanh", "gelu")
ROPE_SCALINGS = ("linear", "llama3")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How rotary frequencies are stretched for contexts longer than those of pre-training.

  Attributes:
    kind: "linear" divides every frequency by `factor` (Chen et al. 2023, position
      interpolation); "llama3" divides the low frequencies only and blends in between.
    factor: the stretch.
    low_freq_factor: "llama3": wavelengths above `original_max_positions / low_freq_factor` are
      stretched wholly.
    high_freq_factor: "llama3": wavelengths below `original_max_positions / high_freq_factor`
      are left alone.
    original_max_positions: "llama3": the context length of pre-training.
  """

  kind: str
  factor: float
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  original_max_positions: int = 8192

  def __post_init__(self):
    if self.kind not in ROPE_SCALINGS:
      raise ValueError(
        f"rope_scaling kind must be one of {', '.join(ROPE_SCALINGS)}, got {self.kind!r}: "
        "yarn, dynamic and longrope are not supported"
      )
    if not self.factor > 0:
      raise ValueError(f"rope_scaling factor must be > 0, got {self.factor}")
    if self.kind == "llama3" and not self.high_freq_factor > self.low_freq_factor > 0:
      raise ValueError(
        "rope_scaling high_freq_factor must exceed low_freq_factor, which must be > 0; got "
        f"high_freq_factor={self.high_freq_factor}, low_freq_factor={self.low_freq_factor}"
      )
    if self.original_max_positions < 1:
      raise ValueError(
        f"rope_scaling original_max_positions must be >= 1, got {self.original_max_positions}"
      )


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """The architecture of a decoder transformer. Hashable; holds no arrays.

  Attributes:
    vocab_size: V.
    hidden_size: D, the width of the residual stream.
    intermediate_size: the width inside the gated feed-forward layer.
    num_layers: decoder layers.
    num_heads: query heads.
    num_kv_heads: key and value heads; a divisor of `num_heads` (grouped-query attention).
    head_dim: width of one head; even.
    max_positions: the longest sequence that the model was made for.
    rms_norm_eps: added to the mean square in RMS normalisation.
    rope_theta: base of the rotary wavelengths.
    rope_theta_local: base for sliding layers; None where it is the same (Gemma 3 has another,
      without scaling).
    rope_scaling: stretch of the rotary wavelengths (not of `rope_theta_local`), or None.
    tie_embeddings: whether the output head is the embedding table (checkpoints then hold one).
    qkv_bias: bias on the query, key and value projections.
    output_bias: bias on attention's output projection.
    mlp_bias: bias on the feed-forward projections.
    qk_norm: RMS normalisation of each query and key head before the rotation.
    sliding_window: how many positions a sliding layer sees, its own included; None if unused.
    layer_types: "full" or "sliding", one a layer; empty means "full" throughout.
    activation: "silu", "gelu_tanh" or "gelu", of the feed-forward gate.
    norm_plus_one: norms multiply by 1 + weight (Gemma).
    post_norms: norms after attention and after the feed-forward layer too (Gemma 2 and 3).
    attention_soft_cap: c of `c * tanh(score / c)`, or None.
    final_soft_cap: the same for the logits.
    query_scale: factor on the attention scores; None is `head_dim ** -0.5`.
    embedding_scale: factor on the token embeddings; None is 1.
    model_type: the Hugging Face family, for export and messages.
  """

  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  max_positions: int
  rms_norm_eps: float = 1e-6
  rope_theta: float = 10_000.0
  rope_theta_local: float | None = None
  rope_scaling: RopeScaling | None = None
  tie_embeddings: bool = False
  qkv_bias: bool = False
  output_bias: bool = False
  mlp_bias: bool = False
  qk_norm: bool = False
  sliding_window: int | None = None
  layer_types: tuple[str, ...] = ()
  activation: str = "silu"
  norm_plus_one: bool = False
  post_norms: bool = False
  attention_soft_cap: float | None = None
  final_soft_cap: float | None = None
  query_scale: float | None = None
  embedding_scale: float | None = None
  model_type: str = "llama"

  def __post_init__(self):
    layer_types = tuple(self.layer_types) or (FULL,) * self.num_layers
    object.__setattr__(self, "layer_types", layer_types)
    self._check_sizes()
    self._check_layers()
    for name in ("attention_soft_cap", "final_soft_cap", "query_scale", "embedding_scale"):
      value = getattr(self, name)
      if value is not None and not value > 0:
        raise ValueError(f"{name} must be > 0 or None, got {value}")
    for name in ("rms_norm_eps", "rope_theta", "rope_theta_local"):
      value = getattr(self, name)
      if value is not None and not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}")

  def _check_sizes(self):
    sizes = (
      "vocab_size",
      "hidden_size",
      "intermediate_size",
      "num_layers",
      "num_heads",
      "num_kv_heads",
      "head_dim",
      "max_positions",
    )
    for name in sizes:
      value = getattr(self, name)
      if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and "
        f"{self.num_kv_heads}"
      )
    if self.head_dim % 2:
      raise ValueError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")

  def _check_layers(self):
    if len(self.layer_types) != self.num_layers:
      raise ValueError(
        f"layer_types must have one entry for each of {self.num_layers} layers, got "
        f"{len(self.layer_types)}"
      )
    unknown = set(self.layer_types) - {FULL, SLIDING}
    if unknown:
      raise ValueError(f"layer_types must be {FULL!r} or {SLIDING!r}, got {sorted(unknown)}")
    if SLIDING in self.layer_types and (self.sliding_window is None or self.sliding_window < 1):
      raise ValueError(
        f"sliding_window must be >= 1 where a layer is sliding, got {self.sliding_window}"
      )
    if self.activation not in ACTIVATIONS:
      raise ValueError(
        f"activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}"
      )

  @property
  def query_size(self) -> int:
    """Width of all query heads together."""
    return self.num_heads * self.head_dim

  @property
  def kv_size(self) -> int:
    """Width of all key (or value) heads together."""
    return self.num_kv_heads * self.head_dim

  def to_dict(self) -> dict[str, Any]:
    """A dictionary of JSON types; `from_dict` reads it."""
    fields = dataclasses.asdict(self)
    fields["layer_types"] = list(self.layer_types)
    return fields

  @classmethod
  def from_dict(cls, fields: Mapping[str, Any]) -> "TransformerConfig":
    """The config that `to_dict` wrote. Raises ValueError for a key that is unknown or missing."""
    known = {field.name: field for field in dataclasses.fields(cls)}
    unknown = sorted(set(fields) - set(known))
    if unknown:
      raise ValueError(f"unknown keys of TransformerConfig: {', '.join(unknown)}")
    missing = sorted(
      name
      for name, field in known.items()
      if field.default is dataclasses.MISSING and name not in fields
    )
    if missing:
      raise ValueError(f"missing keys of TransformerConfig: {', '.join(missing)}")
    values = dict(fields)
    values["layer_types"] = tuple(values.get("layer_types", ()))
    if values.get("rope_scaling") is not None:
      values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
    return cls(**values)
