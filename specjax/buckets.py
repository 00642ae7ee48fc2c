# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Shape buckets: few enough shapes that one compiled program serves many requests."""

PROMPT_STEP = 64
CAPACITY_STEP = 128


def prompt_bucket(length: int) -> int:
  """The padded width for a prompt of `length` tokens: 16, 32, 64, then multiples of 64 to
  512, of 256 to 2,048 and of 1,024 beyond. Prefill costs grow with it, so the steps are fine.
  """
  for width in (16, 32):
    if length <= width:
      return width
  return _round_up(length, PROMPT_STEP)


def capacity_bucket(length: int) -> int:
  """The cache capacity for a row of up to `length` tokens, by the same steps from 128 on.

  Attention reads the whole capacity, so it should not be much larger than what is used.
  """
  return _round_up(length, CAPACITY_STEP)


def _round_up(length: int, step: int) -> int:
  if length > 512:
    step = 256 if length <= 2048 else 1024
  return -(-length // step) * step
