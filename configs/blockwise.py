# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Blockwise parallel decoding with the trained heads of the target.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115): greedy decoding, where heads on the target's
last hidden state propose a block and one call of the target verifies it and gives the next state.
The exact rule keeps the target's own text. The paper's looser rules (section 5) are

  --config.verifier=top_k_match --config.accept_top_k=2
  --config.verifier=distance_match --config.accept_distance=2

(--config.first_number_token and --config.last_number_token bound the ids that stand for numbers),
with --config.min_block_size for the least number of tokens that a call commits.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  config.methods = ("autoregressive", "blockwise")
  config.verifier = "greedy_match"
  return config
