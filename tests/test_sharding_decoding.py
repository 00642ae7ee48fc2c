# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Decoding on eight devices: the tokens of one, and no device that holds a whole vocabulary."""

import itertools
import re

import jax
import numpy as np
import pytest

import specjax
from specjax import decoding, sharding
from specjax.drafters import Blockwise, DraftModel, Empty, PaSS, PromptLookup
from specjax.drafters.blockwise import init_heads
from specjax.models import Transformer, TransformerConfig
from specjax.sampling import SamplingPolicy

pytestmark = pytest.mark.usefixtures("fast_compilation")

MESHES = ["data:8", "data:4,model:2", "data:2,model:4", "model:8"]
CONFIG = TransformerConfig(
  vocab_size=1024,  # like no other size here, so that it is known in compiled programs
  hidden_size=16,
  intermediate_size=32,
  num_layers=1,
  num_heads=8,
  num_kv_heads=8,
  head_dim=2,
  max_positions=128,
)
MODEL = Transformer(CONFIG, dtype="float32")
# Rows of different lengths, in which some tokens come again.
PROMPTS = [[(7 * row + step % 3) % 1024 for step in range(3 + row % 4)] for row in range(8)]
CAPACITY = 40


@pytest.fixture(scope="module")
def params():
  params = MODEL.init(jax.random.key(0))
  return params | {"head": {"kernel": 20 * params["head"]["kernel"]}}


@pytest.fixture(scope="module")
def drafters(params):
  heads = init_heads(jax.random.key(1), 2, CONFIG.hidden_size, 8)
  heads["output"]["kernel"] += 0.1
  return {
    "autoregressive": (Empty(), None),
    "prompt lookup": (PromptLookup(2, min_ngram=1), None),
    "draft model": (DraftModel(MODEL, 2), params),
    "blockwise": (Blockwise(MODEL, 2), {"heads": heads}),
    "pass": (PaSS(MODEL, 2), {"look_ahead": np.ones((2, CONFIG.hidden_size), np.float32)}),
  }


def open_session(params, drafter, model=MODEL, **options):
  drafter, drafter_params = drafter
  return specjax.open_session(
    model,
    params,
    PROMPTS,
    drafter=drafter,
    drafter_params=drafter_params,
    max_new_tokens=[9, 3, 9, 9, 1, 9, 9, 9],
    eos_ids=[5],
    capacity=CAPACITY,
    narrow=False,
    **options,
  )


def decode(*arguments, **options):
  session = open_session(*arguments, **options)
  session.advance()
  return session.snapshot()


@pytest.fixture(scope="module")
def greedy(params, drafters):
  """One device's autoregressive tokens: what every lossless scheme says greedily."""
  return decode(params, drafters["autoregressive"])


def every_scheme_on_every_mesh():
  """All twenty, those that differ least from the others among the slow tests."""
  for name in ("autoregressive", "prompt lookup", "draft model", "blockwise", "pass"):
    for mesh in MESHES:
      slow = name != "autoregressive" and mesh in ("data:8", "data:4,model:2")
      yield pytest.param(name, mesh, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("name", "mesh"), list(every_scheme_on_every_mesh()))
def test_greedy_tokens_on_a_mesh_are_those_of_one_device(name, mesh, params, drafters, greedy):
  session = open_session(params, drafters[name], mesh=mesh)
  session.advance()
  for ours, theirs in zip(session.snapshot(), greedy, strict=True):
    np.testing.assert_array_equal(ours, theirs)
  # The loop hands the cache on as it got it: each device its rows and heads.
  for leaf in jax.tree.leaves(session._state.cache):
    assert leaf.addressable_shards[0].data.nbytes * 8 == leaf.nbytes


@pytest.fixture(scope="module")
def sampled(params, drafters):
  """A session on a mesh under a policy that cuts a tail off, and its compiled loop."""
  policy = SamplingPolicy(temperature=0.8, top_p=0.9)
  session = open_session(params, drafters["draft model"], mesh="data:2,model:4", policy=policy)
  compiled = decoding._decode.lower(
    *session._arguments, session._state, decoding.UNLIMITED
  ).compile()
  return policy, session, compiled


def test_sampled_tokens_on_a_mesh_are_those_of_one_device(sampled, params, drafters):
  """A row's draws come from its key and the position, whatever device it is on."""
  policy, session, compiled = sampled
  state = compiled(*session._arguments[1:], session._state, decoding.UNLIMITED)
  tokens, length, _ = decode(params, drafters["draft model"], policy=policy)
  np.testing.assert_array_equal(state.length, length)
  np.testing.assert_array_equal(state.tokens, tokens)
  assert len(np.unique(tokens)) > 20, "the rows must differ for this to say anything"


