# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Verifiers: each keeps the part of a draft that the target would have produced."""

from collections.abc import Callable

from specjax.types import Verifier
from specjax.verifiers.greedy_match import GreedyMatch
from specjax.verifiers.rejection_sampling import RejectionSampling
from specjax.verifiers.target_match import TargetMatch

# What --config.verifier and the contract tests know, by name.
REGISTRY: dict[str, Callable[..., Verifier]] = {
  "greedy_match": GreedyMatch,
  "rejection_sampling": RejectionSampling,
  "target_match": TargetMatch,
}

__all__ = ["REGISTRY", "GreedyMatch", "RejectionSampling", "TargetMatch"]
