# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Every setting that a config of `experiments.reproduce` can have, at its default."""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  config = ConfigDict()

  # Which study: a key of experiments.reproduce.STUDIES. Its own settings are in `options`.
  config.study = placeholder(str)
  config.options = ConfigDict()

  # What every prompt is decoded with; any setting of configs/base.py, max_new_tokens among them.
  config.decode = ConfigDict()

  # Over the config that a drafter of the study is trained with; any setting of train_base.py.
  config.train = ConfigDict()
  return config
