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

  # Who decodes, by the names of specjax.drafters.REGISTRY ("pass_merged" is "pass" with one target
  # call a round), and who decides what is kept, by the names of specjax.verifiers.REGISTRY.
  config.methods = ("autoregressive", "prompt_lookup")
  config.verifier = "rejection_sampling"
  # Of top_k_match: how many of the target's best tokens are good enough. Of distance_match: how far
  # a token may be from the target's, and the ids that stand for the smallest and the largest number
  # (the whole vocabulary if not told). Of both: tokens that a call commits at least. None is the
  # verifier's own default.
  config.accept_top_k = placeholder(int)
  config.accept_distance = placeholder(int)
  config.first_number_token = placeholder(int)
  config.last_number_token = placeholder(int)
  config.min_block_size = placeholder(int)
  config.max_new_tokens = 160

  # The law that tokens are drawn from. Temperature 0 is greedy decoding; 0, 1.0, 0.0 and 1.0
  # switch top-k, top-p, min-p and the repetition penalty off.
  config.temperature = 0.0
  config.top_k = 0
  config.top_p = 1.0
  config.min_p = 0.0
  config.repetition_penalty = 1.0

  # Files of trained drafters, as experiments.train writes them. A method that needs one and finds
  # none of its scheme here takes the one that comes with specjax for this target.
  config.drafter = ()

  # Drafted tokens a round, for every method that drafts; None is each drafter's own default, for a
  # trained one what it was trained with.
  config.draft_length = placeholder(int)

  # Prompt lookup: the suffix that is looked up has from max_ngram down to min_ngram tokens; it
  # is copied from its "latest" or "first" occurrence; a copy that reaches the end of the text
  # goes on with its own beginning if wrap is set.
  config.max_ngram = 3
  config.min_ngram = 2
  config.occurrence = "latest"
  config.wrap = True

  # The draft model: a checkpoint as --model takes it, or the target's own first layers under its
  # own output head, a weak draft model that every target has. If both are None, a trained one.
  config.draft_checkpoint = placeholder(str)
  config.draft_layers = placeholder(int)
  # None drafts at the target's temperature.
  config.draft_temperature = placeholder(float)

  # The fallback method: how many tokens prompt lookup must find for its draft to be taken.
  config.fallback_min_tokens = 1
  return config
