# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiled programs hold memory maps, of which Linux allows a process a limited number.

The programs of one method for one length of prompts have over a thousand on a CPU, even with a
model of 30 small layers. Many methods and lengths would end in a crash of the compiler at the
limit.
"""

import gc
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_LIMIT = Path("/proc/sys/vm/max_map_count")


def share_of_maps() -> float:
  """Memory maps of this process over those that it may have; 0 where the system does not say."""
  try:
    limit = int(_LIMIT.read_text())
    return _MAPS.read_bytes().count(b"\n") / limit
  except (OSError, ValueError):
    return 0.0


def free_if_many(share: float = 0.5) -> bool:
  """Forgets all compiled programs once they are too many; each is compiled again when needed.

  Args:
    share: of the maps that the process may have, from which on programs are forgotten.

  Returns:
    Whether they were forgotten.
  """
  if share_of_maps() < share:
    return False
  import jax

  jax.clear_caches()
  gc.collect()
  return True
