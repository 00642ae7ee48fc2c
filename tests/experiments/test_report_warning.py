# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import pytest

from experiments import report


def row(method, new_tokens, target_calls, drafted, accepted):
  return {
    "method": method,
    "prompt_index": 0,
    "turn": 0,
    "batch_index": 0,
    "category": "",
    "token_ids": list(range(new_tokens)),
    "new_tokens": new_tokens,
    "target_calls": target_calls,
    "drafted_tokens": drafted,
    "accepted_tokens": accepted,
    "prefill_seconds": 0.1,
    "decode_seconds": 1.0,
    "compile_seconds": 0.0,
    "lossless": True,
  }


@pytest.mark.parametrize(
  ("calls", "drafted", "warns"), [(100, 400, True), (60, 400, False), (100, 8, False)]
)
def test_a_drafter_whose_drafts_are_never_accepted_is_warned_of(calls, drafted, warns):
  rows = [
    row("autoregressive", 100, 100, 0, 0),
    row("draft_model", 100, calls, drafted, 100 - calls),
  ]
  text = report.report(rows, ["autoregressive", "draft_model"], greedy=True)
  assert ("warning: draft_model commits" in text) is warns
  assert "warning: autoregressive" not in text
