# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The objective of PaSS against forward passes of single prefixes, and what training gives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import specjax
from specjax.drafters import Empty, PaSS
from specjax.drafters.drafter_file import save_drafter
from specjax.drafters.pass_look_ahead import from_trained
from specjax.models import Transformer, TransformerConfig
from specjax.training.optimizer import OptimizerOptions
from specjax.training.pass_objective import PaSSObjective
from specjax.training.token_data import TokenBatch
from specjax.training.train_loop import TrainOptions, train
from specjax.types import Block

V, L = 13, 3
CONFIG = TransformerConfig(
  vocab_size=V,
  hidden_size=32,
  intermediate_size=48,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  max_positions=64,
)
MODEL = Transformer(CONFIG, dtype="float32")
# One layer sees three positions: slots are not positions in a packed window.
SLIDING = Transformer(
  TransformerConfig.from_dict(
    CONFIG.to_dict() | {"sliding_window": 3, "layer_types": ["full", "sliding"]}
  ),
  dtype="float32",
)


@functools.cache
def random_params(model):
  return model.init(jax.random.key(3))


def packed_batch(seed=0):
  """Two windows of 24: three rows in the first, one and padding in the second."""
  random = np.random.default_rng(seed)
  lengths = [[7, 11, 6], [15]]
  shape = (2, 24)
  segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
  answer = np.zeros(shape, bool)
  for window, rows in enumerate(lengths):
    start = 0
    for number, length in enumerate(rows, start=1):
      segments[window, start : start + length] = number
      positions[window, start : start + length] = np.arange(length)
      answer[window, start + 3 : start + length] = True
      start += length
  ids = np.argsort(random.random((*shape, V)), axis=-1)[..., :4]
  log_probs = np.log(0.9 * random.dirichlet(np.ones(4), shape))
  return TokenBatch(
    tokens=jnp.asarray(random.integers(0, V, shape), jnp.int32),
    segments=jnp.asarray(segments),
    positions=jnp.asarray(positions),
    answer=jnp.asarray(answer),
    top_ids=jnp.asarray(ids, jnp.int32),
    top_log_probs=jnp.asarray(log_probs, jnp.float32),
  )


def places_of(batch):
  """By a loop: (window, place, tokens of its row up to it, tokens after it)."""
  found = []
  for window in range(batch.tokens.shape[0]):
    row = [np.asarray(leaf)[window] for leaf in (batch.tokens, batch.segments, batch.answer)]
    tokens, segments, answer = row
    for place, segment in enumerate(segments):
      own = np.flatnonzero(segments == segment)
      after = own[own > place]
      if segment and len(after) >= 2 and answer[after[:2]].all():
        found.append((window, place, tokens[own[own <= place]], tokens[after]))
  return found


@functools.partial(jax.jit, static_argnums=0)
def forward(model, params, inputs):
  block = Block.chain(jnp.zeros((1,), jnp.int32), inputs.shape[1])
  output = model.apply(params, inputs, block, model.init_cache(1, inputs.shape[1]))
  return model.logits(params, output.hidden[0])


def look_ahead_logits(model, prefix, embeddings):
  """`[L, V]` after a prefix, by one pass over an empty cache."""
  params = random_params(model)
  table = np.asarray(params["embed"]["embedding"])
  end = len(prefix) + L
  inputs = np.zeros((1, 24, table.shape[1]), np.float32)
  inputs[0, :end] = np.concatenate([table[prefix], embeddings])
  return np.asarray(forward(model, params, inputs)[len(prefix) : end], np.float64)


def slow_loss(model, batch, embeddings, weights, soft):
  """Over all places: the summed loss, its weight, matches and counts at each position."""
  loss, weight, matches, drafted = 0.0, 0.0, np.zeros(L), np.zeros(L)
  for window, place, prefix, after in places_of(batch):
    logits = look_ahead_logits(model, prefix, embeddings)
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for index, token in enumerate(after[1 : L + 1]):
      if soft:
        ids = np.asarray(batch.top_ids)[window, place + 1 + index]
        p = np.exp(np.asarray(batch.top_log_probs, np.float64)[window, place + 1 + index])
        p, q = np.append(p, 1 - p.sum()), np.exp(logs[index][ids])
        value = np.sum(p * (np.log(p) - np.log(np.append(q, 1 - q.sum()))))
      else:
        value = -logs[index][token]
      loss += weights[index] * value
      weight += weights[index]
      matches[index] += logits[index].argmax() == token
      drafted[index] += 1
  return loss, weight, matches, drafted


