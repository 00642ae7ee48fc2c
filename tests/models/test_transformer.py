# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`Transformer` as a `Model`: inputs, layers, rollback, dtypes, and its compiled loop."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.models import Transformer, TransformerConfig, default_dtype
from specjax.types import Block, Model

CONFIG = TransformerConfig(
  vocab_size=61,
  hidden_size=32,
  intermediate_size=48,
  num_layers=4,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  max_positions=64,
  sliding_window=4,
  layer_types=("full", "sliding", "full", "sliding"),
)
MODEL = Transformer(CONFIG, dtype="float32")


@functools.cache
def params():
  return jax.jit(MODEL.init)(jax.random.key(0))


def random_tokens(seed, shape):
  return np.random.default_rng(seed).integers(0, 61, shape).astype(np.int32)


@functools.cache
def compiled(model, options=()):
  return jax.jit(functools.partial(model.apply, **dict(options)))


def apply(tokens, start, cache=None, capacity=32, model=MODEL, **options):
  """Runs a chain of `tokens [B, T]` at `start [B]`."""
  tokens = jnp.asarray(tokens)
  block = Block.chain(jnp.asarray(start, jnp.int32), tokens.shape[1])
  cache = model.init_cache(tokens.shape[0], capacity) if cache is None else cache
  return compiled(model, tuple(options.items()))(params(), tokens, block, cache)


def test_it_is_a_model_hashable_and_equal_by_value():
  assert isinstance(MODEL, Model)
  twin = Transformer(TransformerConfig.from_dict(CONFIG.to_dict()), dtype=jnp.float32)
  assert twin == MODEL and hash(twin) == hash(MODEL)
  assert Transformer(CONFIG, dtype=jnp.bfloat16) != MODEL


def test_parameters_have_readable_paths_and_kernels_are_in_out():
  shapes = MODEL.param_shapes()
  layer = shapes["layers"]["3"]
  assert layer["attention"]["query"]["kernel"].shape == (32, 32)
  assert layer["attention"]["key"]["kernel"].shape == (32, 16)
  assert layer["mlp"]["gate"]["kernel"].shape == (32, 48)
  assert layer["mlp"]["down"]["kernel"].shape == (48, 32)
  assert shapes["head"]["kernel"].shape == (32, 61)
  assert jax.tree.structure(params()) == jax.tree.structure(shapes)
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params()))


def test_layers_are_not_mixed_up_where_there_are_more_than_ten():
  """ "10" sorts before "2": each layer must get its own parameters all the same."""
  config = dataclasses.replace(CONFIG, num_layers=12, layer_types=())
  model = Transformer(config, dtype="float32")
  weights = model.init(jax.random.key(1))
  tokens = jnp.asarray(random_tokens(0, (1, 3)))
  block = Block.chain(jnp.zeros(1, jnp.int32), 3)
  for layer in range(12):
    # With its outputs at zero a layer is the identity; all others are made so.
    changed = jax.tree.map(jnp.zeros_like, weights["layers"])
    changed[str(layer)] = weights["layers"][str(layer)]
    run = compiled(model, (("hidden_layers", tuple(range(12))),))
    output = run({**weights, "layers": changed}, tokens, block, model.init_cache(1, 4))
    same = [np.array_equal(output.layer_hidden[0], x) for x in output.layer_hidden]
    assert same.index(False) == layer if layer else not np.any(np.diff(same[1:]))


def test_tied_parameters_start_tied():
  tied = Transformer(dataclasses.replace(CONFIG, tie_embeddings=True), dtype="float32")
  weights = tied.init(jax.random.key(0))
  np.testing.assert_array_equal(weights["head"]["kernel"], weights["embed"]["embedding"].T)


def test_embeddings_in_place_of_ids_give_the_same_output():
  config = dataclasses.replace(CONFIG, embedding_scale=3.0)
  model = Transformer(config, dtype="float32")
  tokens = random_tokens(1, (2, 5))
  by_id = apply(tokens, [0, 0], model=model)
  embedded = model.embed(params(), jnp.asarray(tokens))
  assert np.abs(embedded - model.embed(params(), jnp.asarray(tokens[::-1]))).max() > 1e-2
  block = Block.chain(jnp.zeros(2, jnp.int32), 5)
  by_embedding = jax.jit(model.apply)(params(), embedded, block, model.init_cache(2, 32))
  close = functools.partial(np.testing.assert_allclose, atol=1e-5)
  close(by_id.hidden, by_embedding.hidden)
  jax.tree.map(close, by_id.cache, by_embedding.cache)


def test_layers_in_two_halves_equal_all_at_once():
  tokens = random_tokens(2, (2, 6))
  whole = apply(tokens, [0, 0], hidden_layers=(1, -1))
  first = apply(tokens, [0, 0], layers=range(2), final_norm=False)
  np.testing.assert_allclose(first.hidden, whole.layer_hidden[0], atol=1e-6)
  block = Block.chain(jnp.zeros(2, jnp.int32), 6)
  second = MODEL.apply(params(), first.hidden, block, first.cache, layers=(2, 3))
  np.testing.assert_allclose(second.hidden, whole.hidden, atol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), second.cache, whole.cache)


