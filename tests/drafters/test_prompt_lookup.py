# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specjax.drafters import PromptLookup

pytestmark = pytest.mark.usefixtures("fast_compilation")


@functools.cache
def _compiled(drafter):
  return jax.jit(drafter._look_up)


def look_up(drafter, tokens, length=None, capacity=24):
  padded = np.zeros(capacity, np.int32)
  padded[: len(tokens)] = tokens
  length = len(tokens) if length is None else length
  drafted, valid = _compiled(drafter)(jnp.asarray(padded), jnp.int32(length))
  return [int(t) for t, ok in zip(drafted, valid, strict=True) if ok]


def reference(drafter, tokens):
  """Longest suffix first; every earlier occurrence, in a Python loop."""
  for size in range(min(drafter.max_ngram, len(tokens) - 1), drafter.min_ngram - 1, -1):
    suffix = tokens[len(tokens) - size :]
    ends = [end for end in range(size, len(tokens)) if tokens[end - size : end] == suffix]
    if ends:
      end = ends[0] if drafter.occurrence == "first" else ends[-1]
      following = tokens[end:]
      if drafter.wrap:
        following = following * drafter.draft_length
      return following[: drafter.draft_length]
  return []


@settings(deadline=None, max_examples=60)
@given(
  st.lists(st.integers(0, 3), min_size=1, max_size=20),
  st.sampled_from(["first", "latest"]),
  st.booleans(),
  st.integers(1, 2),
)
def test_lookup_is_the_brute_force_scan(tokens, occurrence, wrap, min_ngram):
  drafter = PromptLookup(5, 3, min_ngram, occurrence, wrap)
  assert look_up(drafter, tokens) == reference(drafter, tokens)


def test_no_match_proposes_nothing():
  assert look_up(PromptLookup(4), [1, 2, 3, 4]) == []
  assert look_up(PromptLookup(4), [1]) == []


def test_garbage_past_the_length_is_never_matched_or_copied():
  assert look_up(PromptLookup(4), [5, 6, 7, 5, 6], length=3) == []
  assert look_up(PromptLookup(4, min_ngram=1, wrap=False), [5, 6, 7, 5, 9, 9], length=4) == [
    6,
    7,
    5,
  ]


def test_the_longest_match_wins_over_a_later_shorter_one():
  tokens = [1, 2, 3, 9, 3, 8, 1, 2, 3]
  assert look_up(PromptLookup(2, min_ngram=1), tokens) == [9, 3]


def test_zero_is_a_token_like_any_other():
  assert look_up(PromptLookup(2, min_ngram=1), [7, 0, 5, 7]) == [0, 5]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"max_ngram": 1}, "1 <= min_ngram <= max_ngram"),
    ({"min_ngram": 0}, "1 <= min_ngram <= max_ngram"),
    ({"occurrence": "last"}, "occurrence must be 'latest' or 'first', got 'last'"),
    ({"draft_length": -1}, "draft_length"),
  ],
)
def test_bad_settings_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    PromptLookup(**options)
