# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The acceptance rate of a draft model after distillation, for each loss and source of text.

Zhou et al. (2023, DistillSpec, arXiv 2310.08461).
"""

from ml_collections import ConfigDict

from configs import reproduce_base


def get_config() -> ConfigDict:
  config = reproduce_base.get_config()
  config.study = "distillation"
  # What is compared: any of the criteria of DistillationObjective. The cross-entropy is of the
  # teacher's own tokens, once; the other losses are trained on each source of text.
  config.options.losses = (
    "cross_entropy",
    "forward_kl",
    "reverse_kl",
    "jensen_shannon",
    "total_variation",
  )
  config.options.sources = ("teacher", "student", "mix")
  config.options.steps = 30
  config.options.draft_length = 4
  config.options.temperatures = (1.0,)

  config.decode.max_new_tokens = 48
  config.decode.batch_size = 8

  # Over configs/train_draft_model.py, which says what the draft model is made of.
  config.train.window = 256
  config.train.batch_size = 2
  config.train.learning_rate = 1.5e-3
  config.train.warmup_steps = 5
  config.train.max_validation_rows = 8
  config.train.objective = ConfigDict()
  # Rounding to int8 would be part of what is compared.
  config.train.objective.storage = "bfloat16"
  config.train.objective.beta = 0.5
  config.train.objective.student_prefix = 128
  config.train.objective.student_tokens = 32
  # A little more than half of the data's tokens are answers.
  config.train.objective.head_fraction = 0.7
  return config
