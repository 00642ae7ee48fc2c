# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Distillation of a tiny target into some of its layers."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import laws
import numpy as np
import optax
import pytest
import toys

import specjax
from specjax.drafters import Empty
from specjax.drafters.trained_draft_model import from_trained
from specjax.models import Transformer, TransformerConfig
from specjax.models.truncation import select_layers
from specjax.models.vocabulary_subset import TokenSubset
from specjax.sampling import SamplingPolicy
from specjax.training.distillation_objective import DistillationObjective
from specjax.training.token_data import TokenBatch
from specjax.types import Block

V = 24
CONFIG = TransformerConfig(
  vocab_size=V,
  hidden_size=16,
  intermediate_size=24,
  num_layers=3,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  max_positions=256,
)
TARGET = Transformer(CONFIG, dtype="float32")
SUBSET = TokenSubset.of(np.arange(0, V, 2))


@functools.cache
def target_params():
  params = TARGET.init(jax.random.key(0))
  # Larger weights: a law that is not flat, and layers that matter.
  return jax.tree.map(lambda leaf: leaf * (2.5 if leaf.ndim == 2 else 1.0), params)


def pack(rows, width, prompt_length, top=None):
  """Two rows a window, one after the other, the rest padding."""
  num_windows = len(rows) // 2
  arrays = {
    name: np.zeros((num_windows, width), np.int32) for name in ("tokens", "segments", "positions")
  }
  answer = np.zeros((num_windows, width), bool)
  for index, row in enumerate(rows[: 2 * num_windows]):
    window, second = divmod(index, 2)
    start = second * len(rows[2 * window])
    part = slice(start, start + len(row))
    arrays["tokens"][window, part] = row
    arrays["segments"][window, part] = second + 1
    arrays["positions"][window, part] = np.arange(len(row))
    answer[window, start + prompt_length : start + len(row)] = True
  batch = TokenBatch(answer=jnp.asarray(answer), **{k: jnp.asarray(v) for k, v in arrays.items()})
  if top is None:
    return batch
  log_probs = teacher_log_probs(batch)
  top_log_probs, top_ids = jax.lax.top_k(log_probs, top)
  return dataclasses.replace(batch, top_ids=top_ids, top_log_probs=top_log_probs)


def hidden_states(model, params, batch):
  cache = model.init_cache(*batch.tokens.shape)
  return model.apply(params, batch.tokens, batch.block(), cache).hidden


@jax.jit
def teacher_log_probs(batch):
  hidden = hidden_states(TARGET, target_params(), batch)
  return jax.nn.log_softmax(TARGET.logits(target_params(), hidden))


@functools.cache
def toy_text(num_rows, temperature, length=24, seed=0):
  """The target's own answers to random prompts of 4 tokens."""
  prompts = np.random.default_rng(seed).integers(0, V, (num_rows, 4)).tolist()
  generation = specjax.generate(
    TARGET,
    target_params(),
    prompts,
    max_new_tokens=length - 4,
    policy=SamplingPolicy(temperature=temperature),
    key=seed,
  )
  return np.asarray(generation.tokens)[:, :length]


@functools.cache
def toy_batch(num_rows=8, temperature=0.0, top=None, seed=0):
  return pack(toy_text(num_rows, temperature, seed=seed), 52, prompt_length=4, top=top)


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradient(objective, trainable, batch, key):
  def mean_loss(trainable):
    metrics = objective.loss(trainable, target_params(), batch, key)
    return metrics.loss / metrics.weight, metrics

  return jax.value_and_grad(mean_loss, has_aux=True)(trainable)


def fit(objective, batches, steps, learning_rate=3e-2):
  """A bare training loop: the metrics of the first and the last steps, and what was trained."""
  optimiser = optax.adam(learning_rate)
  trainable = objective.init(jax.random.key(1), target_params())
  state = optimiser.init(trainable)
  history = []

  @jax.jit
  def step(trainable, state, batch, key):
    (_, metrics), gradient = loss_and_gradient(objective, trainable, batch, key)
    updates, state = optimiser.update(gradient, state)
    return optax.apply_updates(trainable, updates), state, metrics

  for index in range(steps):
    batch = batches[index % len(batches)]
    trainable, state, metrics = step(trainable, state, batch, jax.random.key(index))
    history.append(metrics.summary())
  return trainable, history


