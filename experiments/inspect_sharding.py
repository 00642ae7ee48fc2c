# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Shows how every array lies on a mesh of devices: parameters, caches, loop state, drafter.

  python -m experiments.inspect_sharding --mesh=data:2,model:4
  python -m experiments.inspect_sharding --mesh=model:8 --method=draft_model --draft_layers=4 \
    --drafter_rules=replicated --batch_size=8

Only shapes are made, no weights are read. A CPU looks like eight devices with
XLA_FLAGS=--xla_force_host_platform_device_count=8; with --abstract there need not be any.
Exit codes: 0, 2 for bad input.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from experiments.command import answer, read_flags
from experiments.flags import DEFAULT_MODEL
from experiments.mesh_flags import define_mesh, read_mesh
from experiments.report import format_table

METHODS = ("autoregressive", "prompt_lookup", "draft_model", "blockwise", "pass", "pass_merged")


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(lambda: print(inspect_sharding(read_flags(argv, _define, __doc__))), "interrupted")


def _define(values: flags.FlagValues) -> None:
  def string(name, default, text):
    flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name, default, text, lower=1):
    flags.DEFINE_integer(name, default, text, lower_bound=lower, flag_values=values)

  define_mesh(values)
  string("model", DEFAULT_MODEL, "Target model: a short name, hub id, folder or file.")
  string("dtype", None, "Number format of weights and caches. The default suits the device.")
  flags.DEFINE_enum("method", "autoregressive", METHODS, "Who drafts.", flag_values=values)
  string("draft_checkpoint", None, "draft_model: the draft model. The default is --draft_layers.")
  integer("draft_layers", 2, "draft_model: first layers of the target that are the draft model.")
  integer("draft_length", 4, "Tokens of a draft.")
  integer("head_width", 256, "blockwise: width of the heads' hidden layer.")
  integer("batch_size", 8, "Rows of a batch.")
  integer("prompt_length", 64, "Tokens of a prompt.")
  integer("capacity", 1024, "Slots of cache and token buffer.")
  flags.DEFINE_boolean("sampled", True, "Whether rows are sampled.", flag_values=values)
  flags.DEFINE_boolean(
    "abstract",
    False,
    "Takes a mesh of devices that are not here: nothing is placed anyway.",
    flag_values=values,
  )


def inspect_sharding(values: flags.FlagValues) -> str:
  """The table, and the sums of each part, as text.

  Raises:
    ValueError: for bad input.
  """
  options = read_mesh(values)
  if options.mesh is None:
    raise ValueError('--mesh must be given, such as "data:2,model:4"')
  if values.capacity < values.prompt_length + values.draft_length + 2:
    raise ValueError(
      f"capacity must be at least prompt_length + draft_length + 2 = "
      f"{values.prompt_length + values.draft_length + 2}, got {values.capacity}"
    )
  from specjax import sharding
  from specjax.decoding import make_scheme
  from specjax.models import checkpoint
  from specjax.sharding import Partitioning, leaf_rows

  mesh: Any = None
  if values.abstract:
    mesh = sharding.make_abstract_mesh(options.mesh)
  else:
    mesh = sharding.make_mesh(options.mesh)
  batch = values.batch_size
  Partitioning.of(mesh, options.rules).check_batch(batch, "batch_size")
  model = checkpoint.read(
    values.model,
    dtype=values.dtype,
    tokenizer=False,
    log=lambda line: print(line, file=sys.stderr),
  ).model
  params = model.param_shapes()
  drafter, drafter_params = _drafter(values, model, params)
  scheme = make_scheme(
    model, drafter, None, mesh=mesh, rules=options.rules, drafter_rules=options.drafter_rules
  )
  state = _state_shapes(scheme, params, drafter_params, values)
  ours, drafters = scheme.partitioning, scheme.drafter_partitioning
  assert ours is not None and drafters is not None
  loop = {
    name: getattr(state, name)
    for name in ("tokens", "length", "finish", "calls", "hidden", "records", "policy_context")
  }
  parts = {
    "target": leaf_rows(params, ours, prefix="params/"),
    "target cache": leaf_rows(state.cache, ours, batch, "cache/"),
    "loop state": leaf_rows(loop, ours, batch),
    "drafter": leaf_rows(drafter_params, drafters, prefix="drafter_params/"),
    "drafter state": leaf_rows(state.drafter_state, drafters, batch, "drafter_state/"),
  }
  return _text(parts, f"{values.model} on {sharding.describe_mesh(mesh)}")


