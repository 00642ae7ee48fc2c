# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaling on paper against compiled programs, and against sums done by hand."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from specjax.evaluation import scaling
from specjax.evaluation.hardware import HARDWARE, Hardware, find_hardware
from specjax.evaluation.scaling import (
  ALL_GATHER,
  ALL_REDUCE,
  CallTime,
  Collective,
  DrafterCost,
  MeshShape,
  Setting,
)
from specjax.models import Transformer, TransformerConfig
from specjax.types import Block

TINY = TransformerConfig(
  vocab_size=512,
  hidden_size=128,
  intermediate_size=512,
  num_layers=2,
  num_heads=8,
  num_kv_heads=4,
  head_dim=16,
  max_positions=512,
)
# Large enough for arithmetic, memory and links to matter.
LARGE = TransformerConfig(
  vocab_size=128_256,
  hidden_size=4096,
  intermediate_size=14_336,
  num_layers=32,
  num_heads=32,
  num_kv_heads=8,
  head_dim=128,
  max_positions=131_072,
)
ONE = MeshShape()
H100 = HARDWARE["h100"]


# --- against the compiler --------------------------------------------------------------------


def compile_block(config, shape, batch, num_tokens, slots):
  """The program of one target call with the model cut over 8 CPU devices, as the rules say."""
  model = Transformer(config, dtype="float32")
  sizes = (shape.data, shape.fsdp, shape.model)
  mesh = jax.make_mesh(sizes, ("data", "fsdp", "model"), axis_types=(AxisType.Auto,) * 3)

  def axis(size):
    return "model" if size % shape.model == 0 else None

  heads, kv_heads = axis(config.num_heads), axis(config.num_kv_heads)
  inner, vocabulary = axis(config.intermediate_size), axis(config.vocab_size)
  table = {
    "embed/embedding": (vocabulary, None),
    "head/kernel": (None, vocabulary),
    "query/kernel": (None, heads),
    "key/kernel": (None, kv_heads),
    "value/kernel": (None, kv_heads),
    "output/kernel": (heads, None),
    "gate/kernel": (None, inner),
    "up/kernel": (None, inner),
    "down/kernel": (inner, None),
  }

  def sharding(path, _):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    entries = next((axes for end, axes in table.items() if name.endswith(end)), ())
    return NamedSharding(mesh, PartitionSpec(*entries))

  shapes = model.param_shapes()
  rows = ("data", "fsdp")
  cache = jax.eval_shape(lambda: model.init_cache(batch, slots))
  of_cache = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec(rows, kv_heads)), cache)
  of_rows = NamedSharding(mesh, PartitionSpec(rows))
  of_logits = NamedSharding(mesh, PartitionSpec(rows, None, vocabulary))

  def call(params, tokens, start, cache):
    output = model.apply(params, tokens, Block.chain(start, num_tokens), cache)
    return model.logits(params, output.hidden), output.cache

  of_params = jax.tree_util.tree_map_with_path(sharding, shapes)
  jitted = jax.jit(
    call,
    in_shardings=(of_params, of_rows, of_rows, of_cache),
    out_shardings=(of_logits, of_cache),
    donate_argnums=3,
  )
  tokens = jax.ShapeDtypeStruct((batch, num_tokens), jnp.int32)
  start = jax.ShapeDtypeStruct((batch,), jnp.int32)
  return jitted.lower(shapes, tokens, start, cache).compile()


def count(text, kind):
  """Collectives of a kind in a compiled program's text."""
  return len(re.findall(rf" {kind}(?:-start)?\(", text))


