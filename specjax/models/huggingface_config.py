# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`TransformerConfig` from a Hugging Face `config.json`, and back."""

from collections.abc import Mapping
from typing import Any

from specjax.models.config import FULL, SLIDING, RopeScaling, TransformerConfig

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gemma3")

_ACTIVATIONS = {
  "silu": "silu",
  "swish": "silu",
  "gelu": "gelu",
  "gelu_new": "gelu_tanh",
  "gelu_pytorch_tanh": "gelu_tanh",
}
_LAYER_TYPES = {"full_attention": FULL, "sliding_attention": SLIDING}

# What each family means when its config.json leaves a key out.
_COMMON = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu"}
_GEMMA = {
  "rms_norm_eps": 1e-6,
  "tie_word_embeddings": True,
  "hidden_activation": "gelu_pytorch_tanh",
  "hidden_size": 2304,
  "intermediate_size": 9216,
  "num_hidden_layers": 26,
  "num_attention_heads": 8,
  "num_key_value_heads": 4,
  "head_dim": 256,
  "query_pre_attn_scalar": 256,
  "sliding_window": 4096,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
  "llama": {**_COMMON, "max_position_embeddings": 2048},
  "mistral": {**_COMMON, "max_position_embeddings": 131_072, "sliding_window": 4096},
  "qwen2": {**_COMMON, "max_position_embeddings": 32_768, "sliding_window": 4096},
  "qwen3": {
    **_COMMON,
    "max_position_embeddings": 32_768,
    "sliding_window": 4096,
    "head_dim": 128,
  },
  "gemma2": {
    **_GEMMA,
    "vocab_size": 256_000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
  },
  "gemma3_text": {**_GEMMA, "vocab_size": 262_208, "max_position_embeddings": 131_072},
}


def config_from_huggingface(fields: Mapping[str, Any]) -> TransformerConfig:
  """Reads the dictionary of a `config.json`, in the older and in transformers 5's spelling.

  Raises:
    ValueError: for a family or an option that is not supported, or a missing size.
  """
  if fields.get("model_type") == "gemma3" and "text_config" in fields:
    fields = {**fields["text_config"], "model_type": "gemma3_text"}
  model_type = fields.get("model_type")
  family = "gemma3_text" if model_type == "gemma3" else model_type
  if family not in _DEFAULTS:
    raise ValueError(
      f"model_type {model_type!r} is not supported; supported are "
      f"{', '.join(SUPPORTED_MODEL_TYPES)}"
    )
  values = {**_DEFAULTS[family], **fields}
  _refuse(values, family)
  num_layers, num_heads = _size(values, "num_hidden_layers"), _size(values, "num_attention_heads")
  layer_types = _layer_types(values, family, num_layers)
  local_theta, theta, scaling = _rope(values, family)
  return TransformerConfig(
    vocab_size=_size(values, "vocab_size"),
    hidden_size=_size(values, "hidden_size"),
    intermediate_size=_size(values, "intermediate_size"),
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=values.get("num_key_value_heads") or num_heads,
    head_dim=values.get("head_dim") or _size(values, "hidden_size") // num_heads,
    max_positions=_size(values, "max_position_embeddings"),
    rms_norm_eps=float(values["rms_norm_eps"]),
    rope_theta=theta,
    rope_theta_local=local_theta,
    rope_scaling=scaling,
    tie_embeddings=bool(values["tie_word_embeddings"]),
    sliding_window=values.get("sliding_window") if SLIDING in layer_types else None,
    layer_types=layer_types,
    model_type=family,
    **_family_options(values, family),
  )


