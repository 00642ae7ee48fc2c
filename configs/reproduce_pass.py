# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""PaSS against L, at temperature 0 and 0.8 (Monea, Joulin, Grave 2023, arXiv 2311.13581)."""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import reproduce_base


def get_config() -> ConfigDict:
  config = reproduce_base.get_config()
  config.study = "pass"
  config.options.look_aheads = (1, 2, 3, 4, 5, 6)
  config.options.temperatures = (0.0, 0.8)
  # A file of experiments.train; None is the drafter that comes with specjax.
  config.options.drafter = placeholder(str)
  config.decode.max_new_tokens = 48
  return config
