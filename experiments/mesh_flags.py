# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The flags by which every command runs on a mesh of devices."""

import dataclasses
from typing import Any

from absl import flags


@dataclasses.dataclass(frozen=True)
class MeshOptions:
  """What the command line says of devices.

  Attributes:
    mesh: text such as "data:2,model:4"; None is one device.
    rules: text over `specjax.sharding.DEFAULT_RULES`; None is none.
    drafter_rules: the same for the drafter's arrays; None is as `rules`.
  """

  mesh: str | None = None
  rules: str | None = None
  drafter_rules: str | None = None

  def load_options(self, batch_size: int) -> dict[str, Any]:
    """Arguments of `specjax.models.checkpoint.load` that put the target on the mesh.

    Starts JAX where a mesh was asked for.

    Args:
      batch_size: of the run, which the mesh must be able to cut.

    Raises:
      ValueError: for a mesh or rules that cannot be read, a mesh larger than the number of
        devices, a batch that it does not divide, or rules without a mesh.
    """
    if self.mesh is None:
      for name in ("rules", "drafter_rules"):
        if getattr(self, name) is not None:
          flag = "sharding_rules" if name == "rules" else name
          raise ValueError(f"--{flag} says how arrays lie on a mesh: give --mesh too")
      return {}
    from specjax.sharding import Partitioning, make_rules, processes

    processes.check_same("devices or batch size", [*dataclasses.astuple(self), batch_size])
    make_rules(self.drafter_rules)  # for its errors, before a model is loaded
    partitioning = Partitioning.of(self.mesh, self.rules)
    processes.check_mesh(partitioning.mesh)
    partitioning.check_batch(batch_size, "batch_size")
    return {"mesh": partitioning.mesh, "rules": self.rules}

  def batch_shards(self) -> int:
    """Into how many parts the mesh cuts the rows of a batch: the fewest rows that it can decode.

    Starts JAX where a mesh was asked for.

    Raises:
      ValueError: as `load_options`.
    """
    if self.mesh is None:
      return 1
    from specjax.sharding import Partitioning

    return Partitioning.of(self.mesh, self.rules).batch_shards


def define_mesh(values: flags.FlagValues, *, drafter: bool = True) -> None:
  """Defines --mesh, --sharding_rules and, for commands that draft, --drafter_rules."""
  flags.DEFINE_string(
    "mesh",
    None,
    "Runs on several devices, such as data:2,model:4. The axis data cuts the rows of a batch, fsdp "
    "rows and parameters, model heads, feed-forward layers and vocabulary; -1 is the rest of the "
    "devices. The default is one device.",
    flag_values=values,
  )
  flags.DEFINE_string(
    "sharding_rules",
    None,
    "What is cut by which axis, over the default rules: name:axis+axis or name:none, parted by "
    "commas, such as vocab:none.",
    flag_values=values,
  )
  if drafter:
    flags.DEFINE_string(
      "drafter_rules",
      None,
      "The same for the drafter's arrays; 'replicated' gives every device the whole drafter. The "
      "default is as for the target.",
      flag_values=values,
    )


def read_mesh(values: flags.FlagValues) -> MeshOptions:
  """The flags of `define_mesh`.

  Raises:
    ValueError: for a mesh that cannot be read.
  """
  if values.mesh is not None:
    from specjax.sharding.mesh import parse_axes

    parse_axes(values.mesh)
  return MeshOptions(
    mesh=values.mesh,
    rules=values.sharding_rules,
    drafter_rules=values["drafter_rules"].value if "drafter_rules" in values else None,
  )
