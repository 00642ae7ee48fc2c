# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of the look-ahead embeddings of PaSS, everything else frozen.

Monea, Joulin, Grave (2023, arXiv 2311.13581): L input embeddings, learned by cross-entropy of the
tokens that they predict. As many as are trained here, or fewer, can be used when decoding; the
paper's decoding is fastest near L = 6.

The data is the target's own greedy text, and embeddings are inserted at random places of it, one
group of L for every four tokens: reading a window then costs about as much as what is learned from
it. The learning rate is high because few numbers are learned and a token's embedding is long
(its norm is 3.2 in SmolLM2-135M).
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from configs import train_base


def get_config() -> ConfigDict:
  config = train_base.get_config()
  config.scheme = "pass"

  config.objective.look_ahead = 6
  config.objective.trained = placeholder(int)
  config.objective.spacing = 4
  config.objective.position_weights = placeholder(tuple)
  config.objective.soft = False
  config.objective.init_token = placeholder(int)
  config.objective.init_noise = 0.1
  config.objective.init_file = placeholder(str)

  config.window = 256
  config.batch_size = 2
  config.num_steps = 400
  config.learning_rate = 2e-2
  config.warmup_steps = 20
  return config
