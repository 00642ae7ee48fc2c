# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Every setting that a config of `experiments.decode` can have, at its default.

A config starts from this one and states what its paper's experiment sets. A value of None
leaves the choice to the code that reads it.
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config() -> ConfigDict:
  config = ConfigDict()

  # Who decodes, by the names of specjax.drafters.REGISTRY, and who decides what is kept, by
  # the names of specjax.verifiers.REGISTRY.
  config.methods = ("autoregressive", "prompt_lookup")
  config.verifier = "rejection_sampling"
  config.max_new_tokens = 160

  # The law that tokens are drawn from. Temperature 0 is greedy decoding; 0, 1.0, 0.0 and 1.0
  # switch top-k, top-p, min-p and the repetition penalty off.
  config.temperature = 0.0
  config.top_k = 0
  config.top_p = 1.0
  config.min_p = 0.0
  config.repetition_penalty = 1.0

  # Drafted tokens a round, for every method that drafts; None is each drafter's own default.
  config.draft_length = placeholder(int)

  # Prompt lookup: the suffix that is looked up has from max_ngram down to min_ngram tokens; it
  # is copied from its "latest" or "first" occurrence; a copy that reaches the end of the text
  # goes on with its own beginning if wrap is set.
  config.max_ngram = 3
  config.min_ngram = 2
  config.occurrence = "latest"
  config.wrap = True

  # The draft model: a checkpoint as --model takes it, or else the target's own first layers
  # under its own output head, a weak draft model that every target has.
  config.draft_checkpoint = placeholder(str)
  config.draft_layers = 6
  # None drafts at the target's temperature.
  config.draft_temperature = placeholder(float)

  # The fallback method: how many tokens prompt lookup must find for its draft to be taken.
  config.fallback_min_tokens = 1
  return config
