# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A user's pure function as a model: cache axes, rollback, refusals, and in the loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import HistoryModel, ScriptedDrafter

import specjax
from specjax.models import FunctionModel
from specjax.types import Block, Model

VOCAB = 7
HISTORY = HistoryModel(VOCAB)
HISTORY_PARAMS = HISTORY.init(3)


def history_apply(params, tokens, block, cache):
  output = HISTORY.apply(params, tokens, block, cache)
  return HISTORY.logits(params, output.hidden), output.cache


def history_with_hidden(params, tokens, block, cache):
  output = HISTORY.apply(params, tokens, block, cache)
  return jnp.zeros((*tokens.shape, VOCAB)), output.hidden, output.cache


FROM_LOGITS = FunctionModel(history_apply, HISTORY.init_cache, VOCAB)
FROM_HIDDEN = FunctionModel(
  history_with_hidden, HISTORY.init_cache, VOCAB, hidden_size=8, logits_fn=HISTORY.logits
)
BLOCK_WIDTH = 4


def recurrent_apply(params, tokens, block, cache):
  """The state is a decayed sum of embeddings; the states around each token are left behind."""
  del block
  states = [cache["state"]]
  for index in range(tokens.shape[1]):
    states.append(0.7 * states[-1] + params["table"][tokens[:, index]])
  trail = jnp.stack(states, axis=1)
  logits = 2.0 * jnp.sin(3.0 * trail[:, 1:]) @ params["head"]
  padding = BLOCK_WIDTH + 1 - trail.shape[1]
  return logits, {"state": states[-1], "trail": jnp.pad(trail, ((0, 0), (0, padding), (0, 0)))}


def recurrent_cache(batch, capacity):
  del capacity
  return {"state": jnp.zeros((batch, 5)), "trail": jnp.zeros((batch, BLOCK_WIDTH + 1, 5))}


def recurrent_rollback(cache, path, kept):
  """`trail[:, 0]` is the state before the block, `trail[:, 1 + t]` the one after token t."""
  last = jnp.take_along_axis(path, jnp.maximum(kept - 1, 0)[:, None], axis=1)[:, 0]
  index = jnp.where(kept > 0, last + 1, 0)
  state = jnp.take_along_axis(cache["trail"], index[:, None, None], axis=1)[:, 0]
  return {**cache, "state": state}


RECURRENT = FunctionModel(
  recurrent_apply, recurrent_cache, VOCAB, rollback=recurrent_rollback, max_block=BLOCK_WIDTH
)


def recurrent_params():
  random = np.random.default_rng(0)
  return {
    "table": jnp.asarray(random.standard_normal((VOCAB, 5)), jnp.float32),
    "head": jnp.asarray(random.standard_normal((5, VOCAB)), jnp.float32),
  }


def recurrent_greedy(params, prompt, num_tokens):
  """Greedy decoding by a plain loop over the whole sequence."""
  table, head = (np.asarray(params[name], np.float64) for name in ("table", "head"))
  sequence = list(prompt)
  for _ in range(num_tokens):
    state = np.zeros(5)
    for token in sequence:
      state = 0.7 * state + table[token]
    sequence.append(int(np.argmax(2.0 * np.sin(3.0 * state) @ head)))
  return sequence[len(prompt) :]


def test_it_is_a_model_hashable_and_equal_by_value():
  assert isinstance(FROM_LOGITS, Model)
  twin = FunctionModel(history_apply, HISTORY.init_cache, VOCAB)
  assert twin == FROM_LOGITS and hash(twin) == hash(FROM_LOGITS)
  assert dataclasses.replace(FROM_LOGITS, max_positions=9).max_positions == 9
  assert dataclasses.replace(FROM_HIDDEN, max_positions=9).hidden_size == 8


def test_logits_take_the_place_of_hidden_states_that_are_not_given():
  assert FROM_LOGITS.hidden_size == VOCAB
  assert FROM_HIDDEN.hidden_size == 8


@pytest.mark.parametrize("model", [FROM_LOGITS, FROM_HIDDEN], ids=["logits", "hidden"])
def test_greedy_output_with_drafts_is_the_functions_own(model):
  prompts = [[1, 2, 3], [4]]
  expected = [HISTORY.reference_greedy(HISTORY_PARAMS, prompt, 12) for prompt in prompts]
  script = np.zeros((2, 32), np.int32)
  for row, prompt in enumerate(prompts):
    script[row, : len(prompt) + 12] = [*prompt, *expected[row]]
  got = specjax.generate(
    model,
    HISTORY_PARAMS,
    prompts,
    drafter=ScriptedDrafter(3, accept=(0, 3, 1, 2)),
    drafter_params=jnp.asarray(script),
    max_new_tokens=12,
  )
  for row, prompt in enumerate(prompts):
    assert got.tokens[row, len(prompt) : len(prompt) + 12].tolist() == expected[row]


