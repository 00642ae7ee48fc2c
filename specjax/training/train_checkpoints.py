# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training run, by Orbax: asynchronous, atomic, the newest few kept."""

from pathlib import Path
from typing import TypeVar

import jax
import orbax.checkpoint as ocp

_State = TypeVar("_State")


class TrainCheckpoints:
  """The checkpoints of one run's folder."""

  def __init__(self, folder: Path, keep: int):
    """Opens `folder/checkpoints`, which keeps the newest `keep` of them."""
    self._manager = ocp.CheckpointManager(
      (folder / "checkpoints").absolute(),
      options=ocp.CheckpointManagerOptions(
        max_to_keep=keep, create=True, enable_async_checkpointing=True
      ),
    )

  @property
  def newest_step(self) -> int | None:
    """The step of the newest whole checkpoint; one that was cut off does not count."""
    return self._manager.latest_step()

  def restore(self, state: _State) -> _State:
    """The newest checkpoint, or `state` if there is none.

    Args:
      state: a state of the same structure, shapes and dtypes.

    Raises:
      ValueError: if the checkpoint is of another structure, or damaged.
    """
    step = self.newest_step
    if step is None:
      return state
    leaves, structure = jax.tree.flatten(state)
    try:
      restored = self._manager.restore(step, args=ocp.args.StandardRestore(_named(leaves)))
    except (ValueError, KeyError, TypeError) as error:
      reason = str(error).splitlines()[0]
      raise ValueError(
        f"checkpoint {step} in {self._manager.directory} does not fit this run or is damaged "
        f"(without its folder the run goes on from the one before): {reason:.300}"
      ) from error
    return jax.tree.unflatten(structure, [restored[name] for name in _named(leaves)])

  def save(self, step: int, state: object) -> None:
    """Saves a state in the background (its arrays are copied first)."""
    leaves = jax.tree.leaves(state)
    if jax.process_count() == 1:
      leaves = jax.device_get(leaves)
    # Of several processes each writes what it has: Orbax copies that to the host itself.
    self._manager.save(step, args=ocp.args.StandardSave(_named(leaves)))

  def close(self) -> None:
    """Waits until everything is on the disk."""
    self._manager.wait_until_finished()
    self._manager.close()


def _named(leaves: list) -> dict[str, object]:
  """Orbax takes dictionaries; the state's own structure is known without it."""
  return {f"{index:05d}": leaf for index, leaf in enumerate(leaves)}
