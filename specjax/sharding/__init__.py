# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Arrays over a mesh of devices: data parallel, fully sharded, tensor parallel, and mixtures.

A mesh has the axes `data`, `fsdp` and `model`; rules say which of them cut a dimension of which
name; from the two follows how every parameter, cache and state lies on the devices. The rest is
`jax.jit`: programs are written for whole arrays, and the compiler adds the communication.

  mesh = sharding.make_mesh("data:2,model:4")
  params = sharding.shard(params, mesh, model=model)
  specjax.generate(model, params, prompts, mesh=mesh)
"""

from specjax.sharding.leaf_table import LeafRow, leaf_rows
from specjax.sharding.mesh import AXES, describe_mesh, make_abstract_mesh, make_mesh
from specjax.sharding.partitioning import Partitioning, shard
from specjax.sharding.rules import DEFAULT_RULES, REPLICATED, make_rules

__all__ = [
  "AXES",
  "DEFAULT_RULES",
  "REPLICATED",
  "LeafRow",
  "Partitioning",
  "describe_mesh",
  "leaf_rows",
  "make_abstract_mesh",
  "make_mesh",
  "make_rules",
  "shard",
]