# The compiler also counts what the prediction leaves out: rotary embeddings, masks, norms and
# softmax in flops; on the CPU, where little is fused, their every intermediate result in bytes.
@pytest.mark.parametrize(
  ("mesh", "batch", "num_tokens", "slots", "reduces", "gathers", "bytes_tolerance"),
  [
    ("model:2", 2, 1, 64, 5, 0, 0.25),
    ("model:4", 2, 4, 256, 5, 0, 0.25),
    ("data:2,model:4", 4, 4, 64, 5, 0, 0.25),
    # 4 key/value heads on 8 devices are stored whole: queries, keys and values are gathered.
    ("model:8", 2, 4, 64, 5, 6, 0.35),
  ],
)
def test_counts_are_those_of_the_compiled_program(
  mesh, batch, num_tokens, slots, reduces, gathers, bytes_tolerance
):
  shape = MeshShape.parse(mesh)
  compiled = compile_block(TINY, shape, batch, num_tokens, slots)
  text, analysis = compiled.as_text(), compiled.cost_analysis()
  sizes = {"batch_size": batch, "context": slots, "weight_bytes": 4}
  cost = scaling.call_cost(TINY, shape, num_tokens=num_tokens, **sizes)
  assert (cost.count(ALL_REDUCE), cost.count(ALL_GATHER)) == (reduces, gathers)
  assert count(text, ALL_REDUCE) == reduces
  if shape.data == 1:  # how a cache that is cut by rows is written is not the model's matter
    assert count(text, ALL_GATHER) == gathers
  assert count(text, "all-to-all") == count(text, "collective-permute") == 0
  assert cost.flops == pytest.approx(analysis["flops"], rel=0.05)
  # The compiler counts a scatter as reading and writing the whole buffer, though it is done in
  # place: the cache that a device holds, twice more.
  cached = scaling.cache_bytes(TINY, shape, **sizes)
  expected = cost.num_bytes + 2 * cached
  assert expected == pytest.approx(analysis["bytes accessed"], rel=bytes_tolerance)


# --- by hand ---------------------------------------------------------------------------------


def test_flops_are_two_for_each_weight_and_token_and_for_each_score():
  model = Transformer(TINY, dtype="float32")
  flops, rows, num_tokens, slots = 0, 3, 5, 32
  for path, leaf in jax.tree_util.tree_leaves_with_path(model.param_shapes()):
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    if name.endswith("kernel"):
      flops += 2 * rows * num_tokens * leaf.shape[0] * leaf.shape[1]
  for _layer in range(TINY.num_layers):
    for _head in range(TINY.num_heads):
      flops += 2 * 2 * rows * num_tokens * slots * TINY.head_dim  # scores, and what they mix
  cost = scaling.call_cost(TINY, ONE, batch_size=rows, num_tokens=num_tokens, context=slots)
  assert cost.flops == flops and cost.collectives == ()


def test_bytes_of_parameters_and_cache_are_those_of_the_model():
  model = Transformer(TINY, dtype="float32")
  total = sum(leaf.size * 4 for leaf in jax.tree.leaves(model.param_shapes()))
  assert scaling.parameter_bytes(TINY, ONE, 4) == total
  cache = jax.eval_shape(lambda: model.init_cache(6, 40))
  total = sum(leaf.size * 4 for leaf in jax.tree.leaves(cache))
  sizes = {"batch_size": 6, "context": 40, "weight_bytes": 4}
  assert scaling.cache_bytes(TINY, ONE, **sizes) == total
  assert scaling.cache_bytes(TINY, MeshShape(data=2, model=4), **sizes) == total / 8
  # 4 key/value heads over 8 devices are replicated.
  assert scaling.cache_bytes(TINY, MeshShape(model=8), **sizes) == total


def test_a_mesh_parts_what_it_divides_and_nothing_else():
  whole, halves = (
    scaling.parameter_bytes(LARGE, ONE),
    scaling.parameter_bytes(LARGE, MeshShape(model=2)),
  )
  assert halves == pytest.approx(whole / 2, rel=1e-3)  # but for the norms
  mixed = scaling.parameter_bytes(LARGE, MeshShape(data=2, fsdp=2, model=2))
  assert mixed == pytest.approx(whole / 4, rel=1e-3)
  odd = dataclasses.replace(TINY, num_heads=9, num_kv_heads=3, vocab_size=511)
  sizes = {"batch_size": 1, "num_tokens": 1, "context": 8}
  cost = scaling.call_cost(odd, MeshShape(model=2), **sizes)
  assert cost.count(ALL_REDUCE) == odd.num_layers  # the feed-forward layers alone
  assert cost.count(ALL_GATHER) == 0


def test_every_weight_is_gathered_under_fsdp():
  cost = scaling.call_cost(TINY, MeshShape(fsdp=4), batch_size=4, num_tokens=1, context=8)
  assert cost.count(ALL_GATHER) == 7 * TINY.num_layers + 2 and cost.count(ALL_REDUCE) == 0
  weights = [item for item in cost.collectives if item.what == "a weight"]
  layer = 2 * TINY.hidden_size * (TINY.query_size + TINY.kv_size) + 3 * 128 * 512
  assert sum(item.num_bytes for item in weights) == 2 * layer


