# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Token data on the disk: rows of prompt and answer ids, compact, and safe to be cut off.

A folder holds

  manifest.json      what the rows are: format version, model, vocabulary size, settings
  rows.jsonl         one object a row: which prompt, its lengths, its split
  tokens.bin         the ids of all rows one after another, uint16 or uint32
  top_ids.bin        optional: `[R]` ids for each answer token, the target's likeliest there
  top_log_probs.bin  optional: their log-probabilities, float16

A row is written to the binary files first and then to rows.jsonl, so that whatever follows the
last whole line belongs to a row that was cut off, and is cut away when the folder is opened.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specjax import json_lines
from specjax.models import cached_files
from specjax.models.text_files import read_json

VERSION = 1
TRAIN, VALIDATION = "train", "validation"


class TokenRows:
  """Rows of prompt and answer ids, wherever they lie.

  Attributes:
    folder: where they lie, for messages.
    manifest: what they are, with `vocab_size`.
    rows: what rows.jsonl says of each.
  """

  folder: Path | str
  manifest: dict[str, Any]
  rows: list[dict[str, Any]]

  def tokens(self) -> np.ndarray:
    """All ids, `[sum of lengths]`."""
    raise NotImplementedError

  def offsets(self) -> np.ndarray:
    """`[rows + 1]` int64: where each row begins in `tokens()`."""
    return np.cumsum([0] + [row["length"] for row in self.rows], dtype=np.int64)

  def top_targets(self) -> tuple[np.ndarray, np.ndarray] | None:
    """`[answer tokens, R]` ids and float16 log-probabilities; None unless all rows have them."""
    raise NotImplementedError

  def top_offsets(self) -> np.ndarray:
    """`[rows + 1]` int64: where each row begins in `top_targets()`."""
    answers = [row["length"] - row["prompt_length"] for row in self.rows]
    return np.cumsum([0, *answers], dtype=np.int64)


