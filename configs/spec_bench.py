# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Spec-Bench (Xia et al. 2024, arXiv 2401.07851): every method on the same target and questions.

Greedy, one question at a time. The paper's answers have up to 1,024 tokens; here 128, which a
laptop finishes. Each method drafts as many tokens as it does by default.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  # All that this target has a drafter for; "all" is a name of experiments.spec_bench alone.
  config.methods = ("all",)
  config.temperature = 0.0
  config.max_new_tokens = 128
  return config