def make(criterion="forward_kl", teacher=None, layers=(0, 2), **options):
  teacher = teacher or ("labels" if criterion == "cross_entropy" else "recompute")
  return DistillationObjective(
    TARGET, layers, criterion=criterion, teacher=teacher, draft_length=3, **options
  )


CRITERIA = (
  "cross_entropy",
  "forward_kl",
  "reverse_kl",
  "jensen_shannon",
  "total_variation",
)


# --- what is computed ------------------------------------------------------------------------


def oracle(objective, trainable, batch):
  """Loss, weight and matches by Python loops over places, from a drafter's own logits."""
  trained = objective.export(trainable, target_params())
  trained = dataclasses.replace(trained)
  drafter, params = from_trained(trained, TARGET, target_params())
  hidden = hidden_states(drafter.model, params, batch)
  logits = np.asarray(drafter.model.logits(params, hidden), np.float64)
  teacher = np.asarray(teacher_log_probs(batch), np.float64)
  tokens, segments, answer = (np.asarray(x) for x in (batch.tokens, batch.segments, batch.answer))
  loss, weight = 0.0, 0
  right = np.zeros(tokens.shape, bool)
  for b, t in np.ndindex(*tokens.shape):
    if t + 1 == tokens.shape[1] or segments[b, t] != segments[b, t + 1] or not answer[b, t + 1]:
      continue
    row = logits[b, t]
    support = np.isfinite(row)
    q = np.exp(row[support] - row[support].max())
    q = q / q.sum()
    p = np.exp(teacher[b, t][support])
    right[b, t] = int(np.argmax(row)) == tokens[b, t + 1]
    if objective.criterion == "cross_entropy":
      label = tokens[b, t + 1]
      if support[label]:
        loss -= np.log(q[np.flatnonzero(support) == label][0])
        weight += 1
      continue
    weight += 1
    if objective.criterion == "total_variation":
      loss += 1 - np.minimum(p, q).sum()
      continue
    p = p / p.sum()
    m = (p + q) / 2
    loss += {
      "forward_kl": (p * np.log(p / q)).sum(),
      "reverse_kl": (q * np.log(q / p)).sum(),
      "jensen_shannon": ((p * np.log(p / m)).sum() + (q * np.log(q / m)).sum()) / 2,
    }[objective.criterion]
  matches, drafted, committed, blocks = np.zeros(3), np.zeros(3), 0, 0
  for b, t in np.ndindex(*tokens.shape):
    accepted, going, places = 0, True, 0
    for k in range(3):
      end = t + k + 1
      if end >= tokens.shape[1] or not answer[b, t + 1 : end + 1].all():
        break
      if (segments[b, t : end + 1] != segments[b, t]).any():
        break
      places += 1
      drafted[k] += 1
      matches[k] += right[b, t + k]
      going = going and right[b, t + k]
      accepted += going
    if places == 3:
      blocks += 1
      committed += 1 + accepted
  return loss, weight, matches, drafted, committed, blocks


