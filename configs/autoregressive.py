# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Plain autoregressive decoding: the same loop with the empty drafter, the baseline of all."""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  config.methods = ("autoregressive",)
  return config
