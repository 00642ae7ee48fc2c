# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The figures of the report, against slow loops. Nothing is timed: the seconds are made up."""

import numpy as np
import pytest
from spec_bench_rows import row, write

from experiments.differences import find_differences
from experiments.report_pages import measures
from experiments.report_pages.runs import machines, pool_runs, read_run


def both(tmp_path, rows, **settings):
  (pool,) = pool_runs([read_run(write(tmp_path, rows, **settings))])
  return pool.rows["m"], pool.baseline


def some_rows(rng, questions):
  for index in range(questions):
    for method in ("autoregressive", "m"):
      per_call = [1] * int(rng.integers(2, 9)) if method != "m" else rng.integers(1, 5, 4).tolist()
      yield row(method, index, per_call, seconds=rng.uniform(1, 5), prefill=rng.uniform(0, 2))


def test_speed_ups_are_ratios_of_totals_and_of_mean_rates(tmp_path):
  rows = list(some_rows(np.random.default_rng(0), 7))
  speed = measures.speed_up(*both(tmp_path, rows))
  totals, rates = {}, {}
  for method in ("autoregressive", "m"):
    chosen = [r for r in rows if r["method"] == method]
    tokens = sum(r["new_tokens"] for r in chosen)
    decode = sum(r["decode_seconds"] for r in chosen)
    wall = [r["prefill_seconds"] + r["decode_seconds"] for r in chosen]
    totals[method] = (tokens / sum(wall), tokens / decode)
    rates[method] = np.mean([r["new_tokens"] / w for r, w in zip(chosen, wall, strict=True)])
  assert speed.questions == 7
  assert speed.wall_clock.value == pytest.approx(totals["m"][0] / totals["autoregressive"][0])
  assert speed.decode.value == pytest.approx(totals["m"][1] / totals["autoregressive"][1])
  assert speed.mean_of_rates.value == pytest.approx(rates["m"] / rates["autoregressive"])


def test_the_interval_resamples_questions_in_pairs(tmp_path):
  # Questions differ by a factor of 1,000 in seconds, but m is twice as fast on each.
  rows = []
  for index in range(8):
    slow = 10.0 ** (index % 4)
    rows.append(row("autoregressive", index, [1] * 4, seconds=slow, prefill=0.0))
    rows.append(row("m", index, [2, 2], seconds=slow / 2, prefill=0.0))
  ratio = measures.speed_up(*both(tmp_path, rows)).wall_clock
  assert (ratio.low, ratio.high) == pytest.approx((2.0, 2.0))


def test_the_interval_is_that_of_a_bootstrap_in_a_loop(tmp_path):
  rows = list(some_rows(np.random.default_rng(1), 12))
  ours, theirs = both(tmp_path, rows)
  rng, ratios = np.random.default_rng(5), []
  for _ in range(3000):
    rate = {}
    draw = rng.integers(0, 12, 12)
    for name, chosen in (("m", ours), ("plain", theirs)):
      seconds = sum(chosen[i]["prefill_seconds"] + chosen[i]["decode_seconds"] for i in draw)
      rate[name] = sum(chosen[i]["new_tokens"] for i in draw) / seconds
    ratios.append(rate["m"] / rate["plain"])
  found = measures.speed_up(ours, theirs).wall_clock
  expected = np.percentile(ratios, [2.5, 97.5])
  assert (found.low, found.high) == pytest.approx(tuple(expected), rel=0.05)


def test_one_question_has_no_interval_and_none_no_speed_up(tmp_path):
  rows = [row("autoregressive", 0, [1, 1]), row("m", 0, [2]), row("m", 1, [2])]
  ours, theirs = both(tmp_path, rows)
  speed = measures.speed_up(ours, theirs)
  assert speed.questions == 1 and str(speed.wall_clock) == "1.00x"
  assert measures.speed_up(ours[1:], theirs) is None


def test_only_turns_that_both_answered_are_compared(tmp_path):
  rows = [
    row("autoregressive", 0, [1, 1], seconds=4.0, prefill=0.0),
    row("autoregressive", 0, [1, 1], seconds=90.0, prefill=0.0, turn=1),
    row("m", 0, [2], seconds=1.0, prefill=0.0),
  ]
  assert measures.speed_up(*both(tmp_path, rows)).wall_clock.value == pytest.approx(4.0)


