# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
r"""Writes `generate` to a file: one program, lowered for TPU, GPU and CPU on any machine.

  python -m experiments.export --platforms=tpu,cuda,cpu
  python -m experiments.export --methods=draft_model --batch_size=4 --prompt_tokens=128 \
    --temperature=0.7 --output=runs/program --check
  python -m experiments.export --load=runs/program/draft_model --prompt="Why is the sky blue?"

Each method gets a folder of its own in --output: `generate.stablehlo`, the program that jax.export
serialises, and `manifest.json`, which says what it is. Weights are arguments and not in it.
--check loads each artefact back and compares its tokens with those of specjax.generate; --load
does so with one that is there already. Exit codes: 0, 1 where the tokens differ, 2 for bad input,
130 for Ctrl-C.
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import config_flags

from configs import base
from experiments.command import HelpRequested, answer, asks_for_help, describe
from experiments.flags import DEFAULT_CONFIG, DEFAULT_MODEL, SETTINGS, read
from experiments.mesh_flags import MeshOptions, define_mesh, read_mesh
from experiments.prompts import BUILT_IN

# What --load takes from the command line rather than from the manifest, where it is given.
_LOADED = ("model", "drafter", "seed")


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(lambda: _run(argv), "interrupted; programs that were written whole are there")


def _run(argv: Sequence[str]) -> int:
  values = flags.FlagValues()
  if asks_for_help(argv):
    _define(values, ["export"])
    raise HelpRequested("\n".join([str(__doc__), "Flags:", *describe(values, DEFAULT_CONFIG)]))
  positional = read(values, _define, list(argv), base.get_config().keys())
  if positional:
    raise ValueError(f"unexpected argument {positional[0]!r}")
  same = check_artefact(values) if values.load else export(values)
  return 0 if same else 1


def _define(values: flags.FlagValues, argv: list[str]) -> None:
  def string(name, default, text):
    flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name, default, text, lower=1):
    flags.DEFINE_integer(name, default, text, lower_bound=lower, flag_values=values)

  def number(name, text):
    flags.DEFINE_float(name, None, text, flag_values=values)

  def switch(name, text):
    flags.DEFINE_boolean(name, False, text, flag_values=values)

  config_flags.DEFINE_config_file(
    "config",
    str(DEFAULT_CONFIG),
    "Python file whose get_config() states the experiment, as experiments.decode takes it.",
    flag_values=values,
    sys_argv=argv,
  )
  flags.DEFINE_list(
    "platforms", ["tpu", "cuda", "cpu"], "To lower for: tpu, cuda, rocm, cpu.", flag_values=values
  )
  flags.DEFINE_list(
    "methods", None, "Decoding methods, as experiments.decode names them.", flag_values=values
  )
  flags.DEFINE_alias("method", "methods", flag_values=values)
  flags.DEFINE_multi_string("drafter", None, "File of a trained drafter.", flag_values=values)
  string("model", DEFAULT_MODEL, "Target model: a short name, a hub id, a folder or a GGUF file.")
  string("dtype", None, "Number format of weights and caches. The default suits this device.")
  integer("batch_size", 1, "Rows of a call.")
  integer("prompt_tokens", 64, "Longest prompt; rounded up to 16, 32 or a multiple of 64.")
  integer("max_new_tokens", None, "New tokens of a row that says nothing else.", 0)
  number("temperature", "Divides the logits before sampling. 0 decodes greedily.")
  integer("top_k", None, "Samples from this many likeliest tokens only. 0 keeps all.", 0)
  number("top_p", "Samples from the likeliest tokens that hold this much probability only.")
  number("min_p", "Samples only from tokens at least this likely, relative to the likeliest.")
  number("repetition_penalty", "Makes tokens that have occurred less likely; 1 does not.")
  string("output", None, "Folder for the programs. The default is a fresh one under runs/.")
  switch("check", "Loads each program back and compares its tokens with specjax.generate's.")
  string("load", None, "Checks this artefact in place of writing one.")
  flags.DEFINE_multi_string(
    "prompt", None, "What is decoded for a check. Several are rows of a batch.", flag_values=values
  )
  switch("raw", "Takes prompts as plain text, even if the checkpoint has a chat template.")
  integer("seed", 0, "Seed of all random draws of a check.", 0)
  define_mesh(values)


def export(values: flags.FlagValues) -> bool:
  """Writes what the flags ask for; returns whether all that was checked gave equal tokens.

  Raises:
    ValueError: for bad input.
  """
  from jax.export import default_export_platform

  from experiments.methods import build_methods, drafter_files
  from experiments.results import fresh_folder
  from experiments.settings import make_settings
  from specjax.export import check_folder, check_platforms, export_generate
  from specjax.models import checkpoint

  given = {name: values[name].value for name in SETTINGS}
  settings = make_settings(values.config, given)
  platforms = [platform.strip() for platform in values.platforms]
  check_platforms(platforms)
  if values.check and default_export_platform() not in platforms:
    raise ValueError(
      f"check calls the program on {default_export_platform()}, for which platforms "
      f"{','.join(platforms)} do not lower it"
    )
  drafter_files(settings)  # for its errors, before a model is loaded
  mesh = read_mesh(values)
  placement = mesh.load_options(settings.batch_size)
  output = Path(values.output) if values.output else fresh_folder()
  for name in settings.methods:
    check_folder(output / name)
  target = checkpoint.load(settings.model, dtype=settings.dtype, **placement)
  methods = build_methods(settings, target, drafter_rules=mesh.drafter_rules)
  equal = True
  for method in methods:
    generator = method.generator
    manifest = export_generate(
      output / method.name,
      target.model,
      target.params,
      drafter=generator.drafter,
      drafter_params=generator.drafter_params,
      verifier=generator.verifier,
      policy=settings.policy(),
      batch_size=settings.batch_size,
      prompt_tokens=values.prompt_tokens,
      max_new_tokens=settings.max_new_tokens,
      eos_ids=target.eos_ids,
      platforms=platforms,
      name=target.name,
      made_by={
        "method": method.name,
        "settings": settings.to_json(),
        "placement": dataclasses.asdict(mesh),
      },
      drafter_rules=mesh.drafter_rules,
      **target.placement,
    )
    print(_line(output / method.name, manifest), flush=True)
    if values.check:
      equal &= compare(output / method.name, target, generator, settings.policy(), values)
  return equal


def check_artefact(values: flags.FlagValues) -> bool:
  """Calls the artefact of `--load`; returns whether its tokens are those of `specjax.generate`.

  Raises:
    ValueError: for an artefact that cannot be called here, or weights that are not its own.
  """
  from experiments.methods import build_methods
  from experiments.settings import Settings
  from specjax.export import load_exported
  from specjax.models import checkpoint

  manifest = load_exported(values.load).manifest
  made_by = manifest["made_by"]
  if "method" not in made_by:
    raise ValueError(f"load {values.load} was not written by this command")
  stated = {n: tuple(v) if isinstance(v, list) else v for n, v in made_by["settings"].items()}
  given = {n: values[n].value for n in _LOADED if values[n].present}
  given |= {"methods": (made_by["method"],), "dtype": manifest["dtype"]}
  try:
    settings = Settings(**stated | given)
  except TypeError:  # other settings than those of this version
    raise ValueError(
      f"load {values.load} was written by specjax {manifest['specjax_version']} with settings that "
      "this version does not have; export it again"
    ) from None
  # As it was lowered: then nothing moves between devices before a call.
  stated_mesh = MeshOptions(**made_by.get("placement", {}))
  mesh = dataclasses.replace(stated_mesh, mesh=manifest.get("mesh"))
  placement = mesh.load_options(settings.batch_size)
  target = checkpoint.load(settings.model, dtype=settings.dtype, **placement)
  (method,) = build_methods(settings, target, drafter_rules=mesh.drafter_rules)
  return compare(Path(values.load), target, method.generator, settings.policy(), values)


def compare(
  folder: Path, target: Any, generator: Any, policy: Any, values: flags.FlagValues
) -> bool:
  """Decodes with an artefact and with `specjax.generate`, and prints whether they agree.

  Args:
    folder: of the artefact.
    target: the checkpoint.
    generator: `TextGenerator` with the method's drafter and verifier.
    policy: that the artefact was made with.
    values: the flags.

  Returns:
    Whether all tokens are equal.
  """
  import specjax
  from specjax.export import load_exported

  loaded = load_exported(folder)
  manifest = loaded.manifest
  prompts = _prompts(generator, manifest, values.prompt or ())
  generation = loaded.generate(
    target.params, prompts, drafter_params=generator.drafter_params, key=values.seed
  )
  ours = generation.new_tokens()
  theirs = specjax.generate(
    target.model,
    target.params,
    prompts,
    drafter=generator.drafter,
    drafter_params=generator.drafter_params,
    verifier=generator.verifier,
    policy=policy,
    max_new_tokens=manifest["max_new_tokens"],
    eos_ids=[i for i in manifest["eos_ids"] if i >= 0],
    capacity=manifest["capacity"],
    key=values.seed,
    drafter_rules=generator.drafter_rules,
    **target.placement,
  ).new_tokens()
  if values.prompt and target.tokenizer is not None:
    for ids in ours:
      print(target.tokenizer.decode(ids))
  different = sum(a != b for a, b in zip(ours, theirs, strict=True))
  tokens, rows = sum(map(len, ours)), len(ours)
  if different:
    print(f"{folder}: the tokens of {different} of {rows} rows differ from specjax.generate's")
  else:
    print(f"{folder}: loaded back, it gives the {tokens} tokens of specjax.generate")
  return not different


def _prompts(generator: Any, manifest: dict[str, Any], texts: Sequence[str]) -> list[list[int]]:
  """One prompt a row; the built-in ones are cut to what the program takes."""
  batch, longest = manifest["batch_size"], manifest["prompt_tokens"]
  if generator.checkpoint.tokenizer is None:
    if texts:
      raise ValueError("prompt needs a checkpoint with a tokenizer, and this one has none")
    return [
      [(row + step) % manifest["model"]["vocab_size"] for step in range(8)] for row in range(batch)
    ]
  if len(texts) > batch:
    raise ValueError(f"prompt may be given {batch} times for this program, got {len(texts)}")
  if texts:
    rows = [generator.encode(text) for text in texts]
  else:
    rows = [generator.encode(prompt.turns[0])[-longest:] for prompt in BUILT_IN]
  return [rows[row % len(rows)] for row in range(batch)]


def _line(folder: Path, manifest: dict[str, Any]) -> str:
  megabytes, platforms = manifest["program"]["bytes"] / 1e6, ", ".join(manifest["platforms"])
  return (
    f"{folder}: {megabytes:.2f} MB for {platforms}; "
    f"{manifest['batch_size']} rows of up to {manifest['prompt_tokens']} prompt tokens, "
    f"{manifest['capacity']} slots, {manifest['dtype']}"
  )


if __name__ == "__main__":
  sys.exit(main(sys.argv))
