# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Acceptance rates and predicted block efficiency from rows that were really decoded."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_checkpoint
from toys import TableModel

import specjax
from specjax.drafters import DraftModel, PaSS, PromptLookup
from specjax.evaluation.theory import expected_tokens
from specjax.evaluation.theory_rows import (
  chain_acceptance,
  predict_block_efficiency,
  token_acceptance,
)
from specjax.models import checkpoint
from specjax.text import TextGenerator

pytestmark = pytest.mark.usefixtures("fast_compilation")

KEYS = (
  "target_calls",
  "draft_calls",
  "drafted_tokens",
  "accepted_tokens",
  "accepted_histogram",
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  return checkpoint.load(tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"), num_layers=2))


# Greedy and sampled rows; the last prompt has been round the cycle already.
PROMPTS = [b"hello\n", b"fgh", b"some more text\n", (tiny_checkpoint.CYCLE * 2).encode()]
POLICY = specjax.SamplingPolicy(temperature=np.array([0.0, 0.7, 1.0, 0.0], np.float32))
# A copy ends with the text: drafts are shorter there.
LOOKUP = PromptLookup(draft_length=5, min_ngram=1, wrap=False)
DRAFTERS = ("lookup", "pass")


@pytest.fixture(scope="module")
def decode(target):
  """Decodes the prompts with a drafter, and returns a `Generation` on the host."""
  width = target.model.hidden_size
  embeddings = 0.1 * jax.random.normal(jax.random.key(5), (3, width))
  drafters = {
    "lookup": (LOOKUP, None),
    "pass": (PaSS(target.model, look_ahead=3), {"look_ahead": embeddings}),
  }

  def run(name, *, max_new_tokens, eos_ids=()):
    drafter, params = drafters[name]
    return jax.device_get(
      specjax.generate(
        target.model,
        target.params,
        [list(prompt) for prompt in PROMPTS],
        drafter=drafter,
        drafter_params=params,
        policy=POLICY,
        max_new_tokens=max_new_tokens,
        eos_ids=list(eos_ids) or [257],
        capacity=256,
        key=1,
      )
    )

  return run


ENDS = {
  "one budget": {"max_new_tokens": 90},
  "many budgets": {"max_new_tokens": [90, 7, 33, 12]},
  "ends of text": {"max_new_tokens": 90, "eos_ids": (ord("m"), ord("u"))},
}


def rows_of(generation):
  """As `experiments.runner` makes them of each row."""
  values = {name: np.asarray(getattr(generation, name)).tolist() for name in KEYS}
  new_tokens = np.asarray(generation.num_new_tokens).tolist()
  return [
    {"new_tokens": new_tokens[row], **{name: values[name][row] for name in KEYS}}
    for row in range(len(new_tokens))
  ]


def rounds_of(generation):
  """By reading the record of each token: [(drafted, kept, tokens)] of all rounds."""
  rounds = []
  for row, (start, end) in enumerate(
    zip(generation.prompt_lengths, generation.lengths, strict=True)
  ):
    call, drafted, proposed = (
      np.asarray(getattr(generation.records, name))[row, start:end]
      for name in ("call", "drafted", "proposed")
    )
    for index in np.unique(call):
      chosen = call == index
      rounds.append((int(proposed[chosen].max()), int(drafted[chosen].sum()), int(chosen.sum())))
  return rounds


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_predicted_block_efficiency_is_the_measured_one(decode, name, ends):
  generation = decode(name, **ENDS[ends])
  rows = rows_of(generation)
  assert min(row["target_calls"] for row in rows) > 0
  rounds = rounds_of(generation)
  own_calls = sum(drafted > 0 for drafted, _, _ in rounds) if name == "pass" else 0
  measured = sum(tokens for _, _, tokens in rounds) / (len(rounds) + own_calls)
  assert chain_acceptance(rows).measured == pytest.approx(measured)
  assert predict_block_efficiency(rows) == pytest.approx(measured, rel=1e-9)
  for row in rows:  # also one by one, where one cut block matters
    single = row["new_tokens"] / row["target_calls"]
    assert predict_block_efficiency([row]) == pytest.approx(single, rel=1e-9)


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("name", DRAFTERS)
def test_rates_are_those_counted_round_by_round(decode, name, ends):
  generation = decode(name, **ENDS[ends])
  acceptance, rounds = chain_acceptance(rows_of(generation)), rounds_of(generation)
  drafting = [(drafted, kept) for drafted, kept, _ in rounds if drafted]
  assert acceptance.drafting_share == pytest.approx(len(drafting) / len(rounds))
  for position, rate in enumerate(acceptance.rates, start=1):
    before = sum(kept >= position - 1 for _, kept in drafting)
    after = sum(kept >= position for _, kept in drafting)
    assert rate == pytest.approx(after / before if before else 0.0)
  # A token that was never drafted was not judged; a row does not say which rounds these were.
  judged = sum(min(kept + 1, drafted) for drafted, kept in drafting)
  low, high = acceptance.alpha_bounds
  assert low - 1e-12 <= sum(kept for _, kept in drafting) / judged <= high + 1e-12


def test_the_cases_have_silent_rounds_short_drafts_and_cut_blocks(decode):
  budgets = chain_acceptance(rows_of(decode("lookup", **ENDS["many budgets"])))
  assert budgets.silent_rounds > 5 and budgets.cut_rounds == 0
  assert budgets.drafted_tokens < budgets.drafting_rounds * budgets.draft_length
  low, high = budgets.alpha_bounds
  assert low < high
  ended = [chain_acceptance([row]) for row in rows_of(decode("lookup", **ENDS["ends of text"]))]
  cut = [acceptance for acceptance in ended if acceptance.cut_rounds]
  assert cut
  # Without them the prediction would be off by more than 5 %.
  for acceptance in cut:
    blind = dataclasses.replace(acceptance, cut_rounds=0)
    assert blind.predicted() > 1.05 * acceptance.measured
  assert chain_acceptance(rows_of(decode("pass", **ENDS["one budget"]))).certain_tokens == 1


def test_a_block_that_a_stop_string_cuts_is_predicted_too(target):
  generator = TextGenerator(target, drafter=LOOKUP, raw=True)
  prompts = [prompt.decode() for prompt in PROMPTS]
  answers = generator.generate(
    prompts, stop=["xyz"], policy=POLICY, max_new_tokens=90, capacity=256, key=1
  )
  assert {answer.finish_reason for answer in answers} >= {"stop"}
  rows = [dataclasses.asdict(answer) | {"new_tokens": answer.new_tokens} for answer in answers]
  assert any(chain_acceptance([row]).cut_rounds for row in rows)
  measured = sum(answer.new_tokens for answer in answers) / sum(a.target_calls for a in answers)
  assert predict_block_efficiency(rows) == pytest.approx(measured)


# --- a law whose alpha is known ------------------------------------------------------------------


@pytest.fixture(scope="module")
def known_law():
  """alpha, and rows by draft length, of tables whose rows are all alike."""
  random = np.random.default_rng(0)
  vocab_size = 8
  target, draft = random.dirichlet(np.ones(vocab_size), size=2)
  target = 0.5 * target + 0.5 * draft
  tables = [jnp.log(jnp.tile(law, (vocab_size, 1))).astype(jnp.float32) for law in (target, draft)]
  model = TableModel(vocab_size)
  rows = {}
  for length in (5, 2):
    generation = specjax.generate(
      model,
      {"table": tables[0]},
      [[0]] * 96,
      drafter=DraftModel(model, draft_length=length),
      drafter_params={"table": tables[1]},
      policy=specjax.SamplingPolicy(temperature=1.0),
      max_new_tokens=120,
      key=0,
    )
    rows[length] = rows_of(jax.device_get(generation))
  return float(np.minimum(target, draft).sum()), rows


def test_equation_1_with_the_exact_alpha_predicts_what_is_decoded(known_law):
  alpha, rows = known_law
  assert 0.6 < alpha < 0.95
  for length, chosen in rows.items():
    measured = chain_acceptance(chosen).measured
    assert expected_tokens(alpha, length) == pytest.approx(measured, rel=0.05)


def test_alpha_and_rates_of_rows_are_the_exact_ones(known_law):
  alpha, rows = known_law
  acceptance = chain_acceptance(rows[5])
  assert acceptance.alpha == pytest.approx(alpha, abs=0.02)
  assert acceptance.rates == pytest.approx([alpha] * 5, abs=0.06)
  assert acceptance.predicted(rates=acceptance.alpha) == pytest.approx(
    acceptance.measured, rel=0.05
  )


def test_rates_of_long_drafts_predict_short_ones_and_other_rows(known_law):
  _, rows = known_law
  long, short = chain_acceptance(rows[5]), chain_acceptance(rows[2])
  assert long.predicted(2) == pytest.approx(short.measured, rel=0.05)
  halves = chain_acceptance(rows[5][:48]), chain_acceptance(rows[5][48:])
  assert halves[0].predicted() == pytest.approx(halves[1].measured, rel=0.05)


# --- rows written by hand ------------------------------------------------------------------------


def row(histogram, *, drafting=None, drafted=None, cut=0, own_calls=0):
  rounds, accepted = sum(histogram), sum(n * count for n, count in enumerate(histogram))
  drafting = rounds if drafting is None else drafting
  return {
    "accepted_histogram": histogram,
    "accepted_tokens": accepted,
    "draft_calls": drafting,
    "drafted_tokens": drafting * (len(histogram) - 1) if drafted is None else drafted,
    "new_tokens": rounds + own_calls + accepted - cut,
    "target_calls": rounds + own_calls,
  }


def test_bounds_hold_for_all_ways_to_shorten_drafts():
  random = np.random.default_rng(2)
  for _ in range(300):
    gamma, histogram = int(random.integers(2, 6)), None
    histogram = np.zeros(gamma + 1, int)
    drafted = judged = kept_tokens = 0
    for _ in range(int(random.integers(1, 9))):
      length = int(random.integers(1, gamma + 1))
      kept = int(random.integers(0, length + 1))
      histogram[kept] += 1
      drafted, judged = drafted + length, judged + min(kept + 1, length)
      kept_tokens += kept
    acceptance = chain_acceptance([row(histogram.tolist(), drafted=drafted)])
    low, high = acceptance.alpha_bounds
    assert low - 1e-12 <= kept_tokens / judged <= high + 1e-12
    assert low <= acceptance.alpha <= high


def test_token_acceptance_is_the_lower_bound_and_leaves_silent_rounds_out():
  rows = [row([5, 0, 1, 2], drafting=5)]  # three of the five that kept none had no draft
  assert token_acceptance(rows, 3) == pytest.approx(8 / 11)
  assert token_acceptance(rows, 3) == pytest.approx(chain_acceptance(rows).alpha_bounds[0])
  assert token_acceptance([row([4, 0], drafting=0)], 1) is None
  assert chain_acceptance([row([4, 0], drafting=0)]).alpha is None


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ([], "rows must hold at least one row"),
    ([{"new_tokens": 3}], "row 0 must have the keys accepted_histogram, .* it lacks"),
    ([row([1, 1]), row([1, 1, 1])], r"rows must all have the same draft length, got \[1, 2\]"),
    ([row([1, 1]) | {"new_tokens": 9}], "row 0 contradicts itself: .* new_tokens 9"),
    ([row([1, 1]) | {"accepted_tokens": 0}], "row 0 contradicts itself"),
    ([row([1, 1]), row([0, 2], own_calls=2)], "rows must all be of one drafter"),
  ],
)
def test_rows_that_make_no_sense_are_named(rows, message):
  with pytest.raises(ValueError, match=message):
    chain_acceptance(rows)


def test_nothing_is_predicted_beyond_what_was_measured():
  acceptance = chain_acceptance([row([2, 1, 1])])
  with pytest.raises(ValueError, match="a rate for each of 3 draft positions, got 2"):
    acceptance.predicted(3)
  assert acceptance.predicted(0) == 1
  with pytest.raises(ValueError, match="at least one target call"):
    predict_block_efficiency([row([0, 0])])
