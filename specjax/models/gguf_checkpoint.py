# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Weights of a GGUF file, in the names and layouts of Hugging Face checkpoints."""

import os
import re
from typing import Any

import numpy as np
from jax.sharding import Mesh

from specjax.models.config import TransformerConfig
from specjax.models.gguf_config import ROPE_FACTORS, config_from_gguf
from specjax.models.gguf_file import GGUFFile, open_gguf
from specjax.models.huggingface import params_from_tensors
from specjax.models.transformer import Transformer
from specjax.sharding.partitioning import Partitioning
from specjax.sharding.rules import Rules
from specjax.types import Params

_TOP = {
  "token_embd": "model.embed_tokens",
  "output_norm": "model.norm",
  "output": "lm_head",
}
_LAYER = {
  "attn_norm": "input_layernorm",
  "attn_q": "self_attn.q_proj",
  "attn_k": "self_attn.k_proj",
  "attn_v": "self_attn.v_proj",
  "attn_output": "self_attn.o_proj",
  "attn_q_norm": "self_attn.q_norm",
  "attn_k_norm": "self_attn.k_norm",
  "ffn_gate": "mlp.gate_proj",
  "ffn_up": "mlp.up_proj",
  "ffn_down": "mlp.down_proj",
}
# Gemma has norms before and after; the other families call the one before the feed-forward
# layer the one after attention.
_GEMMA_LAYER = _LAYER | {
  "post_attention_norm": "post_attention_layernorm",
  "ffn_norm": "pre_feedforward_layernorm",
  "post_ffw_norm": "post_feedforward_layernorm",
}
_PLAIN_LAYER = _LAYER | {"ffn_norm": "post_attention_layernorm"}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")
# Tensors that are not weights of the network.
_IGNORED = re.compile(rf"{re.escape(ROPE_FACTORS)}|blk\.\d+\.attn_rot_embd\.\w+")


def load_gguf(
  source: str | os.PathLike | GGUFFile,
  *,
  dtype: Any = None,
  precision: str | None = None,
  mesh: Mesh | str | None = None,
  rules: Rules | str | None = None,
) -> tuple[Transformer, Params, dict[str, Any]]:
  """Reads a GGUF file's network.

  Args:
    source: the file, or one that is open already.
    dtype: of the parameters; see `Transformer`. Quantised tensors are dequantised, one by one.
    precision: of matrix products; see `Transformer`.
    mesh: loads onto a mesh of devices, or its text. Blocks of quantised weights run along rows, so
      that a tensor is dequantised as a whole and then cut; one at a time.
    rules: over `specjax.sharding.DEFAULT_RULES`.

  Returns:
    The model, its parameters and the file's metadata.

  Raises:
    ValueError: for a file that is broken or holds an unsupported network; a tensor that is
      missing or has another shape is named.
  """
  file = source if isinstance(source, GGUFFile) else open_gguf(source)
  config = config_from_gguf(file)
  names = huggingface_names(file, config)

  def get_tensor(name: str) -> np.ndarray:
    return _read(file, config, names[name])

  model = Transformer(config, dtype=dtype, precision=precision)
  params = params_from_tensors(
    config,
    get_tensor,
    names,
    dtype=model.dtype,
    source=str(file.path),
    partitioning=None if mesh is None else Partitioning.of(mesh, rules, model),
  )
  return model, params, file.metadata


def huggingface_names(file: GGUFFile, config: TransformerConfig) -> dict[str, str]:
  """Hugging Face name to GGUF name, for every tensor of the file.

  Raises:
    ValueError: for a tensor that none of the supported networks has.
  """
  layer_names = _GEMMA_LAYER if config.post_norms else _PLAIN_LAYER
  names = {}
  for name in file.tensors:
    if _IGNORED.fullmatch(name):
      continue
    match = _NAME.fullmatch(name)
    layer = match["layer"] if match else None
    module = (_TOP if layer is None else layer_names).get(match["module"]) if match else None
    if match is None or module is None:
      raise ValueError(f"{file.path}: the tensor {name!r} is not one of a supported network")
    prefix = "" if layer is None else f"model.layers.{layer}."
    names[f"{prefix}{module}.{match['kind']}"] = name
  return names


def _read(file: GGUFFile, config: TransformerConfig, name: str) -> np.ndarray:
  """One tensor, float32, with the changes undone that converters make for llama.cpp."""
  tensor = file.read(name)
  if file.metadata["general.architecture"] == "llama":
    for part, num_heads in ((".attn_q.", config.num_heads), (".attn_k.", config.num_kv_heads)):
      if part in name:
        return halves_from_pairs(tensor, num_heads)
  if config.norm_plus_one and name.endswith("norm.weight"):
    # Stored as the factor itself, while Gemma's checkpoints (and our norms) add the 1.
    return tensor - 1.0
  return tensor


def halves_from_pairs(tensor: np.ndarray, num_heads: int) -> np.ndarray:
  """Query or key rows from llama.cpp's order to Hugging Face's.

  llama.cpp rotates neighbouring dimensions of a head (0 with 1, 2 with 3, ...), so converters
  bring the two halves of each head together like a zip; here dimension i is rotated with
  i + head_dim / 2.

  Args:
    tensor: `[num_heads * head_dim, ...]`, a weight or a bias.
    num_heads: heads that it holds.
  """
  rows = tensor.shape[0]
  if rows % (2 * num_heads):
    # Not this network's shape: the loader that compares it with the expected one names it.
    return tensor
  pairs = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
  return np.swapaxes(pairs, 1, 2).reshape(tensor.shape)