@pytest.mark.parametrize("subset", [None, SUBSET], ids=["whole", "draft_vocabulary"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_metrics_are_those_of_a_loop_over_places(criterion, subset):
  objective = make(criterion, draft_vocabulary=subset, storage="bfloat16")
  trainable = objective.init(jax.random.key(1), target_params())
  batch = toy_batch(temperature=1.0)
  found = jax.jit(objective.loss)(trainable, target_params(), batch, jax.random.key(0))
  loss, weight, matches, drafted, committed, blocks = oracle(objective, trainable, batch)
  assert loss > 0.1 and matches.all() and blocks > 0
  np.testing.assert_allclose(found.loss, loss, rtol=1e-4)
  np.testing.assert_array_equal(found.weight, weight)
  np.testing.assert_array_equal(found.matches, matches)
  np.testing.assert_array_equal(found.drafted, drafted)
  np.testing.assert_array_equal(found.committed, committed)
  np.testing.assert_array_equal(found.blocks, blocks)


@pytest.mark.parametrize("teacher", ["recompute", "top_k"])
@pytest.mark.parametrize("criterion", CRITERIA[1:])
def test_a_draft_model_that_is_the_target_has_nothing_to_learn(criterion, teacher):
  objective = make(criterion, teacher, layers=(0, 1, 2))
  trainable = objective.init(jax.random.key(1), target_params())
  batch = toy_batch(temperature=0.0, top=4)
  (_, metrics), gradient = loss_and_gradient(objective, trainable, batch, jax.random.key(0))
  np.testing.assert_allclose(metrics.loss / metrics.weight, 0.0, atol=1e-5)
  np.testing.assert_array_equal(metrics.summary()["agreement"], 1.0)
  assert metrics.summary()["block_length"] == 4.0
  if criterion != "total_variation":  # whose kink is at zero
    for leaf in jax.tree.leaves(gradient):
      np.testing.assert_allclose(leaf, 0.0, atol=1e-4)


@pytest.mark.parametrize("criterion", ["cross_entropy", "reverse_kl"])
def test_gradients_are_those_of_finite_differences(criterion):
  objective = make(criterion, draft_vocabulary=SUBSET, rank=2)
  batch = toy_batch(num_rows=4, temperature=1.0)
  trainable = objective.init(jax.random.key(1), target_params())
  trainable = jax.tree.map(lambda leaf: leaf + 0.05 * jnp.cos(jnp.arange(leaf.size) * 1.0)
                           .reshape(leaf.shape).astype(leaf.dtype), trainable)  # fmt: skip
  (_, _), gradient = loss_and_gradient(objective, trainable, batch, jax.random.key(0))
  direction = jax.tree.map(jnp.sign, gradient)

  def along(step):
    moved = jax.tree.map(lambda a, b: a + step * b, trainable, direction)
    (value, _), _ = loss_and_gradient(objective, moved, batch, jax.random.key(0))
    return float(value)

  slope = sum(float(jnp.sum(jnp.abs(leaf))) for leaf in jax.tree.leaves(gradient))
  assert slope > 1
  np.testing.assert_allclose((along(1e-3) - along(-1e-3)) / 2e-3, slope, rtol=2e-2)


def test_logits_in_chunks_are_the_logits_at_once(monkeypatch):
  objective = make("forward_kl", draft_vocabulary=SUBSET)
  trainable = objective.init(jax.random.key(1), target_params())
  batch = toy_batch(temperature=1.0)
  key = jax.random.key(0)
  (whole, _), whole_gradient = loss_and_gradient(objective, trainable, batch, key)
  monkeypatch.setattr("specjax.training.chunked_scores._CHUNK", 7)
  jax.clear_caches()
  (chunked, _), chunked_gradient = loss_and_gradient(objective, trainable, batch, key)
  np.testing.assert_allclose(whole, chunked, rtol=1e-5)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6),
    whole_gradient,
    chunked_gradient,
  )


def test_fewer_places_than_the_answers_have_leave_the_last_ones_out():
  batch = toy_batch(temperature=0.0)
  trainable = make().init(jax.random.key(1), target_params())

  def weight(fraction):
    objective = make(head_fraction=fraction)
    return objective.loss(trainable, target_params(), batch, jax.random.key(0))

  total = int(weight(1.0).weight)
  assert total == 8 * 20
  share = 20.5 / batch.tokens.size
  assert int(weight(share).weight) == 21
  assert int(weight(share).drafted[0]) == 21
  # What is not scored is not counted as a mismatch.
  assert weight(share).drafted[2] == 18
  np.testing.assert_allclose(weight(0.9).loss, weight(1.0).loss, rtol=1e-6)


# --- on-policy -------------------------------------------------------------------------------


