# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Architectures by name, without weights: what to plan for, lower, or time with random weights."""

from pathlib import Path

from specjax.models.config import TransformerConfig
from specjax.models.huggingface_config import config_from_huggingface
from specjax.models.text_files import read_json_if_there


def _llama(
  layers: int, width: int, inner: int, heads: int, head_dim: int, tied: bool = False
) -> TransformerConfig:
  """The Llama 3 family: 8 key/value heads, a vocabulary of 128,256."""
  return TransformerConfig(
    vocab_size=128_256,
    hidden_size=width,
    intermediate_size=inner,
    num_layers=layers,
    num_heads=heads,
    num_kv_heads=8,
    head_dim=head_dim,
    max_positions=131_072,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    tie_embeddings=tied,
  )


_SMOLLM2_135M = TransformerConfig(
  vocab_size=49_152,
  hidden_size=576,
  intermediate_size=1536,
  num_layers=30,
  num_heads=9,
  num_kv_heads=3,
  head_dim=64,
  max_positions=8192,
  tie_embeddings=True,
)
# From the config.json of each model's repository.
SHAPES = {
  "llama-3.2-1b": _llama(16, 2048, 8192, 32, 64, tied=True),
  "llama-3.2-3b": _llama(28, 3072, 8192, 24, 128, tied=True),
  "llama-3.1-8b": _llama(32, 4096, 14_336, 32, 128),
  "llama-3.1-70b": _llama(80, 8192, 28_672, 64, 128),
  "smollm2-135m": _SMOLLM2_135M,
  "smollm2-135m-instruct": _SMOLLM2_135M,
}


def read_shape(argument: str, name: str) -> TransformerConfig:
  """The architecture that a name or a folder stands for; no weights are read.

  Args:
    argument: what is being read, for the error.
    name: a key of `SHAPES`, or a folder with a `config.json`.

  Raises:
    ValueError: for a name that is neither, or a config.json that is not supported.
  """
  if name in SHAPES:
    return SHAPES[name]
  fields = read_json_if_there(Path(name).expanduser() / "config.json")
  if not fields:
    raise ValueError(
      f"{argument} must be one of {', '.join(SHAPES)}, or a folder with a config.json, got {name!r}"
    )
  return config_from_huggingface(fields)
