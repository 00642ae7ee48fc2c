# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes from text, rules, and the spec of every parameter, cache and state."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from specjax import sharding
from specjax.drafters import DraftModel, Fallback, PromptLookup
from specjax.models import Transformer, TransformerConfig
from specjax.models.weight_changes import init_changes
from specjax.sharding import Partitioning

P = PartitionSpec


def model_of(**changes):
  sizes = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 2,
    "num_heads": 8,
    "num_kv_heads": 8,
    "head_dim": 4,
    "max_positions": 128,
  }
  return Transformer(TransformerConfig(**(sizes | changes)), dtype="float32")


# --- meshes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("text", "sizes"),
  [
    ("data:2,model:4", (2, 1, 4)),
    ("model:8", (1, 1, 8)),
    (" data : 2 , fsdp:2", (2, 2, 1)),
    ("data:-1,model:2", (4, 1, 2)),
    ("fsdp:-1", (1, 8, 1)),
    ("data:1", (1, 1, 1)),
  ],
)
def test_a_mesh_is_made_of_its_text(text, sizes):
  mesh = sharding.make_mesh(text)
  assert mesh.axis_names == ("data", "fsdp", "model")
  assert tuple(mesh.shape.values()) == sizes


@pytest.mark.parametrize(
  ("text", "words"),
  [
    ("", "must name axes"),
    ("data", "axis:size"),
    ("data:2,,model:4", "axis:size"),
    ("data=2", "axis:size"),
    ("rows:2", "data, fsdp, model, got 'rows'"),
    ("data:2,data:4", "once"),
    ("data:two", "size >= 1"),
    ("data:0", "size >= 1"),
    ("data:-2", "size >= 1"),
    ("data:2.0", "size >= 1"),
    ("data:-1,model:-1", "at most one"),
    ("data:4,model:4", "needs 16 devices, there are 8"),
    ("data:-1,model:3", "does not divide the 8 devices"),
  ],
)
def test_a_bad_mesh_is_one_clear_line(text, words):
  with pytest.raises(ValueError, match=words) as caught:
    sharding.make_mesh(text)
  assert "\n" not in str(caught.value)


def test_a_mesh_of_other_axes_is_refused():
  with pytest.raises(ValueError, match="data, fsdp, model"):
    sharding.make_mesh(Mesh(np.array(jax.devices()).reshape(2, 4), ("a", "b")))


def test_a_mesh_reads_as_it_was_written():
  for text in ("data:2,model:4", "fsdp:8", "data:1"):
    assert sharding.describe_mesh(sharding.make_mesh(text)) == text


@pytest.mark.parametrize(
  ("rules", "words"),
  [
    ({"rows": "data"}, "'rows'"),
    ({"vocab": "tensor"}, "'tensor'"),
    ({"batch": ("data", "data")}, "once"),
    ("vocab", "name:axis"),
    ("vocab:", "name:axis"),
  ],
)
def test_bad_rules_are_refused(rules, words):
  with pytest.raises(ValueError, match=words):
    sharding.make_rules(rules)


def test_rules_as_text_are_rules():
  written = sharding.make_rules("vocab:none, embed:data+fsdp")
  assert written == sharding.make_rules({"vocab": None, "embed": ("data", "fsdp")})
  assert sharding.make_rules("replicated") == sharding.make_rules(sharding.REPLICATED)


# --- specs ---------------------------------------------------------------------------------


def specs_of(mesh, rules=None, **changes):
  model = model_of(**changes)
  partitioning = Partitioning.of(sharding.make_abstract_mesh(mesh), rules, model)
  return partitioning.specs(model.param_shapes())


def test_every_parameter_has_the_spec_of_its_dimensions():
  specs = specs_of("fsdp:2,model:4", qkv_bias=True, qk_norm=True, post_norms=True)
  layer = specs["layers"]["1"]
  assert specs["embed"]["embedding"] == P("model", "fsdp")
  assert specs["head"]["kernel"] == P("fsdp", "model")
  assert layer["attention"]["query"] == {"kernel": P("fsdp", "model"), "bias": P("model")}
  assert layer["attention"]["value"] == {"kernel": P("fsdp", "model"), "bias": P("model")}
  assert layer["attention"]["output"]["kernel"] == P("model", "fsdp")
  assert layer["mlp"]["up"]["kernel"] == P("fsdp", "model")
  assert layer["mlp"]["down"]["kernel"] == P("model", "fsdp")
  assert layer["attention"]["query_norm"]["scale"] == P(None)
  assert layer["post_mlp_norm"]["scale"] == P(None)


def test_whole_heads_are_cut_off_or_none():
  """SmolLM2's numbers: 9 query heads, 3 key/value heads; their width would divide."""
  smol = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 8, "hidden_size": 72}
  for size, cut in ((2, None), (3, "model"), (4, None), (8, None), (9, "model")):
    attention = specs_of(f"model:{size}", **smol)["layers"]["0"]["attention"]
    assert attention["query"]["kernel"] == P(None, cut), size
    kv_cut = "model" if size == 3 else None
    assert attention["key"]["kernel"] == P(None, kv_cut), size


@pytest.mark.parametrize("vocab_size", [63, 49153, 49152])
def test_a_vocabulary_that_does_not_divide_is_replicated(vocab_size):
  specs = specs_of("model:8", vocab_size=vocab_size)
  cut = None if vocab_size % 8 else "model"
  assert specs["head"]["kernel"] == P(None, cut)
  assert specs["embed"]["embedding"] == P(cut, None)


