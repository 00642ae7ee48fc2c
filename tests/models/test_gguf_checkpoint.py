# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""GGUF files give the network that they were converted from."""

import dataclasses
import struct

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_gguf
import torch

from specjax.models import rotary
from specjax.models.config import RopeScaling
from specjax.models.gguf_checkpoint import load_gguf
from specjax.models.gguf_config import scaling_from_factors
from specjax.models.gguf_file import open_gguf
from specjax.models.huggingface import load_huggingface
from specjax.types import Block

_TOKENS = np.array([[3, 17, 4, 90, 17, 3, 55, 2, 2, 41, 8, 9, 77, 30, 1, 0, 64, 33, 21, 6]])


@pytest.fixture(scope="module")
def networks():
  """Builds each network once."""
  built = {}

  def get(name):
    if name not in built:
      built[name] = tiny_gguf.build(name)
    return built[name]

  return get


def _logits(model, params, tokens=_TOKENS):
  """`[B, T, V]` float32."""
  batch, length = tokens.shape
  block = Block.chain(jnp.zeros((batch,), jnp.int32), length)
  output = model.apply(params, jnp.asarray(tokens), block, model.init_cache(batch, length))
  return np.asarray(model.logits(params, output.hidden))


def _original(tmp_path, model):
  """Our model from the Hugging Face folder of the original."""
  model.save_pretrained(tmp_path / "original")
  return load_huggingface(tmp_path / "original")


@pytest.mark.parametrize("network", list(tiny_gguf.NETWORKS))
def test_config_params_and_logits_are_those_of_the_original(tmp_path, networks, network):
  original = networks(network)
  path = tiny_gguf.write(tmp_path / "tiny.gguf", network, original)
  model, params, metadata = load_gguf(path)
  assert metadata["general.architecture"] == tiny_gguf.NETWORKS[network][1]

  reference, reference_params = _original(tmp_path, original)
  scaling, wanted = model.config.rope_scaling, reference.config.rope_scaling
  # Llama 3's bounds are relative to a context length that the file does not state.
  assert dataclasses.replace(model.config, rope_scaling=wanted) == reference.config
  np.testing.assert_allclose(
    rotary.inverse_frequencies(16, model.config.rope_theta, scaling),
    rotary.inverse_frequencies(16, model.config.rope_theta, wanted),
    rtol=1e-6,
  )
  assert jax.tree.structure(params) == jax.tree.structure(reference_params)
  jax.tree.map(
    lambda ours, theirs: np.testing.assert_allclose(ours, theirs, atol=3e-7),
    params,
    reference_params,
  )
  with torch.no_grad():
    logits = original(torch.from_numpy(_TOKENS)).logits.numpy()
  assert np.ptp(logits) > 1
  np.testing.assert_allclose(_logits(model, params), logits, atol=1e-4)


@pytest.mark.parametrize("network", ["llama", "qwen3", "gemma2"])
def test_quantized_file_gives_the_dequantized_weights(tmp_path, networks, network):
  original = networks(network)
  path = tiny_gguf.write(tmp_path / "tiny.gguf", network, original, quantize=True)
  model, params, _ = load_gguf(path)
  # Q8_0 by hand: blocks of 32 in a row share a float16 scale.
  stored = tiny_gguf.convert(network, original)["blk.1.ffn_down.weight"]
  blocks = stored.reshape(-1, 32)
  scale = np.abs(blocks).max(axis=1, keepdims=True) / 127
  rounded = np.round(blocks / scale) * scale.astype(np.float16).astype(np.float32)
  found = np.asarray(params["layers"]["1"]["mlp"]["down"]["kernel"])
  np.testing.assert_allclose(found, rounded.reshape(stored.shape).T, atol=1e-6)
  assert np.abs(found - stored.T).max() > 1e-4
  reference, reference_params = _original(tmp_path, original)
  exact = _logits(reference, reference_params)
  difference = np.abs(_logits(model, params) - exact)
  assert 0 < difference.max() < 0.2 * np.ptp(exact)


@pytest.mark.parametrize("network", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
def test_logits_equal_those_of_transformers_reading_the_same_file(tmp_path, networks, network):
  path = tiny_gguf.write(tmp_path / "tiny.gguf", network, networks(network), quantize=True)
  theirs = tiny_gguf.read_with_transformers(path, networks(network).config)
  model, params, _ = load_gguf(path)
  with torch.no_grad():
    logits = theirs(torch.from_numpy(_TOKENS[:, :8])).logits.numpy()
  np.testing.assert_allclose(_logits(model, params, _TOKENS[:, :8]), logits, atol=1e-3)


def test_dtype_and_precision_are_passed_on(tmp_path, networks):
  path = tiny_gguf.write(tmp_path / "tiny.gguf", "llama", networks("llama"))
  model, params, _ = load_gguf(path, dtype=jnp.bfloat16, precision="highest")
  assert model.dtype == jnp.bfloat16 and model.precision == "highest"
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}


