# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Blockwise decoding of images by exact and distance acceptance, at toy scale.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), section 7.2; see
experiments/studies/super_resolution.py. About six minutes on two CPU cores, most of them training.
"""

from ml_collections import ConfigDict

from configs import reproduce_base


def get_config() -> ConfigDict:
  config = reproduce_base.get_config()
  config.study = "super_resolution"
  config.options.block_sizes = (2, 4, 6, 8, 10)
  config.options.distances = (1, 2)
  # One more rule: the first distance with this minimum block size (section 5.3).
  config.options.min_block_size = 2
  # The last images; the other ones of 1797 are trained on.
  config.options.held_out = 200
  config.options.decode_batch = 50
  config.options.shown = 7

  config.options.model = ConfigDict(
    {"hidden_size": 64, "intermediate_size": 192, "num_layers": 3, "num_heads": 4}
  )
  # The paper has k times the model's width, and draws one head a step to save memory.
  config.options.head_width = 256
  config.options.head_loss = "mean"

  # Each over config.train. More steps than these and the target learns its images by heart.
  config.options.training = ConfigDict()
  config.options.training.target = ConfigDict({"num_steps": 500, "learning_rate": 3e-3})
  config.options.training.frozen = ConfigDict({"num_steps": 300, "learning_rate": 3e-3})
  config.options.training.fine_tuned = ConfigDict({"num_steps": 300, "learning_rate": 1e-3})
  config.train.batch_size = 32
  config.train.warmup_steps = 50
  return config
