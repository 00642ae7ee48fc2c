# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Files that are either whole or not there: written aside, checked, then renamed."""

import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = ".fetch-"
# A run on another machine that was killed: a day is longer than any download is at work.
_STALE_SECONDS = 24 * 3600.0


def sha256(path: Path) -> str:
  """The file's SHA-256 in hexadecimal (98 MB take about 0.1 s)."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, size: int, checksum: str | None = None) -> None:
  """Compares a file with its size in bytes and, where given, its SHA-256.

  Raises:
    ValueError: saying what differs.
  """
  if not path.is_file():
    raise ValueError(f"{path.name} is missing")
  found = path.stat().st_size
  if found != size:
    raise ValueError(f"{path.name} has {found} bytes, expected {size}")
  if checksum is not None and (digest := sha256(path)) != checksum:
    raise ValueError(f"{path.name} has SHA-256 {digest}, expected {checksum}")


@contextlib.contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
  """A fresh folder in `parent`, on the same disk as it; removed at the end, however it ends."""
  parent.mkdir(parents=True, exist_ok=True)
  folder = Path(tempfile.mkdtemp(prefix=_prefix(os.getpid()), dir=parent))
  try:
    yield folder
  finally:
    shutil.rmtree(folder, ignore_errors=True)


def replace_file(source: Path, destination: Path) -> None:
  """Moves a finished file into place in one step, after its bytes have reached the disk."""
  with source.open("rb") as file:
    os.fsync(file.fileno())
  destination.parent.mkdir(parents=True, exist_ok=True)
  os.replace(source, destination)


def write_text(path: Path, text: str) -> None:
  """Writes a UTF-8 file so that it is never there in part; its folder exists."""
  temporary = path.with_name(f".{path.name}.{os.getpid()}")
  temporary.write_text(text, encoding="utf-8")
  replace_file(temporary, path)


def replace_folder(source: Path, destination: Path) -> None:
  """Moves a finished folder into place; the folder that was there is removed.

  A folder cannot be renamed over another one: the old one steps aside first, and comes back if
  the new one cannot take its place.
  """
  destination.parent.mkdir(parents=True, exist_ok=True)
  with temporary_folder(destination.parent) as aside:
    old = aside / "old"
    if destination.exists():
      os.replace(destination, old)
    try:
      os.replace(source, destination)
    except BaseException:
      if old.exists():
        os.replace(old, destination)
      raise


def remove_stale(cache: Path) -> None:
  """Removes what runs left behind that were killed, and so could not clean up."""
  oldest = time.time() - _STALE_SECONDS
  for folder in cache.glob(f"**/{_PREFIX}*"):
    with contextlib.suppress(OSError):
      if _owner_is_gone(folder.name) or folder.stat().st_mtime < oldest:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(process: int) -> str:
  """The name of a temporary folder says whose it is: `.fetch-<process>-<machine>-`."""
  return f"{_PREFIX}{process}-{platform.node()}-"


def _owner_is_gone(name: str) -> bool:
  """Whether the process that a temporary folder is named after has ended, on this machine."""
  number = name.removeprefix(_PREFIX).split("-")[0]
  # Elsewhere than on POSIX systems, asking would end the process.
  if os.name != "posix" or not number.isdigit() or not name.startswith(_prefix(int(number))):
    return False
  try:
    os.kill(int(number), 0)
  except ProcessLookupError:
    return True
  except OSError:
    return False
  return False
