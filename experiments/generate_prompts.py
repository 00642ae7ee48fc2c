# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Has the target itself write prompts, as a user of its chat template would.

  python -m experiments.generate_prompts --count=2000 --output=runs/prompts.jsonl

Xu et al. (2024, Magpie, arXiv 2406.08464): given its chat template up to where the user's words
begin, a chat model writes words that it was trained to answer. A drafter that is trained on answers
to them (`experiments.generate_data`) sees what the target talks about, without a collection of
prompts. The same command goes on where it stopped; a larger --count adds prompts.
Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.command import answer, read_flags
from experiments.flags import DEFAULT_MODEL
from experiments.mesh_flags import define_mesh, read_mesh

# Stands where the user's words go in a chat template.
_USER = "\N{WHITE SQUARE}user\N{WHITE SQUARE}"


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: generate_prompts(read_flags(argv, _define, __doc__)),
    "interrupted; the same command goes on from here",
  )


def _define(values: flags.FlagValues) -> None:
  def integer(name, default, text, lower=1):
    flags.DEFINE_integer(name, default, text, lower_bound=lower, flag_values=values)

  flags.DEFINE_string("output", None, "JSONL file for the prompts.", flag_values=values)
  flags.DEFINE_string(
    "model",
    DEFAULT_MODEL,
    "Target model: a short name, hub id, folder or file.",
    flag_values=values,
  )
  flags.DEFINE_string("dtype", None, "Number format of weights and caches.", flag_values=values)
  integer("count", 1000, "How many prompts the file is to have at least.")
  integer("max_tokens", 96, "Leaves out prompts that have no end after this many tokens.")
  integer("batch_size", 64, "Writes this many prompts at a time.")
  integer("seed", 0, "Seed of all random draws.", 0)
  define_mesh(values, drafter=False)
  flags.DEFINE_float(
    "temperature", 1.0, "Samples at this temperature.", lower_bound=1e-3, flag_values=values
  )
  flags.DEFINE_float(
    "top_p",
    0.95,
    "Samples from the likeliest tokens that hold this much only.",
    lower_bound=1e-6,
    upper_bound=1,
    flag_values=values,
  )


def generate_prompts(values: flags.FlagValues) -> None:
  """Writes prompts until the file has as many as the flags ask for.

  Raises:
    ValueError: for bad input.
  """
  from specjax.json_lines import recover
  from specjax.models import checkpoint

  if not values.output:
    raise ValueError("--output must be given")
  placement = read_mesh(values).load_options(values.batch_size)
  path = Path(values.output)
  made_with = {
    name: values[name].value
    for name in ("model", "max_tokens", "batch_size", "seed", "temperature", "top_p")
  }
  rows = recover(path)
  for number, row in enumerate(rows, start=1):
    if not isinstance(row, dict) or row.get("made_with") != made_with:
      raise ValueError(f"{path} line {number} was not made with {made_with}: name another --output")
  if len(rows) >= values.count:
    print(f"{path}: {len(rows)} prompts")
    return

  target = checkpoint.load(values.model, dtype=values.dtype, **placement)
  before = prompt_prefix(target)
  path.parent.mkdir(parents=True, exist_ok=True)
  # A batch is written whole or, cut off by a kill, made again from its number alone.
  batch = max((row["batch"] for row in rows), default=0)
  seen = {row["prompt"] for row in rows}
  written, started = 0, time.perf_counter()
  with path.open("a", encoding="utf-8") as file:
    while len(seen) < values.count:
      new = [
        text for text in dict.fromkeys(_write(target, before, batch, values)) if text not in seen
      ]
      seen.update(new)
      for text in new:
        row = {"prompt": text, "source": "self", "batch": batch, "made_with": made_with}
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
      file.flush()
      batch += 1
      written += len(new)
      left = (values.count - len(seen)) * (time.perf_counter() - started) / max(written, 1)
      print(f"{len(seen)} prompts, {max(left, 0) / 60:.0f} minutes left", flush=True)
  print(f"{path}: {len(seen)} prompts")


def prompt_prefix(target: Any) -> list[int]:
  """The tokens of a target's chat template up to the user's first words.

  Args:
    target: a checkpoint with a chat template.

  Raises:
    ValueError: if there is no chat template, or none with the user's words in it.
  """
  text = target.tokenizer.render_chat([{"role": "user", "content": _USER}])
  before, found, _ = text.partition(_USER)
  if not found:
    raise ValueError(f"the chat template of {target.name} does not contain the user's words")
  return target.tokenizer.encode(before, add_special_tokens=False)


def _write(target: Any, before: list[int], batch: int, values: flags.FlagValues) -> list[str]:
  """What the target says for the user in a batch of samples, those without an end left out."""
  import jax

  from specjax.decoding import generate
  from specjax.sampling import SamplingPolicy

  generation = generate(
    target.model,
    target.params,
    [before] * values.batch_size,
    policy=SamplingPolicy(temperature=values.temperature, top_p=values.top_p),
    max_new_tokens=values.max_tokens,
    eos_ids=target.eos_ids,
    key=jax.random.fold_in(jax.random.key(values.seed), batch),
    **target.placement,
  )
  texts = []
  for ids in jax.device_get(generation).new_tokens():
    if ids and ids[-1] in target.eos_ids:
      text = target.tokenizer.decode(ids[:-1]).strip()
      if text:
        texts.append(text)
  return texts


if __name__ == "__main__":
  sys.exit(main(sys.argv))
