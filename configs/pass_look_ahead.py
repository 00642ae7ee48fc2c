# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""PaSS with the trained look-ahead embeddings of the target: the paper's variant and ours.

Monea, Joulin, Grave (2023, arXiv 2311.13581): the target drafts for itself in one call and verifies
in another. The merged variant does both in one. draft_length is the paper's L; the paper decodes
greedily and at temperature 0.8 (--temperature=0.8).
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
  config = base.get_config()
  config.methods = ("autoregressive", "pass", "pass_merged")
  config.verifier = "rejection_sampling"
  return config