def shapes_in(text):
  """All array shapes of compiled HLO."""
  return {
    tuple(map(int, found.split(","))) for found in re.findall(r"\b[a-z]+\d*\[([\d,]+)\]", text)
  }


def test_no_device_holds_scores_of_the_whole_vocabulary(sampled):
  """Acceptance and residual sampling work on the shards; what is gathered is one row's block."""
  text = sampled[2].as_text()
  vocab, shard = CONFIG.vocab_size, CONFIG.vocab_size // 4
  assert any(shape[-1:] == (shard,) and len(shape) > 1 for shape in shapes_in(text))
  # A vector of all ids is a constant. Anything with rows must be cut, reshaped or not.
  assert not [shape for shape in shapes_in(text) if len(shape) > 1 and vocab in shape]
  gathered = re.findall(r"= \S*?\[([\d,]+)\]\S* all-gather", text)
  assert gathered, "small results, such as the best of each block, are gathered"
  for shape in gathered:
    assert np.prod([int(size) for size in shape.split(",")]) < vocab


def test_the_rows_of_other_devices_are_asked_for_nothing(params, drafters):
  """Data parallel alone, a round has no communication but whether any row goes on."""
  session = open_session(params, drafters["autoregressive"], mesh="data:8")
  text = (
    decoding._decode.lower(*session._arguments, session._state, np.int32(3)).compile().as_text()
  )
  pattern = r"= (\S+) (all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)\("
  assert {shape.split("{")[0] for shape, _ in re.findall(pattern, text)} == {"pred[]"}


def test_heads_and_vocabulary_that_do_not_divide_decode_all_the_same():
  """4 query heads over 4 devices, but 2 key/value heads and 61 tokens; also fully sharded."""
  config = TransformerConfig(
    vocab_size=61,
    hidden_size=18,
    intermediate_size=33,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    max_positions=128,
  )
  model = Transformer(config, dtype="float32")
  params = model.init(jax.random.key(0))
  prompts = [[row % 61 for row in ids] for ids in PROMPTS]
  options = {"max_new_tokens": 6, "capacity": CAPACITY}
  want = np.asarray(specjax.generate(model, params, prompts, **options).tokens)
  mesh = sharding.make_mesh("fsdp:2,model:4")
  found = specjax.generate(model, params, prompts, mesh=mesh, **options)
  np.testing.assert_array_equal(found.tokens, want)


def test_a_drafter_may_lie_otherwise_than_the_target(params, drafters, greedy):
  session = open_session(
    params, drafters["draft model"], mesh="model:8", drafter_rules=sharding.REPLICATED
  )
  session.advance()
  for ours, theirs in zip(session.snapshot(), greedy, strict=True):
    np.testing.assert_array_equal(ours, theirs)
  _, target, drafter, _ = session._arguments
  assert not target["head"]["kernel"].is_fully_replicated
  assert all(leaf.is_fully_replicated for leaf in jax.tree.leaves(drafter))
  cache = jax.tree.leaves(session._state.drafter_state.cache)
  assert all(leaf.is_fully_replicated for leaf in cache)
  assert not any(leaf.is_fully_replicated for leaf in jax.tree.leaves(session._state.cache))


def test_streamed_tokens_are_those_of_one_device(params, greedy):
  pieces = specjax.stream(
    MODEL,
    params,
    PROMPTS,
    drafter=Empty(),
    max_new_tokens=[9, 3, 9, 9, 1, 9, 9, 9],
    eos_ids=[5],
    capacity=CAPACITY,
    narrow=False,
    rounds_per_slice=4,
    mesh="data:2,model:4",
  )
  rows = [list(itertools.chain(*row)) for row in zip(*pieces, strict=True)]
  tokens, length, _ = greedy
  for row, prompt, ids, end in zip(rows, PROMPTS, tokens, length, strict=True):
    assert row == ids[len(prompt) : end].tolist()


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"mesh": "data:3"}, "the number of prompts must be a multiple of 3.*got 8"),
    ({"mesh": "data:2,fsdp:3"}, "multiple of 6"),
    ({"mesh": "data:16"}, "needs 16 devices"),
    ({"rules": {"vocab": None}}, "no mesh"),
    ({"drafter_rules": "replicated"}, "no mesh"),
  ],
)
def test_what_does_not_fit_the_mesh_is_refused_before_anything_is_compiled(
  options, words, params, drafters
):
  with pytest.raises(ValueError, match=words):
    open_session(params, drafters["autoregressive"], **options)