def test_the_student_continues_its_own_law_from_a_prefix_of_the_text():
  """Without a cache, place by place: the text's own prefix, then samples of the student."""
  objective = make(
    data_source="student", draft_vocabulary=SUBSET, student_prefix=6, student_tokens=3
  )
  model, params = select_layers(TARGET, target_params(), (0, 2))
  head = {"kernel": params["head"]["kernel"][:, SUBSET.ids]}
  restricted = {**params, "head": head}
  batch = toy_batch(temperature=1.0)
  draw = jax.jit(lambda key: objective._student_text(model, restricted, batch, key))
  tokens, segments = np.asarray(batch.tokens), np.asarray(batch.segments)
  counts = np.zeros((2, SUBSET.size))
  expected = np.zeros((2, SUBSET.size))
  lengths = set()
  for seed in range(200):
    text, length, usable = (np.asarray(x) for x in draw(jax.random.key(seed)))
    assert usable.all() and text.shape == (4, 9)
    assert (length >= 4).all() and (length <= 6).all()
    lengths |= set(length.tolist())
    block = Block.chain(jnp.zeros(4, jnp.int32), 9)
    hidden = model.apply(params, jnp.asarray(text), block, model.init_cache(4, 9)).hidden
    laws_here = np.asarray(jax.nn.softmax(model.logits(restricted, hidden)))
    for b in range(4):
      prefix = text[b, : length[b]]
      found = [
        t for t in range(tokens.shape[1] - len(prefix) + 1)
        if (tokens[b, t : t + len(prefix)] == prefix).all()
        and len(set(segments[b, t : t + len(prefix)])) == 1
      ]  # fmt: skip
      assert found, "the prefix is not of the text"
      for step in range(2):
        drawn = text[b, length[b] + step]
        assert drawn in SUBSET.ids
        counts[step, np.flatnonzero(SUBSET.ids == drawn)[0]] += 1
        expected[step] += laws_here[b, length[b] - 1 + step]
  assert len(lengths) > 1
  deviation = np.abs(counts - expected)
  assert (deviation <= 5 * np.sqrt(expected) + 5).all()


@pytest.mark.parametrize("criterion", CRITERIA[1:])
def test_on_the_students_text_a_student_that_is_the_target_has_nothing_to_learn(criterion):
  objective = make(criterion, layers=(0, 1, 2), data_source="student", student_tokens=5)
  trainable = objective.init(jax.random.key(1), target_params())
  batch = toy_batch(temperature=0.0)
  (_, metrics), _ = loss_and_gradient(objective, trainable, batch, jax.random.key(0))
  assert metrics.weight == 4 * 5
  np.testing.assert_allclose(metrics.loss, 0.0, atol=1e-4)
  np.testing.assert_array_equal(metrics.summary()["agreement"], 1.0)
  np.testing.assert_array_equal(metrics.drafted, [20, 16, 12])


def test_a_window_without_an_answer_counts_for_nothing():
  objective = make(data_source="student", student_tokens=5)
  trainable = objective.init(jax.random.key(1), target_params())
  batch = toy_batch(temperature=0.0)
  empty = dataclasses.replace(batch, answer=batch.answer.at[1:].set(False))
  metrics = objective.loss(trainable, target_params(), empty, jax.random.key(0))
  assert metrics.weight == 5
  none = dataclasses.replace(batch, answer=jnp.zeros_like(batch.answer))
  for source in ("student", "teacher"):
    objective = make(data_source=source, student_tokens=5)
    metrics = objective.loss(trainable, target_params(), none, jax.random.key(0))
    assert metrics.weight == 0 and metrics.loss == 0 and metrics.blocks == 0


def test_a_mix_draws_one_of_the_two_texts_each_step():
  batch = toy_batch(temperature=0.0)
  mix = make(data_source="mix", student_fraction=0.25, student_tokens=5)
  trainable = mix.init(jax.random.key(1), target_params())
  run = jax.jit(mix.loss)
  weights = [
    int(run(trainable, target_params(), batch, jax.random.key(seed)).weight) for seed in range(60)
  ]
  assert set(weights) == {20, 160}
  assert 4 <= weights.count(20) <= 28
  metrics = mix.metrics(trainable, target_params(), batch, jax.random.key(0))
  assert metrics.weight == 160


# --- training --------------------------------------------------------------------------------


def alpha(drafter, params, temperature, seed=5):
  """Accepted tokens a target call in the real decoding loop, on prompts not trained on."""
  prompts = np.random.default_rng(seed).integers(0, V, (8, 4)).tolist()
  generation = specjax.generate(
    TARGET,
    target_params(),
    prompts,
    drafter=drafter,
    drafter_params=params,
    policy=SamplingPolicy(temperature=temperature),
    max_new_tokens=24,
    key=3,
  )
  new = np.asarray(generation.lengths - generation.prompt_lengths)
  return float(np.sum(new) / np.sum(np.asarray(generation.target_calls)))