def test_a_call_takes_the_longer_of_arithmetic_and_memory_and_then_its_collectives():
  toy = Hardware("toy", 1e6, 1e5, 1e9, 1e3, 4, 1e2, 0.5, "")
  mesh = MeshShape(model=4)
  reduce = Collective(ALL_REDUCE, "model", 2, 4000.0, "")
  # A ring of 4: three quarters of the bytes go out, and the same come back.
  assert scaling.collective_seconds(reduce, mesh, toy) == 2 * (0.5 + 2 * 3 / 4 * 4000 / 1e3)
  gather = Collective(ALL_GATHER, "fsdp", 1, 4000.0, "")
  # An axis around the model axis reaches beyond a domain of 4, over the network.
  assert scaling.collective_seconds(gather, MeshShape(fsdp=2, model=4), toy) == 0.5 + 2000 / 1e2
  assert scaling.collective_seconds(gather, MeshShape(fsdp=2, model=2), toy) == 0.5 + 2000 / 1e3
  assert scaling.collective_seconds(gather, MeshShape(model=4), toy) == 0
  cost = scaling.CallCost(3e6, 1e5, 4e4, 6e4, (reduce,))
  time = scaling.call_time(cost, mesh, toy)
  assert (time.compute, time.memory, time.collectives) == (3.0, 2.0, 13.0)
  assert time.seconds == 16 and time.bound == "collectives"
  assert CallTime(3.0, 2.0, 1.0).bound == "compute" and CallTime(1.0, 2.0, 1.0).bound == "memory"


def test_a_small_batch_is_bound_by_memory_and_a_large_one_by_arithmetic():
  def time(batch, num_tokens=1):
    sizes = {"num_tokens": num_tokens, "context": 128, "fused_attention": True}
    return scaling.call_time(scaling.call_cost(LARGE, ONE, batch_size=batch, **sizes), ONE, H100)

  # 16 GB of weights at 3.35 TB/s.
  assert time(1).seconds == pytest.approx(16e9 / 3.35e12, rel=0.1)
  assert time(1).bound == "memory" and time(1, 5).seconds < 1.01 * time(1).seconds
  assert time(1024).bound == "compute" and time(1024, 5).seconds > 4.9 * time(1024).seconds


# --- speculation -----------------------------------------------------------------------------


def setting(**changes):
  options = {"config": LARGE, "mesh": ONE, "hardware": H100, "acceptance": 0.7, "context": 256}
  return Setting(**options | {"fused_attention": True} | changes)


def test_the_speed_up_is_that_of_leviathan_et_al_with_these_costs():
  for batch, length, ratio in ((1, 4, 0.1), (300, 3, 0.0), (64, 1, 0.5)):
    given = setting(drafter=DrafterCost(ratio=ratio))
    row = scaling.predict(given, batch, length)
    alpha, plain = 0.7, row.autoregressive.seconds
    tokens = (1 - alpha ** (length + 1)) / (1 - alpha)
    assert row.expected_tokens == pytest.approx(tokens)
    block = row.verify.seconds / plain
    assert row.speed_up == pytest.approx(tokens / (length * ratio + block))
    assert row.tokens_per_second == pytest.approx(batch * tokens / row.round_seconds)
  assert scaling.predict(given, 5, 0).speed_up == pytest.approx(1)


def test_the_losing_batch_is_the_first_one_whose_speed_up_is_under_1():
  given = setting(drafter=DrafterCost(ratio=0.05))
  losing = scaling.smallest_losing_batch(given, 6)
  speed_ups = [scaling.predict(given, batch, 6).speed_up for batch in range(1, losing + 1)]
  assert all(value >= 1 for value in speed_ups[:-1]) and speed_ups[-1] < 1 < losing
  # Better drafts pay for longer; shorter ones cost less; two copies take twice the rows.
  assert scaling.smallest_losing_batch(setting(acceptance=0.5), 6) < losing
  assert scaling.smallest_losing_batch(given, 2) > losing
  double = dataclasses.replace(given, mesh=MeshShape(data=2))
  assert scaling.smallest_losing_batch(double, 6) == 2 * losing
  assert scaling.smallest_losing_batch(given, 6, max_batch_size=losing - 1) is None
  assert scaling.smallest_losing_batch(setting(acceptance=0.0), 2) == 1


