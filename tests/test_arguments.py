# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The checks that many classes share."""

import numpy as np
import pytest

from specjax.arguments import check_integer
from specjax.drafters import PromptLookup
from specjax.training.train_loop import TrainOptions


@pytest.mark.parametrize("value", [True, False, 0, -1, 1.0, "2", None])
def test_what_is_no_integer_or_too_small_is_refused(value):
  with pytest.raises(ValueError, match="size must be an integer >= 1, got"):
    check_integer("size", value, 1)


@pytest.mark.parametrize("value", [1, 2, np.int32(3)])
def test_integers_pass(value):
  check_integer("size", value, 1)


def test_true_is_no_length_and_no_number_of_steps():
  with pytest.raises(ValueError, match="draft_length must be an integer >= 1, got True"):
    PromptLookup(draft_length=True)
  with pytest.raises(ValueError, match="num_steps must be an integer >= 1, got True"):
    TrainOptions(num_steps=True)
