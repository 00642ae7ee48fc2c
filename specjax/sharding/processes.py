# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Several processes that run one program over the devices of all of them.

Every process runs the same program in the same order; `jax.distributed` joins them, and a mesh over
all their devices does the rest. What a process holds of an array is its devices' share. Two things
need care: what the host looks at must be gathered first (`fetch`), and what one process knows alone
(a file, a signal, the time) must be told to all before a decision depends on it (`from_first`,
`any_process`).

With one process all functions here are what they would be without any of this.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from specjax.types import PyTree

# Seconds: until the others must have started, until a process that says nothing counts as dead,
# and until one that ends no longer waits for the others.
_START_TIMEOUT, _HEARTBEAT_TIMEOUT, _SHUTDOWN_TIMEOUT = 60, 25, 10
_LAST_WORDS = 2

# What collectives and the coordination service say when another process is gone. JAX has no type
# for it: gloo's errors come as a ValueError, which begins with the name of a status as all do.
_STATUS = re.compile(r"[A-Z_]{5,}: ")
_SIGNS = (
  "gloo",
  "nccl",
  "connection closed",
  "connection reset",
  "socket closed",
  "coordination",
  "heartbeat",
  "barrier",
  "deadline_exceeded",
)


@contextlib.contextmanager
def joined(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  report: Callable[[BaseException], int] | None = None,
) -> Iterator[None]:
  """Joins the processes of a run while the context lasts; to be entered before JAX has devices.

  Where another process dies, this one ends at once with exit code 1 and a line on standard error,
  or, if JAX notices first, by JAX's own report. It cannot go on: half of its arrays are gone.

  Args:
    coordinator: `host:port` of process 0, which the others reach; None lets JAX find all three, as
      it can under Slurm, Open MPI and on a TPU pod.
    num_processes: how many there are.
    process_id: which one this is, from 0.
    report: tells of an exception and returns the exit code with which this process then ends at
      once: whoever waits for it is to notice. None raises it, after waiting for the others.

  Raises:
    ValueError: where they cannot be joined.
  """
  # Only the CPU looks at it.
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  try:
    jax.distributed.initialize(
      coordinator,
      num_processes,
      process_id,
      initialization_timeout=_START_TIMEOUT,
      heartbeat_timeout_seconds=_HEARTBEAT_TIMEOUT,
      shutdown_timeout_seconds=_SHUTDOWN_TIMEOUT,
    )
  except (RuntimeError, ValueError) as error:
    where = "by JAX's own detection" if coordinator is None else f"at {coordinator}"
    raise ValueError(f"the processes cannot be joined {where}: {_first_line(error)}") from error
  try:
    yield
  except BaseException as error:
    if _tells_of_a_lost_process(error):
      print(
        f"error: another process of this run ended ({_first_line(error)}); start all of them "
        "again, with the same --output",
        file=sys.stderr,
      )
      _leave_now(1)
    if report is not None:
      code = report(error)
      # The coordinator is the last to go, so that the others, who often have the same error, can
      # tell of it themselves.
      time.sleep(_LAST_WORDS if is_first() else 0)
      _leave_now(code)
    raise
  finally:
    # Waits for the others for a while. That they are gone is no news to a program that is done.
    with contextlib.suppress(Exception):
      jax.distributed.shutdown()


def is_first() -> bool:
  """Whether this is process 0, which writes results."""
  return jax.process_index() == 0


def fetch(tree: PyTree) -> PyTree:
  """`jax.device_get`, also for arrays of which this process has a part only.

  All processes must call it with the same tree, and all get the whole arrays.
  """
  parts = [leaf for leaf in jax.tree.leaves(tree) if _is_part(leaf)]
  if parts:
    whole = iter(_replicate(parts))
    tree = jax.tree.map(lambda leaf: next(whole) if _is_part(leaf) else leaf, tree)
  return jax.device_get(tree)


def place(tree: PyTree, shardings: PyTree) -> PyTree:
  """`jax.device_put`, also for a mesh over several processes, which all have the same tree."""
  if jax.process_count() == 1:
    return jax.device_put(tree, shardings)
  return jax.tree.map(_place, tree, shardings)


