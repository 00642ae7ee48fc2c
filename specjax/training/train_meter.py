# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What the rows of a training log measure: metrics since the row before, tokens, time."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from specjax.training.objective import Metrics


class TrainMeter:
  """Adds up steps between two rows; tokens and seconds are the run's, over all its resumes.

  Attributes:
    tokens: tokens trained on so far, padding not counted.
  """

  def __init__(self, rows: Sequence[dict[str, Any]]):
    """Starts the clock.

    Args:
      rows: the log so far; tokens and seconds go on from its last row.
    """
    last: dict[str, Any] = rows[-1] if rows else {"tokens": 0, "seconds": 0.0}
    self.tokens: int = last["tokens"]
    self._seconds: float = last["seconds"]
    self._metrics: Metrics | None = None
    self._row_tokens, self._row_seconds = self.tokens, 0.0
    self._mark = time.perf_counter()

  def add(self, metrics: Metrics, tokens: int) -> None:
    """A step's metrics, which may still be being computed, and its tokens."""
    self._metrics = metrics if self._metrics is None else self._metrics + metrics
    self.tokens += tokens

  def row(self) -> dict[str, Any]:
    """Waits for the steps since the last row, sums them up, and begins anew.

    Returns:
      `Metrics.summary`, `tokens`, `seconds`, and `tokens_per_second` since the last row, without
      the time of `aside`.
    """
    if self._metrics is None:
      raise ValueError("a row needs at least one step since the row before")
    row = self._metrics.summary()
    self._row_seconds += self._lap()
    speed = (self.tokens - self._row_tokens) / max(self._row_seconds, 1e-9)
    self._metrics, self._row_tokens, self._row_seconds = None, self.tokens, 0.0
    return row | {"tokens": self.tokens, "tokens_per_second": speed, "seconds": self._seconds}

  @contextlib.contextmanager
  def aside(self) -> Iterator[None]:
    """Time that is no training: a validation, a checkpoint. It counts for `seconds` alone."""
    self._row_seconds += self._lap()
    yield
    self._lap()

  @property
  def seconds(self) -> float:
    """Seconds of the run up to the last row or `aside`."""
    return self._seconds

  def _lap(self) -> float:
    now = time.perf_counter()
    lap, self._mark = now - self._mark, now
    self._seconds += lap
    return lap
