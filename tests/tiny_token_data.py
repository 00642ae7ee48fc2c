# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Token data for `tiny_checkpoint`: answers that go round the cycle which that target knows."""

import pathlib

import tiny_checkpoint

from specjax.training.token_files import TokenFolder

NUM_ROWS = 8


def write(folder) -> pathlib.Path:
  """Writes the folder, without rows held out: what judges them would be compiled, too."""
  data = TokenFolder(folder, {"vocab_size": tiny_checkpoint.CONFIG.vocab_size})
  for index in range(NUM_ROWS):
    # The tokenizer's tokens are bytes.
    prompt, answer = f"<{index}>say it".encode(), (tiny_checkpoint.CYCLE * 2).encode()
    data.append(list(prompt + answer), len(prompt), {"prompt": str(index), "split": "train"})
  return pathlib.Path(folder)
