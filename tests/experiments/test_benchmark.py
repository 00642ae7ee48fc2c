# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's arithmetic. Tests time nothing: the seconds here are made up."""

import pytest

from experiments import benchmark
from experiments.prompts import Prompt

PROMPTS = (Prompt(turns=("a",), category="writing"), Prompt(turns=("b",), category="editing"))


def timing(seconds, num_tokens, calls=0):
  return benchmark.Timing(seconds=seconds, tokens=list(range(num_tokens)), calls=calls)


def timings():
  return {
    ("specjax", "autoregressive", 0): timing([1.0, 1.0, 9.0], 11),
    ("transformers", "autoregressive", 0): timing([2.0, 2.0, 2.0], 11),
    ("specjax", "autoregressive", 1): timing([1.0], 11),
    ("transformers", "autoregressive", 1): timing([4.0], 11),
    ("specjax", "prompt_lookup", 0): timing([1.0], 11),
    ("transformers", "prompt_lookup", 0): timing([1.0], 11),
    ("specjax", "prompt_lookup", 1): timing([0.25], 11, calls=3),
    ("transformers", "prompt_lookup", 1): timing([0.75], 10),
  }


def test_ratios_are_of_median_seconds_a_token():
  _, figures = benchmark.summarise(timings(), PROMPTS)
  assert figures["ratio_autoregressive"] == pytest.approx((2 + 4) / (1 + 1))
  # About the editing prompt; the first token belongs to the prefill on both sides.
  assert figures["ratio_prompt_lookup"] == pytest.approx((0.75 / 9) / (0.25 / 10))
  assert figures["speedup_prompt_lookup"] == pytest.approx(4.0)


def test_tokens_that_differ_are_said_to():
  table, figures = benchmark.summarise(timings(), PROMPTS)
  assert "differ from 10" in table
  assert [row["tokens_equal"] for row in figures["raw"]] == [True, True, True, False]


def test_without_the_peer_there_is_no_ratio_but_our_own_speed_up():
  ours = {key: value for key, value in timings().items() if key[0] == "specjax"}
  _, figures = benchmark.summarise(ours, PROMPTS)
  assert figures["ratio_autoregressive"] is None
  assert figures["speedup_prompt_lookup"] == pytest.approx(4.0)
