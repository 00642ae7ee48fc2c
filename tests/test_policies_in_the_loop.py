# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Every option of the sampling policy, through the loop, under every verifier.

Greedy: the output with a drafter equals the output without one. What the option does by itself
is tested in test_sampling.py; here it must survive drafting and verification.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from laws import chi_square_p_value
from toys import HistoryModel, TableModel, exact_law, random_table

import specjax
from specjax.drafters import DraftModel, PromptLookup
from specjax.sampling import SamplingPolicy
from specjax.verifiers import REGISTRY

pytestmark = pytest.mark.usefixtures("fast_compilation")

V, EOS = 9, 4
MODEL = HistoryModel(V)
PARAMS = MODEL.init(5)
PROMPTS = [[1, 2, 1, 2], [7], [3, 3, 0, 8, 1]]


def alternates(scores, context):
  """A regular language: an even token follows an odd one, and an odd one an even one."""
  last = context.tokens[context.length - 1]
  parity = jnp.arange(scores.shape[0]) % 2
  return jnp.where(parity != last % 2, scores, -jnp.inf)


# One setting that matters for each field of the policy; a new field must be added here.
SETTINGS = {
  "temperature": {"temperature": 0.0},
  "top_k": {"top_k": 2},
  "top_p": {"top_p": 0.5},
  "min_p": {"min_p": 0.3},
  "repetition_penalty": {"repetition_penalty": 1.8},
  "presence_penalty": {"presence_penalty": 2.0},
  "frequency_penalty": {"frequency_penalty": 1.5},
  "min_new_tokens": {"min_new_tokens": 9},
  "forbidden_tokens": {"forbidden_tokens": [2, 5, 6]},
  "forced_tokens": {"forced_tokens": [6, -1, 5]},
  "logit_bias": {"logit_bias": {3: 4.0, 1: -5.0}},
  "processor": {"processor": alternates},
}
LOSSLESS = [name for name, verifier in REGISTRY.items() if verifier().lossless]
SET_BY_RESOLVE = {"tail", "eos_ids", "sampled"}


def generate(policy, *, drafted, verifier=None, key=0, prompts=PROMPTS, **options):
  options = {"max_new_tokens": 16, "eos_ids": [EOS], "capacity": 48, **options}
  drafter, params = None, None
  if drafted:
    drafter = DraftModel(HistoryModel(V, hidden_size=4), 3)
    params = drafter.model.init(6)
  return specjax.generate(
    MODEL,
    PARAMS,
    prompts,
    policy=policy,
    drafter=drafter,
    drafter_params=params,
    verifier=None if verifier is None else REGISTRY[verifier](),
    key=key,
    **options,
  )


def test_every_field_of_the_policy_has_a_setting_here():
  fields = {field.name for field in dataclasses.fields(SamplingPolicy)}
  assert set(SETTINGS) == fields - SET_BY_RESOLVE


@pytest.mark.parametrize("verifier", LOSSLESS)
@pytest.mark.parametrize("name", SETTINGS)
def test_greedy_output_under_an_option_is_that_of_plain_decoding(name, verifier):
  policy = SamplingPolicy(**SETTINGS[name])
  plain = generate(policy, drafted=False)
  drafted = generate(policy, drafted=True, verifier=verifier)
  assert drafted.new_tokens() == plain.new_tokens()
  assert drafted.finish_reasons == plain.finish_reasons


@pytest.mark.parametrize("name", sorted(set(SETTINGS) - {"temperature"}))
def test_sampled_output_under_an_option_is_that_of_plain_decoding(name):
  """Target match draws every token by its position's key, so that outputs can be compared."""
  policy = SamplingPolicy(**{"temperature": 1.2, **SETTINGS[name]})
  plain = generate(policy, drafted=False, verifier="target_match", key=3)
  drafted = generate(policy, drafted=True, verifier="target_match", key=3)
  assert drafted.new_tokens() == plain.new_tokens()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_keeps_the_output_inside_a_regular_language(temperature):
  """At every position of the block, the corrected and the bonus token included."""
  policy = SamplingPolicy(temperature=temperature, processor=alternates)
  generation = generate(policy, drafted=True, eos_ids=[], key=5)
  for prompt, tokens in zip(PROMPTS, generation.new_tokens(), strict=True):
    assert len(tokens) == 16
    for before, after in zip([prompt[-1], *tokens], tokens, strict=False):
      assert before % 2 != after % 2