@pytest.mark.parametrize("soft", [False, True], ids=["tokens", "soft"])
@pytest.mark.parametrize("model", [MODEL, SLIDING], ids=["full", "sliding"])
def test_with_a_group_at_every_place_the_loss_is_that_of_single_prefixes(model, soft):
  batch, weights = packed_batch(), (1.0, 0.5, 0.25)
  objective = PaSSObjective(model, L, spacing=1, position_weights=weights, soft=soft)
  trainable = objective.init(jax.random.key(1), random_params(model))
  metrics = jax.jit(objective.loss)(trainable, random_params(model), batch, jax.random.key(0))
  expected = slow_loss(model, batch, trainable["look_ahead"], weights, soft)
  got = (metrics.loss, metrics.weight, metrics.matches, metrics.drafted)
  for value, reference in zip(got, expected, strict=True):
    np.testing.assert_allclose(value, reference, rtol=2e-4)


@pytest.mark.parametrize("soft", [False, True], ids=["tokens", "soft"])
def test_what_is_not_trained_is_not_read_and_stays(soft):
  batch, weights = packed_batch(), (1.0, 0.5)
  objective = PaSSObjective(MODEL, L, 2, spacing=1, position_weights=weights, soft=soft)
  trainable = objective.init(jax.random.key(1), random_params(MODEL))

  @jax.jit
  def loss(trainable):
    metrics = objective.loss(trainable, random_params(MODEL), batch, jax.random.key(0))
    return metrics.loss, metrics

  (_, metrics), gradient = jax.value_and_grad(loss, has_aux=True)(trainable)
  # The oracle reads all L, of which the later ones weigh nothing.
  expected = slow_loss(MODEL, batch, trainable["look_ahead"], (*weights, 0.0), soft)
  np.testing.assert_allclose(metrics.loss, expected[0], rtol=2e-4)
  np.testing.assert_allclose(metrics.weight, expected[1], rtol=1e-6)
  for value, reference in zip((metrics.matches, metrics.drafted), expected[2:], strict=True):
    np.testing.assert_array_equal(value, reference[:2])
  assert np.abs(gradient["look_ahead"][:2]).max(axis=-1).all()
  np.testing.assert_array_equal(gradient["look_ahead"][2:], 0.0)
  assert objective.num_drafted == 2
  exported = objective.export(trainable, random_params(MODEL)).arrays
  np.testing.assert_array_equal(exported["look_ahead"], trainable["look_ahead"])


@pytest.mark.parametrize("soft", [False, True], ids=["tokens", "soft"])
def test_the_gradient_is_that_of_finite_differences(soft):
  objective, batch = PaSSObjective(MODEL, L, soft=soft), packed_batch()
  trainable = objective.init(jax.random.key(1), random_params(MODEL))

  @jax.jit
  def loss(look_ahead):
    metrics = objective.loss(
      {"look_ahead": look_ahead}, random_params(MODEL), batch, jax.random.key(0)
    )
    return metrics.loss

  gradient = jax.grad(loss)(trainable["look_ahead"])
  assert gradient.shape == (L, CONFIG.hidden_size)
  for seed in range(3):
    direction = jax.random.normal(jax.random.key(seed), gradient.shape)
    step = 1e-3 * direction
    slope = (loss(trainable["look_ahead"] + step) - loss(trainable["look_ahead"] - step)) / 2e-3
    np.testing.assert_allclose(jnp.vdot(gradient, direction), slope, rtol=2e-2)


def test_places_are_drawn_without_replacement_and_only_where_drafting_happens():
  batch = packed_batch()
  allowed = {(window, place) for window, place, _, _ in places_of(batch)}
  insert = jax.jit(PaSSObjective(MODEL, L, spacing=4).insert)
  drawn = set()
  for seed in range(40):
    groups = jax.device_get(insert(batch, jax.random.key(seed)))
    assert groups.place.shape == (2, 6)
    found = [
      (window, place)
      for window in range(2)
      for place, valid in zip(groups.place[window].tolist(), groups.valid[window], strict=True)
      if valid[0]
    ]
    assert len(found) == len(set(found)) == 12
    drawn |= set(found)
  assert drawn == allowed


