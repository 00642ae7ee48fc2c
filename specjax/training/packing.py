# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Rows packed into windows of one length, as a function of seed and step alone.

Rows are shuffled anew each epoch and put into windows first-fit, the longest of a group first;
a row longer than a window is cut at its end. Since the batch of a step depends on nothing but
the seed, a run that resumes sees what it would have seen.
"""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from specjax.arguments import check_integer
from specjax.training.token_data import TokenBatch
from specjax.training.token_files import TRAIN, VALIDATION, TokenRows

# Rows that are packed together: more leave less padding, fewer keep the shuffle.
_GROUP = 256
# What of a row can be trained on.
PARTS = ("answers", "prompts")


class PackedData:
  """Batches of token data."""

  def __init__(
    self,
    folder: TokenRows,
    *,
    window: int,
    batch_size: int,
    seed: int = 0,
    max_rows: int | None = None,
    max_validation_rows: int | None = None,
    part: str = "answers",
    targets: bool = True,
  ):
    """Reads the index; tokens of one folder stay on the disk.

    Args:
      folder: the data.
      window: T, tokens of a window.
      batch_size: B, windows of a batch.
      seed: of the shuffle.
      max_rows: use only the first rows of the training part, or None for all.
      max_validation_rows: the same of the rows held out.
      part: what of a row is trained on, judged and counted, which `TokenBatch.answer` marks.
        "answers": the target's own text. "prompts": the prompt from its second token on, which
        for prompts that people wrote is human text (the chat template's tokens included).
      targets: whether batches carry the target's likeliest tokens, where the folder has them. It
        has them for answers alone: with "prompts" batches never do.

    Raises:
      ValueError: for numbers below 1, an unknown part, or a folder without a row to train on.
    """
    sizes = {"window": window, "batch_size": batch_size}
    for name, rows in (("max_rows", max_rows), ("max_validation_rows", max_validation_rows)):
      if rows is not None:
        sizes[name] = rows
    for name, value in sizes.items():
      check_integer(name, value, 1)
    if part not in PARTS:
      raise ValueError(f"part (data_part) must be one of {', '.join(PARTS)}, got {part!r}")
    self._folder, self._window, self._batch, self._seed = folder, window, batch_size, seed
    self._part = part
    self._tokens, self._offsets = folder.tokens(), folder.offsets()
    self._targets = folder.top_targets() if targets and part == "answers" else None
    self._top_offsets = folder.top_offsets()
    splits = np.array([row["split"] for row in folder.rows])
    self._train = np.flatnonzero(splits == TRAIN)[:max_rows]
    self._validation = np.flatnonzero(splits == VALIDATION)[:max_validation_rows]
    if not len(self._train):
      raise ValueError(f"{folder.folder} has no row to train on")
    self._first_steps = [0]  # the step at which each epoch begins

  @property
  def num_train_rows(self) -> int:
    """Rows of the training part."""
    return len(self._train)

  def batch_at(self, step: int) -> TokenBatch:
    """The training batch of a step, of NumPy arrays."""
    epoch = 0
    while True:
      windows = self._epoch(epoch)
      steps = -(-len(windows) // self._batch)
      if len(self._first_steps) == epoch + 1:
        self._first_steps.append(self._first_steps[epoch] + steps)
      if step < self._first_steps[epoch + 1]:
        begin = (step - self._first_steps[epoch]) * self._batch
        # The last batch of an epoch is filled up with its first windows.
        chosen = [windows[i % len(windows)] for i in range(begin, begin + self._batch)]
        return self._fill(chosen)
      epoch += 1

  def validation_batches(self) -> Iterator[TokenBatch]:
    """The rows held out, in a fixed order; the last batch is filled up with padding."""
    windows = _pack(self._validation, self._lengths(), self._window)
    for begin in range(0, len(windows), self._batch):
      chosen = windows[begin : begin + self._batch]
      yield self._fill(chosen + [[]] * (self._batch - len(chosen)))

  def token_counts(self) -> np.ndarray:
    """`[V]` int64: how often each token stands in what is trained on."""
    counts = np.zeros(self._folder.manifest["vocab_size"], np.int64)
    for index in self._train:
      row = self._tokens[self._offsets[index] : self._offsets[index + 1]]
      counts += np.bincount(row[self._trained(index, len(row))], minlength=len(counts))
    return counts

  @functools.lru_cache(maxsize=2)  # noqa: B019 (lives as long as the data)
  def _epoch(self, epoch: int) -> list[list[int]]:
    rng = np.random.default_rng((self._seed, epoch))
    windows = _pack(rng.permutation(self._train), self._lengths(), self._window)
    return [windows[i] for i in rng.permutation(len(windows))]

  def _trained(self, row: int, length: int) -> slice:
    """Which of the first `length` tokens of a row are trained on."""
    prompt = min(self._folder.rows[row]["prompt_length"], length)
    # Nothing comes before a row's first token that could predict it.
    return slice(prompt, length) if self._part == "answers" else slice(1, prompt)

  def _lengths(self) -> np.ndarray:
    return np.diff(self._offsets)

  def _fill(self, windows: list[list[int]]) -> TokenBatch:
    shape = (len(windows), self._window)
    tokens, segments, positions = (np.zeros(shape, np.int32) for _ in range(3))
    answer = np.zeros(shape, bool)
    top_ids: Any = None
    top_log_probs: Any = None
    if self._targets is not None:
      size = self._targets[0].shape[1]
      top_ids = np.zeros((*shape, size), np.int32)
      top_log_probs = np.full((*shape, size), -np.inf, np.float32)
    for b, rows in enumerate(windows):
      at = 0
      for segment, row in enumerate(rows, start=1):
        begin = self._offsets[row]
        length = int(min(self._offsets[row + 1] - begin, self._window - at))
        prompt = self._folder.rows[row]["prompt_length"]
        here = slice(at, at + length)
        tokens[b, here] = self._tokens[begin : begin + length]
        segments[b, here] = segment
        positions[b, here] = np.arange(length)
        answer[b, here][self._trained(row, length)] = True
        scored = length - prompt
        if self._targets is not None and scored > 0:
          # Stored for the answer token; used at the place before, which predicts it.
          first = self._top_offsets[row]
          places = slice(at + prompt - 1, at + prompt - 1 + scored)
          top_ids[b, places] = self._targets[0][first : first + scored]
          top_log_probs[b, places] = self._targets[1][first : first + scored]
        at += length
    fields: tuple[Any, ...] = (tokens, segments, positions, answer, top_ids, top_log_probs)
    return TokenBatch(*fields)


def _pack(rows: np.ndarray, lengths: np.ndarray, window: int) -> list[list[int]]:
  """First-fit, the longest of each group first: lists of rows, one a window."""
  windows: list[list[int]] = []
  for begin in range(0, len(rows), _GROUP):
    group = sorted(rows[begin : begin + _GROUP].tolist(), key=lambda row: (-lengths[row], row))
    opened: list[tuple[list[int], int]] = []
    for row in group:
      length = min(int(lengths[row]), window)
      for index, (members, used) in enumerate(opened):
        if used + length <= window:
          members.append(row)
          opened[index] = (members, used + length)
          break
      else:
        opened.append(([row], length))
    windows += [members for members, _ in opened]
  return windows
