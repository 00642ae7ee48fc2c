# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Mean accepted block size against k, the target frozen or trained along, on two kinds of text.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), Table 1.
"""

from ml_collections import ConfigDict

from configs import reproduce_base


def get_config() -> ConfigDict:
  config = reproduce_base.get_config()
  config.study = "blockwise"
  # k, the target's own head included; 2 or more.
  config.options.block_sizes = (2, 4, 6, 8, 10)
  # Of the second table: how many of the target's best tokens are good enough.
  config.options.accept_top_k = (2, 3)
  # Updates with the target frozen, at the learning rate of `train`, and with the target trained
  # along, which cost three times as much each, at one learning rate for heads and target.
  config.options.steps = 100
  config.options.fine_tune_steps = 40
  config.options.fine_tune_learning_rate = 3e-4
  # True trains for each k apart, as the paper does, which takes as many times longer. False trains
  # the heads of the largest k once; a smaller k uses the first of them.
  config.options.separate_trainings = False

  config.decode.max_new_tokens = 64
  config.decode.batch_size = 8

  config.train.window = 512
  config.train.batch_size = 2
  config.train.learning_rate = 2e-3
  config.train.warmup_steps = 10
  config.train.max_validation_rows = 32
  # A checkpoint of a target that is trained along is three times its size.
  config.train.save_every = 20
  config.train.keep = 1
  return config
