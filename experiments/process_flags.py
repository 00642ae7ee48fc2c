# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The flags by which several processes run one command together."""

import contextlib
import dataclasses
import os
import sys
import traceback
from collections.abc import Iterator

from absl import flags

from experiments.command import print_error
from experiments.mesh_flags import MeshOptions

AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class ProcessOptions:
  """Which processes run together.

  Attributes:
    coordinator: `host:port` of process 0, "auto", or None for one process alone.
    num_processes: how many there are; None with "auto" and alone.
    process_id: which one this is.

  Raises:
    ValueError: naming the flag that does not fit.
  """

  coordinator: str | None = None
  num_processes: int | None = None
  process_id: int | None = None

  def __post_init__(self):
    numbers = {"num_processes": self.num_processes, "process_id": self.process_id}
    given = [name for name, value in numbers.items() if value is not None]
    if self.coordinator is None:
      if given:
        raise ValueError(f"--{given[0]} is for several processes: give --coordinator=HOST:PORT too")
      return
    if self.coordinator == AUTO:
      if given:
        raise ValueError(f"--coordinator=auto finds the processes itself: leave --{given[0]} out")
      return
    _check_address(self.coordinator)
    for name, value in numbers.items():
      if value is None:
        raise ValueError(
          f"--coordinator={self.coordinator} needs --{name} too; under Slurm, Open MPI and on a "
          "TPU pod, --coordinator=auto finds all three"
        )
    count, index = self.num_processes or 0, self.process_id or 0
    if count < 1:
      raise ValueError(f"num_processes must be an integer >= 1, got {count}")
    if not 0 <= index < count:
      raise ValueError(f"process_id must be in 0 .. num_processes - 1 = {count - 1}, got {index}")

  @property
  def several(self) -> bool:
    """Whether there may be more than this process."""
    return self.coordinator is not None

  def mesh(self, mesh: MeshOptions) -> MeshOptions:
    """The mesh options of a run: several processes without a mesh part the rows among them."""
    if self.several and mesh.mesh is None:
      return dataclasses.replace(mesh, mesh="data:-1")
    return mesh

  @contextlib.contextmanager
  def joined(self) -> Iterator[None]:
    """Joins the processes while the context lasts; only the first one prints.

    Raises:
      ValueError: where they cannot be joined.
    """
    if not self.several:
      yield
      return
    # Imported late: a mistyped flag is answered at once, not after JAX has started.
    from specjax.sharding import processes

    address = None if self.coordinator == AUTO else self.coordinator
    with contextlib.ExitStack() as stack:
      stack.enter_context(processes.joined(address, self.num_processes, self.process_id, _report))
      if not processes.is_first():
        silence = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(silence))
      yield


def define_processes(values: flags.FlagValues) -> None:
  """Defines --coordinator, --num_processes and --process_id."""
  flags.DEFINE_string(
    "coordinator",
    None,
    "Runs with other processes: HOST:PORT of process 0, which all are started with; 'auto' finds "
    "them under Slurm, Open MPI and on a TPU pod. Without --mesh, rows are parted among all their "
    "devices. Process 0 alone writes results.",
    flag_values=values,
  )
  flags.DEFINE_integer(
    "num_processes", None, "How many processes run together.", flag_values=values
  )
  flags.DEFINE_integer("process_id", None, "Which of them this one is, from 0.", flag_values=values)


def read_processes(values: flags.FlagValues) -> ProcessOptions:
  """The flags of `define_processes`.

  Raises:
    ValueError: naming the flag that does not fit.
  """
  return ProcessOptions(values.coordinator, values.num_processes, values.process_id)


def _report(error: BaseException) -> int:
  """Tells of what ended this process, as the commands do; returns the exit code."""
  if isinstance(error, KeyboardInterrupt):
    print(error.args[0] if error.args else "interrupted", file=sys.stderr)
    return 130
  if isinstance(error, ValueError | OSError | ImportError):
    print_error(error)
    return 2
  traceback.print_exception(error)
  return 1


def _check_address(text: str) -> None:
  host, colon, port = text.rpartition(":")
  if not colon or not host:
    raise ValueError(f"coordinator must be HOST:PORT or auto, got {text!r}")
  if not port.isdecimal() or not 1 <= int(port) <= 65535:
    raise ValueError(f"coordinator must have a port in 1 .. 65535, got {port!r} in {text!r}")