def test_the_seconds_of_a_batch_are_shared_and_its_rows_are_drawn_together(tmp_path):
  rows = []
  for index in range(4):
    batch = {"batch_size": 2, "batch_index": index // 2, "prefill": 0.0}
    rows.append(row("autoregressive", index, [1] * 6, seconds=6.0, **batch))
    rows.append(row("m", index, [3, 3], seconds=2.0, **batch))
  ours, theirs = both(tmp_path, rows, batch_size=2)
  assert measures.tokens_per_second(ours) == pytest.approx(24 / 4)
  speed = measures.speed_up(ours, theirs)
  assert speed.questions == 2 and speed.wall_clock.value == pytest.approx(3.0)


def test_tokens_of_another_systems_first_call_are_not_counted_as_decoded(tmp_path):
  rows = [row("autoregressive", 0, [1] * 5), row("m", 0, [3, 2], seconds=4.0, decode_tokens=2)]
  ours, _ = both(tmp_path, rows)
  assert measures.tokens_per_second(ours) == pytest.approx(0.5)


def test_repeats_of_a_question_count_as_their_mean(tmp_path):
  first = [row("autoregressive", 0, [1, 1], seconds=3.0), row("m", 0, [2], seconds=1.0)]
  second = [row("autoregressive", 0, [1, 1], seconds=5.0), row("m", 0, [2], seconds=2.0)]
  runs = [read_run(write(tmp_path / str(i), rows)) for i, rows in enumerate((first, second))]
  (pool,) = pool_runs(runs)
  speed = measures.speed_up(pool.rows["m"], pool.baseline)
  assert speed.questions == 1 and speed.decode.value == pytest.approx(4.0 / 1.5)


def test_acceptance_by_position_is_that_of_a_count(tmp_path):
  accepted = [0, 0, 1, 3, 2, 3, 1, 0]  # drafted tokens that eight drafts of three had accepted
  ours, _ = both(tmp_path, [row("m", 0, [n + 1 for n in accepted])])
  found = measures.acceptance(ours)
  for position in range(3):
    before = [n for n in accepted if n >= position]
    kept = [n for n in before if n > position]
    assert found.reached[position] == pytest.approx(len(kept) / len(accepted))
    assert found.conditional[position] == pytest.approx(len(kept) / len(before))
  assert measures.block_efficiency(ours) == pytest.approx(np.mean([n + 1 for n in accepted]))


def test_a_position_that_no_draft_reached_has_no_conditional_rate(tmp_path):
  ours, _ = both(tmp_path, [row("m", 0, [1, 1])])
  assert measures.acceptance(ours).conditional == [0.0, None, None]


# --- pools ---------------------------------------------------------------------------------


def test_folders_of_equal_settings_are_pooled_whatever_their_methods_and_questions(tmp_path):
  a = write(tmp_path / "a", [row("autoregressive", 0, [1])], methods=["autoregressive"])
  b = write(tmp_path / "b", [row("m", 0, [1])], methods=["m"], prompts={"number": 3})
  c = write(tmp_path / "c", [row("m", 0, [1])], draft_length=5)
  one, two = pool_runs([read_run(folder) for folder in (b, a, c)])
  assert list(one.rows) == ["autoregressive", "m"] and list(two.rows) == ["m"]
  assert (one.label(), two.label()) == ("draft_length default", "draft_length 5")
  # Autoregressive decoding has no draft length: it serves both.
  assert len(two.baseline) == 1


def test_autoregressive_rows_of_another_batch_size_are_no_baseline(tmp_path):
  a = write(tmp_path / "a", [row("autoregressive", 0, [1])], batch_size=2)
  b = write(tmp_path / "b", [row("m", 0, [1])])
  assert pool_runs([read_run(a), read_run(b)])[1].baseline == []


def test_half_a_line_of_a_run_that_goes_on_is_left_alone(tmp_path):
  folder = write(tmp_path, [row("m", 0, [1])])
  data = (folder / "results.jsonl").read_bytes() + b'{"method": "m", "pro'
  (folder / "results.jsonl").write_bytes(data)
  assert len(read_run(folder).rows) == 1
  assert (folder / "results.jsonl").read_bytes() == data


def test_machines_are_the_different_stamps(tmp_path):
  rows = [row("m", 0, [1]), row("m", 1, [1]), row("m", 2, [1], machine={"device": "other"})]
  stamps = machines([read_run(write(tmp_path, rows))])
  assert stamps == [
    {"device": "made up", "jax": "0", "weights": "float32"},
    {"device": "other", "weights": "float32"},
  ]


# --- differences ---------------------------------------------------------------------------


def test_differences_are_found_with_their_first_token_and_what_follows_them_is_told_apart():
  plain = [row("autoregressive", 0, [4]), row("autoregressive", 0, [4], turn=1)]
  plain += [row("autoregressive", 1, [4]), row("autoregressive", 2, [4])]
  rows = [
    *plain,
    row("m", 0, [4], token_ids=[0, 1, 9, 3], text="other"),
    row("m", 0, [4], turn=1),  # the same tokens, but after another conversation
    row("m", 1, [4]),
    row("m", 2, [2], token_ids=[0, 1]),  # ended before
    row("m", 3, [4]),  # no autoregressive row
  ]
  found = find_differences(rows, plain)
  places = [(d.row["prompt_index"], d.row["turn"], d.token_index) for d in found]
  assert places == [(0, 0, 2), (0, 1, None), (2, 0, 2)]
