# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face folders: in, out, sharded, in half precision, and damaged ones."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import FAMILIES, loaded, reference, reference_logits

from specjax.models import (
  Transformer,
  load_huggingface,
  params_from_tensors,
  save_huggingface,
)
from specjax.types import Block

safetensors_numpy = pytest.importorskip("safetensors.numpy")
TOKENS = np.arange(3, 20, dtype=np.int32)[None]


def logits_of(model, params, tokens=TOKENS):
  block = Block.chain(jnp.zeros(1, jnp.int32), tokens.shape[1])
  output = jax.jit(model.apply)(
    params, jnp.asarray(tokens), block, model.init_cache(1, tokens.shape[1])
  )
  return np.asarray(model.logits(params, output.hidden))


@pytest.mark.parametrize("family", FAMILIES)
def test_folder_saved_by_transformers_gives_its_logits(family, tmp_path):
  reference(family).save_pretrained(tmp_path)
  model, params = load_huggingface(tmp_path, dtype="float32")
  np.testing.assert_allclose(
    logits_of(model, params), reference_logits(family, TOKENS), atol=1e-4, rtol=0
  )


@pytest.mark.parametrize("family", FAMILIES)
def test_folder_that_is_saved_is_read_by_transformers(family, tmp_path):
  transformers = pytest.importorskip("transformers")
  torch = pytest.importorskip("torch")
  model, params = loaded(family)
  save_huggingface(tmp_path / "new", model, params)
  again = transformers.AutoModelForCausalLM.from_pretrained(
    tmp_path / "new", attn_implementation="eager"
  )
  assert type(again) is type(reference(family))
  with torch.no_grad():
    got = again(torch.tensor(TOKENS, dtype=torch.long)).logits.numpy()
  np.testing.assert_allclose(got, reference_logits(family, TOKENS), atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "llama_tied", "gemma3"])
def test_round_trip_keeps_every_bit(family, tmp_path):
  model, params = loaded(family)
  save_huggingface(tmp_path, model, params)
  again_model, again = load_huggingface(tmp_path, dtype="float32")
  assert again_model == model
  assert jax.tree.structure(again) == jax.tree.structure(params)
  jax.tree.map(np.testing.assert_array_equal, again, params)


def test_a_tied_head_is_not_stored_and_filled_in_again(tmp_path):
  model, params = loaded("llama_tied")
  save_huggingface(tmp_path, model, params)
  names = safetensors_numpy.load_file(tmp_path / "model.safetensors")
  assert "lm_head.weight" not in names
  _, again = load_huggingface(tmp_path, dtype="float32")
  np.testing.assert_array_equal(again["head"]["kernel"], again["embed"]["embedding"].T)


def test_a_head_of_its_own_wins_over_a_config_that_says_tied(tmp_path):
  """As transformers 5 does it: both present and different are not tied."""
  model, params = loaded("llama_tied")
  save_huggingface(tmp_path, model, params)
  tensors = safetensors_numpy.load_file(tmp_path / "model.safetensors")
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1.0
  safetensors_numpy.save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
  model, params = load_huggingface(tmp_path, dtype="float32")
  assert not model.config.tie_embeddings
  np.testing.assert_array_equal(params["head"]["kernel"], tensors["lm_head.weight"].T)


def test_shards_give_the_same_parameters_as_one_file(tmp_path):
  reference("qwen2").save_pretrained(tmp_path, max_shard_size="20KB")
  assert not (tmp_path / "model.safetensors").exists()
  assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
  _, params = load_huggingface(tmp_path, dtype="float32")
  jax.tree.map(np.testing.assert_array_equal, params, loaded("qwen2")[1])


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_half_precision_files_are_converted_to_the_dtype_asked_for(stored, dtype, tmp_path):
  _, params = loaded("llama")
  half = jax.tree.map(lambda leaf: leaf.astype(stored), params)
  save_huggingface(tmp_path, Transformer(loaded("llama")[0].config, dtype=stored), half)
  assert json.loads((tmp_path / "config.json").read_text())["dtype"] == stored
  model, got = load_huggingface(tmp_path, dtype=dtype)
  assert model.dtype == jnp.dtype(dtype)
  expected = jax.tree.map(lambda leaf: leaf.astype(dtype), half)
  jax.tree.map(np.testing.assert_array_equal, got, expected)
  assert {leaf.dtype for leaf in jax.tree.leaves(got)} == {jnp.dtype(dtype)}


