# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import pytest

from experiments.report import first_difference, format_table, report, summarize


def row(method, index, tokens, *, calls=None, batch=None, seconds=1.0, turn=0, **more):
  return {
    "method": method,
    "prompt_index": index,
    "turn": turn,
    "batch_index": index if batch is None else batch,
    "category": "",
    "token_ids": list(tokens),
    "new_tokens": len(tokens),
    "target_calls": len(tokens) if calls is None else calls,
    "drafted_tokens": 0,
    "accepted_tokens": 0,
    "prefill_seconds": 0.5,
    "decode_seconds": seconds,
    "compile_seconds": 2.0,
    "lossless": True,
    **more,
  }


def test_the_seconds_of_a_batch_are_counted_once():
  rows = [row("a", 0, [1, 2], batch=0), row("a", 1, [3], batch=0), row("a", 2, [4], batch=1)]
  summary = summarize(rows)
  assert summary.new_tokens == 4
  assert summary.decode_seconds == 2.0
  assert summary.prefill_seconds == 1.0
  assert summary.compile_seconds == 4.0
  assert summary.tokens_per_second == 2.0


def test_turns_of_a_batch_are_batches_of_their_own():
  rows = [row("a", 0, [1]), row("a", 0, [1], turn=1)]
  assert summarize(rows).decode_seconds == 2.0


def test_efficiency_and_acceptance_are_ratios_of_sums():
  rows = [
    row("a", 0, [1] * 6, calls=2, drafted_tokens=8, accepted_tokens=4),
    row("a", 1, [1] * 2, calls=2, drafted_tokens=2, accepted_tokens=0),
  ]
  summary = summarize(rows)
  assert summary.block_efficiency == 2.0
  assert summary.acceptance_rate == pytest.approx(0.4)


def test_nothing_decoded_and_nothing_drafted_have_no_rate():
  summary = summarize([row("a", 0, [])])
  assert summary.block_efficiency is None
  assert summary.acceptance_rate is None
  assert summary.tokens_per_second is None


def test_the_first_different_token_is_named():
  base = [row("autoregressive", 0, [1, 2, 3])]
  assert first_difference([row("a", 0, [1, 2, 3])], base) == "yes"
  assert first_difference([row("a", 0, [1, 5, 3])], base) == "no (from token 1)"
  assert first_difference([row("a", 0, [1, 2])], base) == "no (from token 2)"


def test_over_several_prompts_the_different_ones_are_counted():
  base = [row("autoregressive", i, [1, 2, 3]) for i in range(3)]
  ours = [row("a", 0, [1, 2, 3]), row("a", 1, [0]), row("a", 2, [1, 2, 4])]
  assert first_difference(ours, base) == "no (2 of 3 differ)"


def test_tables_show_each_prompt_and_all_of_them_against_autoregressive_decoding():
  rows = [
    row("autoregressive", 0, [1, 2], seconds=2.0, category="editing"),
    row("lookup", 0, [1, 2], calls=1, seconds=0.5, category="editing"),
    row("autoregressive", 1, [1, 2], seconds=2.0),
    row("lookup", 1, [1, 3], calls=2, seconds=1.5, lossless=False),
  ]
  text = report(rows, ["autoregressive", "lookup"], greedy=True)
  first, second, together, note = text.split("\n\n")
  assert first.startswith("Prompt 0 (editing)\n")
  assert second.startswith("Prompt 1\n")
  cells = first.splitlines()[-1].split()
  assert cells == ["lookup", "2", "1", "2.00", "-", "0.50", "0.50", "4.0", "4.00x", "yes", "yes"]
  assert second.splitlines()[-1].split()[-5:] == ["no", "no", "(from", "token", "1)"]
  cells = together.splitlines()[-1].split()
  assert cells[:4] == ["lookup", "4", "3", "1.33"] and cells[7:9] == ["2.0", "2.00x"]
  assert "took 8.0 s" in note


def test_tokens_that_deviate_are_counted_where_a_rule_is_not_lossless():
  rows = [
    row("heads", 0, [1, 2, 3], lossless=False, deviations=2),
    row("heads", 1, [1, 2, 3], lossless=False, deviations=1),
  ]
  first, second, together, _ = report(rows, ["heads"], greedy=True).split("\n\n")
  assert "no (2 deviate)" in first and "no (1 deviate)" in second
  assert "no (3 deviate)" in together


def test_sampled_tokens_are_not_compared_and_without_a_baseline_nothing_is():
  rows = [row("autoregressive", 0, [1]), row("lookup", 0, [2])]
  assert report(rows, ["autoregressive", "lookup"], greedy=False).count("sampled") == 2
  alone = report(rows[1:], ["lookup"], greedy=True)
  assert alone.splitlines()[3].split()[-3:] == ["-", "yes", "-"]


def test_columns_are_aligned():
  text = format_table(("name", "n"), [("a", "1"), ("long name", "100")])
  assert text.splitlines() == [
    "name         n",
    "---------  ---",
    "a            1",
    "long name  100",
  ]
