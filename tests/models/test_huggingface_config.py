# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""config.json of every family: both spellings, defaults that are left out, refusals."""

import dataclasses

import pytest
from families import FAMILIES, reference

from specjax.models import RopeScaling, config_from_huggingface, config_to_huggingface

LLAMA = {
  "model_type": "llama",
  "vocab_size": 49152,
  "hidden_size": 576,
  "intermediate_size": 1536,
  "num_hidden_layers": 30,
  "num_attention_heads": 9,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_config_survives_being_written_for_transformers(family):
  config = config_from_huggingface(reference(family).config.to_dict())
  assert config_from_huggingface(config_to_huggingface(config)) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_what_is_written_for_it(family):
  transformers = pytest.importorskip("transformers")
  source = reference(family).config
  config = config_from_huggingface(source.to_dict())
  again = type(source)(**config_to_huggingface(config))
  assert isinstance(again, transformers.PreTrainedConfig)
  assert config_from_huggingface(again.to_dict()) == config
  assert again.rope_parameters == source.rope_parameters


def test_older_and_newer_spelling_of_rope_agree():
  scaling = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
  }
  older = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {**scaling, "rope_type": "llama3"}}
  oldest = {**LLAMA, "rope_theta": 5e5, "rope_scaling": {**scaling, "type": "llama3"}}
  newer = {**LLAMA, "rope_parameters": {**scaling, "rope_type": "llama3", "rope_theta": 5e5}}
  config = config_from_huggingface(newer)
  assert config.rope_theta == 5e5
  assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
  assert config_from_huggingface(older) == config_from_huggingface(oldest) == config


def test_sizes_that_llama_leaves_out_follow_from_the_others():
  config = config_from_huggingface(LLAMA)
  assert (config.head_dim, config.num_kv_heads, config.max_positions) == (64, 9, 2048)
  assert (config.rope_theta, config.tie_embeddings, config.rms_norm_eps) == (1e4, False, 1e-6)
  assert config.rope_scaling is None


def test_mistral_without_a_window_is_full_and_with_one_is_sliding_throughout():
  fields = {**LLAMA, "model_type": "mistral"}
  assert config_from_huggingface({**fields, "sliding_window": None}).layer_types == ("full",) * 30
  assert config_from_huggingface(fields).sliding_window == 4096  # the family's default
  assert set(config_from_huggingface(fields).layer_types) == {"sliding"}


def test_qwen_windows_are_off_unless_asked_for_and_begin_at_a_layer():
  fields = {**LLAMA, "model_type": "qwen2", "sliding_window": 99, "max_window_layers": 28}
  plain = config_from_huggingface(fields)
  assert plain.sliding_window is None and set(plain.layer_types) == {"full"}
  assert plain.qkv_bias and not plain.output_bias
  windows = config_from_huggingface({**fields, "use_sliding_window": True})
  assert windows.sliding_window == 99
  assert windows.layer_types == ("full",) * 28 + ("sliding",) * 2


def test_qwen3_has_its_own_default_head_dim():
  assert config_from_huggingface({**LLAMA, "model_type": "qwen3"}).head_dim == 128


def test_multimodal_gemma3_takes_its_text_config_and_the_defaults_that_it_omits():
  text = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
  }
  config = config_from_huggingface({"model_type": "gemma3", "text_config": text})
  assert (config.vocab_size, config.num_heads, config.num_kv_heads) == (262_208, 8, 4)
  assert (config.head_dim, config.query_scale, config.tie_embeddings) == (256, 1 / 16, True)
  assert (config.rope_theta, config.rope_theta_local) == (1e6, 1e4)
  assert config.rope_scaling == RopeScaling("linear", 8.0)
  assert [i for i, kind in enumerate(config.layer_types) if kind == "full"] == [5, 11, 17, 23, 29]


def test_older_gemma3_names_its_local_base_and_its_pattern():
  fields = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 4,
    "sliding_window_pattern": 2,
    "rope_theta": 7e5,
    "rope_local_base_freq": 3e3,
  }
  config = config_from_huggingface(fields)
  assert config.layer_types == ("sliding", "full", "sliding", "full")
  assert (config.rope_theta, config.rope_theta_local) == (7e5, 3e3)


def test_gemma2_alternates_and_soft_caps_by_default():
  config = config_from_huggingface({"model_type": "gemma2", "num_hidden_layers": 4})
  assert config.layer_types == ("sliding", "full", "sliding", "full")
  assert (config.attention_soft_cap, config.final_soft_cap) == (50.0, 30.0)
  assert config.activation == "gelu_tanh"


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"model_type": "bert"}, "model_type 'bert' is not supported; supported are llama, mistral"),
    ({"model_type": None}, "model_type None is not supported"),
    ({"hidden_size": None}, "config.json must give hidden_size as an integer, got None"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "got 'yarn'"),
    ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "got 'dynamic'"),
    ({"rope_scaling": {"rope_type": "linear"}}, "type 'linear' must give its factor"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "lacks high_freq_factor"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1 for llama, got 0.5"),
    ({"hidden_act": "relu"}, "hidden_act must be one of silu, .* got 'relu'"),
    ({"quantization_config": {"bits": 4}}, "quantized safetensors"),
  ],
)
def test_what_is_not_supported_is_refused_by_name(change, message):
  with pytest.raises(ValueError, match=message):
    config_from_huggingface({**LLAMA, **change})


def test_bidirectional_gemma_is_refused():
  with pytest.raises(ValueError, match="use_bidirectional_attention is not supported"):
    config_from_huggingface({"model_type": "gemma3_text", "use_bidirectional_attention": True})


def test_a_config_that_the_family_cannot_express_is_not_written():
  config = dataclasses.replace(config_from_huggingface(LLAMA), qk_norm=True)
  with pytest.raises(ValueError, match="cannot be written as model_type 'llama'"):
    config_to_huggingface(config)
