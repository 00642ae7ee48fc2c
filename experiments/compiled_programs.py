# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Compiled programs: kept on the disk, and let go before a process holds too many of them.

They hold memory maps, of which Linux allows a process a limited number. The programs of one method
for one length of prompts have over a thousand on a CPU, even with a model of 30 small layers. Many
methods and lengths would end in a crash of the compiler at the limit.
"""

import gc
import os
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


def keep_on_disk(folder: str | None) -> None:
  """Lets JAX keep compiled programs on the disk, so that the next run starts at once.

  Args:
    folder: where; None is in the user's cache folder, "" keeps none.
  """
  import jax

  from specjax.models.resolver import default_cache_dir

  if folder is None:
    folder = str(default_cache_dir() / "compiled")
  if not folder:
    return
  os.makedirs(folder, exist_ok=True)
  jax.config.update("jax_compilation_cache_dir", folder)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