def test_caches_of_layers_that_are_skipped_pass_through_unchanged():
  cache = MODEL.init_cache(1, 8)
  cache = jax.tree.map(lambda leaf: leaf + 7.0, cache)
  output = apply(random_tokens(3, (1, 3)), [0], cache, layers=(0, 2))
  for layer in range(4):
    for before, after in ((cache.keys, output.cache.keys), (cache.values, output.cache.values)):
      assert np.array_equal(before[layer], after[layer]) == (layer in (1, 3))


def test_hidden_states_come_in_the_order_asked_for_and_before_the_final_norm():
  tokens = random_tokens(4, (1, 4))
  output = apply(tokens, [0], hidden_layers=(3, 0, -1))
  np.testing.assert_array_equal(output.layer_hidden[0], output.layer_hidden[2])
  early = apply(tokens, [0], layers=(0,), final_norm=False)
  np.testing.assert_allclose(output.layer_hidden[1], early.hidden, atol=1e-6)
  normalized = MODEL.normalize(params(), output.layer_hidden[0])
  np.testing.assert_allclose(normalized, output.hidden, atol=1e-6)


def test_logits_of_one_position_equal_those_of_the_block():
  output = apply(random_tokens(5, (2, 4)), [0, 0])
  block = MODEL.logits(params(), output.hidden)
  assert block.shape == (2, 4, 61) and block.dtype == jnp.float32
  np.testing.assert_allclose(MODEL.logits(params(), output.hidden[:, 2]), block[:, 2], atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_keeping_a_random_path_equals_recomputing_it(seed):
  """After `keep` the next block sees what it would see had only the path been read."""
  random = np.random.default_rng(seed)
  lengths = random.integers(1, 9, 3)
  context, nodes, after = (random_tokens(seed, (3, n)) for n in (9, 6, 2))
  parents = [[-1] + [int(random.integers(0, n)) for n in range(1, 6)] for _ in range(3)]
  mask, depth = np.zeros((3, 6, 6), bool), np.zeros((3, 6), np.int32)
  path, kept = np.zeros((3, 6), np.int32), np.zeros(3, np.int32)
  for row in range(3):
    for node in range(6):
      mask[row, node] = mask[row, parents[row][node]] if node else False
      mask[row, node, node] = True
      depth[row, node] = mask[row, node].sum() - 1
    leaf = int(random.integers(0, 6))
    chosen = np.flatnonzero(mask[row, leaf])
    path[row, : len(chosen)] = chosen
    kept[row] = random.integers(0, len(chosen) + 1)
  prefilled = apply(context, [0, 0, 0]).cache
  block = Block(
    jnp.asarray(lengths, jnp.int32), jnp.asarray(lengths[:, None] + depth), jnp.asarray(mask)
  )
  cache = compiled(MODEL)(params(), jnp.asarray(nodes), block, prefilled).cache
  cache = jax.jit(MODEL.keep)(cache, block, jnp.asarray(path), jnp.asarray(kept))
  got = apply(after, lengths + kept, cache).hidden
  for row in range(3):
    taken = nodes[row, path[row, : kept[row]]]
    sequence = np.concatenate([context[row, : lengths[row]], taken, after[row]])
    padded = np.pad(sequence, (0, 20 - len(sequence)))[None]  # one shape, compiled once
    expected = apply(padded, [0]).hidden[0, len(sequence) - 2 : len(sequence)]
    np.testing.assert_allclose(got[row], expected, atol=1e-5)


def test_tokens_past_the_capacity_are_dropped_and_leave_valid_slots_alone():
  tokens = random_tokens(6, (2, 7))
  cache = apply(tokens, [0, 0], capacity=8).cache
  after = apply(random_tokens(7, (2, 4)), [6, 9], cache).cache
  for before, now in zip(jax.tree.leaves(cache), jax.tree.leaves(after), strict=True):
    np.testing.assert_array_equal(now[0, :, :6], before[0, :, :6])
    assert not np.array_equal(now[0, :, 6:], before[0, :, 6:])
    np.testing.assert_array_equal(now[1], before[1])


def test_a_row_that_starts_before_its_first_slot_is_finite_and_wraps_to_no_slot():
  cache = apply(random_tokens(8, (1, 8)), [0], capacity=8).cache
  output = apply(random_tokens(9, (1, 3)), [-3], cache)
  assert np.isfinite(output.hidden).all()
  jax.tree.map(np.testing.assert_array_equal, output.cache, cache)


def test_a_token_outside_the_vocabulary_gives_no_nan():
  """Finished rows carry garbage ids: it must not become NaN, which no mask could hide."""
  assert np.isfinite(apply(np.array([[61, -1, 2**30]]), [0]).hidden).all()


def test_rows_do_not_influence_each_other():
  tokens = random_tokens(10, (3, 5))
  together = apply(tokens, [0, 4, 2]).hidden
  for row, start in enumerate([0, 4, 2]):
    alone = apply(tokens[row : row + 1], [start]).hidden[0]
    np.testing.assert_allclose(together[row], alone, atol=1e-5)


def test_garbage_behind_the_length_has_no_influence():
  cache = apply(random_tokens(11, (1, 6)), [0]).cache
  dirty = jax.tree.map(lambda leaf: leaf.at[:, :, 6:].set(1e3), cache)
  new = random_tokens(12, (1, 3))
  np.testing.assert_array_equal(apply(new, [6], cache).hidden, apply(new, [6], dirty).hidden)


def test_bfloat16_stays_close_and_keeps_logits_in_float32():
  model = Transformer(CONFIG, dtype="bfloat16")
  weights = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params())
  block = Block.chain(jnp.zeros(1, jnp.int32), 8)
  tokens = jnp.asarray(random_tokens(13, (1, 8)))
  output = jax.jit(model.apply)(weights, tokens, block, model.init_cache(1, 16))
  assert {leaf.dtype for leaf in jax.tree.leaves(output)} == {jnp.dtype(jnp.bfloat16)}
  logits = model.logits(weights, output.hidden)
  assert logits.dtype == jnp.float32
  exact = MODEL.logits(params(), apply(tokens, [0]).hidden)
  np.testing.assert_allclose(logits, exact, atol=0.15)