def test_there_is_no_backward_pass_over_the_context():
  """A long window with few groups: gradients must cost little beside reading it."""
  rows, num_tokens = 1, 256
  batch = TokenBatch(
    tokens=jnp.zeros((rows, num_tokens), jnp.int32),
    segments=jnp.ones((rows, num_tokens), jnp.int32),
    positions=jnp.broadcast_to(jnp.arange(num_tokens), (rows, num_tokens)),
    answer=jnp.ones((rows, num_tokens), bool),
  )
  objective = PaSSObjective(MODEL, L, spacing=64)
  trainable = objective.init(jax.random.key(1), random_params(MODEL))

  def flops(function):
    arguments = (trainable, random_params(MODEL), batch, jax.random.key(0))
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]

  forward = flops(lambda *arguments: objective.loss(*arguments).loss)
  backward = flops(jax.grad(lambda *arguments: objective.loss(*arguments).loss))
  assert backward < 1.5 * forward


def test_only_look_ahead_times_width_numbers_are_trained():
  objective = PaSSObjective(MODEL, L)
  trainable = objective.init(jax.random.key(0), random_params(MODEL))
  assert sum(leaf.size for leaf in jax.tree.leaves(trainable)) == L * CONFIG.hidden_size
  assert objective.num_drafted == L


def test_embeddings_start_at_the_mean_or_at_a_token():
  table = MODEL.embed(random_params(MODEL), jnp.arange(V)[None])[0]
  for token, center in ((None, table.mean(0)), (5, table[5])):
    objective = PaSSObjective(MODEL, L, init_token=token, init_noise=0.0)
    start = objective.init(jax.random.key(0), random_params(MODEL))["look_ahead"]
    np.testing.assert_allclose(start, jnp.broadcast_to(center, start.shape), atol=1e-6)
  start = PaSSObjective(MODEL, L).init(jax.random.key(0), random_params(MODEL))["look_ahead"]
  assert start.dtype == jnp.float32 and not np.allclose(start[0], start[1])


def test_training_goes_on_from_a_file_of_this_target(tmp_path):
  params, path = random_params(MODEL), str(tmp_path / "pass")
  trained = PaSSObjective(MODEL, L).init(jax.random.key(1), params)
  drafter = PaSSObjective(MODEL, L).export(trained, params)
  save_drafter(path, drafter, MODEL, params, "toy")
  for length in (L, L - 1):
    start = PaSSObjective(MODEL, length, init_file=path).init(jax.random.key(0), params)
    np.testing.assert_array_equal(start["look_ahead"], trained["look_ahead"][:length])
  with pytest.raises(ValueError, match=str(L + 1)):
    PaSSObjective(MODEL, L + 1, init_file=path).init(jax.random.key(0), params)
  other = jax.tree.map(lambda leaf: leaf + 1, params)
  with pytest.raises(ValueError, match="was made for toy"):
    PaSSObjective(MODEL, L, init_file=path).init(jax.random.key(0), other)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("look_ahead", 0),
    ("trained", 0),
    ("trained", L + 1),
    ("trained", 1.0),
    ("spacing", 0),
    ("position_weights", (1.0,)),
    ("position_weights", (1.0, -1.0, 1.0)),
    ("init_token", V),
    ("init_noise", -1.0),
  ],
)
def test_a_setting_out_of_its_range_is_refused(name, value):
  with pytest.raises(ValueError, match=f"{name} must be"):
    PaSSObjective(MODEL, **{"look_ahead": L, name: value})


def test_position_weights_are_those_of_the_trained_embeddings():
  with pytest.raises(ValueError, match="position_weights must be 2 numbers"):
    PaSSObjective(MODEL, L, 2, position_weights=(1.0, 1.0, 1.0))


def test_soft_targets_need_data_that_has_them():
  batch = packed_batch()
  bare = TokenBatch(batch.tokens, batch.segments, batch.positions, batch.answer)
  with pytest.raises(ValueError, match="soft needs"):
    PaSSObjective(MODEL, L, soft=True).insert(bare, jax.random.key(0))


