# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Rules from the names of dimensions to axes of the mesh.

A dimension is cut by the mesh axes of its name's rule. Where these do not divide it, it is cut by
the longest leading part of them that does, and where there is none, it is *replicated*: every
device holds all of it. Heads are never cut in two: what must be divided is their number. An axis
cuts one dimension of an array only, the first that asks for it.
"""

from collections.abc import Mapping

from specjax.sharding.mesh import AXES

# By logical name: the mesh axes that cut such a dimension, the outermost first.
#   batch: rows; heads, kv_heads: attention heads; mlp: inside of a feed-forward layer;
#   vocab: tokens of the vocabulary; embed: width of the residual stream, in parameters;
#   layers: layers, where they are stacked; slots: slots of a cache or token buffer.
DEFAULT_RULES: dict[str, tuple[str, ...]] = {
  "batch": ("data", "fsdp"),
  "heads": ("model",),
  "kv_heads": ("model",),
  "mlp": ("model",),
  "vocab": ("model",),
  "embed": ("fsdp",),
  "norm": (),
  "layers": (),
  "slots": (),
  "head_dim": (),
  "draft": (),
}
# Every device has the whole model, and its share of the rows: for a small drafter.
REPLICATED: dict[str, tuple[str, ...]] = {
  name: axes if name == "batch" else () for name, axes in DEFAULT_RULES.items()
}

Rules = Mapping[str, str | tuple[str, ...] | None]
RulePairs = tuple[tuple[str, tuple[str, ...]], ...]


def make_rules(rules: Rules | str | None = None) -> RulePairs:
  """`rules` laid over `DEFAULT_RULES`, hashable.

  Args:
    rules: mesh axes (a name, a tuple, or None for none) by logical name; or text, as `parse_rules`
      reads it.

  Raises:
    ValueError: for an unknown logical name or mesh axis, or an axis that a rule names twice.
  """
  if isinstance(rules, str):
    rules = parse_rules(rules)
  merged = dict(DEFAULT_RULES)
  for name, value in (rules or {}).items():
    axes = (value,) if isinstance(value, str) else tuple(value or ())
    if name not in DEFAULT_RULES:
      raise ValueError(f"sharding rules are for the names {', '.join(DEFAULT_RULES)}, got {name!r}")
    for axis in axes:
      if axis not in AXES:
        raise ValueError(
          f"the sharding rule of {name!r} must name mesh axes of {', '.join(AXES)}, got {axis!r}"
        )
    if len(set(axes)) != len(axes):
      raise ValueError(f"the sharding rule of {name!r} must name each mesh axis once, got {axes}")
    merged[name] = axes
  return tuple(merged.items())


def parse_rules(text: str) -> dict[str, tuple[str, ...]]:
  """Rules from text such as "vocab:none,embed:data+fsdp"; "replicated" is `REPLICATED`.

  Raises:
    ValueError: for text of another form.
  """
  if text.strip() == "replicated":
    return dict(REPLICATED)
  rules: dict[str, tuple[str, ...]] = {}
  for part in filter(None, (part.strip() for part in text.split(","))):
    name, colon, value = (piece.strip() for piece in part.partition(":"))
    if not colon or not value:
      raise ValueError(
        f'sharding rules must be written as "name:axis+axis" or "name:none", or be "replicated", '
        f"got {part!r}"
      )
    rules[name] = () if value == "none" else tuple(axis.strip() for axis in value.split("+"))
  return rules
