# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Meshes of devices with named axes, written as "data:2,model:4".

A mesh always has all of `AXES`; those that a text does not name have one device. `jax.jit` with
`NamedSharding`s over such a mesh is what pjit has become (GSPMD, Xu et al. 2021, arXiv 2105.04663).
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh

# data: copies of the model, each with its share of the rows. fsdp: rows too, and every copy's
# parameters are parted among its devices. model: heads, feed-forward layer and vocabulary.
AXES = ("data", "fsdp", "model")


def parse_axes(text: str) -> dict[str, int]:
  """The size of every axis of `AXES`, from text such as "data:2,model:4"; -1 is the rest.

  Raises:
    ValueError: naming what cannot be read.
  """
  sizes: dict[str, int] = {}
  if not isinstance(text, str) or not text.strip():
    raise ValueError(f'mesh must name axes and sizes such as "data:2,model:4", got {text!r}')
  for part in text.split(","):
    name, colon, number = (piece.strip() for piece in part.partition(":"))
    if not colon or not name:
      raise ValueError(f'mesh must be written as "axis:size,axis:size", got {part!r} in {text!r}')
    if name not in AXES:
      raise ValueError(f"mesh axes are {', '.join(AXES)}, got {name!r} in {text!r}")
    if name in sizes:
      raise ValueError(f"mesh must name the axis {name!r} once, got {text!r}")
    try:
      size = int(number)
    except ValueError:
      size = 0
    if size < 1 and size != -1:
      raise ValueError(
        f"mesh axis {name!r} must have a size >= 1, or -1 for the rest, got {number!r} in {text!r}"
      )
    sizes[name] = size
  if list(sizes.values()).count(-1) > 1:
    raise ValueError(f"mesh must have at most one axis of size -1, got {text!r}")
  return {name: sizes.get(name, 1) for name in AXES}


def make_mesh(text: str | Mesh, devices: Sequence[Any] | None = None) -> Mesh:
  """The mesh that a text describes, over the first devices that it needs.

  Args:
    text: such as "data:2,model:4" or "fsdp:-1"; a mesh is returned as it is.
    devices: all that may be used; None takes `jax.devices()`.

  Raises:
    ValueError: for text that cannot be read, a mesh larger than the number of devices, a size of
      -1 that the number of devices does not fit, or a mesh without all of `AXES`.
  """
  if isinstance(text, Mesh):
    if set(text.axis_names) != set(AXES):
      raise ValueError(f"mesh must have the axes {', '.join(AXES)}, got {text.axis_names}")
    return text
  sizes = parse_axes(text)
  devices = jax.devices() if devices is None else list(devices)
  needed = math.prod(size for size in sizes.values() if size > 0)
  if -1 in sizes.values():
    if len(devices) % needed:
      raise ValueError(
        f"mesh {text!r}: {needed} does not divide the {len(devices)} devices that there are"
      )
    rest = len(devices) // needed
    sizes = {name: rest if size < 0 else size for name, size in sizes.items()}
    needed *= rest
  if needed > len(devices):
    hint = ""
    if devices and devices[0].platform == "cpu":
      flag = f"XLA_FLAGS=--xla_force_host_platform_device_count={needed}"
      hint = f" (a CPU looks like that many with {flag})"
    raise ValueError(f"mesh {text!r} needs {needed} devices, there are {len(devices)}{hint}")
  return jax.make_mesh(
    tuple(sizes.values()),
    tuple(sizes),
    axis_types=(AxisType.Auto,) * len(AXES),
    devices=devices[:needed],
  )


def make_abstract_mesh(text: str) -> AbstractMesh:
  """The mesh of a text without any devices: enough for specs and sizes.

  Raises:
    ValueError: for text that cannot be read, or a size of -1.
  """
  sizes = parse_axes(text)
  if -1 in sizes.values():
    raise ValueError(f"mesh {text!r} must have sizes >= 1 where there are no devices to count")
  return AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(AXES))


def describe_mesh(mesh: Mesh | AbstractMesh) -> str:
  """The text of a mesh, axes of one device left out: "data:2,model:4"."""
  sizes = [f"{name}:{size}" for name, size in mesh.shape.items() if size > 1]
  return ",".join(sizes) or "data:1"
