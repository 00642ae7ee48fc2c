# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A fingerprint survives rounding and changes of format, but no training."""

import itertools

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_gguf
from toys import HistoryModel

from specjax.models import Transformer, TransformerConfig, load_huggingface, save_huggingface
from specjax.models.fingerprint import fingerprint, same_target, short_fingerprint
from specjax.models.gguf_checkpoint import load_gguf
from specjax.models.orbax_checkpoint import load_orbax, save_orbax

CONFIG = TransformerConfig(
  vocab_size=48,
  hidden_size=32,
  intermediate_size=64,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_dim=16,
  max_positions=64,
)
MODEL = Transformer(CONFIG, dtype="float32")
INTEGER_FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")


def named_map(change, params):
  def call(path, leaf):
    return change(jax.tree_util.keystr(path, simple=True, separator="/"), np.asarray(leaf))

  return jax.tree_util.tree_map_with_path(call, params)


def random_params(seed=0):
  """As a training leaves them: norms are not all one."""
  rng = np.random.default_rng(seed)
  params = MODEL.init(jax.random.key(seed))
  return named_map(
    lambda name, leaf: (
      (leaf + 0.3 * rng.normal(size=leaf.shape)).astype(np.float32) if "norm" in name else leaf
    ),
    params,
  )


def fine_tuned(params, amount, part="", seed=1):
  """Every array whose name holds `part` moves by `amount` of its own size."""
  rng = np.random.default_rng(seed)

  def change(name, leaf):
    noise = rng.normal(size=leaf.shape) * np.sqrt(np.mean(leaf**2))
    return (leaf + amount * noise).astype(np.float32) if part in name else leaf

  return named_map(change, params)


def rounded(params, kind):
  """Matrices as a GGUF file of this format gives them back; norms are left alone."""
  kind = gguf.GGMLQuantizationType[kind]

  def there_and_back(rows):
    return gguf.quants.dequantize(gguf.quants.quantize(np.ascontiguousarray(rows), kind), kind)

  def change(name, leaf):
    if leaf.ndim != 2:
      return leaf
    return there_and_back(leaf.T).T if name.endswith("kernel") else there_and_back(leaf)

  return named_map(change, params)


def cast(params, dtype):
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)


PARAMS = random_params()
TEXT = fingerprint(MODEL, PARAMS)


def test_it_does_not_depend_on_the_dtype():
  texts = [
    fingerprint(MODEL, cast(PARAMS, dtype)) for dtype in ("float32", "bfloat16", "float16")
  ] + [fingerprint(MODEL, cast(cast(PARAMS, "float16"), "bfloat16"))]
  for one, other in itertools.product(texts, texts):
    assert same_target(one, other)
  assert texts[0] == TEXT == fingerprint(MODEL, cast(PARAMS, "float32"))


def test_it_does_not_depend_on_where_the_arrays_lie():
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
  sharded = jax.tree.map(lambda leaf: jax.device_put(leaf, sharding), PARAMS)
  assert fingerprint(MODEL, sharded) == TEXT


@pytest.mark.parametrize("part", ["", "attention/", "mlp/", "layers/1", "embed"])
def test_a_change_of_one_percent_is_another_target(part):
  for original in (PARAMS, cast(PARAMS, "bfloat16")):
    tuned = fingerprint(MODEL, fine_tuned(PARAMS, 0.01, part))
    assert not same_target(fingerprint(MODEL, original), tuned)


@pytest.mark.parametrize("kind", INTEGER_FORMATS)
def test_a_copy_in_an_integer_format_is_the_same_target(kind):
  copy = fingerprint(MODEL, cast(rounded(PARAMS, kind), "bfloat16"))
  for dtype in ("float32", "bfloat16", "float16"):
    assert same_target(fingerprint(MODEL, cast(PARAMS, dtype)), copy)


