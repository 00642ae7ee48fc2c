# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A tiny random checkpoint of every family in `transformers`: the oracle of the model tests."""

import functools

import numpy as np
import pytest

SIZES = {
  "vocab_size": 61,
  "hidden_size": 32,
  "intermediate_size": 40,
  "num_hidden_layers": 3,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "max_position_embeddings": 128,
  "pad_token_id": 0,
  "bos_token_id": 1,
  "eos_token_id": 2,
}
_LLAMA3 = {
  "rope_type": "llama3",
  "rope_theta": 1000.0,
  "factor": 8.0,
  "low_freq_factor": 1.0,
  "high_freq_factor": 4.0,
  "original_max_position_embeddings": 32,
}
_GEMMA = {"head_dim": 16, "sliding_window": 5, "query_pre_attn_scalar": 24}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}

# Family, and what makes its numbers interesting: windows shorter than the text, soft caps that
# bite, rope scaling that moves the middle frequencies.
FAMILIES = {
  "llama": ("Llama", {}),
  "llama_biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 12}),
  "llama_tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
  "llama3_rope": ("Llama", {"rope_parameters": _LLAMA3}),
  "linear_rope": (
    "Llama",
    {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}},
  ),
  "mistral": ("Mistral", {"sliding_window": 4, "head_dim": 8}),
  "qwen2": ("Qwen2", {"num_key_value_heads": 4}),
  "qwen2_windows": ("Qwen2", _WINDOWS),
  "qwen3": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
  "gemma2": ("Gemma2", {**_GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}),
  "gemma3": (
    "Gemma3",
    {
      **_GEMMA,
      "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
      "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
      },
    },
  ),
}


@functools.cache
def reference(family):
  """The random `transformers` model of a family: eager attention, logits that are not flat."""
  torch = pytest.importorskip("torch")
  transformers = pytest.importorskip("transformers")
  name, options = FAMILIES[family]
  text = "Text" if name == "Gemma3" else ""
  config = getattr(transformers, f"{name}{text}Config")(
    **{**SIZES, **options}, attn_implementation="eager"
  )
  torch.manual_seed(0)
  model = getattr(transformers, f"{name}ForCausalLM")(config).eval().float()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(0.0, 0.25) if parameter.ndim > 1 else parameter.add_(
        0.25 * torch.randn_like(parameter)
      )
  model.tie_weights()
  return model


def reference_logits(family, tokens):
  """Logits `[..., T, V]` of a full pass over `tokens [..., T]`, without a cache."""
  import torch

  tokens = torch.tensor(np.atleast_2d(np.asarray(tokens)), dtype=torch.long)
  with torch.no_grad():
    return reference(family)(tokens, use_cache=False).logits.numpy()


@functools.cache
def loaded(family):
  """The same weights as a specjax `(Transformer, params)` in float32."""
  from specjax.models import config_from_huggingface, params_from_tensors
  from specjax.models.transformer import Transformer

  source = reference(family)
  tensors = {name: tensor.numpy() for name, tensor in source.state_dict().items()}
  config = config_from_huggingface(source.config.to_dict())
  params = params_from_tensors(config, tensors.__getitem__, tensors.keys(), dtype="float32")
  return Transformer(config, dtype="float32"), params