@pytest.mark.parametrize(
  ("head_dim", "theta", "scaling"),
  [
    (128, 500_000.0, RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)),
    (64, 500_000.0, RopeScaling("llama3", 32.0, 1.0, 4.0, 8192)),
    (16, 500.0, RopeScaling("llama3", 8.0, 2.0, 5.0, 100)),
    (8, 10_000.0, RopeScaling("llama3", 8.0, 1.0, 1.5, 100)),
    (4, 10_000.0, RopeScaling("llama3", 4.0, 1.0, 4.0, 64)),
  ],
)
def test_rope_factors_give_back_the_scaling(head_dim, theta, scaling):
  plain = rotary.inverse_frequencies(head_dim, theta)
  wanted = rotary.inverse_frequencies(head_dim, theta, scaling)
  found = scaling_from_factors(plain / wanted, head_dim, theta, 8192)
  np.testing.assert_allclose(rotary.inverse_frequencies(head_dim, theta, found), wanted, rtol=1e-5)
  if scaling.original_max_positions == 8192:
    assert found == scaling


def test_rope_factors_of_another_kind_are_refused():
  with pytest.raises(ValueError, match=r"rope_freqs\.weight .* not Llama 3's"):
    scaling_from_factors(np.array([1, 3, 2, 7], np.float32), 8, 10_000.0, 8192)
  assert scaling_from_factors(np.ones(4, np.float32), 8, 10_000.0, 8192) is None


def _without(name):
  return lambda tensors: tensors.pop(name)


def _replaced(name, array):
  return lambda tensors: tensors.update({name: array})


@pytest.mark.parametrize(
  ("edit", "message"),
  [
    (
      _without("blk.1.attn_k.weight"),
      r"1\.self_attn\.k_proj\.weight \(32, 32\) is missing",
    ),
    (_without("token_embd.weight"), r"token_embd\.weight.* is missing"),
    (
      _replaced("blk.2.ffn_up.weight", np.zeros((32, 32), np.float32)),
      r"layers\.2\.mlp\.up_proj\.weight must have shape \(64, 32\), got \(32, 32\)",
    ),
    (
      _replaced("blk.0.attn_q.weight", np.zeros((30, 32), np.float32)),
      r"layers\.0\.self_attn\.q_proj\.weight must have shape \(64, 32\), got \(30, 32\)",
    ),
    (
      _replaced("blk.0.ffn_gate_exps.weight", np.zeros((4, 64, 32), np.float32)),
      r"'blk\.0\.ffn_gate_exps\.weight' is not one of a supported network",
    ),
  ],
)
def test_missing_or_wrong_tensor_is_named_with_its_file(tmp_path, networks, edit, message):
  path = tiny_gguf.write(tmp_path / "tiny.gguf", "llama", networks("llama"), edit=edit)
  with pytest.raises(ValueError, match=message) as error:
    load_gguf(path)
  assert str(path) in str(error.value)


@pytest.mark.parametrize(
  ("extra", "message"),
  [
    ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, "yarn"),
    ({"llama.rope.dimension_count": 8}, "part of the head"),
  ],
)
def test_unsupported_setting_is_refused_naming_the_file(tmp_path, networks, extra, message):
  path = tiny_gguf.write(tmp_path / "tiny.gguf", "llama", networks("llama"), extra=extra)
  with pytest.raises(ValueError, match=message) as error:
    load_gguf(path)
  assert str(path) in str(error.value)


def test_unsupported_architecture_is_refused_with_the_supported_ones(tmp_path):
  writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "mamba")
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.close()
  with pytest.raises(ValueError, match=r"'mamba' is not supported, only llama, qwen2"):
    load_gguf(tmp_path / "tiny.gguf")


def test_metadata_is_read_as_the_gguf_package_reads_it(tmp_path, networks):
  extra = {"x.list": [1.5, -2.0], "x.flags": [True, False], "x.names": ["é", ""], "x.s": "日本"}
  path = tiny_gguf.write(tmp_path / "tiny.gguf", "gemma3", networks("gemma3"), extra=extra)
  ours, theirs = open_gguf(path), gguf.GGUFReader(path)
  fields = {key: field.contents() for key, field in theirs.fields.items()}
  assert ours.metadata == {k: v for k, v in fields.items() if not k.startswith("GGUF.")}
  assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
  for tensor in theirs.tensors:
    np.testing.assert_array_equal(ours.read(tensor.name), tensor.data.reshape(tensor.shape[::-1]))


def test_file_cut_short_anywhere_is_one_clear_error(tmp_path, networks):
  path = tiny_gguf.write(tmp_path / "tiny.gguf", "llama", networks("llama"))
  content = path.read_bytes()
  cut = tmp_path / "cut.gguf"
  sizes = [*range(0, 64), *range(64, len(content) - 1, 997), len(content) - 40]
  for size in sizes:
    cut.write_bytes(content[:size])
    with pytest.raises(ValueError, match=r"truncated|not a GGUF") as error:
      load_gguf(cut)
    assert str(cut) in str(error.value)


def test_other_files_are_refused_by_name(tmp_path):
  path = tmp_path / "x.gguf"
  with pytest.raises(ValueError, match=r"x\.gguf: there is no such file"):
    load_gguf(path)
  path.write_bytes(b"PK\x03\x04 something else")
  with pytest.raises(ValueError, match=r"x\.gguf is not a GGUF file"):
    load_gguf(path)
  path.write_bytes(b"GGUF" + struct.pack("<IQQ", 99, 0, 0))
  with pytest.raises(ValueError, match="version 99"):
    load_gguf(path)
  # The byte order of the other kind of machine.
  path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
  with pytest.raises(ValueError, match="little-endian"):
    load_gguf(path)
  key = b"\xff\xfe"
  path.write_bytes(
    b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key + struct.pack("<IB", 0, 1)
  )
  with pytest.raises(ValueError, match=r"x\.gguf.*not UTF-8"):
    load_gguf(path)