def _drafter(values: flags.FlagValues, model: Any, params: Any) -> tuple[Any, Any]:
  """The drafter and the shapes of its parameters."""
  import jax
  import jax.numpy as jnp

  from specjax import drafters
  from specjax.drafters.blockwise import init_heads
  from specjax.models import checkpoint
  from specjax.models.truncation import truncate

  length = values.draft_length
  if values.method == "autoregressive":
    return drafters.Empty(), None
  if values.method == "prompt_lookup":
    return drafters.PromptLookup(draft_length=length), None
  if values.method == "blockwise":
    heads = jax.eval_shape(
      lambda: init_heads(jax.random.key(0), length, model.hidden_size, values.head_width)
    )
    heads = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, model.dtype), heads)
    return drafters.Blockwise(model, length), {"heads": heads}
  if values.method == "draft_model":
    if values.draft_checkpoint:
      draft = checkpoint.read(values.draft_checkpoint, dtype=values.dtype, tokenizer=False).model
      return drafters.DraftModel(draft, length, pad_vocabulary=True), draft.param_shapes()
    if values.draft_layers > model.num_layers:
      raise ValueError(
        f"draft_layers must be at most {model.num_layers}, the layers of the target, got "
        f"{values.draft_layers}"
      )
    draft, draft_params = truncate(model, params, values.draft_layers)
    return drafters.DraftModel(draft, length), draft_params
  shape = jax.ShapeDtypeStruct((length, model.hidden_size), jnp.float32)
  merged = values.method == "pass_merged"
  return drafters.PaSS(model, length, merged), {"look_ahead": shape}


def _state_shapes(scheme: Any, params: Any, drafter_params: Any, values: flags.FlagValues) -> Any:
  """The `LoopState` of a batch, in shapes."""
  import jax
  import jax.numpy as jnp

  from specjax.decoding import start
  from specjax.loop_state import Fixed
  from specjax.sampling import SamplingPolicy, row_keys

  batch, length = values.batch_size, values.prompt_length
  policy = SamplingPolicy(temperature=1.0 if values.sampled else 0.0)
  policy = policy.resolve(batch, scheme.model.vocab_size, None)
  # Where arrays lie changes no shape, and needs devices.
  scheme = dataclasses.replace(scheme, partitioning=None, drafter_partitioning=None)

  def run(params, drafter_params):
    fixed = Fixed(
      prompt_length=jnp.full(batch, length, jnp.int32),
      limit=jnp.full(batch, values.capacity - scheme.block_width - 1, jnp.int32),
      eos_ids=jnp.full(4, -1, jnp.int32),
      row_keys=row_keys(jax.random.key(0), batch),
      policy=policy,
    )
    prompts = jnp.zeros((batch, length), jnp.int32)
    return start(scheme, params, drafter_params, fixed, prompts, values.capacity)

  return jax.eval_shape(run, params, drafter_params)


def _text(parts: dict[str, list[Any]], title: str) -> str:
  """The table of all leaves and the table of sums."""
  rows, sums = [], []
  for part, leaves in parts.items():
    for leaf in leaves:
      rows.append(
        (
          leaf.path,
          "x".join(map(str, leaf.shape)) or "1",
          leaf.dtype,
          _spec_text(leaf.spec),
          f"{leaf.device_bytes:,}",
          f"{leaf.total_bytes:,}",
          f"{leaf.device_bytes / max(leaf.total_bytes, 1):.3f}",
        )
      )
    if leaves:
      sums.append(_sums(part, leaves))
  header = ("leaf", "shape", "dtype", "spec", "bytes per device", "total bytes", "share")
  columns = ("leaves", "cut", "bytes per device", "total bytes", "share", "share of what is cut")
  return f"{format_table(header, rows)}\n\n{format_table((title, *columns), sums)}"


def _sums(part: str, leaves: list[Any]) -> tuple[str, ...]:
  def share(leaves: list[Any]) -> tuple[int, int, str]:
    device = sum(leaf.device_bytes for leaf in leaves)
    total = sum(leaf.total_bytes for leaf in leaves)
    return device, total, f"{device / total:.3f}" if total else "-"

  device, total, of_all = share(leaves)
  cut = [leaf for leaf in leaves if leaf.is_cut]
  return (
    part,
    str(len(leaves)),
    str(len(cut)),
    f"{device:,}",
    f"{total:,}",
    of_all,
    share(cut)[2],
  )


def _spec_text(spec: Any) -> str:
  """A spec as people read it: one entry a dimension, "-" for one that is not cut."""
  entries = ["-" if e is None else e if isinstance(e, str) else "+".join(e) for e in spec]
  return ", ".join(entries) or "-"


if __name__ == "__main__":
  sys.exit(main(sys.argv))
