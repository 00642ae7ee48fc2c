# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a measurement was made with: the machine and the versions, for rows and reports."""

import importlib.metadata
import os
import platform
from pathlib import Path

# Packages whose version can change a time or a token; those that are not installed are left out.
_PACKAGES = ("specjax", "jax", "jaxlib", "numpy")
PEER_PACKAGES = ("torch", "transformers")


def machine_stamp(*packages: str) -> dict[str, str]:
  """The stamp: plain text by name.

  Args:
    *packages: further packages whose versions matter.
  """
  import jax

  device = jax.devices()[0]
  versions = {}
  for name in (*_PACKAGES, *packages):
    try:
      versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  return {
    "device": f"{device.device_kind} ({device.platform}, {jax.device_count()} of them)",
    "processor": _processor(),
    "cores": str(_usable_cores()),
    "system": platform.platform(terse=True),
    "python": platform.python_version(),
    **versions,
  }


def _usable_cores() -> int:
  """The cores that this process may use, which can be fewer than the machine has."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _processor() -> str:
  """The processor's name: Linux has it in a file, elsewhere Python may know it."""
  path = Path("/proc/cpuinfo")
  if path.is_file():
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
      if line.startswith("model name"):
        return line.split(":", 1)[1].strip()
  return platform.processor() or platform.machine()
