# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""alpha and c from rows: found again where they are known, refused where rows cannot tell."""

import numpy as np
import pytest

from specjax.evaluation.theory_fit import fit


def played_rows(
  alpha=0.7, cost_ratio=0.1, gamma=4, share=1.0, *, prompts=30, rounds=60, noise=0.0, seed=0
):
  """Rows of both methods: rounds played one by one, a plain target call taking 20 ms."""
  random = np.random.default_rng(seed)
  rows = []
  for prompt in range(prompts):
    histogram, drafting, seconds = [0] * (gamma + 1), 0, 0.0
    for _ in range(rounds):
      kept = 0
      if random.random() < share:
        drafting += 1
        seconds += 0.02 * (1 + gamma * cost_ratio)
        while kept < gamma and random.random() < alpha:
          kept += 1
      else:
        seconds += 0.02
      histogram[kept] += 1
    accepted = sum(size * count for size, count in enumerate(histogram))
    common = {"prompt_index": prompt, "turn": 0, "batch_size": 1}
    slow = 1 + noise * random.standard_normal(2)
    rows.append(
      common
      | {
        "method": "drafter",
        "accepted_histogram": histogram,
        "accepted_tokens": accepted,
        "draft_calls": drafting,
        "drafted_tokens": drafting * gamma,
        "new_tokens": rounds + accepted,
        "target_calls": rounds,
        "decode_seconds": seconds * slow[0],
      }
    )
    tokens = rounds + accepted
    rows.append(
      common
      | {
        "method": "autoregressive",
        "target_calls": tokens,
        "new_tokens": tokens,
        "decode_seconds": 0.02 * tokens * slow[1],
      }
    )
  return rows


@pytest.mark.parametrize(
  ("alpha", "cost_ratio", "gamma", "share"), [(0.7, 0.1, 4, 1.0), (0.4, 0.02, 8, 0.5)]
)
def test_known_alpha_and_cost_are_found_again(alpha, cost_ratio, gamma, share):
  found = fit(played_rows(alpha, cost_ratio, gamma, share), "drafter")
  assert found.alpha.value == pytest.approx(alpha, abs=0.03)
  assert found.alpha.low < alpha < found.alpha.high
  assert found.cost_ratio.value == pytest.approx(cost_ratio)
  assert found.acceptance.drafting_share == pytest.approx(share, abs=0.05)
  # The clock has no noise: the theory's speed-up is the measured one.
  assert found.expected_speed_up == pytest.approx(found.speed_up.value)
  assert found.speed_up.low < found.speed_up.value < found.speed_up.high


def test_intervals_hold_the_truth_as_often_as_they_say_and_shrink_with_the_prompts():
  inside = []
  for seed in range(40):
    found = fit(played_rows(noise=0.1, prompts=12, seed=seed), "drafter", resamples=300)
    inside.append(found.cost_ratio.low <= 0.1 <= found.cost_ratio.high)
  assert 0.8 <= np.mean(inside) <= 1
  more = fit(played_rows(noise=0.1, prompts=200, rounds=20), "drafter")
  assert more.cost_ratio.high - more.cost_ratio.low < 0.02
  assert found.cost_ratio.high - found.cost_ratio.low > 0.02


def test_drafts_that_were_shorter_widen_the_interval_of_alpha():
  rows = played_rows()
  for row in rows:
    if row["method"] == "drafter":
      row["drafted_tokens"] -= row["draft_calls"] // 3
  whole, short = fit(played_rows(), "drafter").alpha, fit(rows, "drafter").alpha
  assert short.high > whole.high + 0.01 and short.value > whole.value


def change(**values):
  return [row | values if row["method"] == "drafter" else row for row in played_rows()]


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    ([], "there is no row of the method 'drafter'"),
    (
      [row for row in played_rows() if row["method"] == "drafter"],
      "no row of 'autoregressive' .* decode with --methods=autoregressive,drafter",
    ),
    (played_rows(prompts=2), "2 conversations in common; it takes at least 3"),
    (played_rows(prompts=3, rounds=2), "drafted tokens of 'drafter' were judged; it takes at"),
    (played_rows(share=0.0), "'drafter' drafted nothing"),
    (change(batch_size=4), "decoded 4 at a time: .* decode with --batch_size=1"),
    (change(drafted_tokens=10_000), "'drafter' drafts token trees"),
    (change(decode_seconds=0.0), "no decode_seconds"),
    (played_rows(noise=0.9, prompts=5, gamma=1), "cannot tell its draft cost c: it lies between"),
    (
      played_rows(0.5, prompts=4, rounds=6, gamma=2, seed=5),
      "cannot tell its alpha: it lies between",
    ),
    (
      [{k: v for k, v in row.items() if k != "decode_seconds"} for row in played_rows()],
      "a row of 'drafter' lacks decode_seconds",
    ),
  ],
)
def test_rows_that_cannot_tell_are_refused_with_the_reason(rows, message):
  with pytest.raises(ValueError, match=message):
    fit(rows, "drafter")


def test_a_drafter_that_calls_the_target_itself_has_no_c():
  rows = played_rows()
  for row in rows:
    if row["method"] == "drafter":
      row["target_calls"] += row["draft_calls"]
      row["new_tokens"] += row["draft_calls"]
  with pytest.raises(ValueError, match="calls the target itself to draft"):
    fit(rows, "drafter")