@functools.cache
def trained_objective(criterion, data_source):
  temperature = 0.0 if criterion == "cross_entropy" else 1.0
  objective = make(criterion, layers=(0, 2), data_source=data_source, student_tokens=8)
  batches = [toy_batch(16, temperature, seed=seed) for seed in range(4)]
  return objective, *fit(objective, batches, 120, learning_rate=1e-2)


@pytest.mark.parametrize(
  ("criterion", "data_source"),
  [*((criterion, "teacher") for criterion in CRITERIA), ("forward_kl", "student")],
)
def test_training_lowers_the_loss_and_raises_what_is_accepted(criterion, data_source):
  objective, trainable, history = trained_objective(criterion, data_source)
  first, last = (np.mean([h["loss"] for h in part]) for part in (history[:4], history[-4:]))
  assert last < 0.7 * first
  untrained = objective.init(jax.random.key(1), target_params())
  temperature = 0.0 if criterion == "cross_entropy" else 1.0
  before, after = (
    alpha(*from_trained(objective.export(t, target_params()), TARGET, target_params()), temperature)
    for t in (untrained, trainable)
  )
  assert after > before + 0.1


# --- the file --------------------------------------------------------------------------------


def test_an_untrained_export_is_the_selected_layers_bit_by_bit():
  for rank in (0, 2):
    objective = make(rank=rank, storage="bfloat16")
    trained = objective.export(objective.init(jax.random.key(1), target_params()), target_params())
    drafter, params = from_trained(trained, TARGET, target_params(), draft_length=2)
    model, expected = select_layers(TARGET, target_params(), (0, 2))
    assert drafter.model == model and drafter.draft_length == 2
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    assert params["embed"]["embedding"] is target_params()["embed"]["embedding"]