def config_to_huggingface(config: TransformerConfig) -> dict[str, Any]:
  """The dictionary of a `config.json` that `config_from_huggingface` and transformers read."""
  architectures = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
  }
  family = config.model_type
  if family not in architectures:
    raise ValueError(f"model_type {family!r} has no Hugging Face format")
  activation = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
  gemma = family.startswith("gemma")
  names = {own: theirs for theirs, own in _LAYER_TYPES.items()}
  fields: dict[str, Any] = {
    "architectures": [architectures[family]],
    "model_type": family,
    "vocab_size": config.vocab_size,
    "hidden_size": config.hidden_size,
    "intermediate_size": config.intermediate_size,
    "num_hidden_layers": config.num_layers,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "max_position_embeddings": config.max_positions,
    "rms_norm_eps": config.rms_norm_eps,
    "tie_word_embeddings": config.tie_embeddings,
    "hidden_activation" if gemma else "hidden_act": activation[config.activation],
    "attention_bias": config.output_bias,
    "sliding_window": config.sliding_window,
    **_rope_fields(config),
  }
  if family == "llama":
    fields["mlp_bias"] = config.mlp_bias
  if family in ("qwen2", "qwen3"):
    fields["use_sliding_window"] = config.sliding_window is not None
  if family != "mistral":
    fields["layer_types"] = [names[kind] for kind in config.layer_types]
  if gemma:
    scale = config.head_dim**-0.5 if config.query_scale is None else config.query_scale
    scalar = scale**-2
    # transformers declares an integer; undo the rounding of the square root and its inverse.
    fields["query_pre_attn_scalar"] = (
      round(scalar) if abs(scalar - round(scalar)) < 1e-6 else scalar
    )
    fields["attn_logit_softcapping"] = config.attention_soft_cap
    fields["final_logit_softcapping"] = config.final_soft_cap
  # A config that the family cannot express would be read back as another model.
  if config_from_huggingface(fields) != config:
    raise ValueError(
      f"this TransformerConfig cannot be written as model_type {family!r}: it uses options "
      "which that family does not have"
    )
  return fields


def _size(values: Mapping[str, Any], name: str) -> int:
  value = values.get(name)
  if not isinstance(value, int):
    raise ValueError(f"config.json must give {name} as an integer, got {value!r}")
  return value


def _refuse(values: Mapping[str, Any], family: str) -> None:
  """Options that would change the output and are not implemented."""
  if values.get("use_bidirectional_attention"):
    raise ValueError("use_bidirectional_attention is not supported: decoding is causal")
  if (values.get("partial_rotary_factor") or 1.0) != 1.0:
    raise ValueError(
      f"partial_rotary_factor must be 1 for {family}, got {values['partial_rotary_factor']}"
    )
  if values.get("quantization_config"):
    raise ValueError(
      "quantized safetensors checkpoints are not supported; use the unquantized or a GGUF one"
    )


def _family_options(values: Mapping[str, Any], family: str) -> dict[str, Any]:
  """The fields that only some families use."""
  attention_bias = bool(values.get("attention_bias", False))
  options: dict[str, Any] = {
    "activation": _activation(values, family),
    "qkv_bias": attention_bias,
    "output_bias": attention_bias,
    "qk_norm": family in ("qwen3", "gemma3_text"),
  }
  if family == "qwen2":
    options |= {"qkv_bias": True, "output_bias": False}
  if family == "mistral":
    options |= {"qkv_bias": False, "output_bias": False}
  if family == "llama":
    options["mlp_bias"] = bool(values.get("mlp_bias", False))
  if family.startswith("gemma"):
    # transformers' Gemma 3 has the setting for capped scores but does not apply it.
    capped = values.get("attn_logit_softcapping") if family == "gemma2" else None
    options |= {
      "norm_plus_one": True,
      "post_norms": True,
      "embedding_scale": float(values["hidden_size"]) ** 0.5,
      "query_scale": float(values["query_pre_attn_scalar"]) ** -0.5,
      "attention_soft_cap": capped,
      "final_soft_cap": values.get("final_logit_softcapping"),
    }
  return options


def _activation(values: Mapping[str, Any], family: str) -> str:
  key = "hidden_activation" if family.startswith("gemma") else "hidden_act"
  # Old Gemma files leave `hidden_activation` null, which means the tanh approximation.
  name = values[key] or _DEFAULTS[family][key]
  if name not in _ACTIVATIONS:
    raise ValueError(f"{key} must be one of {', '.join(_ACTIVATIONS)}, got {name!r}")
  return _ACTIVATIONS[name]


