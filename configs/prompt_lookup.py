# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup decoding (Saxena 2023): copy what followed the newest n-gram before.

Greedy, 10 tokens a draft (the drafter's own default: other methods that are named with --methods
keep theirs), n-grams of at most 3 tokens as published; a single matching token is little evidence,
so at least 2 are asked for (1 is the published minimum). The method needs no second model and pays
where the answer repeats its prompt: editing, summaries, code.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  config.methods = ("autoregressive", "prompt_lookup")
  config.max_ngram = 3
  config.min_ngram = 2
  config.occurrence = "latest"
  return config
