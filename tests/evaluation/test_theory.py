# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The theory of chains and batches, against enumeration, simulation and search."""

import itertools
import math

import numpy as np
import pytest

from specjax.evaluation.theory import (
  best_draft_length,
  expected_speed_up,
  expected_tokens,
  memory_bound_speed_up,
)
from specjax.evaluation.theory_batching import (
  batched_speed_up,
  best_batched_draft_length,
  roofline,
  smallest_losing_batch,
)


def enumerated_tokens(rates, share=1.0):
  """The mean over all outcomes of a round: a coin for each position, and the target's token."""
  total = 0.0
  for coins in itertools.product((False, True), repeat=len(rates)):
    probability = math.prod(p if kept else 1 - p for p, kept in zip(rates, coins, strict=True))
    kept = coins.index(False) if False in coins else len(coins)
    total += probability * (kept + 1)
  return share * total + (1 - share)


@pytest.mark.parametrize("gamma", [0, 1, 2, 7])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.95, 1.0])
def test_expected_tokens_are_the_mean_over_all_outcomes(alpha, gamma):
  assert expected_tokens(alpha, gamma) == pytest.approx(enumerated_tokens([alpha] * gamma))
  if alpha < 1:  # equation 1 as it is printed
    printed = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert expected_tokens(alpha, gamma) == pytest.approx(printed)


def test_rates_by_position_and_silent_rounds_are_in_the_mean():
  rates = (0.9, 0.4, 0.0, 0.7)
  for gamma in range(5):
    expected = enumerated_tokens(rates[:gamma], share=0.6)
    assert expected_tokens(rates, gamma, drafting_share=0.6) == pytest.approx(expected)


def simulated_speed_up(rates, cost_ratio, block_cost, share, rounds=40_000):
  """Rounds played one by one with a clock; plain decoding makes a token a second."""
  random = np.random.default_rng(0)
  tokens = seconds = 0.0
  for _ in range(rounds):
    tokens += 1
    if random.random() >= share:
      seconds += 1
      continue
    seconds += len(rates) * cost_ratio + block_cost
    for rate in rates:
      if random.random() >= rate:
        break
      tokens += 1
  return tokens / seconds


@pytest.mark.parametrize(
  ("rates", "cost_ratio", "block_cost", "share"),
  [([0.8] * 4, 0.1, 1.0, 1.0), ([0.9, 0.5, 0.2], 0.05, 1.4, 0.5)],
)
def test_the_speed_up_is_what_a_simulated_clock_shows(rates, cost_ratio, block_cost, share):
  simulated = simulated_speed_up(rates, cost_ratio, block_cost, share)
  predicted = expected_speed_up(rates, len(rates), cost_ratio, block_cost, drafting_share=share)
  assert predicted == pytest.approx(simulated, rel=0.015)


@pytest.mark.parametrize("cost_ratio", [0.0, 0.02, 0.3])
@pytest.mark.parametrize("acceptance", [0.0, 0.25, 0.8, (0.9, 0.9, 0.3, 0.2, 0.1)])
def test_the_best_draft_length_wins_against_all_others(acceptance, cost_ratio):
  longest = len(acceptance) if isinstance(acceptance, tuple) else 40

  def cost(gamma):
    return 1 + 0.01 * gamma

  choice = best_draft_length(
    acceptance, cost_ratio, block_cost=cost, max_draft_length=40, drafting_share=0.7
  )
  everything = [
    expected_speed_up(acceptance, gamma, cost_ratio, cost(gamma), drafting_share=0.7)
    for gamma in range(longest + 1)
  ]
  assert choice.speed_up == pytest.approx(max(everything))
  assert choice.speed_up == pytest.approx(everything[choice.draft_length])
  assert choice.expected_tokens == pytest.approx(
    expected_tokens(acceptance, choice.draft_length, drafting_share=0.7)
  )
  assert choice.pays == (max(everything) > 1)


def test_some_draft_pays_exactly_if_alpha_is_above_c():
  for alpha, cost_ratio in itertools.product(np.linspace(0.05, 0.95, 10), repeat=2):
    choice = best_draft_length(alpha, cost_ratio)
    assert choice.pays == (alpha > cost_ratio * (1 + 1e-9))
    if choice.pays:  # Corollary 3.9: at least this much
      assert choice.speed_up >= (1 + alpha) / (1 + cost_ratio) - 1e-12


def test_memory_bound_speed_up_is_theorem_3_8_with_the_share_of_parameters_as_c():
  assert memory_bound_speed_up(2.5, 5, 115e6, 7e9) == pytest.approx(2.5 / (5 * 115 / 7000 + 1))
  tokens = expected_tokens(0.7, 4)
  assert memory_bound_speed_up(tokens, 4, 1.0, 20.0) == pytest.approx(
    expected_speed_up(0.7, 4, 1 / 20)
  )


# --- batches -----------------------------------------------------------------------------------