def from_first(make: Callable[[], Any]) -> Any:
  """What process 0 makes, in all processes.

  Args:
    make: is called in process 0 only; returns a JSON value.

  Raises:
    ValueError: in all processes, where `make` raised a ValueError or OSError.
  """
  if jax.process_count() == 1:
    return make()
  told: dict[str, Any] = {}
  if is_first():
    try:
      told = {"value": make()}
    except (ValueError, OSError) as error:
      told = {"error": str(error)}
  told = json.loads(_broadcast(json.dumps(told).encode()))
  if "error" in told:
    raise ValueError(told["error"])
  return told["value"]


def any_process(flag: bool) -> bool:
  """Whether the flag is set in any process."""
  if jax.process_count() == 1:
    return flag
  return bool(np.any(multihost_utils.process_allgather(np.array(flag, np.int32))))


def check_same(what: str, value: Any) -> None:
  """Checks that all processes were started for the same thing.

  Args:
    what: name of the value, for the error.
    value: a JSON value.

  Raises:
    ValueError: in all processes, if one of them has another value.
  """
  if jax.process_count() == 1:
    return
  digest = hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).digest()
  found = multihost_utils.process_allgather(np.frombuffer(digest[:24], np.int32))
  others = [index for index, row in enumerate(found) if not np.array_equal(row, found[0])]
  if others:
    raise ValueError(f"process {others[0]} was started with other {what} than process 0")


def check_mesh(mesh: Mesh | AbstractMesh) -> None:
  """Checks that every process has a part of a mesh.

  Raises:
    ValueError: naming a process without one.
  """
  if isinstance(mesh, AbstractMesh):
    return
  having = {device.process_index for device in mesh.devices.flat}
  for index in range(jax.process_count()):
    if index not in having:
      raise ValueError(
        f"the mesh must use devices of every process, it has {mesh.devices.size} of the "
        f"{jax.device_count()} devices and none of process {index}"
      )


def _is_part(leaf: Any) -> bool:
  return (
    isinstance(leaf, jax.Array) and not leaf.is_fully_addressable and not leaf.is_fully_replicated
  )


def _replicate(leaves: list[jax.Array]) -> list[jax.Array]:
  """The arrays whole on every device of their mesh, by one program for all of them."""
  sharding = leaves[0].sharding
  assert isinstance(sharding, NamedSharding)  # arrays of several processes lie on a mesh
  return _replicate_on(NamedSharding(sharding.mesh, PartitionSpec()))(leaves)


def _replicate_on(sharding: NamedSharding) -> Callable[[list[jax.Array]], list[jax.Array]]:
  if sharding not in _programs:
    _programs[sharding] = jax.jit(lambda leaves: leaves, out_shardings=sharding)
  return _programs[sharding]


# `jax.jit` keeps what it compiled by function: a new lambda a call would compile each time.
_programs: dict[NamedSharding, Callable[[list[jax.Array]], list[jax.Array]]] = {}


def _place(leaf: Any, sharding: NamedSharding) -> Any:
  if isinstance(leaf, jax.core.Tracer):
    return jax.lax.with_sharding_constraint(leaf, sharding)
  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
    if leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
      return leaf
    return jax.jit(lambda array: array, out_shardings=sharding)(leaf)
  if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    data = _place(jax.random.key_data(leaf), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
  host = np.asarray(leaf)
  if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
    host = np.asarray(jax.numpy.asarray(leaf))  # a Python number has JAX's dtype
  return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _broadcast(data: bytes) -> bytes:
  """The bytes of process 0."""
  size = int(multihost_utils.broadcast_one_to_all(np.array(len(data), np.int32)))
  buffer = np.zeros(size, np.uint8)
  if is_first():
    buffer[:] = np.frombuffer(data, np.uint8)
  return np.asarray(multihost_utils.broadcast_one_to_all(buffer)).astype(np.uint8).tobytes()


def _tells_of_a_lost_process(error: BaseException) -> bool:
  text = str(error)
  return bool(_STATUS.match(text)) and any(sign in text.lower() for sign in _SIGNS)


def _first_line(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[0][:300]


def _leave_now(code: int) -> None:
  """Ends the process without waiting for anything that the others had to take part in."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