def test_default_dtype_is_float32_on_the_cpu():
  assert default_dtype() == jnp.float32
  assert Transformer(CONFIG).dtype == jnp.float32


def test_precision_reaches_every_matrix_product():
  model = Transformer(CONFIG, dtype="float32", precision="high")
  block = Block.chain(jnp.zeros(1, jnp.int32), 2)

  def logits(weights, tokens, cache):
    return model.logits(weights, model.apply(weights, tokens, block, cache).hidden)

  text = str(jax.make_jaxpr(logits)(params(), jnp.zeros((1, 2), int), model.init_cache(1, 4)))
  num_products = 4 * 9 + 1
  assert text.count("dot_general[") == num_products
  assert text.count("precision=(Precision.HIGH, Precision.HIGH)") == num_products


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: apply([[1, 2]], [0], hidden_layers=(4,)), "hidden_layers must be between -4 and 3"),
    (lambda: apply([[1, 2]], [0], layers=(0, 4)), "layers must be between -4 and 3, got 4"),
    (lambda: apply([[1, 2]], [0], layers=(1, 1)), "layers must name each layer once"),
    (lambda: apply([[1, 2]], [0], layers=(0,), hidden_layers=(2,)), "among the layers that run"),
    (lambda: Transformer(CONFIG, dtype="int32"), "dtype must be a floating point type, got int32"),
    (lambda: Transformer(CONFIG, precision="exact"), "precision must be None, .* got 'exact'"),
  ],
)
def test_bad_arguments_are_refused_by_name(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_inputs_of_another_shape_than_the_block_are_refused():
  block = Block.chain(jnp.zeros(2, jnp.int32), 3)
  cache = MODEL.init_cache(2, 8)
  with pytest.raises(ValueError, match=r"must have shape \(2, 3\) for this block, got \(2, 4\)"):
    MODEL.apply(params(), jnp.zeros((2, 4), jnp.int32), block, cache)
  with pytest.raises(ValueError, match=r"must have shape \(2, 3, 32\) for this block"):
    MODEL.apply(params(), jnp.zeros((2, 3, 16)), block, cache)


@pytest.mark.parametrize(("batch", "width"), [(1, 1), (1, 4), (3, 1), (3, 4)])
def test_a_loop_of_blocks_copies_no_cache(batch, width):
  """Writing and attending leave each layer's buffers in place, also for one single token."""
  config = dataclasses.replace(CONFIG, head_dim=32)
  model = Transformer(config, dtype="float32")

  @functools.partial(jax.jit, donate_argnums=1)
  def loop(weights, cache):
    def body(carry):
      index, tokens, cache = carry
      block = Block.chain(jnp.full((batch,), index), width)
      output = model.apply(weights, tokens, block, cache)
      tokens = jnp.argmax(model.logits(weights, output.hidden), axis=-1).astype(jnp.int32)
      # As in decoding, the path depends on the logits. One that does not could be moved before
      # the attention that still reads the buffer, which then has to be copied.
      cache = model.keep(output.cache, block, tokens % width, tokens[:, 0] % (width + 1))
      return index + 1, tokens, cache

    start = (jnp.int32(0), jnp.zeros((batch, width), jnp.int32), cache)
    return jax.lax.while_loop(lambda carry: carry[0] < 99, body, start)

  cache = jax.eval_shape(lambda: model.init_cache(batch, 256))
  compiled = loop.lower(model.param_shapes(), cache).compile()
  shape = ",".join(map(str, cache.keys[0].shape))
  text = compiled.as_text()
  assert f"f32[{shape}]" in text
  assert re.findall(rf"= f32\[{shape}\]\S* (?:copy|transpose|select)\(", text) == []
  assert compiled.memory_analysis().temp_size_in_bytes < 2 * cache.keys[0].size * 4