def affine(num_tokens):
  """Su et al. fit a line in the tokens of a call."""
  return 3.0 + 0.05 * num_tokens


@pytest.mark.parametrize("call_cost", [roofline(40), affine])
@pytest.mark.parametrize("share", [1.0, 0.4])
def test_a_batch_is_as_fast_as_a_simulation_of_its_rows_says(call_cost, share):
  random = np.random.default_rng(1)
  batch, gamma, alpha, cost_ratio = 6, 3, 0.75, 0.1
  tokens = seconds = 0.0
  for _ in range(8000):
    drafting = random.random(batch) < share
    plain = call_cost(batch)
    wide = drafting.any()
    seconds += gamma * cost_ratio * plain + call_cost(batch * (gamma + 1)) if wide else plain
    for row in range(batch):
      kept = 0
      while drafting[row] and kept < gamma and random.random() < alpha:
        kept += 1
      tokens += kept + 1
  simulated = tokens / seconds * call_cost(batch) / batch
  predicted = batched_speed_up(alpha, gamma, cost_ratio, batch, call_cost, drafting_share=share)
  assert predicted == pytest.approx(simulated, rel=0.015)


def test_one_row_far_from_saturation_is_the_case_without_batches():
  for gamma in range(6):
    assert batched_speed_up(0.6, gamma, 0.1, 1, roofline(100), drafting_share=0.5) == (
      pytest.approx(expected_speed_up(0.6, gamma, 0.1, drafting_share=0.5))
    )


def test_the_best_draft_length_falls_with_the_batch_to_none():
  lengths = []
  for batch in (1, 4, 16, 32, 64, 128):
    choice = best_batched_draft_length(0.8, 0.05, batch, roofline(100))
    everything = [batched_speed_up(0.8, g, 0.05, batch, roofline(100)) for g in range(17)]
    assert choice.speed_up == pytest.approx(max(everything))
    assert choice.draft_length == int(np.argmax(everything))
    lengths.append(choice.draft_length)
  assert lengths == sorted(lengths, reverse=True)
  assert lengths[0] > 4 and lengths[-1] == 0


@pytest.mark.parametrize(("alpha", "cost_ratio"), [(0.8, 0.05), (0.3, 0.1), (0.1, 0.2)])
def test_the_gain_is_gone_where_a_search_over_batches_and_lengths_finds_none(alpha, cost_ratio):
  found = smallest_losing_batch(alpha, cost_ratio, roofline(37), max_draft_length=8)
  pays = [
    max(batched_speed_up(alpha, g, cost_ratio, batch, roofline(37)) for g in range(1, 9)) > 1 + 1e-9
    for batch in range(1, 80)
  ]
  assert found == pays.index(False) + 1
  assert not any(pays[found - 1 :])
  # In closed form for drafts of one token past saturation: (1 + alpha) = c + 2 b / saturation.
  if alpha > cost_ratio:
    closed = smallest_losing_batch(alpha, cost_ratio, roofline(37), max_draft_length=1)
    assert closed == math.ceil((1 + alpha - cost_ratio) * 37 / 2)


def test_a_free_wide_call_pays_in_every_batch():
  assert smallest_losing_batch(0.5, 0.1, lambda tokens: 1.0, max_batch_size=30) is None


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: expected_tokens(1.2, 3), r"acceptance must be a number in \[0, 1\], got 1.2"),
    (lambda: expected_tokens(math.nan, 3), r"acceptance must be a number in \[0, 1\], got nan"),
    (lambda: expected_tokens(0.5, -1), "draft_length must be an integer >= 0, got -1"),
    (lambda: expected_tokens(0.5, 2.0), "draft_length must be an integer >= 0, got 2.0"),
    (lambda: expected_tokens([0.5, -0.1], 2), "acceptance at position 2 must be"),
    (lambda: expected_tokens([0.5], 2), "a rate for each of 2 draft positions, got 1"),
    (lambda: expected_tokens(0.5, 2, drafting_share=2), "drafting_share must be"),
    (lambda: expected_speed_up(0.5, 2, -0.1), "cost_ratio must be a finite number >= 0, got -0.1"),
    (lambda: expected_speed_up(0.5, 2, 0.1, 0), "block_cost must be a finite number > 0, got 0"),
    (lambda: best_draft_length(0.5, math.inf), "cost_ratio must be"),
    (lambda: best_draft_length(0.5, 0.1, max_draft_length=0), "max_draft_length must be"),
    (lambda: memory_bound_speed_up(2.0, 3, 1, 0), "target_parameters must be"),
    (lambda: roofline(0), "saturation_tokens must be a finite number > 0, got 0"),
    (lambda: batched_speed_up(0.5, 2, 0.1, 0, affine), "batch_size must be an integer >= 1, got 0"),
    (lambda: batched_speed_up(0.5, 2, 0.1, 1, lambda n: 0.0), "call_cost must be"),
  ],
)
def test_bad_input_is_named(call, message):
  with pytest.raises(ValueError, match=message):
    call()
