# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Evaluation: is what was decoded what the target would have said?"""

from specjax.evaluation.teacher_forcing import GreedyCheck, check_greedy

__all__ = ["GreedyCheck", "check_greedy"]