@pytest.mark.parametrize("drafted", [False, True])
def test_min_new_tokens_counts_tokens_and_neither_prompt_nor_rounds(drafted):
  """The target wants EOS at once; it may come exactly at the sixth new token."""
  model = TableModel(5)
  table = jnp.zeros((5, 5)).at[:, EOS].set(9.0).at[:, 1].set(3.0)
  generation = specjax.generate(
    model,
    {"table": table},
    [[0] * 10, [2]],
    policy=SamplingPolicy(min_new_tokens=[5, 0]),
    drafter=DraftModel(model, 4) if drafted else None,
    drafter_params={"table": table} if drafted else None,
    eos_ids=[EOS],
    max_new_tokens=12,
  )
  assert generation.new_tokens() == [[1] * 5 + [EOS], [EOS]]


def test_without_eos_the_last_token_of_the_vocabulary_stays_usable():
  model, table = TableModel(5), jnp.zeros((5, 5)).at[:, 4].set(9.0)
  generation = specjax.generate(
    model,
    {"table": table},
    [[0]],
    policy=SamplingPolicy(min_new_tokens=3),
    drafter=PromptLookup(3),
    max_new_tokens=4,
  )
  assert generation.new_tokens() == [[4] * 4]


def test_tokens_that_the_policy_forbids_never_come_out():
  model = TableModel(V)
  target, proposal = random_table(1, V), random_table(2, V)
  generation = specjax.generate(
    model,
    {"table": target},
    np.zeros((20_000, 1), np.int32),
    policy=SamplingPolicy(temperature=1.0, top_k=3),
    drafter=DraftModel(model, 2),
    drafter_params={"table": proposal},
    max_new_tokens=5,
    key=2,
  )
  tokens = np.asarray(generation.tokens)[:, :6]
  allowed = np.asarray(target >= jnp.sort(target, axis=1)[:, -3:-2])
  assert allowed[tokens[:, :-1], tokens[:, 1:]].all()


def test_rows_that_are_decoded_together_are_independent():
  """The joint law of two neighbouring rows is the product of their laws."""
  model, table = TableModel(4), random_table(1, 4)
  policy = SamplingPolicy(temperature=1.0)
  generation = specjax.generate(
    model,
    {"table": table},
    np.zeros((60_000, 1), np.int32),
    policy=policy,
    drafter=DraftModel(model, 2),
    drafter_params={"table": random_table(7, 4)},
    max_new_tokens=2,
    key=1,
  )
  second = np.asarray(generation.tokens)[:, 2].reshape(-1, 2)
  single = exact_law(policy, table, [0], 2)
  law = {
    (a, b): sum(single[x, a] for x in range(4)) * sum(single[x, b] for x in range(4))
    for a in range(4)
    for b in range(4)
  }
  counts = {pair: int((second == pair).all(axis=1).sum()) for pair in law}
  assert chi_square_p_value(counts, law) > 1e-3


def test_unseeded_rows_of_one_prompt_differ_and_a_row_key_fixes_a_row():
  policy = SamplingPolicy(temperature=2.0)
  rows = generate(policy, drafted=True, prompts=[[1, 2]] * 4, eos_ids=[]).new_tokens()
  assert len(set(map(tuple, rows))) == 4
  keys = jax.random.split(jax.random.key(4), 2)
  first = generate(
    policy, drafted=True, prompts=[[1, 2], [5]], row_keys=keys, key=None, eos_ids=[]
  ).new_tokens()
  swapped = generate(
    policy, drafted=True, prompts=[[5], [1, 2]], row_keys=keys[::-1], key=None, eos_ids=[]
  ).new_tokens()
  assert first == swapped[::-1]
