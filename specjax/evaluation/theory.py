# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The theory of the speed-up in one place: what its parts, a file each, have for users.

- `theory_chains`: tokens a call, speed-up and best draft length from alpha, gamma and c (Leviathan
  et al. 2023, arXiv 2211.17192), and the memory-bound speed-up.
- `theory_trees`: what a token tree commits, and the best static one (Sequoia, arXiv 2402.12374).
- `theory_batching`: the batch in which speculation stops to pay (Su et al. 2023, arXiv 2310.18813).
- `theory_rows`: acceptance rates of measured rows, and the block efficiency that follows from them.
- `theory_fit`: alpha and c with their intervals, from measured rows.
"""

from specjax.evaluation.theory_batching import (
  CallCost,
  batched_speed_up,
  best_batched_draft_length,
  roofline,
  smallest_losing_batch,
)
from specjax.evaluation.theory_chains import (
  Acceptance,
  DraftLengthChoice,
  best_draft_length,
  expected_speed_up,
  expected_tokens,
  memory_bound_speed_up,
)
from specjax.evaluation.theory_fit import Fit, fit
from specjax.evaluation.theory_rows import (
  ChainAcceptance,
  chain_acceptance,
  predict_block_efficiency,
  token_acceptance,
)
from specjax.evaluation.theory_trees import (
  StaticTree,
  TreeChoice,
  best_tree,
  best_tree_for_cost,
  expected_tree_tokens,
  geometric_rank_rates,
)

__all__ = [
  "Acceptance",
  "CallCost",
  "ChainAcceptance",
  "DraftLengthChoice",
  "Fit",
  "StaticTree",
  "TreeChoice",
  "batched_speed_up",
  "best_batched_draft_length",
  "best_draft_length",
  "best_tree",
  "best_tree_for_cost",
  "chain_acceptance",
  "expected_speed_up",
  "expected_tokens",
  "expected_tree_tokens",
  "fit",
  "geometric_rank_rates",
  "memory_bound_speed_up",
  "predict_block_efficiency",
  "roofline",
  "smallest_losing_batch",
  "token_acceptance",
]
