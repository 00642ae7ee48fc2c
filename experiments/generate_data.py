# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Makes token data for training drafters: the target itself answers prompts.

  python -m experiments.generate_data --prompts=prompts.jsonl --output=runs/data
  python -m experiments.generate_data --prompts=prompts.jsonl --output=runs/data --top_targets=16

The same command goes on where it stopped; with a larger --limit it adds rows. Prompts that
occur twice are answered once. The share of rows that is held out for validation is chosen by
the prompt's checksum, so a prompt stays on its side whatever else is in the file.
Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from experiments.command import answer, read_flags
from experiments.flags import DEFAULT_MODEL
from experiments.mesh_flags import define_mesh, read_mesh
from experiments.prompts import Prompt, read_prompts

# Prompts that are sorted by length together: a batch of like lengths wastes little.
_SORTED = 512
DISTILLED, ORIGINAL = "distilled", "original"


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: generate_data(read_flags(argv, _define, __doc__)),
    "interrupted; the same command goes on from here",
  )


def _define(values: flags.FlagValues) -> None:
  def string(name, default, text):
    flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name, default, text, lower=1):
    flags.DEFINE_integer(name, default, text, lower_bound=lower, flag_values=values)

  def number(name, default, text, lower, upper):
    flags.DEFINE_float(
      name, default, text, lower_bound=lower, upper_bound=upper, flag_values=values
    )

  string("prompts", None, "JSONL file of prompts; of several turns the first is taken.")
  string("output", None, "Folder for the token data.")
  string("model", DEFAULT_MODEL, "Target model: a short name, hub id, folder or file.")
  string("dtype", None, "Number format of weights and caches. The default suits the device.")
  flags.DEFINE_enum(
    "source",
    DISTILLED,
    [DISTILLED, ORIGINAL],
    "Whose answers: the target's own (distilled), or those of the file (original): its 'answer' "
    "after the prompt, or where there is none the prompt's own text.",
    flag_values=values,
  )
  integer("limit", None, "Takes only this many prompts, in the shuffled order.")
  integer("max_prompt_tokens", 256, "Leaves out prompts that are longer.")
  integer("max_new_tokens", 160, "Ends an answer after this many tokens.")
  integer("batch_size", 16, "Answers this many prompts at a time.")
  integer("top_targets", 0, "Stores this many likeliest tokens for each answer token.", 0)
  number("temperature", 0.0, "Samples answers at this temperature; 0 decodes greedily.", 0, None)
  number("top_p", 1.0, "Samples from the likeliest tokens that hold this much only.", 1e-6, 1)
  number("validation_share", 0.05, "Share of the prompts that is held out.", 0, 0.9)
  integer("seed", 0, "Seed of the order of prompts and of all random draws.", 0)
  flags.DEFINE_boolean("raw", False, "Takes prompts as plain text.", flag_values=values)
  define_mesh(values, drafter=False)


def generate_data(values: flags.FlagValues) -> None:
  """Makes what the flags ask for, from where an earlier run stopped.

  Raises:
    ValueError: for bad input.
  """
  for name in ("prompts", "output"):
    if not values[name].value:
      raise ValueError(f"--{name} must be given")
  prompts = _unique(read_prompts(Path(values.prompts)))
  order = np.random.default_rng(values.seed).permutation(len(prompts))
  prompts = [prompts[index] for index in order]
  placement = read_mesh(values).load_options(values.batch_size)

  from specjax.models import checkpoint
  from specjax.text import TextGenerator
  from specjax.training.token_files import TokenFolder

  target = checkpoint.load(values.model, dtype=values.dtype, **placement)
  folder = TokenFolder(values.output, _manifest(values, target, prompts))
  done = {row["prompt"] for row in folder.rows}
  generator = TextGenerator(target, raw=values.raw)
  started, new_tokens = time.perf_counter(), 0
  for batch in _batches(generator, prompts, values):
    if all(_checksum(prompt) in done for prompt, _ in batch):
      continue
    # Rows of a batch that was cut off are answered along: the arrays are the same.
    rows = _rows(generator, batch, values)
    for (prompt, _), (ids, prompt_length) in zip(batch, rows, strict=True):
      checksum = _checksum(prompt)
      if checksum in done:
        continue
      done.add(checksum)
      facts = {"prompt": checksum, "split": _split(checksum, values.validation_share)}
      folder.append(ids, prompt_length, facts)
      new_tokens += len(ids) - prompt_length
    rate = new_tokens / (time.perf_counter() - started)
    print(f"{len(folder.rows)} rows, {new_tokens} new tokens, {rate:.0f} tokens/s", flush=True)
  if values.top_targets:
    _add_targets(target, folder, values.top_targets, values.batch_size)
  answers = int(folder.top_offsets()[-1])
  held_out = sum(row["split"] == "validation" for row in folder.rows)
  print(
    f"{folder.folder}: {len(folder.rows)} rows ({held_out} held out), {answers} answer tokens, "
    f"{folder.num_scored} rows with the target's likeliest tokens"
  )


def _manifest(values: flags.FlagValues, target: Any, prompts: Sequence[Prompt]) -> dict[str, Any]:
  """What two runs must share to write into one folder."""
  names = [
    *("source", "max_prompt_tokens", "max_new_tokens", "temperature", "top_p"),
    *("validation_share", "seed", "raw", "batch_size"),
  ]
  checksums = "".join(sorted(_checksum(prompt) for prompt in prompts))
  return {
    "model": target.name,
    "vocab_size": target.model.vocab_size,
    "prompts_sha256": hashlib.sha256(checksums.encode()).hexdigest(),
    **{name: values[name].value for name in names},
  }


