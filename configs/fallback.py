# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup in front of a draft model, row by row.

The staging of Spector and Re (2023, arXiv 2308.04623) in its simplest form: what can be copied
from the text is copied, and only rows where nothing is found pay for the draft model.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  config.methods = ("autoregressive", "prompt_lookup", "draft_model", "fallback")
  config.draft_length = 5
  # What is not a clear copy is left to the draft model.
  config.max_ngram = 3
  config.min_ngram = 2
  config.fallback_min_tokens = 1
  return config
