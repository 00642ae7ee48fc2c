# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Distils a draft model out of a few of the target's own layers.

Zhou et al. (2023, DistillSpec, arXiv 2310.08461). The draft model shares the target's embedding and
output head, the latter restricted to the most frequent tokens of the data (Zhao et al. 2025,
FR-Spec, arXiv 2502.14856): the whole head is 21 % of SmolLM2-135M's weights.

With these settings the labels are the target's own greedy text, so that no forward pass of the
target is needed. The paper's losses need its distribution: data made with --top_targets and

  --config.objective.teacher=top_k --config.objective.criterion=forward_kl

(or reverse_kl, jensen_shannon, total_variation), teacher=recompute to run the target instead, and
data_source=student or mix for its on-policy training.
"""

from ml_collections import ConfigDict

from configs import train_base


def get_config() -> ConfigDict:
  config = train_base.get_config()
  config.scheme = "draft_model"

  config.objective.layers = (0, 1, 2, 29)
  config.objective.draft_vocabulary = 8192
  config.objective.rank = 128
  config.objective.storage = "int8"
  config.objective.criterion = "cross_entropy"
  config.objective.teacher = "labels"
  config.objective.data_source = "teacher"
  config.objective.beta = 0.5
  config.objective.draft_length = 4

  config.window = 512
  config.batch_size = 4
  config.num_steps = 1400
  config.learning_rate = 1.5e-3
  config.warmup_steps = 50
  return config
