# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Every setting that a config of `experiments.train` can have, at its default."""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  config = ConfigDict()

  # What is trained: a key of experiments.objectives.OBJECTIVES. Its own settings, by the names of
  # the fields of its objective, are in `objective`; `draft_vocabulary` there is a number of
  # tokens, the most frequent ones of the data.
  config.scheme = placeholder(str)
  config.objective = ConfigDict()

  # Batches of batch_size windows of so many tokens each; one update adds up the gradients of
  # `accumulate` batches. max_rows trains on the first rows of the data only, max_validation_rows
  # judges by the first of those held out. data_part is what of a row is trained on and judged:
  # "answers", the target's own text, or "prompts", text that people wrote.
  config.window = 512
  config.batch_size = 2
  config.accumulate = 1
  config.max_rows = placeholder(int)
  config.max_validation_rows = placeholder(int)
  config.data_part = "answers"
  config.num_steps = 1000
  config.seed = 0

  # AdamW: a linear warm-up, then a cosine down to final_share of the learning rate.
  config.learning_rate = 1e-3
  config.warmup_steps = 20
  config.final_share = 0.1
  config.weight_decay = 0.0
  config.beta1 = 0.9
  config.beta2 = 0.95
  config.clip_norm = 1.0

  # Steps between two rows of the log, two validations, two checkpoints; checkpoints that stay.
  config.log_every = 10
  config.validate_every = 200
  config.save_every = 100
  config.keep = 2
  return config
