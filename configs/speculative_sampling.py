# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Speculative sampling with a draft model.

Leviathan, Kalman, Matias (2023, arXiv 2211.17192) and Chen et al. (2023, arXiv 2302.01318): a
smaller model draws K tokens one by one, the target scores all of them in one call, and
rejection sampling keeps exactly the target's law. Chen et al. draft K = 4 tokens for
Chinchilla 70B and sample its summaries with top-p 0.8; temperature 0 is their greedy setting.

The papers' draft models are trained small ones. SmolLM2-135M-Instruct has one that comes with
specjax; for another target, train one (configs/train_draft_model.py) and name its file with
--drafter, or name a checkpoint with --config.draft_checkpoint. With --config.draft_layers=6 the
first layers of any target draft, untrained. That shows the method, and that the output stays the
target's however weak the drafts; it is no speed-up: the first 6 of SmolLM2-135M's 30 layers agree
with 4 % of its greedy tokens, the first 24 with 39 %.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  config.methods = ("autoregressive", "draft_model")
  config.verifier = "rejection_sampling"
  config.draft_length = 4
  config.temperature = 1.0
  config.top_p = 0.8
  return config
