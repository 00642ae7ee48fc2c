# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that many classes have alike."""

import numbers
from typing import Any


def check_integer(name: str, value: Any, minimum: int) -> None:
  """Raises ValueError unless `value` is an integer of at least `minimum`, and no boolean."""
  if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < minimum:
    raise ValueError(f"{name} must be an integer >= {minimum}, got {value!r}")
