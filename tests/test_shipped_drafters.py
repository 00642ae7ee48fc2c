# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The trained drafters that come with specjax, on the target that they were trained for."""

import functools

import jax
import numpy as np
import pytest

import specjax
from experiments.prompts import BUILT_IN
from specjax.decoding import make_scheme
from specjax.drafters import Empty
from specjax.drafters.drafter_file import load_drafter
from specjax.drafters.shipped import find_shipped
from specjax.models import checkpoint as checkpoints
from specjax.text import TextGenerator
from specjax.verifiers import RejectionSampling

pytestmark = pytest.mark.real_model
# By way to decode: scheme, options of its builder, and tokens a target call that it must exceed.
# What was measured on these prompts is well above; a drafter that is broken comes to 1.0.
WAYS = {
  "blockwise": ("blockwise", {}, 1.1),
  "PaSS": ("pass", {"look_ahead": 2}, 1.05),
  "PaSS, merged": ("pass", {"look_ahead": 3, "merged": True}, 1.1),
  "draft model": ("draft_model", {}, 1.3),
}


@pytest.fixture(scope="module")
def target():
  return checkpoints.load("smollm2-135m-instruct", dtype="float32")


@pytest.fixture(scope="module")
def decode(target):
  """Decodes two prompts with a drafter and its parameters."""
  prompts = [TextGenerator(target).encode(prompt.turns[0]) for prompt in BUILT_IN[:2]]

  def run(drafter, params):
    generation = specjax.generate(
      target.model,
      target.params,
      prompts,
      drafter=drafter,
      drafter_params=params,
      eos_ids=target.eos_ids,
      max_new_tokens=40,
      capacity=256,
    )
    return jax.device_get(generation)

  return run


@pytest.fixture(scope="module")
def plain_text(decode):
  """The tokens of autoregressive decoding with blocks of a width, once for each width."""
  return functools.cache(lambda width: decode(Empty(draft_length=width - 1), None).new_tokens())


@pytest.mark.parametrize("way", WAYS)
def test_a_shipped_drafter_pays_and_leaves_the_greedy_text_as_it_is(
  target, decode, plain_text, way
):
  scheme, options, floor = WAYS[way]
  path = find_shipped(scheme, target.model, target.params)
  assert path is not None
  drafter, params = load_drafter(path, target.model, target.params, **options)
  drafted = decode(drafter, params)
  # A matrix product of another width rounds differently: the same width gives the same bits.
  width = make_scheme(target.model, drafter, RejectionSampling()).block_width
  assert drafted.new_tokens() == plain_text(width)
  tokens = sum(map(len, drafted.new_tokens()))
  assert tokens / np.sum(drafted.target_calls) > floor
