# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The architecture of a GGUF file, from its metadata and the tensors that it has.

What the metadata leaves out is what llama.cpp takes for granted for that architecture.
"""

import math
from typing import Any

import numpy as np

from specjax.models import rotary
from specjax.models.config import FULL, SLIDING, RopeScaling, TransformerConfig
from specjax.models.gguf_file import GGUFFile

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3")
ROPE_FACTORS = "rope_freqs.weight"
# The largest models of their families scale attention scores by the width over the heads, not
# by the width of a head; GGUF tells them apart by their number of layers only.
_SCALED_BY_WIDTH = {("gemma2", 46), ("gemma3", 62)}
# Every n-th layer sees all positions, the others a window.
_FULL_EVERY = {"gemma2": 2, "gemma3": 6}
_LOCAL_ROPE_THETA = 10_000.0


def config_from_gguf(file: GGUFFile) -> TransformerConfig:
  """The file's architecture.

  Raises:
    ValueError: for an architecture or a setting that is not supported, or missing metadata.
  """
  architecture = file.require("general.architecture")
  if architecture not in ARCHITECTURES:
    raise ValueError(
      f"{file.path}: the architecture {architecture!r} is not supported, only "
      f"{', '.join(ARCHITECTURES)}"
    )
  try:
    return TransformerConfig(**_fields(file, architecture))
  except ValueError as error:
    if str(file.path) in str(error):
      raise
    raise ValueError(f"{file.path}: {error}") from error


def _fields(file: GGUFFile, architecture: str) -> dict[str, Any]:
  def get(key: str, default: Any = None) -> Any:
    return _same_in_all_layers(file, key, file.get(f"{architecture}.{key}", default))

  def require(key: str) -> Any:
    return _same_in_all_layers(file, key, file.require(f"{architecture}.{key}"))

  hidden_size, num_layers = require("embedding_length"), require("block_count")
  num_heads = require("attention.head_count")
  head_dim = get("attention.key_length", hidden_size // num_heads)
  if get("attention.value_length", head_dim) != head_dim:
    raise ValueError("key_length and value_length differ, which is not supported")
  if get("rope.dimension_count", head_dim) != head_dim:
    raise ValueError("rotary embeddings on a part of the head are not supported")
  rope_theta = _decimal(get("rope.freq_base", 10_000.0))
  gemma = architecture.startswith("gemma")
  window = get("attention.sliding_window") or None
  fields = {
    "vocab_size": _rows(file, "token_embd.weight"),
    "hidden_size": hidden_size,
    "intermediate_size": require("feed_forward_length"),
    "num_layers": num_layers,
    "num_heads": num_heads,
    "num_kv_heads": get("attention.head_count_kv", num_heads),
    "head_dim": head_dim,
    "max_positions": require("context_length"),
    "rms_norm_eps": _decimal(require("attention.layer_norm_rms_epsilon")),
    "rope_theta": rope_theta,
    "rope_scaling": _rope_scaling(file, architecture, head_dim, rope_theta),
    "tie_embeddings": "output.weight" not in file.tensors,
    "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
    "output_bias": "blk.0.attn_output.bias" in file.tensors,
    "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
    "qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
    "sliding_window": window,
    "layer_types": _layer_types(file, architecture, num_layers, window),
    "query_scale": get("attention.scale"),
    "attention_soft_cap": get("attn_logit_softcapping") or None,
    "final_soft_cap": get("final_logit_softcapping") or None,
    "model_type": _model_type(architecture, window),
  }
  if gemma:
    fields |= _gemma_fields(architecture, fields)
  if architecture == "gemma3":
    fields["rope_theta_local"] = _decimal(get("rope.freq_base_swa", _LOCAL_ROPE_THETA))
  return fields


def _decimal(value: float) -> float:
  """The short decimal that a stored float32 stands for: 1e-05, not 9.99999974e-06."""
  return float(str(np.float32(value)))


def _model_type(architecture: str, window: int | None) -> str:
  """The Hugging Face family: Mistral's files call themselves Llama."""
  if architecture == "llama" and window is not None:
    return "mistral"
  return {"gemma3": "gemma3_text"}.get(architecture, architecture)


def _gemma_fields(architecture: str, fields: dict[str, Any]) -> dict[str, Any]:
  """What all Gemma models have in common."""
  width = fields["head_dim"]
  if (architecture, fields["num_layers"]) in _SCALED_BY_WIDTH:
    width = fields["hidden_size"] // fields["num_heads"]
  return {
    "activation": "gelu_tanh",
    "norm_plus_one": True,
    "post_norms": True,
    "embedding_scale": math.sqrt(fields["hidden_size"]),
    "query_scale": fields["query_scale"] or float(width) ** -0.5,
  }


