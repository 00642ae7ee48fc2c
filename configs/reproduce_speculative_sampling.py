# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Speculative sampling against the draft length, measured and predicted.

Leviathan, Kalman, Matias (2023, arXiv 2211.17192), Theorem 3.8.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import reproduce_base


def get_config() -> ConfigDict:
  config = reproduce_base.get_config()
  config.study = "speculative_sampling"
  config.options.draft_lengths = (1, 2, 3, 4, 5, 6, 7, 8)
  config.options.temperatures = (0.0, 1.0)
  # A file of experiments.train; None is the draft model that comes with specjax.
  config.options.drafter = placeholder(str)
  config.decode.max_new_tokens = 48
  return config
