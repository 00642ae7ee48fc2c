# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows as `experiments.runner` writes them, with figures that are made up."""

import json


def row(
  method, index, per_call, *, category="qa", turn=0, seconds=1.0, prefill=0.5, longest=3, **more
):
  """A row whose target calls committed `per_call` tokens each, with drafts of `longest`."""
  tokens = list(range(sum(per_call)))
  histogram = [per_call.count(length + 1) for length in range(longest + 1)]
  drafts = method != "autoregressive"
  return {
    "method": method,
    "prompt_index": index,
    "turn": turn,
    "num_turns": 1,
    "question_id": 100 + index,
    "category": category,
    "new_tokens": len(tokens),
    "token_ids": tokens,
    "text": " ".join(map(str, tokens)) + "\n",
    "target_calls": len(per_call),
    "draft_calls": len(per_call) if drafts else 0,
    "drafted_tokens": longest * len(per_call) if drafts else 0,
    "accepted_tokens": len(tokens) - len(per_call),
    "accepted_histogram": histogram if drafts else [len(per_call)],
    "tokens_per_call": per_call,
    "prefill_seconds": prefill,
    "decode_seconds": seconds,
    "compile_seconds": 9.0,
    "batch_size": 1,
    "batch_index": index,
    "lossless": True,
    "model": "folder/tiny",
    "dtype": "float32",
    "machine": {"device": "made up", "jax": "0"},
  } | more


def write(folder, rows, **settings):
  """A folder of results."""
  folder.mkdir(parents=True, exist_ok=True)
  values = {"temperature": 0.0, "batch_size": 1, "draft_length": None, "model": "tiny"} | settings
  (folder / "config.json").write_text(json.dumps(values))
  (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
  return folder