def _same_in_all_layers(file: GGUFFile, key: str, value: Any) -> Any:
  """Some files state a number for each layer; here it must be the same."""
  if not isinstance(value, list) or key.endswith("pattern"):
    return value
  if len(set(value)) != 1:
    raise ValueError(f"{file.path}: {key} differs between layers, which is not supported: {value}")
  return value[0]


def _rows(file: GGUFFile, name: str) -> int:
  if name not in file.tensors:
    raise ValueError(f"{file.path}: the tensor {name!r} is missing")
  return file.tensors[name].shape[0]


def _layer_types(
  file: GGUFFile, architecture: str, num_layers: int, window: int | None
) -> tuple[str, ...]:
  """Which layers see a window only."""
  if window is None:
    return (FULL,) * num_layers
  pattern = file.get(f"{architecture}.attention.sliding_window_pattern")
  if isinstance(pattern, list):
    return tuple(SLIDING if slides else FULL for slides in pattern)
  every = pattern or _FULL_EVERY.get(architecture)
  if every is None:
    return (SLIDING,) * num_layers
  return tuple(SLIDING if (layer + 1) % every else FULL for layer in range(num_layers))


def _rope_scaling(
  file: GGUFFile, architecture: str, head_dim: int, rope_theta: float
) -> RopeScaling | None:
  if ROPE_FACTORS in file.tensors:
    original = int(file.get(f"{architecture}.rope.scaling.original_context_length", 8192))
    factors = file.read(ROPE_FACTORS).reshape(-1)
    return scaling_from_factors(factors, head_dim, rope_theta, original)
  kind = file.get(f"{architecture}.rope.scaling.type", "none")
  factor = file.get(f"{architecture}.rope.scaling.factor")
  if factor is None:
    # The key of old files.
    factor = file.get(f"{architecture}.rope.scale_linear", 1.0)
    kind = "linear" if kind == "none" else kind
  if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
    return None
  return RopeScaling(kind=kind, factor=_decimal(factor))


def scaling_from_factors(
  factors: np.ndarray, head_dim: int, rope_theta: float, original_max_positions: int
) -> RopeScaling | None:
  """Llama 3's scaling from what it divides each frequency by, which is what GGUF stores.

  With t turns over the original context, a frequency is divided by 1 where t is large, by the
  full factor where t is small, and between these 1 / divisor is linear in t: the line gives the
  two bounds back.

  Args:
    factors: `[head_dim / 2]` divisors.
    head_dim: width of a head.
    rope_theta: base of the wavelengths.
    original_max_positions: any length will do, as the bounds are relative to it.

  Returns:
    None where nothing is scaled.

  Raises:
    ValueError: where the factors are not of that form.
  """
  frequencies = rotary.inverse_frequencies(head_dim, rope_theta)
  if factors.shape != frequencies.shape:
    raise ValueError(f"{ROPE_FACTORS} has {factors.size} factors, expected {frequencies.size}")
  if np.allclose(factors, 1.0):
    return None
  factor = float(factors.max())
  turns = original_max_positions * frequencies.astype(np.float64) / (2 * math.pi)
  kept = (1 / factors.astype(np.float64) - 1 / factor) / (1 - 1 / factor)
  low, high = _bounds(turns, kept)
  if 0 < low < high:
    # The published bounds are short numbers; what was solved for differs by rounding errors.
    for digits, tolerance in ((4, 1e-6), (12, 1e-4)):
      bounds = (round(low, digits), round(high, digits))
      scaling = RopeScaling("llama3", factor, *bounds, original_max_positions)
      scaled = rotary.inverse_frequencies(head_dim, rope_theta, scaling)
      if np.allclose(frequencies / scaled, factors, rtol=tolerance):
        return scaling
  raise ValueError(f"{ROPE_FACTORS} holds a scaling that is not Llama 3's")


def _bounds(turns: np.ndarray, kept: np.ndarray) -> tuple[float, float]:
  """The turns at which the kept share reaches 0 and 1; `turns` falls along the array."""
  between = (kept > 1e-6) & (kept < 1 - 1e-6)
  if between.sum() >= 2:
    slope, offset = np.polyfit(turns[between], kept[between], 1)
    return float(-offset / slope), float((1 - offset) / slope)
  # The largest factor is taken as the full one, so something always counts as stretched.
  low = float(turns[kept <= 1e-6].max())
  whole = turns[kept >= 1 - 1e-6]
  high = float(whole.min()) if whole.size else 2 * float(turns.max())
  if between.any():
    # One point of the line: the lower bound is the one that lets the upper bound be `high`.
    turn, share = float(turns[between][0]), float(kept[between][0])
    low = max(low, (turn - share * high) / (1 - share))
    high = low + (turn - low) / share
  return low, high
