# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What the compiled loop must look like: no cache copies, little memory, exportable."""

import math
import re

import jax
import numpy as np
import pytest
from toys import TableTree

import specjax
from specjax import decoding
from specjax.drafters import DraftModel, Empty, Fallback, PaSS, PromptLookup
from specjax.models import Transformer, TransformerConfig
from specjax.sampling import SamplingPolicy

CAPACITY, BATCH = 1024, 1
CONFIG = TransformerConfig(
  vocab_size=640,
  hidden_size=32,
  intermediate_size=64,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=32,
  max_positions=4096,
)
MODEL = Transformer(CONFIG, dtype="float32")
PARAMS = MODEL.init(jax.random.key(0))
LOOK_AHEAD = {"look_ahead": np.ones((3, CONFIG.hidden_size), np.float32)}
DRAFTERS = {
  "empty": (Empty(), None),
  "prompt lookup": (PromptLookup(4), None),
  "draft model": (DraftModel(MODEL, 3), PARAMS),
  "tree": (TableTree((-1, -1, 0, 0), "top"), {"table": np.eye(640, dtype=np.float32)}),
  "fallback": (Fallback(PromptLookup(4), DraftModel(MODEL, 3)), (None, PARAMS)),
  "pass": (PaSS(MODEL, 3), LOOK_AHEAD),
  "merged pass": (PaSS(MODEL, 2, merged=True), LOOK_AHEAD),
}
POLICIES = {"greedy": SamplingPolicy(), "sampled": SamplingPolicy(temperature=0.7)}


def compiled_loop(name, policy, batch=BATCH, capacity=CAPACITY):
  drafter, params = DRAFTERS[name]
  session = specjax.open_session(
    MODEL,
    PARAMS,
    [[1, 2, 3]] * batch,
    drafter=drafter,
    drafter_params=params,
    policy=policy,
    max_new_tokens=50,
    capacity=capacity,
  )
  lowered = decoding._decode.lower(*session._arguments, session._state, np.int32(9))
  return session, lowered.compile()


def num_bytes(tree):
  leaves = [
    leaf
    for leaf in jax.tree.leaves(tree)
    if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
  ]
  return sum(leaf.nbytes for leaf in leaves)


def copies_of(text, shape):
  """Instructions of compiled HLO that copy a whole buffer of this shape."""
  dimensions = ",".join(map(str, shape))
  pattern = rf"= f32\[{dimensions}\]\S* (copy|transpose|select)\("
  return re.findall(pattern, text)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_loop_copies_no_cache(name, policy, batch):
  _, compiled = compiled_loop(name, policy, batch)
  text = compiled.as_text()
  cache_shape = (batch, CONFIG.num_kv_heads, CAPACITY, CONFIG.head_dim)
  assert f"f32[{','.join(map(str, cache_shape))}]" in text
  assert copies_of(text, cache_shape) == []


@pytest.mark.parametrize("name", DRAFTERS)
def test_peak_memory_is_weights_caches_and_a_small_remainder(name):
  """Beyond its arguments the loop needs the block's logits a few times over, nothing more."""
  session, compiled = compiled_loop(name, POLICIES["sampled"])
  memory = compiled.memory_analysis()
  drafter = DRAFTERS[name][0]
  logits = 4 * BATCH * (1 + drafter.num_nodes) * CONFIG.vocab_size
  # Per layer and token of the block: attention scores over the capacity.
  scores = 4 * BATCH * (1 + drafter.num_nodes) * CONFIG.num_heads * CAPACITY
  remainder = 4 * logits + 6 * scores + 64 * 1024
  cache = num_bytes(session._state.cache)
  assert memory.temp_size_in_bytes <= remainder
  assert remainder < cache * 4, "the bound must be able to notice a copied cache"
  # The state is donated: every buffer of it is written in place.
  assert memory.alias_size_in_bytes >= num_bytes(session._state.cache)


