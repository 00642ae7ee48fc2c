# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""All trained drafters of a target side by side, each at the draft length that it was trained for.

Blockwise parallel decoding (Stern, Shazeer, Uszkoreit 2018, arXiv 1811.03115), PaSS (Monea,
Joulin, Grave 2023, arXiv 2311.13581) with two target calls a round and with one, and a distilled
draft model (Leviathan, Kalman, Matias 2023, arXiv 2211.17192; Zhou et al. 2023, arXiv 2310.08461).
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  config.methods = ("autoregressive", "blockwise", "pass", "pass_merged", "draft_model")
  config.verifier = "rejection_sampling"
  return config
