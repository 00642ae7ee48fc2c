# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Small random networks of every architecture, as GGUF files and as Hugging Face tensors."""

import gguf
import numpy as np
import torch
import transformers
from transformers import modeling_gguf_pytorch_utils

_SIZES = {
  "vocab_size": 96,
  "hidden_size": 32,
  "intermediate_size": 64,
  "num_hidden_layers": 3,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 16,
  "max_position_embeddings": 128,
  "rms_norm_eps": 1e-5,
}
_LLAMA3_ROPE = {
  "rope_type": "llama3",
  "rope_theta": 500.0,
  "factor": 8.0,
  "low_freq_factor": 1.0,
  "high_freq_factor": 4.0,
  "original_max_position_embeddings": 64,
}
_GEMMA = {"sliding_window": 8, "query_pre_attn_scalar": 16}

# A name of the test's own: (class of transformers' configuration, GGUF architecture, options).
NETWORKS = {
  "llama": (transformers.LlamaConfig, "llama", {"tie_word_embeddings": False}),
  "llama_tied_biased": (
    transformers.LlamaConfig,
    "llama",
    {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
  ),
  "llama3": (transformers.LlamaConfig, "llama", {"rope_parameters": _LLAMA3_ROPE}),
  "llama_linear": (
    transformers.LlamaConfig,
    "llama",
    {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
  ),
  "mistral": (transformers.MistralConfig, "llama", {"sliding_window": 8}),
  "qwen2": (transformers.Qwen2Config, "qwen2", {"tie_word_embeddings": True}),
  "qwen3": (transformers.Qwen3Config, "qwen3", {"tie_word_embeddings": False}),
  "gemma2": (transformers.Gemma2Config, "gemma2", {**_GEMMA, "num_hidden_layers": 4}),
  "gemma3": (transformers.Gemma3TextConfig, "gemma3", {**_GEMMA, "num_hidden_layers": 7}),
}


def build(network):
  """A random transformers model of the network, float32, its norms and biases not trivial."""
  config_class, _, options = NETWORKS[network]
  config = config_class(**(_SIZES | options))
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
  with torch.no_grad():
    for name, tensor in model.named_parameters():
      if tensor.ndim == 1:
        tensor.add_(0.3 * torch.randn_like(tensor))
      else:
        tensor.mul_(10.0 if "embed" in name else 4.0)
  return model


def read_with_transformers(path, config=None):
  """The float32 model that transformers makes of a GGUF file.

  As `from_pretrained(..., gguf_file=...)`, which wants the package accelerate besides.

  Args:
    path: the file.
    config: in place of the one that transformers reads, which lacks for example `head_dim`.
  """
  if config is None:
    fields = modeling_gguf_pytorch_utils.load_gguf_checkpoint(str(path))["config"]
    config = transformers.AutoConfig.for_model(**fields)
  model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
  tensors = modeling_gguf_pytorch_utils.load_gguf_checkpoint(
    str(path), return_tensors=True, model_to_load=model, torch_dtype=torch.float32
  )["tensors"]
  missing, unexpected = model.load_state_dict(tensors, strict=False)
  tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
  assert set(missing) <= tied and not unexpected
  model.tie_weights()
  return model


def write(path, network, model, *, quantize=False, edit=None, extra=None):
  """Writes the model as llama.cpp's converter does.

  Args:
    path: the file.
    network: a key of `NETWORKS`.
    model: what `build` returned.
    quantize: stores matrices as Q8_0 instead of F32.
    edit: changes the dictionary of tensors before they are written.
    extra: metadata to add: key to float, int, str or list.
  """
  architecture = NETWORKS[network][1]
  writer = gguf.GGUFWriter(path, architecture)
  _write_sizes(writer, model.config, architecture)
  for key, value in (extra or {}).items():
    _add(writer, key, value)
  tensors = convert(network, model)
  if edit is not None:
    edit(tensors)
  for name, tensor in tensors.items():
    if quantize and tensor.ndim == 2:
      kind = gguf.GGMLQuantizationType.Q8_0
      writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    else:
      writer.add_tensor(name, tensor)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


def _add(writer, key, value):
  kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
  kinds |= {str: writer.add_string, list: writer.add_array}
  kinds[type(value)](key, value)


def _write_sizes(writer, config, architecture):
  writer.add_block_count(config.num_hidden_layers)
  writer.add_context_length(config.max_position_embeddings)
  writer.add_embedding_length(config.hidden_size)
  writer.add_feed_forward_length(config.intermediate_size)
  writer.add_head_count(config.num_attention_heads)
  writer.add_head_count_kv(config.num_key_value_heads)
  writer.add_key_length(config.head_dim)
  writer.add_value_length(config.head_dim)
  writer.add_layer_norm_rms_eps(config.rms_norm_eps)
  writer.add_vocab_size(config.vocab_size)
  rope = config.rope_parameters
  rope = rope.get("full_attention", rope)
  writer.add_rope_freq_base(rope["rope_theta"])
  if rope["rope_type"] == "linear":
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(rope["factor"])
  if getattr(config, "sliding_window", None):
    writer.add_sliding_window(config.sliding_window)
  if architecture == "gemma2":
    writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    writer.add_final_logit_softcapping(config.final_logit_softcapping)


def convert(network, model):
  """GGUF name to float32 array, changed as the converter changes them."""
  architecture = NETWORKS[network][1]
  config = model.config
  arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
  names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
  tensors = {}
  for name, tensor in model.state_dict().items():
    if name == "lm_head.weight" and config.tie_word_embeddings:
      continue
    array = tensor.detach().numpy().astype(np.float32)
    module, kind = name.rsplit(".", 1)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = module.rsplit(".", 1)[-1]
    if architecture == "llama" and part in heads:
      array = zip_halves(array, heads[part])
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
      array = array + 1
    tensors[f"{names.get_name(module)}.{kind}"] = array
  if config.rope_parameters.get("rope_type") == "llama3":
    tensors["rope_freqs.weight"] = llama3_factors(config)
  return tensors


def zip_halves(array, num_heads):
  """Within each head, rows 0, d/2, 1, d/2 + 1, ...: row by row, as slow as it is plain."""
  head_dim = array.shape[0] // num_heads
  rows = []
  for head in range(num_heads):
    for index in range(head_dim // 2):
      rows.append(array[head * head_dim + index])
      rows.append(array[head * head_dim + index + head_dim // 2])
  return np.stack(rows)


def llama3_factors(config):
  """What each frequency is divided by, one wavelength after the other (Llama 3.1)."""
  rope = config.rope_parameters
  original = rope["original_max_position_embeddings"]
  factors = []
  for index in range(config.head_dim // 2):
    frequency = rope["rope_theta"] ** (-2 * index / config.head_dim)
    wavelength = 2 * np.pi / frequency
    if wavelength < original / rope["high_freq_factor"]:
      factors.append(1.0)
    elif wavelength > original / rope["low_freq_factor"]:
      factors.append(rope["factor"])
    else:
      smooth = original / wavelength - rope["low_freq_factor"]
      smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
      factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
  return np.array(factors, np.float32)