def test_temporary_memory_does_not_hold_a_second_cache():
  """Quadrupling the cache adds attention scores, and not a cache."""
  small, large = (
    compiled_loop("prompt lookup", POLICIES["greedy"], capacity=capacity)[1].memory_analysis()
    for capacity in (CAPACITY, 4 * CAPACITY)
  )
  drafter = DRAFTERS["prompt lookup"][0]
  scores = 4 * (1 + drafter.num_nodes) * CONFIG.num_heads * 3 * CAPACITY
  cache = 4 * 2 * CONFIG.num_layers * CONFIG.num_kv_heads * CONFIG.head_dim * 3 * CAPACITY
  growth = large.temp_size_in_bytes - small.temp_size_in_bytes
  assert growth < 8 * scores < 2 * cache


def test_the_logits_of_a_block_are_the_only_buffer_of_its_width_by_the_vocabulary():
  """Under a sampled policy the laws are made one node at a time."""
  _, compiled = compiled_loop("prompt lookup", POLICIES["sampled"])
  width, vocab = 1 + DRAFTERS["prompt lookup"][0].num_nodes, CONFIG.vocab_size
  made = []
  for computation in compiled.as_text().split("\n}"):
    # What a fusion computes inside never exists as a buffer.
    if not re.match(r"\s*%?(fused|wrapped|\S*fusion)", computation):
      made += re.findall(rf"%(\S+) = f32\[(?:{BATCH},)?{width},{vocab}\]", computation)
  views = r"(get-tuple-element|param|arg|bitcast)[.\d]*$"
  made = [name for name in made if not re.match(views, name)]
  # The product of the full block, the narrow one padded to its width, zeros to begin with.
  assert len(made) <= 4, made  # the product is listed with and without its fusion
  assert not [name for name in made if re.search("exp|copy|sort|softmax|select|div|sub", name)]


def test_prefill_makes_no_logits_of_the_prompt():
  prompts = np.ones((1, 256), np.int32)
  session = specjax.open_session(MODEL, PARAMS, prompts, max_new_tokens=4)
  scheme, params, drafter_params, fixed = session._arguments
  text = (
    decoding._start.lower(scheme, params, drafter_params, fixed, prompts, 512).compile().as_text()
  )
  assert not re.search(rf"f32\[(1,)?256,{CONFIG.vocab_size}\]", text)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_generate_exports_for_tpu_and_cuda_on_a_cpu_machine(name, policy):
  drafter, drafter_params = DRAFTERS[name]

  def run(params, drafter_params, prompts, lengths, seed):
    generation = specjax.generate(
      MODEL,
      params,
      prompts,
      prompt_lengths=lengths,
      drafter=drafter,
      drafter_params=drafter_params,
      policy=policy,
      max_new_tokens=8,
      capacity=64,
      key=jax.random.key(seed),
      eos_ids=[3],
    )
    return generation.tokens, generation.lengths, generation.accepted_histogram

  arguments = (
    PARAMS,
    drafter_params,
    np.ones((2, 16), np.int32),
    np.array([5, 16], np.int32),
    np.uint32(0),
  )
  exported = jax.export.export(jax.jit(run), platforms=["tpu", "cuda", "cpu"])(*arguments)
  assert set(exported.platforms) == {"tpu", "cuda", "cpu"}
  if name == "prompt lookup":
    loaded = jax.export.deserialize(exported.serialize())
    for ours, theirs in zip(loaded.call(*arguments), jax.jit(run)(*arguments), strict=True):
      np.testing.assert_array_equal(ours, theirs)


def test_no_donated_buffer_is_left_unused(recwarn):
  session, _ = compiled_loop("fallback", POLICIES["sampled"])
  session.advance()
  assert not [w for w in recwarn if "donated" in str(w.message)]


def test_the_users_own_keys_survive_the_donation():
  keys = jax.random.split(jax.random.key(0), 2)
  for _ in range(2):
    specjax.generate(MODEL, PARAMS, [[1], [2]], row_keys=keys, max_new_tokens=3)
  assert keys.shape == (2,) and math.isfinite(float(jax.random.uniform(keys[0])))
