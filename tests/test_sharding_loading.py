# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints straight into shards: what is read, and where it comes to lie."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_checkpoint

from specjax.models import Transformer, checkpoint, huggingface
from specjax.models.orbax_checkpoint import load_orbax, save_orbax
from specjax.sharding import Partitioning

MESH = "fsdp:2,model:4"


@pytest.fixture(scope="module", params=[False, True], ids=["two tables", "tied"])
def folder(request, tmp_path_factory):
  """A checkpoint of 4 key/value heads and a vocabulary that 4 divides (260)."""
  config = dataclasses.replace(
    tiny_checkpoint.CONFIG,
    layer_types=(),
    num_layers=1,
    num_kv_heads=4,
    vocab_size=260,
    tie_embeddings=request.param,
  )
  model = Transformer(config, dtype="float32")
  path = tmp_path_factory.mktemp("checkpoint")
  huggingface.save_huggingface(path, model, model.init(jax.random.key(0)))
  return path


def assert_on_mesh(model, params, rules=None):
  wanted = Partitioning.of(MESH, rules, model).shardings(model.param_shapes())
  for leaf, sharding in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
    assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def assert_equal(ours, theirs):
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_array_equal(a, b)


def test_shards_of_a_checkpoint_are_what_it_holds(folder):
  _, whole = huggingface.load_huggingface(folder, dtype="float32")
  model, params = huggingface.load_huggingface(folder, dtype="float32", mesh=MESH)
  assert_on_mesh(model, params)
  assert_equal(params, whole)


def test_other_dtypes_are_loaded_into_shards(folder):
  _, whole = huggingface.load_huggingface(folder, dtype="bfloat16")
  _, params = huggingface.load_huggingface(folder, dtype="bfloat16", mesh=MESH)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("bfloat16")}
  assert_equal(params, whole)


def test_no_tensor_that_is_cut_is_ever_read_whole(folder, monkeypatch):
  """A host with a part of the devices reads a part of the file: every read is one shard's."""
  read: dict[int, list[int]] = {}
  original = huggingface._TensorSlices.__getitem__

  def watch(self, index):
    part = original(self, index)
    read.setdefault(id(self.tensor), [int(np.prod(self.shape))]).append(part.size)
    return part

  def refuse(self, name):
    raise AssertionError(f"{name} was read whole")

  kept = []  # tensors stay alive, so that no two have one id
  slices = huggingface._Tensors.get_slice
  monkeypatch.setattr(
    huggingface._Tensors,
    "get_slice",
    lambda self, name: kept.append(slices(self, name)) or kept[-1],
  )
  monkeypatch.setattr(huggingface._TensorSlices, "__getitem__", watch)
  monkeypatch.setattr(huggingface._Tensors, "get", refuse)
  model, params = huggingface.load_huggingface(folder, dtype="float32", mesh=MESH)
  sizes = {leaf.size for leaf in jax.tree.leaves(params)}
  for whole, *parts in read.values():
    assert whole in sizes
    if whole > model.hidden_size:  # all but the norms
      assert len(parts) == 8 and {part * 8 for part in parts} == {whole}


def test_a_tied_table_that_is_another_one_is_noticed_slice_by_slice(tmp_path, monkeypatch):
  from safetensors.numpy import load_file, save_file

  tiny_checkpoint.write(tmp_path, num_layers=1, tie_embeddings=True)
  weights = load_file(tmp_path / "model.safetensors")
  table = weights["model.embed_tokens.weight"]
  monkeypatch.setattr(huggingface, "_ROWS", 100)
  for change, tied in ((0.0, True), (1.0, False)):
    head = table.copy()
    head[-1, -1] += change
    save_file({**weights, "lm_head.weight": head}, tmp_path / "model.safetensors")
    model, _ = huggingface.load_huggingface(tmp_path, mesh="model:8")
    assert model.config.tie_embeddings is tied


def test_an_orbax_checkpoint_is_restored_into_shards(folder, tmp_path):
  model, whole = huggingface.load_huggingface(folder, dtype="float32")
  save_orbax(tmp_path / "saved", model, whole)
  loaded = checkpoint.load(tmp_path / "saved", tokenizer=False, mesh=MESH)
  assert_on_mesh(model, loaded.params)
  assert_equal(loaded.params, whole)
  with pytest.raises(ValueError, match="either mesh or shardings"):
    load_orbax(tmp_path / "saved", mesh=MESH, shardings=loaded.mesh)


def test_a_checkpoint_knows_where_it_lies(folder):
  loaded = checkpoint.load(folder, dtype="float32", tokenizer=False, mesh=MESH, rules="embed:none")
  assert loaded.placement["mesh"].shape["model"] == 4
  assert_on_mesh(loaded.model, loaded.params, "embed:none")
  assert checkpoint.load(folder, tokenizer=False).placement == {"mesh": None, "rules": None}


def test_the_architecture_is_read_without_the_weights(folder):
  whole = checkpoint.load(folder, tokenizer=False)
  (folder / "model.safetensors").rename(folder / "aside")
  try:
    assert checkpoint.read(folder).model == whole.model
  finally:
    (folder / "aside").rename(folder / "model.safetensors")


def test_a_shape_that_differs_is_named_before_anything_is_loaded(folder, tmp_path):
  from safetensors.numpy import load_file, save_file

  weights = load_file(folder / "model.safetensors")
  weights["model.norm.weight"] = np.ones(3, np.float32)
  save_file(weights, tmp_path / "model.safetensors")
  (tmp_path / "config.json").write_text((folder / "config.json").read_text())
  with pytest.raises(ValueError, match=r"model.norm.weight must have shape \(64,\), got \(3,\)"):
    huggingface.load_huggingface(tmp_path, mesh=MESH)
