# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Drafters: each proposes the block of tokens that the target then scores."""

from collections.abc import Callable

from specjax.drafters.blockwise import Blockwise
from specjax.drafters.draft_model import DraftModel
from specjax.drafters.empty import Empty
from specjax.drafters.fallback import Fallback
from specjax.drafters.pass_look_ahead import PaSS
from specjax.drafters.prompt_lookup import PromptLookup
from specjax.types import Drafter

# By name: what the command line and the contract tests know. A new drafter goes in here, and
# the contract test fails until it has an example.
REGISTRY: dict[str, Callable[..., Drafter]] = {
  "autoregressive": Empty,
  "blockwise": Blockwise,
  "draft_model": DraftModel,
  "fallback": Fallback,
  "pass": PaSS,
  "prompt_lookup": PromptLookup,
}

__all__ = ["REGISTRY", "Blockwise", "DraftModel", "Empty", "Fallback", "PaSS", "PromptLookup"]
