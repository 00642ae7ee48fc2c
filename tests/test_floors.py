# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A file imports only from floors below its own; heavy packages stay in their corner."""

import ast
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# From the ground up. A module may import from its own floor and from those before it. Of two
# entries that a module belongs to, the lower one is its own: drafters know what they are trained
# for, but not how.
FLOORS = [
  {
    "specjax.types",
    "specjax.arguments",
    "specjax.buckets",
    "specjax.run_if",
    "specjax.json_lines",
  },
  {"specjax.sharding"},
  {"specjax.training.token_data", "specjax.training.objective"},
  {"specjax.trees", "specjax.policy_arguments", "specjax.processors", "specjax.sampling"},
  {"specjax.models"},
  {"specjax.drafters", "specjax.verifiers", "specjax.generation", "specjax.requests"},
  {"specjax.loop_state", "specjax.commit"},
  {"specjax.decoding"},
  {
    "specjax.evaluation",
    "specjax.export",
    "specjax.text",
    "specjax.training",
    "specjax.tracing",
  },
  {"configs"},
  {"experiments"},
]
CORNERS = {
  "flax": {"specjax.models"},
  "orbax": {"specjax.models", "specjax.training"},
  "optax": {"specjax.training"},
  # Optional packages: brought in by specjax.models.optional_packages where they are used.
  "gguf": set(),
  "safetensors": set(),
  "tokenizers": set(),
  "absl": {"experiments"},
  "matplotlib": {"experiments"},
  "sklearn": {"experiments"},
  "torch": {"experiments"},
  "transformers": {"experiments"},
}


def modules():
  for folder in ("specjax", "experiments", "configs"):
    for path in sorted((ROOT / folder).rglob("*.py")):
      yield ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), path


def part_of(module):
  """The entry of FLOORS that a module belongs to, and its floor."""
  for floor, parts in enumerate(FLOORS):
    for part in parts:
      if module == part or module.startswith(part + "."):
        return part, floor
  return None, None


def imports(path):
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      yield node.module
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: str(value)[-40:])
def test_a_module_imports_from_its_floor_and_below(module, path):
  if module == "specjax":  # the package's front door shows what the floors hold
    return
  part, floor = part_of(module)
  assert part is not None, f"{module} has no floor: add it to FLOORS"
  for imported in imports(path):
    other, other_floor = part_of(imported)
    if other is not None:
      assert other_floor <= floor, f"{module} imports {imported} from a floor above"
    package = imported.split(".")[0]
    if package in CORNERS:
      assert part in CORNERS[package], f"{module} imports {imported}"


def test_verifiers_import_neither_models_nor_drafters():
  for module, path in modules():
    if module.startswith("specjax.verifiers"):
      for imported in imports(path):
        assert not imported.startswith(("specjax.models", "specjax.drafters")), (module, imported)
