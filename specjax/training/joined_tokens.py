# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Token data of several folders, read as one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specjax.training.token_files import TokenFolder, TokenRows


class JoinedTokens(TokenRows):
  """The rows of several folders one after another, for reading only.

  A prompt that an earlier folder has is left out of the later ones, so that none counts twice.
  """

  def __init__(self, folders: Sequence[TokenFolder]):
    """Reads the tokens of all.

    Args:
      folders: at least one.

    Raises:
      ValueError: for no folder, or vocabularies of different sizes.
    """
    if not folders:
      raise ValueError("folders must name at least one folder of token data, got none")
    sizes = {folder.manifest["vocab_size"] for folder in folders}
    names = ", ".join(str(folder.folder) for folder in folders)
    if len(sizes) > 1:
      raise ValueError(f"data {names}: vocabularies of {sorted(sizes)} tokens do not fit together")
    self.folder = names
    self.manifest: dict[str, Any] = {
      "vocab_size": sizes.pop(),
      "parts": [folder.manifest for folder in folders],
    }
    self.rows = []
    seen: set[str] = set()
    tokens, targets = [], []
    for folder in folders:
      offsets, top_offsets = folder.offsets(), folder.top_offsets()
      stored, top = folder.tokens(), folder.top_targets()
      for index, row in enumerate(folder.rows):
        if row["prompt"] in seen:
          continue
        self.rows.append(row)
        tokens.append(stored[offsets[index] : offsets[index + 1]])
        if top is not None:
          places = slice(top_offsets[index], top_offsets[index + 1])
          targets.append((top[0][places], top[1][places]))
      seen.update(row["prompt"] for row in folder.rows)
    self._tokens = np.concatenate(tokens) if tokens else np.zeros(0, np.int32)
    # Numbers of likeliest tokens that differ are no arrays: then there are none.
    self._targets: tuple[np.ndarray, np.ndarray] | None = None
    complete = len(targets) == len(self.rows) > 0
    if complete and len({ids.shape[1] for ids, _ in targets}) == 1:
      ids, log_probs = zip(*targets, strict=True)
      self._targets = np.concatenate(ids), np.concatenate(log_probs)

  def tokens(self) -> np.ndarray:
    """All ids, `[sum of lengths]`."""
    return self._tokens

  def top_targets(self) -> tuple[np.ndarray, np.ndarray] | None:
    """As `TokenRows.top_targets`: None as soon as one folder's rows have none."""
    return self._targets


def open_token_data(folders: str) -> TokenRows:
  """Opens one folder of token data, or several whose names are parted by commas.

  Args:
    folders: names.

  Raises:
    ValueError: as `TokenFolder` and `JoinedTokens`.
  """
  names = [name.strip() for name in folders.split(",") if name.strip()]
  opened = [TokenFolder(Path(name)) for name in names]
  return opened[0] if len(opened) == 1 else JoinedTokens(opened)