def _unique(prompts: Sequence[Prompt]) -> list[Prompt]:
  """The prompts without repetitions; the first of equal ones stays."""
  return list({_checksum(prompt): prompt for prompt in reversed(prompts)}.values())[::-1]


def _checksum(prompt: Prompt) -> str:
  return hashlib.sha256(prompt.turns[0].encode()).hexdigest()[:16]


def _split(checksum: str, share: float) -> str:
  from specjax.training.token_files import TRAIN, VALIDATION

  return VALIDATION if int(checksum, 16) / 16**16 < share else TRAIN


def _batches(
  generator: Any, prompts: Sequence[Prompt], values: flags.FlagValues
) -> Iterator[list[tuple[Prompt, list[int]]]]:
  """Batches of prompts with their ids, the same whatever was done before."""
  seen = 0
  for begin in range(0, len(prompts), _SORTED):
    group = []
    for prompt in prompts[begin : begin + _SORTED]:
      ids = _prompt_ids(generator, prompt, values)
      if len(ids) <= values.max_prompt_tokens:
        group.append((prompt, ids))
    if values.limit is not None:
      group = group[: values.limit - seen]
    seen += len(group)
    group.sort(key=lambda pair: len(pair[1]))
    for first in range(0, len(group), values.batch_size):
      yield group[first : first + values.batch_size]
    if values.limit is not None and seen >= values.limit:
      return


def _prompt_ids(generator: Any, prompt: Prompt, values: flags.FlagValues) -> list[int]:
  if values.source == ORIGINAL and prompt.answer is None:
    return generator.tokenizer.encode(prompt.turns[0])[:1]
  return generator.encode(prompt.turns[0])


def _rows(
  generator: Any, batch: list[tuple[Prompt, list[int]]], values: flags.FlagValues
) -> list[tuple[list[int], int]]:
  """The ids of prompt and answer, and how many are the prompt's."""
  if values.source == ORIGINAL:
    rows = []
    for prompt, ids in batch:
      text = prompt.turns[0] if prompt.answer is None else prompt.answer
      answer = generator.tokenizer.encode(text)
      answer = answer[len(ids) :] if prompt.answer is None else answer
      answer = [*answer, *generator.checkpoint.eos_ids[:1]]
      rows.append((ids + answer[: values.max_new_tokens], len(ids)))
    return rows
  import jax

  from specjax.decoding import generate
  from specjax.sampling import SamplingPolicy

  # A short last batch is filled up with its first prompt: no other program for it.
  prompt_ids = [ids for _, ids in batch]
  prompt_ids += [prompt_ids[0]] * (values.batch_size - len(batch))
  limits = [values.max_new_tokens] * len(batch) + [0] * (values.batch_size - len(batch))
  checkpoint = generator.checkpoint
  keys = [int(_checksum(prompt), 16) % 2**32 for prompt, _ in batch]
  keys += [0] * (values.batch_size - len(batch))
  fold = jax.vmap(jax.random.fold_in, (None, 0))
  generation = generate(
    checkpoint.model,
    checkpoint.params,
    prompt_ids,
    policy=SamplingPolicy(temperature=values.temperature, top_p=values.top_p),
    max_new_tokens=limits,
    eos_ids=checkpoint.eos_ids,
    row_keys=fold(jax.random.key(values.seed), np.asarray(keys, np.uint32)),
    **checkpoint.placement,
  )
  answers = jax.device_get(generation).new_tokens()
  return [(ids + answer, len(ids)) for (_, ids), answer in zip(batch, answers, strict=False)]


def _add_targets(target: Any, folder: Any, size: int, batch_size: int) -> None:
  """Scores the rows that have no targets yet."""
  from specjax.buckets import capacity_bucket
  from specjax.sharding import shard
  from specjax.training.teacher import top_tokens

  tokens, offsets = folder.tokens(), folder.offsets()
  started, first = time.perf_counter(), folder.num_scored
  for begin in range(first, len(folder.rows), batch_size):
    indices = range(begin, min(begin + batch_size, len(folder.rows)))
    rows = [tokens[offsets[index] : offsets[index + 1]] for index in indices]
    width = capacity_bucket(max(map(len, rows)))
    padded = np.zeros((batch_size, width), np.int32)
    for place, row in enumerate(rows):
      padded[place, : len(row)] = row
    rows_on_mesh: Any = padded
    if target.mesh is not None:
      rows_on_mesh = shard(padded, target.mesh, target.rules, batch=batch_size)
    ids, log_probs = top_tokens(target.model, target.params, rows_on_mesh, size)
    for place, index in enumerate(indices):
      row = folder.rows[index]
      places = slice(row["prompt_length"] - 1, row["length"] - 1)
      folder.append_targets(ids[place, places], log_probs[place, places])
    seconds = time.perf_counter() - started
    rate = (indices[-1] + 1 - first) / seconds
    left = (len(folder.rows) - indices[-1] - 1) / rate
    print(f"targets of {indices[-1] + 1} rows, {left / 60:.0f} minutes left", flush=True)


if __name__ == "__main__":
  sys.exit(main(sys.argv))
