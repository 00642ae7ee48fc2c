# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Verifiers: each keeps the part of a draft that the target would have produced."""

from collections.abc import Callable

from specjax.types import Verifier
from specjax.verifiers.distance_match import DistanceMatch
from specjax.verifiers.greedy_match import GreedyMatch
from specjax.verifiers.rejection_sampling import RejectionSampling
from specjax.verifiers.target_match import TargetMatch
from specjax.verifiers.top_k_match import TopKMatch

# What --config.verifier and the contract tests know, by name.
REGISTRY: dict[str, Callable[..., Verifier]] = {
  "distance_match": DistanceMatch,
  "greedy_match": GreedyMatch,
  "rejection_sampling": RejectionSampling,
  "target_match": TargetMatch,
  "top_k_match": TopKMatch,
}

__all__ = [
  "REGISTRY",
  "DistanceMatch",
  "GreedyMatch",
  "RejectionSampling",
  "TargetMatch",
  "TopKMatch",
]