@pytest.mark.parametrize("accept", [(0,), (0, 3, 1, 2), (3,)])
def test_a_recurrent_state_survives_rejected_tokens(accept):
  """An always-wrong drafter for 40 tokens included (PITFALLS 54, 56)."""
  params, prompts = recurrent_params(), [[1, 2, 3], [4, 4]]
  expected = [recurrent_greedy(params, prompt, 40) for prompt in prompts]
  script = np.zeros((2, 64), np.int32)
  for row, prompt in enumerate(prompts):
    script[row, : len(prompt) + 40] = [*prompt, *expected[row]]
  got = specjax.generate(
    RECURRENT,
    params,
    prompts,
    drafter=ScriptedDrafter(BLOCK_WIDTH - 1, accept=accept),
    drafter_params=jnp.asarray(script),
    max_new_tokens=40,
  )
  assert not RECURRENT.position_addressed
  for row, prompt in enumerate(prompts):
    assert got.tokens[row, len(prompt) : len(prompt) + 40].tolist() == expected[row]


def test_a_block_that_cannot_be_undone_is_refused_before_anything_runs():
  with pytest.raises(ValueError, match="at most max_block=4 tokens, got 5: use a smaller draft"):
    specjax.generate(
      RECURRENT,
      recurrent_params(),
      [[1, 2]],
      drafter=ScriptedDrafter(BLOCK_WIDTH),
      drafter_params=jnp.zeros((1, 64), jnp.int32),
    )
  with pytest.raises(ValueError, match="max_block must be >= 1 or None, got 0"):
    dataclasses.replace(RECURRENT, max_block=0)


def never(params, tokens, block, cache):
  raise AssertionError("must not be called")