def _layer_types(values: Mapping[str, Any], family: str, num_layers: int) -> tuple[str, ...]:
  """ "full" or "sliding" for each layer, by each family's own rule where none is listed."""
  window = values.get("sliding_window")
  if family == "llama":
    return (FULL,) * num_layers
  if family == "mistral":
    return (FULL if window is None else SLIDING,) * num_layers
  if family in ("qwen2", "qwen3") and not values.get("use_sliding_window", False):
    return (FULL,) * num_layers
  named = values.get("layer_types")
  if named is not None:
    unknown = sorted(set(named) - set(_LAYER_TYPES))
    if unknown:
      raise ValueError(f"layer_types must be of {', '.join(_LAYER_TYPES)}, got {unknown}")
    return tuple(_LAYER_TYPES[name] for name in named)
  if window is None:
    return (FULL,) * num_layers
  if family in ("qwen2", "qwen3"):
    first = values.get("max_window_layers", 28)
    return tuple(SLIDING if i >= first else FULL for i in range(num_layers))
  period = 2 if family == "gemma2" else values.get("sliding_window_pattern") or 6
  return tuple(SLIDING if (i + 1) % period else FULL for i in range(num_layers))


def _rope(values: Mapping[str, Any], family: str) -> tuple[float | None, float, RopeScaling | None]:
  """Base for sliding layers (None: as the others), base, and scaling."""
  parameters = values.get("rope_parameters") or {}
  nested = {name: parameters[name] or {} for name in _LAYER_TYPES if name in parameters}
  flat = {} if nested else dict(parameters)
  full = dict(nested.get("full_attention", flat))
  full.update(values.get("rope_scaling") or {})
  local = dict(nested.get("sliding_attention", {}))
  global_theta = 1_000_000.0 if family == "gemma3_text" else 10_000.0
  theta = float(full.get("rope_theta") or values.get("rope_theta") or global_theta)
  scaling = _rope_scaling(full, values)
  local_theta = None
  if family == "gemma3_text":
    local_theta = local.get("rope_theta") or values.get("rope_local_base_freq") or 10_000.0
  elif local:
    local_theta = local.get("rope_theta") or values.get("rope_theta") or global_theta
  if local_theta is not None and _rope_scaling(local, values) is not None:
    raise ValueError(f"rope scaling of sliding layers is not supported, got {local}")
  return None if local_theta is None else float(local_theta), theta, scaling


def _rope_scaling(parameters: Mapping[str, Any], values: Mapping[str, Any]) -> RopeScaling | None:
  kind = parameters.get("rope_type") or parameters.get("type") or "default"
  if (parameters.get("partial_rotary_factor") or 1.0) != 1.0:
    raise ValueError("partial_rotary_factor is not supported in rope parameters")
  if kind == "default":
    return None
  if "factor" not in parameters and kind in ("linear", "llama3"):
    raise ValueError(f"rope scaling of type {kind!r} must give its factor, got {parameters}")
  if kind != "llama3":
    # RopeScaling refuses the kinds that it does not know.
    return RopeScaling(kind, float(parameters.get("factor", 1.0)))
  missing = {"low_freq_factor", "high_freq_factor"} - set(parameters)
  if missing:
    raise ValueError(f"rope scaling of type 'llama3' lacks {', '.join(sorted(missing))}")
  original = parameters.get("original_max_position_embeddings")
  return RopeScaling(
    kind,
    float(parameters["factor"]),
    low_freq_factor=float(parameters["low_freq_factor"]),
    high_freq_factor=float(parameters["high_freq_factor"]),
    original_max_positions=int(original or _size(values, "max_position_embeddings")),
  )


def _rope_fields(config: TransformerConfig) -> dict[str, Any]:
  """`rope_parameters` as transformers 5 writes them."""
  full: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
  scaling = config.rope_scaling
  if scaling is not None:
    full |= {"rope_type": scaling.kind, "factor": scaling.factor}
  if scaling is not None and scaling.kind == "llama3":
    full["low_freq_factor"] = scaling.low_freq_factor
    full["high_freq_factor"] = scaling.high_freq_factor
    full["original_max_position_embeddings"] = scaling.original_max_positions
  if config.rope_theta_local is None:
    return {"rope_parameters": full}
  local = {"rope_type": "default", "rope_theta": config.rope_theta_local}
  return {"rope_parameters": {"full_attention": full, "sliding_attention": local}}