@pytest.mark.parametrize("storage", ["bfloat16", "int8"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_drafter_comes_back_from_its_file_up_to_rounding(rank, storage):
  objective = make(rank=rank, storage=storage, draft_vocabulary=SUBSET)
  trainable, _ = fit(objective, [toy_batch(temperature=1.0)], 20)
  trained = objective.export(trainable, target_params())
  assert trained.scheme == "draft_model"
  drafter, params = from_trained(trained, TARGET, target_params())
  assert drafter.draft_length == 3 and drafter.model.size == SUBSET.size
  again, params_again = from_trained(trained, TARGET, target_params())
  assert again == drafter
  jax.tree.map(np.testing.assert_array_equal, params, params_again)
  model, exact, head = objective._student(trainable, target_params())
  batch = toy_batch(temperature=1.0)
  hidden = hidden_states(model, exact, batch)
  expected = np.asarray(model.logits({**exact, "head": head["head"]}, hidden))
  hidden = hidden_states(drafter.model, params, batch)
  found = np.asarray(drafter.model.logits(params, hidden))
  assert np.isneginf(found[..., 1::2]).all()
  written = np.asarray(batch.segments) > 0
  error = np.abs(found[..., ::2] - expected)[written]
  assert 0 < error.max() < 0.2 * np.abs(expected[written]).max()


def test_wrong_settings_are_named():
  for options, message in (
    ({"layers": ()}, "layers must name at least one"),
    ({"layers": (0, 5)}, r"layers must name at least one of the layers 0 \.\. 2"),
    ({"layers": (2, 0)}, "layers must be in rising order"),
    ({"rank": -1}, "rank must be an integer >= 0, got -1"),
    ({"storage": "int4"}, "storage must be one of bfloat16, int8, got 'int4'"),
    ({"criterion": "kl"}, "criterion must be one of cross_entropy, "),
    ({"teacher": "labels"}, "'cross_entropy' and teacher 'labels' go together"),
    ({"criterion": "cross_entropy", "data_source": "mix"}, "'student' and 'mix' need"),
    ({"beta": 1.0}, "beta must be in"),
    ({"student_fraction": 0.0}, r"student_fraction must be in \(0, 1\], got 0.0"),
    ({"draft_vocabulary": TokenSubset.of([V])}, r"ids in 0 \.\. 23, got 24"),
  ):
    with pytest.raises(ValueError, match=message):
      make(**options)
  objective = make(teacher="top_k")
  with pytest.raises(ValueError, match="data that was made with the target's top-k"):
    objective.loss(
      objective.init(jax.random.key(0), target_params()),
      target_params(),
      toy_batch(),
      jax.random.key(0),
    )


def test_a_file_for_something_else_is_refused():
  objective = make()
  trained = objective.export(objective.init(jax.random.key(1), target_params()), target_params())

  def load(**changes):
    return from_trained(dataclasses.replace(trained, **changes), TARGET, target_params())

  with pytest.raises(ValueError, match="must be of scheme 'draft_model', got 'blockwise'"):
    load(scheme="blockwise")
  with pytest.raises(ValueError, match="lack draft_length"):
    load(settings={"layers": [0]})
  with pytest.raises(ValueError, match=r"there is no array layers/1/.* to change"):
    load(settings={**trained.settings, "layers": [0]})
  name = "final_norm/scale/whole"
  with pytest.raises(ValueError, match=r"final_norm/scale has shape \(16,\), its change \(8,\)"):
    load(arrays={**trained.arrays, name: np.zeros(8, np.float32)})


def test_objectives_are_static_and_hashable():
  one, other = (make(draft_vocabulary=TokenSubset.of([1, 2])) for _ in range(2))
  assert one == other and hash(one) == hash(other)
  assert one != make(draft_vocabulary=TokenSubset.of([1, 3]))


# --- losslessness ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def distilled():
  objective = make(draft_vocabulary=SUBSET, storage="int8")
  trainable, _ = fit(objective, [toy_batch(temperature=1.0)], 30)
  return from_trained(objective.export(trainable, target_params()), TARGET, target_params())


def test_greedy_output_is_that_of_the_empty_drafter_of_the_same_width(distilled):
  drafter, params = distilled
  prompts = toy_text(6, 1.0)[:, :7].tolist()
  options = {"max_new_tokens": 24, "capacity": 64, "narrow": False}
  ours = specjax.generate(
    TARGET, target_params(), prompts, drafter=drafter, drafter_params=params, **options
  )
  plain = specjax.generate(TARGET, target_params(), prompts, drafter=Empty(3), **options)
  np.testing.assert_array_equal(ours.tokens, plain.tokens)
  assert np.asarray(ours.target_calls).sum() < np.asarray(plain.target_calls).sum()


def test_sampled_output_has_the_targets_law(distilled):
  drafter, params = distilled
  prompt = [3, 5, 7]
  policy = SamplingPolicy(temperature=1.1, top_k=3)
  law = exact_continuations(policy, prompt)
  assert any(token % 2 for outcome in law for token in outcome if law[outcome] > 0.05)
  counts = laws.sample_law(
    TARGET,
    target_params(),
    prompt,
    3,
    samples=4000,
    drafter=drafter,
    drafter_params=params,
    policy=policy,
  )
  assert laws.chi_square_p_value(counts, law) > 1e-4


def exact_continuations(policy, prompt):
  """The law of 3 tokens after `prompt`, by enumeration of what the policy allows."""
  law = {(): 1.0}
  for _ in range(3):
    longer = {}
    for suffix, probability in law.items():
      sequence = jnp.asarray([[*prompt, *suffix]], jnp.int32)
      block = Block.chain(jnp.zeros(1, jnp.int32), sequence.shape[1])
      cache = TARGET.init_cache(1, sequence.shape[1])
      hidden = TARGET.apply(target_params(), sequence, block, cache).hidden[0, -1]
      logits = np.asarray(TARGET.logits(target_params(), hidden), np.float64) / policy.temperature
      best = np.argsort(-logits)[: policy.top_k]
      weights = np.exp(logits[best] - logits[best].max())
      for token, weight in zip(best, weights / weights.sum(), strict=True):
        longer[(*suffix, int(token))] = probability * weight
    law = longer
  full = {outcome: 0.0 for outcome in toys.all_sequences(V, 3)}
  return full | law