def test_the_best_draft_length_falls_as_the_batch_grows():
  chosen = [scaling.choose_draft_length(setting(), batch) for batch in (1, 16, 64, 256, 2048)]
  lengths = [choice.draft_length for choice in chosen]
  assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]
  for batch, choice in ((64, chosen[2]), (256, chosen[3])):
    every = [scaling.predict(setting(), batch, length).speed_up for length in range(17)]
    assert choice.draft_length == int(np.argmax(every))
    assert choice.speed_up == pytest.approx(max(every))


def test_long_contexts_keep_speculation_profitable_in_larger_batches():
  short, long = setting(context=128), setting(context=8192)
  assert scaling.predict(short, 512, 4).speed_up < scaling.predict(long, 512, 4).speed_up


def test_a_replicated_draft_model_gains_nothing_from_the_model_axis():
  draft = dataclasses.replace(LARGE, num_layers=4, layer_types=())
  cut = DrafterCost(config=draft, replicated=False)
  whole = DrafterCost(config=draft, replicated=True)
  four = MeshShape(model=4)
  alone = scaling.draft_time(setting(drafter=whole), 8)
  assert scaling.draft_time(setting(drafter=whole, mesh=four), 8) == alone
  parted = scaling.draft_time(setting(drafter=cut, mesh=four), 8)
  assert parted.memory < alone.memory / 3 and parted.collectives > 0 == alone.collectives
  rows = [scaling.predict(setting(drafter=kind, mesh=four), 8, 2) for kind in (cut, whole)]
  assert rows[0].memory_bytes < rows[1].memory_bytes


@pytest.mark.parametrize("mesh", [ONE, MeshShape(data=2, model=2)])
def test_the_largest_batch_that_fits_fits_and_the_next_does_not(mesh):
  given = setting(mesh=mesh, context=4096, drafter=DrafterCost(ratio=0.1))
  largest = scaling.largest_fitting_batch(given)
  assert scaling.predict(given, largest, 1).fits
  assert not scaling.predict(given, largest + mesh.row_shards, 1).fits
  small = dataclasses.replace(given, mesh=ONE, hardware=HARDWARE["v5e"])
  assert scaling.largest_fitting_batch(small) == 0 and not scaling.predict(small, 1, 1).fits


def test_hardware_has_positive_figures_and_a_source():
  for hardware in HARDWARE.values():
    assert all(value > 0 for value in dataclasses.astuple(hardware) if not isinstance(value, str))
    assert hardware.source.startswith("https://")
  # Known balance points: operations a byte.
  assert HARDWARE["v5e"].saturation_flops_per_byte == pytest.approx(240, rel=0.01)
  assert HARDWARE["h100"].saturation_flops_per_byte == pytest.approx(295, rel=0.01)
  assert (
    HARDWARE["h200"].memory_bytes > HARDWARE["v5p"].memory_bytes > HARDWARE["h100"].memory_bytes
  )


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: MeshShape(model=0), "mesh axis 'model' must be an integer >= 1, got 0"),
    (lambda: MeshShape.parse("tensor:4"), "mesh axes are data, fsdp, model, got 'tensor'"),
    (lambda: MeshShape.parse("model:-1"), "not -1 for the rest"),
    (lambda: find_hardware("a100"), "hardware must be one of v5e, v5p, h100, h200, got 'a100'"),
    (lambda: scaling.predict(setting(), 0, 1), "batch_size must be an integer >= 1, got 0"),
    (lambda: scaling.predict(setting(), 1, -1), "draft_length must be an integer >= 0, got -1"),
    (lambda: scaling.predict(setting(acceptance=1.5), 1, 1), r"must be a number in \[0, 1\]"),
    (lambda: DrafterCost(ratio=-1.0), "ratio must be a finite number >= 0"),
    (lambda: DrafterCost(config=TINY, ratio=0.5), "a draft model or a ratio, got both"),
    (lambda: setting(drafter=DrafterCost(config=TINY)), "must have the target's vocabulary"),
  ],
)
def test_bad_input_names_the_argument(call, message):
  with pytest.raises(ValueError, match=message):
    call()