@pytest.mark.parametrize("kind", INTEGER_FORMATS)
@pytest.mark.parametrize("part", ["", "kernel"])
def test_a_fine_tuned_model_is_not_the_integer_copy_of_its_base(kind, part):
  copy = fingerprint(MODEL, rounded(PARAMS, kind))
  tuned = fine_tuned(PARAMS, 0.03, part)
  assert not same_target(copy, fingerprint(MODEL, tuned))
  assert not same_target(copy, fingerprint(MODEL, rounded(tuned, kind)))


@pytest.mark.parametrize("network", ["llama", "llama_tied_biased", "qwen3", "gemma3"])
def test_it_does_not_depend_on_the_kind_of_checkpoint(tmp_path, network):
  original = tiny_gguf.build(network)
  original.save_pretrained(tmp_path / "original")
  model, params = load_huggingface(tmp_path / "original", dtype="float32")
  expected = fingerprint(model, params)
  half, half_params = load_huggingface(tmp_path / "original", dtype="bfloat16")
  save_huggingface(tmp_path / "half", half, half_params)
  save_orbax(tmp_path / "orbax", half, half_params)
  for name, quantize in (("whole.gguf", False), ("q8.gguf", True)):
    tiny_gguf.write(tmp_path / name, network, original, quantize=quantize)
  for loaded in (
    load_huggingface(tmp_path / "half", dtype="float32"),
    load_orbax(tmp_path / "orbax"),
    load_gguf(tmp_path / "whole.gguf")[:2],
    load_gguf(tmp_path / "q8.gguf", dtype="bfloat16")[:2],
  ):
    assert same_target(expected, fingerprint(*loaded))


def test_other_weights_and_other_architectures_are_other_targets():
  assert not same_target(TEXT, fingerprint(MODEL, random_params(seed=3)))
  larger = Transformer(TransformerConfig(**{**CONFIG.to_dict(), "intermediate_size": 96}))
  assert not same_target(TEXT, fingerprint(larger, larger.init(jax.random.key(0))))
  renamed = {**PARAMS, "layers": {"1": PARAMS["layers"]["0"], "2": PARAMS["layers"]["1"]}}
  assert not same_target(TEXT, fingerprint(MODEL, renamed))


def test_any_pytree_of_arrays_has_one():
  model = HistoryModel(7)
  params = [model.init(3), {"scale": np.float32(2), "steps": np.arange(3), "none": None}]
  assert same_target(fingerprint(model, params), fingerprint(model, cast_floats(params)))
  params[1]["scale"] = np.float32(2.1)
  assert not same_target(
    fingerprint(model, params), fingerprint(model, [params[0], params[1] | {"scale": np.ones(())}])
  )
  zeros = fingerprint(model, {"w": np.zeros((4, 4), np.float32)})
  assert same_target(zeros, zeros)
  assert not same_target(zeros, fingerprint(model, {"w": np.full((4, 4), 1e-3, np.float32)}))


def cast_floats(params):
  return jax.tree.map(
    lambda leaf: leaf.astype("bfloat16") if np.issubdtype(leaf.dtype, np.floating) else leaf, params
  )


def test_parameters_without_an_array_are_refused():
  with pytest.raises(ValueError, match="params must hold at least one floating point array"):
    fingerprint(MODEL, {"counts": np.arange(3)})


@pytest.mark.parametrize("text", ["", "abc", "2:" + TEXT[2:], TEXT[:-8], TEXT[:-1] + "!"])
def test_text_that_is_no_fingerprint_is_refused(text):
  with pytest.raises(ValueError, match="not a fingerprint of version 1"):
    same_target(TEXT, text)


def test_people_are_shown_eight_characters():
  assert len(short_fingerprint(TEXT)) == 8
  assert short_fingerprint(TEXT) == short_fingerprint(fingerprint(MODEL, PARAMS))
  assert short_fingerprint(TEXT) != short_fingerprint(fingerprint(MODEL, random_params(seed=3)))
