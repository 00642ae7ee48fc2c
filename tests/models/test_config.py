# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`TransformerConfig`: what it refuses, and its own dictionary."""

import dataclasses
import json

import pytest

from specjax.models import RopeScaling, TransformerConfig

SMALL = TransformerConfig(
  vocab_size=50,
  hidden_size=32,
  intermediate_size=48,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  max_positions=64,
)
RICH = dataclasses.replace(
  SMALL,
  rope_scaling=RopeScaling("llama3", 8.0, original_max_positions=32),
  rope_theta_local=100.0,
  sliding_window=5,
  layer_types=("sliding", "full"),
  attention_soft_cap=50.0,
)


@pytest.mark.parametrize("config", [SMALL, RICH])
def test_config_survives_json(config):
  text = json.dumps(config.to_dict())
  again = TransformerConfig.from_dict(json.loads(text))
  assert again == config
  assert hash(again) == hash(config)


def test_layers_are_full_where_nothing_is_said():
  assert SMALL.layer_types == ("full", "full")


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"vocab_size": 0}, "vocab_size must be an integer >= 1, got 0"),
    ({"hidden_size": 2.5}, r"hidden_size must be an integer >= 1, got 2\.5"),
    ({"num_kv_heads": 3}, "num_heads must be a multiple of num_kv_heads, got 4 and 3"),
    ({"head_dim": 7}, "head_dim must be even for rotary embeddings, got 7"),
    ({"layer_types": ("full",)}, "one entry for each of 2 layers, got 1"),
    ({"layer_types": ("full", "chunked")}, "layer_types must be .* got .'chunked'."),
    ({"layer_types": ("full", "sliding")}, "sliding_window must be >= 1 .* got None"),
    ({"activation": "relu"}, "activation must be one of silu, .* got 'relu'"),
    ({"attention_soft_cap": 0.0}, "attention_soft_cap must be > 0 or None"),
    ({"rope_theta": -1.0}, "rope_theta must be > 0"),
  ],
)
def test_bad_config_is_refused_by_name(change, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(SMALL, **change)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (("yarn", 4.0), "kind must be one of linear, llama3, got 'yarn'"),
    (("linear", 0.0), "factor must be > 0, got 0"),
    (("llama3", 8.0, 4.0, 1.0), "high_freq_factor must exceed low_freq_factor"),
    (("llama3", 8.0, 1.0, 4.0, 0), "original_max_positions must be >= 1, got 0"),
  ],
)
def test_bad_rope_scaling_is_refused_by_name(arguments, message):
  with pytest.raises(ValueError, match=message):
    RopeScaling(*arguments)


def test_dictionary_with_unknown_or_missing_keys_is_refused():
  fields = SMALL.to_dict()
  with pytest.raises(ValueError, match="unknown keys of TransformerConfig: heads"):
    TransformerConfig.from_dict({**fields, "heads": 3})
  del fields["vocab_size"]
  with pytest.raises(ValueError, match="missing keys of TransformerConfig: vocab_size"):
    TransformerConfig.from_dict(fields)
