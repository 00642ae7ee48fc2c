# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of the heads of blockwise parallel decoding, the target frozen.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115): k heads, the first of which is the target
itself; heads 2 .. k learn the token that many places ahead from the target's last hidden state.

The sizes are those of SmolLM2-135M on a CPU. Where they are not the paper's:

- the heads' hidden layer has 320 units and not k times the model's width (3456), so that the file
  stays small (2.2 MB in bfloat16);
- the heads propose among the most frequent tokens only (Zhao et al. 2025, FR-Spec, arXiv
  2502.14856): the projection to all 49 152 is most of what a head costs;
- every step trains all heads on their mean loss. The paper draws one head a step to save memory
  (head_loss = "random"); with the logits of one head at a time all of them fit, and the target's
  forward pass, most of a step, serves five heads and not one.
"""

from ml_collections import ConfigDict

from configs import train_base


def get_config() -> ConfigDict:
  config = train_base.get_config()
  config.scheme = "blockwise"

  # k - 1 heads beside the target itself.
  config.objective.draft_length = 5
  config.objective.head_width = 320
  config.objective.activation = "silu"
  config.objective.head_loss = "mean"
  config.objective.fine_tune = False
  config.objective.draft_vocabulary = 8192

  config.window = 512
  config.batch_size = 2
  config.num_steps = 900
  config.learning_rate = 2e-3
  config.warmup_steps = 50
  return config