@pytest.fixture
def folder(tmp_path):
  save_huggingface(tmp_path, *loaded("llama"))
  return tmp_path


def change_tensors(folder, change):
  tensors = safetensors_numpy.load_file(folder / "model.safetensors")
  change(tensors)
  safetensors_numpy.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def test_a_missing_tensor_is_named_with_its_shape_and_file(folder):
  change_tensors(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
  with pytest.raises(ValueError, match=r"model.layers.1.mlp.up_proj.weight \(40, 32\) is missing"):
    load_huggingface(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes_and_the_file(folder):
  name = "model.layers.2.self_attn.k_proj.weight"
  change_tensors(folder, lambda tensors: tensors.update({name: np.zeros((3, 4), np.float32)}))
  message = rf"{name} must have shape \(16, 32\), got \(3, 4\) in .*model.safetensors"
  with pytest.raises(ValueError, match=message):
    load_huggingface(folder)


def test_a_vocabulary_that_is_not_the_configs_is_refused(folder):
  fields = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps({**fields, "vocab_size": 64}))
  with pytest.raises(ValueError, match=r"embed_tokens.weight must have shape \(64, 32\), got"):
    load_huggingface(folder)


def test_a_truncated_file_is_refused_by_name(folder):
  weights = folder / "model.safetensors"
  weights.write_bytes(weights.read_bytes()[:-100])
  with pytest.raises(ValueError, match=r"model.safetensors is not a readable safetensors file"):
    load_huggingface(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_refused_by_name(folder, name):
  (folder / name).unlink()
  with pytest.raises(ValueError, match=name):
    load_huggingface(folder)


def test_a_missing_shard_is_refused_by_name(tmp_path):
  reference("llama").save_pretrained(tmp_path, max_shard_size="20KB")
  shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
  shard.unlink()
  with pytest.raises(ValueError, match=shard.name):
    load_huggingface(tmp_path)


def test_a_config_that_is_not_json_is_refused_by_name(folder):
  (folder / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config.json is not JSON"):
    load_huggingface(folder)


def test_tensors_are_fetched_once_and_only_those_that_are_needed():
  source = reference("llama_tied")
  tensors = {name: tensor.numpy() for name, tensor in source.state_dict().items()}
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
  fetched = []

  def get(name):
    fetched.append(name)
    return tensors[name]

  params_from_tensors(loaded("llama_tied")[0].config, get, tensors.keys(), dtype="float32")
  assert len(fetched) == len(set(fetched))
  assert "lm_head.weight" not in fetched
  assert not any("inv_freq" in name for name in fetched)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model.", ""])
def test_multimodal_and_headless_names_are_found(prefix):
  config = loaded("gemma3")[0].config
  source = reference("gemma3").state_dict()
  tensors = {
    name.replace("model.", prefix, 1): tensor.numpy()
    for name, tensor in source.items()
    if name != "lm_head.weight"
  }
  params = params_from_tensors(config, tensors.__getitem__, tensors.keys(), dtype="float32")
  jax.tree.map(np.testing.assert_array_equal, params, loaded("gemma3")[1])


def test_parameters_of_another_shape_are_not_saved(tmp_path):
  model, params = loaded("llama")
  short = {**params, "final_norm": {"scale": jnp.ones(3)}}
  with pytest.raises(ValueError, match=r"final_norm/scale must have shape \(32,\), got \(3,\)"):
    save_huggingface(tmp_path / "new", model, short)
  without = {name: leaf for name, leaf in params.items() if name != "final_norm"}
  with pytest.raises(ValueError, match="params lack final_norm/scale"):
    save_huggingface(tmp_path / "new", model, without)
  assert not (tmp_path / "new").exists()
