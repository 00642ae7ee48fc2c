# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The tokens of every target call, read off hand-made records."""

import numpy as np
import pytest

from specjax.generation import Generation, Records


def generation(rounds, certain_nodes):
  """One row after a prompt of two tokens; a round is (tokens committed, nodes proposed)."""
  call = [index for index, (length, _) in enumerate(rounds) for _ in range(length)]
  proposed = [n for length, nodes in rounds for n in [nodes] + [0] * (length - 1)]
  size = 2 + len(call) + 1
  records = {"call": call, "proposed": proposed, "drafted": [False] * len(call)}
  padded = {
    name: np.array([[0, 0, *values, 0]], bool if name == "drafted" else np.int32)
    for name, values in records.items()
  }
  return Generation(
    tokens=np.zeros((1, size), np.int32),
    prompt_lengths=np.array([2], np.int32),
    lengths=np.array([size - 1], np.int32),
    finish=np.array([2], np.int32),
    records=Records(log_probs=np.zeros((1, size), np.float32), **padded),
    max_depth=4,
    certain_nodes=certain_nodes,
  )


@pytest.mark.parametrize(
  ("certain_nodes", "expected"),
  [
    (0, [3, 1, 1, 4]),
    # The drafter's own call comes first and gives one token; a round without a draft has none.
    (1, [1, 2, 1, 1, 0, 1, 3]),
  ],
)
def test_every_target_call_is_there_in_order_with_its_tokens(certain_nodes, expected):
  found = generation([(3, 2), (1, 0), (1, 3), (4, 3)], certain_nodes)
  assert found.tokens_per_call() == [expected]
  assert len(expected) == int(found.target_calls[0])
  assert sum(expected) == int(found.num_new_tokens[0])


def test_a_row_without_new_tokens_has_no_call():
  assert generation([], 1).tokens_per_call() == [[]]