@pytest.mark.parametrize(
  "init_cache",
  [
    recurrent_cache,
    lambda batch, capacity: (jnp.zeros((batch, capacity)), jnp.zeros(batch)),  # a counter beside
    lambda batch, capacity: jnp.zeros((batch, min(capacity, 512))),  # a ring buffer
    lambda batch, capacity: jnp.zeros((batch, capacity // 2)),  # two tokens a slot
    lambda batch, capacity: jnp.zeros(capacity),  # no batch
    lambda batch, capacity: jnp.zeros((batch, capacity, capacity)),  # which one?
  ],
  ids=["state", "counter", "ring", "halved", "no batch", "two axes"],
)
def test_a_cache_that_length_alone_cannot_undo_is_refused_without_rollback(init_cache):
  with pytest.raises(ValueError, match="rejected tokens could not be undone: give rollback"):
    FunctionModel(never, init_cache, VOCAB)
  assert not FunctionModel(never, init_cache, VOCAB, rollback=lambda c, p, k: c).position_addressed


def test_a_model_without_a_cache_needs_no_rollback():
  model = FunctionModel(lambda p, t, b, c: (p[t], c), lambda batch, capacity: (), VOCAB)
  assert model.position_addressed
  table = jnp.asarray(np.random.default_rng(0).standard_normal((VOCAB, VOCAB)), jnp.float32)
  got = specjax.generate(model, table, [[2]], max_new_tokens=3)
  expected = [2]
  for _ in range(3):
    expected.append(int(jnp.argmax(table[expected[-1]])))
  assert got.tokens[0, :4].tolist() == expected


@pytest.mark.parametrize(
  "layout", ["bs", "sb", "bhsd", "hsbd", "sdb"], ids=lambda layout: "".join(layout)
)
def test_kept_paths_move_along_the_slots_wherever_that_axis_stands(layout):
  sizes = {"b": 2, "s": 6, "h": 3, "d": 4}

  def init_cache(batch, capacity):
    return jnp.zeros([{**sizes, "b": batch, "s": capacity}[name] for name in layout])

  model = FunctionModel(never, init_cache, VOCAB)
  shape = [sizes[name] for name in layout]
  cache = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
  start, path, kept = [1, 4], [[0, 2, 3], [0, 1, 2]], [3, 2]
  expected = np.moveaxis(cache, (layout.index("b"), layout.index("s")), (0, 1)).copy()
  original = expected.copy()
  for row in range(2):
    for k in range(kept[row]):
      expected[row, start[row] + k] = original[row, start[row] + path[row][k]]
  expected = np.moveaxis(expected, (0, 1), (layout.index("b"), layout.index("s")))
  block = Block.chain(jnp.array(start, jnp.int32), 4)
  got = jax.jit(model.keep)(jnp.asarray(cache), block, jnp.array(path), jnp.array(kept))
  np.testing.assert_array_equal(got, expected)


def test_a_model_that_refuses_long_caches_is_asked_for_short_ones_only():
  def init_cache(batch, capacity):
    if capacity > 16:
      raise ValueError("too long")
    return jnp.zeros((batch, capacity))

  assert FunctionModel(never, init_cache, VOCAB, max_positions=16).position_addressed


def call(apply_fn, **options):
  model = FunctionModel(apply_fn, HISTORY.init_cache, VOCAB, **options)
  block = Block.chain(jnp.zeros(2, jnp.int32), 3)
  return model.apply({}, jnp.zeros((2, 3), jnp.int32), block, model.init_cache(2, 8))


HIDDEN = {"hidden_size": 5, "logits_fn": lambda params, hidden: hidden}


@pytest.mark.parametrize(
  ("result", "options", "message"),
  [
    (lambda t, c: jnp.zeros((2, 3, VOCAB)), {}, r"must return \(logits, cache\) .* got"),
    (lambda t, c: (jnp.zeros((2, 3, 6)), c), {}, r"logits of shape \(2, 3, 7\), got \(2, 3, 6\)"),
    (lambda t, c: (jnp.zeros((2, VOCAB)), c), {}, r"logits of shape \(2, 3, 7\), got \(2, 7\)"),
    (lambda t, c: (jnp.zeros((2, 3, 7), int), c), {}, "logits of a floating type, got int32"),
    (lambda t, c: (jnp.zeros((2, 3, 7)), ()), {}, "must return a cache like the one it got"),
    (
      lambda t, c: (jnp.zeros((2, 3, 7)), {"tokens": c["tokens"].astype(float)}),
      {},
      "cache like the one it got, .*int32.* got .*float32",
    ),
    (lambda t, c: (jnp.zeros((2, 3, 7)), jnp.zeros((2, 3, 5)), c), {}, "got 3 values"),
    (lambda t, c: (jnp.zeros((2, 3, 7)), c), HIDDEN, "got 2 values"),
    (
      lambda t, c: (jnp.zeros((2, 3, 7)), jnp.zeros((2, 3, 4)), c),
      HIDDEN,
      r"hidden of shape \(2, 3, 5\), got \(2, 3, 4\)",
    ),
  ],
)
def test_what_a_function_returns_wrongly_is_named_with_expected_and_got(result, options, message):
  with pytest.raises(ValueError, match=message):
    call(lambda params, tokens, block, cache: result(tokens, cache), **options)


def test_bad_construction_and_unsupported_inputs_are_refused():
  with pytest.raises(ValueError, match="vocab_size must be >= 1, got 0"):
    FunctionModel(never, HISTORY.init_cache, 0)
  with pytest.raises(ValueError, match="hidden_size and logits_fn must be given together"):
    FunctionModel(never, HISTORY.init_cache, VOCAB, hidden_size=5)
  with pytest.raises(ValueError, match="hidden_size and logits_fn must be given together"):
    FunctionModel(never, HISTORY.init_cache, VOCAB, logits_fn=lambda p, h: h)
  block, cache = Block.chain(jnp.zeros(1, jnp.int32), 1), FROM_LOGITS.init_cache(1, 4)
  with pytest.raises(ValueError, match="takes token ids only: give embed_fn"):
    FROM_LOGITS.apply({}, jnp.zeros((1, 1, 8)), block, cache)
  with pytest.raises(ValueError, match="takes no embeddings: give embed_fn"):
    FROM_LOGITS.embed({}, jnp.zeros((1, 1), jnp.int32))
  with pytest.raises(ValueError, match="has no layers to look into"):
    FROM_LOGITS.apply({}, jnp.zeros((1, 1), jnp.int32), block, cache, hidden_layers=(0,))


def test_embeddings_reach_a_function_that_takes_them():
  def apply_fn(params, inputs, block, cache):
    x = params[inputs] if jnp.issubdtype(inputs.dtype, jnp.integer) else inputs
    return jnp.cumsum(x, axis=1), cache

  model = FunctionModel(
    apply_fn, lambda batch, capacity: (), VOCAB, embed_fn=lambda params, tokens: params[tokens]
  )
  table, tokens = jnp.eye(VOCAB), jnp.array([[3, 1, 1]])
  block = Block.chain(jnp.zeros(1, jnp.int32), 3)
  by_id = model.apply(table, tokens, block, ())
  by_embedding = model.apply(table, model.embed(table, tokens), block, ())
  np.testing.assert_array_equal(by_id.hidden, by_embedding.hidden)
