# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Target and draft models: transformers, users' own functions, their caches and checkpoints.

`Transformer` is the one architecture for all supported families, described by a
`TransformerConfig`; `FunctionModel` makes a model of a pure function. Both satisfy
`specjax.types.Model`. `load_huggingface` and `save_huggingface` read and write folders.
"""

from specjax.models.config import RopeScaling, TransformerConfig
from specjax.models.function_model import FunctionModel
from specjax.models.huggingface import load_huggingface, params_from_tensors, save_huggingface
from specjax.models.huggingface_config import config_from_huggingface, config_to_huggingface
from specjax.models.kv_cache import KVCache
from specjax.models.prefill import prefill, prefill_with_layers
from specjax.models.transformer import Transformer, default_dtype

__all__ = [
  "FunctionModel",
  "KVCache",
  "RopeScaling",
  "Transformer",
  "TransformerConfig",
  "config_from_huggingface",
  "config_to_huggingface",
  "default_dtype",
  "load_huggingface",
  "params_from_tensors",
  "prefill",
  "prefill_with_layers",
  "save_huggingface",
]