def test_the_longest_leading_part_of_a_rule_that_divides_is_taken():
  partitioning = Partitioning.of(
    sharding.make_abstract_mesh("data:2,fsdp:3"), {"vocab": ("data", "fsdp")}
  )
  assert partitioning.spec(("vocab",), (12,)) == P(("data", "fsdp"))
  assert partitioning.spec(("vocab",), (4,)) == P("data")
  assert partitioning.spec(("vocab",), (9,)) == P(None)


def test_an_axis_cuts_one_dimension_of_an_array_only():
  specs = specs_of("model:4", {"embed": "model"})
  assert specs["embed"]["embedding"] == P("model", None)
  assert specs["layers"]["0"]["mlp"]["up"]["kernel"] == P("model", None)


def test_rules_can_be_overridden_and_a_drafter_replicated():
  assert specs_of("model:4", {"vocab": None})["head"]["kernel"] == P(None, None)
  replicated = jax.tree.leaves(
    specs_of("model:4", sharding.REPLICATED), is_leaf=lambda leaf: isinstance(leaf, P)
  )
  assert all(entry is None for spec in replicated for entry in spec)


def test_caches_are_cut_by_rows_and_heads():
  model = model_of(num_kv_heads=4)
  for mesh, spec in (
    ("data:2,model:4", P("data", "model", None, None)),
    ("data:2,fsdp:2,model:2", P(("data", "fsdp"), "model", None, None)),
    ("model:8", P(None, None, None, None)),
  ):
    partitioning = Partitioning.of(sharding.make_abstract_mesh(mesh), None, model)
    cache = jax.eval_shape(lambda: model.init_cache(4, 16))
    specs = jax.tree.leaves(partitioning.specs(cache, 4), is_leaf=lambda leaf: isinstance(leaf, P))
    assert set(specs) == {spec}


def test_changes_of_weights_and_an_optimisers_moments_are_cut_like_the_weights():
  import optax

  model = model_of()
  partitioning = Partitioning.of(sharding.make_abstract_mesh("fsdp:2,model:4"), None, model)
  params = {"layers": model.param_shapes()["layers"]}
  changes = jax.eval_shape(lambda p: init_changes(jax.random.key(0), p, 2), params)
  specs = partitioning.specs(changes)
  assert specs["layers/0/mlp/up/kernel"] == {"left": P("fsdp", None), "right": P(None, "model")}
  assert specs["layers/0/mlp/down/kernel"] == {"left": P("model", None), "right": P(None, "fsdp")}
  moments = partitioning.specs(jax.eval_shape(optax.adam(1e-3).init, params))[0].mu
  assert moments["layers"]["0"]["mlp"]["up"]["kernel"] == P("fsdp", "model")


def test_per_row_arrays_are_cut_by_rows_and_others_are_not():
  partitioning = Partitioning.of(sharding.make_abstract_mesh("data:2,model:4"))
  tree = {"tokens": (4, 8), "counts": (4, 64), "anything": (4, 3, 5), "other": (3, 4), "one": ()}
  tree["eos_ids"] = (4,)
  tree = {name: jax.ShapeDtypeStruct(shape, jnp.int32) for name, shape in tree.items()}
  assert partitioning.specs(tree, batch=4) == {
    "tokens": P("data", None),
    "counts": P("data", "model"),
    "anything": P("data", None, None),
    "other": P(None, None),
    "one": P(),
    "eos_ids": P(None),
  }


def test_the_head_width_is_found_inside_a_drafter():
  drafter = Fallback(PromptLookup(2), DraftModel(model_of(head_dim=6), 2))
  assert Partitioning.of(sharding.make_abstract_mesh("model:4"), None, drafter).head_dim == 6


@pytest.mark.parametrize("mesh", ["fsdp:8", "fsdp:4,model:2", "fsdp:2,model:4", "model:8"])
def test_a_device_holds_its_share_of_the_bytes_and_no_more(mesh):
  """Within 10 % of total / mesh, and exactly where the devices say they hold it."""
  model = model_of()
  shapes, partitioning = model.param_shapes(), Partitioning.of(mesh, None, model)
  rows = sharding.leaf_rows(shapes, partitioning)
  total, device = (
    sum(getattr(row, f"{name}_bytes") for row in rows) for name in ("total", "device")
  )
  assert device == pytest.approx(total / 8, rel=0.1)
  params = sharding.shard(
    jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes), mesh, model=model
  )
  held = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(params)]
  assert held == [row.device_bytes for row in rows]
  for row in rows:
    if row.is_cut:
      assert row.device_bytes * 8 == pytest.approx(row.total_bytes, rel=0.1), row.path


@pytest.mark.parametrize("mesh", ["data:8", "data:4,model:2", "data:2,model:4", "model:8"])
def test_a_device_holds_its_share_of_the_cache(mesh):
  model = model_of()
  cache = sharding.shard(model.init_cache(8, 16), mesh, model=model, batch=8)
  for leaf in jax.tree.leaves(cache):
    assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes
    assert math.prod(leaf.shape) == 8 * 8 * 16 * 4


def test_what_lies_on_the_mesh_already_is_not_copied():
  model = model_of()
  once = sharding.shard(model.init_cache(8, 16), "data:2,model:4", model=model, batch=8)
  twice = sharding.shard(once, "data:2,model:4", model=model, batch=8)
  for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(twice), strict=True):
    for x, y in zip(a.addressable_shards, b.addressable_shards, strict=True):
      assert x.data.unsafe_buffer_pointer() == y.data.unsafe_buffer_pointer()