class TokenFolder(TokenRows):
  """Token data of a folder, open for reading and appending."""

  folder: Path

  def __init__(self, folder: str | Path, manifest: Mapping[str, Any] | None = None):
    """Opens the data, or begins it with a manifest.

    Args:
      folder: where it lies.
      manifest: what the rows are, JSON values, with `vocab_size`; None only opens.

    Raises:
      ValueError: if there is no data and no manifest, for another format version, for rows
        that were made with other settings, or for files that do not fit each other.
    """
    self.folder = Path(folder)
    path = self.folder / "manifest.json"
    if manifest is not None:
      manifest = {"format": "specjax token data", "version": VERSION, **manifest}
    if path.exists():
      found = _read_manifest(path)
      if manifest is not None:
        _check_same(path, found, json.loads(json.dumps(manifest)))
      self.manifest = found
    elif manifest is None:
      raise ValueError(
        f"data folder {self.folder} has no manifest.json; make it with "
        "python -m experiments.generate_data"
      )
    else:
      self.folder.mkdir(parents=True, exist_ok=True)
      cached_files.write_text(path, json.dumps(manifest, indent=2) + "\n")
      self.manifest = dict(manifest)
    self.dtype = np.dtype("<u2" if self.manifest["vocab_size"] <= 2**16 else "<u4")
    self.rows = self._recover()

  # --- reading -----------------------------------------------------------------------------

  def tokens(self) -> np.ndarray:
    """All ids, `[sum of lengths]`, mapped from the disk."""
    return self._map("tokens.bin", self.dtype, (sum(row["length"] for row in self.rows),))

  def top_targets(self) -> tuple[np.ndarray, np.ndarray] | None:
    """As `TokenRows.top_targets`, mapped from the disk."""
    count, size = int(self.top_offsets()[-1]), self.top_size
    if size is None or self.num_scored < len(self.rows):
      return None
    ids = self._map("top_ids.bin", self.dtype, (count, size))
    return ids, self._map("top_log_probs.bin", np.dtype("<f2"), (count, size))

  @property
  def top_size(self) -> int | None:
    """R, or None if no targets were ever written."""
    path = self.folder / "top_size.json"
    return json.loads(path.read_text()) if path.exists() else None

  @property
  def num_scored(self) -> int:
    """Leading rows that have their targets."""
    size = self.top_size
    if size is None:
      return 0
    return self._count_scored(self.top_offsets(), size)

  def _count_scored(self, top_offsets: np.ndarray, size: int) -> int:
    # The probabilities are written last.
    path = self.folder / "top_log_probs.bin"
    entries = path.stat().st_size // (2 * size) if path.exists() else 0
    return int(np.searchsorted(top_offsets, entries, side="right")) - 1

  # --- writing -----------------------------------------------------------------------------

  def append(self, ids: Sequence[int], prompt_length: int, facts: Mapping[str, Any]) -> None:
    """Adds a row.

    Args:
      ids: the prompt's and the answer's tokens.
      prompt_length: how many of them are the prompt's.
      facts: JSON values for rows.jsonl: `prompt` (its checksum) and `split` at least.
    """
    row = {**facts, "prompt_length": int(prompt_length), "length": len(ids)}
    with open(self.folder / "tokens.bin", "ab") as file:
      file.write(np.asarray(ids, self.dtype).tobytes())
    with open(self.folder / "rows.jsonl", "a", encoding="utf-8") as file:
      file.write(json.dumps(row) + "\n")
    self.rows.append(row)

  def append_targets(self, ids: np.ndarray, log_probs: np.ndarray) -> None:
    """Adds the targets of the first row that has none.

    Args:
      ids: `[answer tokens of that row, R]`, the likeliest tokens in each answer token's place.
      log_probs: their log-probabilities.

    Raises:
      ValueError: for another R than the rows before have, or another number of tokens.
    """
    size = self.top_size
    if size is None:
      (self.folder / "top_size.json").write_text(json.dumps(int(ids.shape[1])))
      size = int(ids.shape[1])
    offsets = self.top_offsets()
    scored = self._count_scored(offsets, size)
    begin, end = offsets[scored : scored + 2]
    if ids.shape != (end - begin, size) or log_probs.shape != ids.shape:
      raise ValueError(
        f"targets of row {scored} must have shape {(int(end - begin), size)}, got {ids.shape} "
        f"and {log_probs.shape}"
      )
    _cut(self.folder / "top_ids.bin", int(begin) * size * self.dtype.itemsize)
    _cut(self.folder / "top_log_probs.bin", int(begin) * size * 2)
    with open(self.folder / "top_ids.bin", "ab") as file:
      file.write(ids.astype(self.dtype).tobytes())
    with open(self.folder / "top_log_probs.bin", "ab") as file:
      # float16 ends at -65504: a masked token's -inf stays -inf.
      file.write(np.asarray(log_probs).astype("<f2").tobytes())

  # --- helpers -----------------------------------------------------------------------------

  def _recover(self) -> list[dict[str, Any]]:
    """Reads the rows and cuts away what belongs to none of them."""
    rows = json_lines.recover(self.folder / "rows.jsonl")
    expected = sum(row["length"] for row in rows) * self.dtype.itemsize
    tokens = self.folder / "tokens.bin"
    size = tokens.stat().st_size if tokens.exists() else 0
    if size < expected:
      raise ValueError(f"{tokens} is cut off: it has {size} bytes, its rows need {expected}")
    _cut(tokens, expected)
    return rows

  def _map(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    if 0 in shape:
      return np.zeros(shape, dtype)
    return np.memmap(self.folder / name, dtype, mode="r", shape=shape)


def _cut(path: Path, size: int) -> None:
  if path.exists() and path.stat().st_size > size:
    with open(path, "r+b") as file:
      file.truncate(size)


def _read_manifest(path: Path) -> dict[str, Any]:
  found = read_json(path)
  if found.get("format") != "specjax token data":
    raise ValueError(f"{path} is not a manifest of token data")
  if found.get("version") != VERSION:
    raise ValueError(f"{path} has format version {found.get('version')}, this takes {VERSION}")
  return found


def _check_same(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
  for name in sorted(set(found) | set(wanted)):
    if found.get(name) != wanted.get(name):
      raise ValueError(
        f"{path.parent} holds data made with {name} {found.get(name)!r}, this run has "
        f"{wanted.get(name)!r}; take another folder"
      )