# --- learning -------------------------------------------------------------------------------


def toy_texts(key, rows, num_tokens):
  """Any four tokens but 0, again and again: what is two places ahead stands in the text."""
  period = jax.random.randint(key, (rows, 4), 1, V)
  return jnp.tile(period, (1, -(-num_tokens // 4)))[:, :num_tokens]


def whole_rows(tokens):
  """Windows of one row each, whose answer begins with its fifth token."""
  rows, num_tokens = tokens.shape
  positions = jnp.broadcast_to(jnp.arange(num_tokens, dtype=jnp.int32), (rows, num_tokens))
  return TokenBatch(
    tokens=tokens.astype(jnp.int32),
    segments=jnp.ones((rows, num_tokens), jnp.int32),
    positions=positions,
    answer=positions >= 4,
  )


@functools.cache
def toy_target():
  """The tiny model after it learned the toy language, in which nothing but 0 follows a 0."""

  def loss(params, key):
    text_key, end_key = jax.random.split(key)
    end = jax.random.randint(end_key, (32, 1), 6, 40)
    tokens = jnp.where(jnp.arange(16) < end, toy_texts(text_key, 32, 16), 0)
    batch = whole_rows(tokens)
    output = MODEL.apply(params, batch.tokens, batch.block(), MODEL.init_cache(32, 16))
    logits = MODEL.logits(params, output.hidden)
    labels, valid = batch.ahead(1)
    costs = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return jnp.sum(jnp.where(valid, costs, 0.0)) / jnp.sum(valid)

  optimizer = optax.adam(1e-2)

  @jax.jit
  def run(params):
    def step(carry, key):
      params, state = carry
      cost, gradient = jax.value_and_grad(loss)(params, key)
      updates, state = optimizer.update(gradient, state)
      return (optax.apply_updates(params, updates), state), cost

    keys = jax.random.split(jax.random.key(7), 200)
    (params, _), costs = jax.lax.scan(step, (params, optimizer.init(params)), keys)
    return params, costs

  params, costs = run(random_params(MODEL))
  assert costs[-1] < 0.3
  return params


class ToyData:
  """Fresh texts of the toy language at every step."""

  def batch_at(self, step):
    return jax.device_get(whole_rows(toy_texts(jax.random.key(step), 16, 16)))

  def validation_batches(self):
    return [self.batch_at(1000)]


def test_trained_look_ahead_embeddings_draft_what_the_target_says():
  """They start as the token 0, after which the target sees nothing but 0 coming."""
  target = toy_target()
  objective = PaSSObjective(MODEL, L, spacing=2, init_token=0)
  untrained = objective.init(jax.random.key(0), target)

  options = TrainOptions(
    num_steps=80, optimizer=OptimizerOptions(learning_rate=5e-2, warmup_steps=5), log_every=1
  )
  result = train(objective, target, ToyData(), options)
  trained = result.trainable
  first, last = result.rows[0], result.rows[-1]
  assert (first["split"], last["split"]) == ("train", "validation")
  assert last["loss"] < 0.1 * first["loss"]
  assert max(first["agreement"]) < 0.1 and min(last["agreement"]) > 0.9
  assert first["block_length"] < 1.1 and last["block_length"] > 3.5

  prompts = np.asarray(toy_texts(jax.random.key(98), 16, 8))
  rates, texts = [], []
  for trainable in (untrained, trained):
    exported = objective.export(trainable, target)
    for merged in (False, True):
      drafter, weights = from_trained(exported, MODEL, target, merged=merged)
      assert drafter == PaSS(MODEL, L, merged)
      generation = specjax.generate(
        MODEL, target, prompts, drafter=drafter, drafter_params=weights, max_new_tokens=24
      )
      rates.append(float(jnp.mean(generation.block_efficiency)))
      texts.append(generation.new_tokens())
  plain = specjax.generate(MODEL, target, prompts, drafter=Empty(), max_new_tokens=24)
  assert texts == [plain.new_tokens()] * 4
  # Two calls give up to (2 + L) / 2 tokens a call, one gives up to 1 + L, but in the first round.
  assert max(rates[:2]) < 1.1 and rates[2] > 2.2 and rates[3] > 3.0
