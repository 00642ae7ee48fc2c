# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""How fast is it? specjax and `transformers`, side by side in one run, on the same weights.

  python -m experiments.benchmark                 # needs pip install -e '.[models,peers]'
  python -m experiments.benchmark --json=out.json --repeats=5

The two systems take turns, prompt by prompt and repeat by repeat, so that a machine that slows
down slows both. Both get the same weights, dtype, prompt tokens and number of new tokens, and
their tokens are compared. Reported are decode times (the time for one token, prefill included,
is measured apart and subtracted on both sides) as medians over the repeats.
"""

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from absl import app, flags

from experiments.peers import Transformers
from experiments.prompts import BUILT_IN, Prompt
from experiments.report import format_table
from specjax.decoding import generate, open_session
from specjax.drafters import Empty, PromptLookup
from specjax.models import checkpoint as checkpoints
from specjax.models.checkpoint import Checkpoint
from specjax.models.prefill import prefill
from specjax.text import TextGenerator
from specjax.types import Block, Drafter, Params

WIDTHS = (1, 2, 4, 8, 16)
EDITING = "editing"

_MODEL = flags.DEFINE_string("model", "smollm2-135m-instruct", "The target model to time.")
_NEW = flags.DEFINE_integer("max_new_tokens", 128, "New tokens for each prompt.", lower_bound=2)
_DRAFT = flags.DEFINE_integer("draft_length", 10, "Tokens that prompt lookup copies.", 1)
_REPEATS = flags.DEFINE_integer("repeats", 3, "How often everything is measured.", 1)
_BATCH = flags.DEFINE_integer("batch_size", 8, "Rows of the batch that is compared with one.", 1)
_JSON = flags.DEFINE_string("json", None, "File to write the figures to.")
_PEERS = flags.DEFINE_boolean("peers", True, "Whether to time transformers too.")


@dataclasses.dataclass
class Timing:
  """Decode seconds and tokens of one system on one prompt, over the repeats."""

  seconds: list[float] = dataclasses.field(default_factory=list)
  tokens: list[int] = dataclasses.field(default_factory=list)
  calls: int = 0

  @property
  def per_token(self) -> float:
    """Median seconds a new token; the first token belongs to the prefill."""
    return statistics.median(self.seconds) / max(len(self.tokens) - 1, 1)


class Specjax:
  """Our side: one checkpoint, autoregressive or with a drafter."""

  def __init__(self, target: Checkpoint):
    self._target = target

  def run(self, ids: Sequence[int], new_tokens: int, drafter: Drafter | None) -> tuple[Any, ...]:
    """New tokens, seconds and target calls of one generation, compiled before."""
    began = time.perf_counter()
    generation = generate(
      self._target.model,
      self._target.params,
      [list(ids)],
      drafter=drafter,
      max_new_tokens=new_tokens,
      eos_ids=self._target.eos_ids,
      capacity=self._capacity(ids, drafter),
    )
    tokens = generation.new_tokens()[0]
    return tokens, time.perf_counter() - began, int(generation.target_calls[0])

  def _capacity(self, ids: Sequence[int], drafter: Drafter | None) -> int:
    """The same for one and for many new tokens, so that both run one program."""
    nodes = 0 if drafter is None else drafter.num_nodes
    return -(-(len(ids) + _NEW.value + nodes + 1) // 128) * 128


class Peer:
  """The other side."""

  def __init__(self, system: Transformers):
    self._system = system

  def run(self, ids: Sequence[int], new_tokens: int, drafter: Drafter | None) -> tuple[Any, ...]:
    """New tokens, seconds and target calls of one generation."""
    length = None if drafter is None else drafter.num_nodes
    answer = self._system.generate(ids, new_tokens, prompt_lookup=length)
    seconds = answer.prefill_seconds + answer.decode_seconds
    return answer.token_ids, seconds, len(answer.tokens_per_call)


def measure(
  systems: dict[str, Any], prompts: Mapping[int, Sequence[int]], drafters: dict[str, Any]
) -> dict[tuple[str, str, int], Timing]:
  """Everything by everything, the systems alternating; keys are (system, method, prompt)."""
  timings = {
    (system, method, index): Timing()
    for index in prompts
    for method in drafters
    for system in systems
  }
  for repeat in range(_REPEATS.value + 1):  # the first warms up: it compiles
    for system, method, index in timings:
      run, drafter, ids = systems[system].run, drafters[method], prompts[index]
      _, first, _ = run(ids, 1, drafter)
      tokens, total, calls = run(ids, _NEW.value, drafter)
      note(f"repeat {repeat}: prompt {index}, {method}, {system}: {len(tokens) / total:.1f}/s")
      if repeat:
        timing = timings[system, method, index]
        timing.seconds.append(max(total - first, 1e-9))
        timing.tokens, timing.calls = tokens, calls
  return timings


def block_costs(target: Checkpoint, ids: Sequence[int]) -> dict[int, float]:
  """Seconds of one round that scores a block of T tokens, for each T of `WIDTHS`."""
  rounds = 16
  times: dict[int, list[float]] = {width: [] for width in WIDTHS}
  for repeat in range(_REPEATS.value + 1):
    for width in WIDTHS:
      session = open_session(
        target.model,
        target.params,
        [list(ids)],
        drafter=Empty(width - 1),
        max_new_tokens=rounds + 1,
        capacity=-(-(len(ids) + rounds + max(WIDTHS) + 2) // 128) * 128,
        narrow=False,
      )
      session.advance(1)
      began = time.perf_counter()
      session.advance(rounds)
      if repeat:
        times[width].append((time.perf_counter() - began) / rounds)
  return {width: statistics.median(seconds) for width, seconds in times.items()}


def loop_overhead(target: Checkpoint, ids: Sequence[int]) -> float:
  """Time of the empty drafter through our loop over that of a bare autoregressive loop."""
  model, params, rounds, capacity = target.model, target.params, 24, len(ids) + 128

  @partial(jax.jit, donate_argnums=(1, 2))
  def bare(params, cache, tokens, length):
    def step(_, carry):
      cache, tokens, length = carry
      last = jax.lax.dynamic_slice_in_dim(tokens, length[0] - 1, 1)[None]
      output = model.apply(params, last, Block.chain(length - 1, 1), cache)
      token = jnp.argmax(model.logits(params, output.hidden[:, 0]), axis=-1)
      tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token.astype(jnp.int32), length[0], 0)
      return output.cache, tokens, length + 1

    return jax.lax.fori_loop(0, rounds, step, (cache, tokens, length))

  def time_bare():
    padded = jnp.zeros((capacity,), jnp.int32).at[: len(ids)].set(jnp.asarray(ids))
    read = jax.jit(prefill, static_argnums=0)
    length = jnp.full((1,), len(ids), jnp.int32)
    cache, _ = read(model, params, model.init_cache(1, capacity), padded[None, : len(ids)], length)
    jax.block_until_ready((cache, padded))
    began = time.perf_counter()
    jax.block_until_ready(bare(params, cache, padded, length)[1])
    return time.perf_counter() - began

  def time_ours():
    session = open_session(model, params, [list(ids)], max_new_tokens=99, capacity=capacity)
    session.block_until_ready()
    began = time.perf_counter()
    session.advance(rounds)
    return time.perf_counter() - began

  pairs = [(time_ours(), time_bare()) for _ in range(2 * _REPEATS.value + 2)][1:]
  return statistics.median(ours / bare for ours, bare in pairs)


def matmul_floor(params: Params) -> tuple[float, int]:
  """Seconds and bytes of one token's weight products alone, streamed by the same matmuls."""
  kernels = [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if leaf.ndim == 2 and "kernel" in jax.tree_util.keystr(path)
  ]
  rounds = 8

  @jax.jit
  def stream(kernels, x):
    def once(_, x):
      total = jnp.zeros((), x.dtype)
      for kernel in kernels:
        # Each product depends on the one before, as in the model.
        total = jnp.tanh((jnp.full((1, kernel.shape[0]), x + total) @ kernel)[0, 0])
      return total

    return jax.lax.fori_loop(0, rounds, once, x)

  def run():
    began = time.perf_counter()
    stream(kernels, jnp.zeros((), kernels[0].dtype)).block_until_ready()
    return (time.perf_counter() - began) / rounds

  run()
  seconds = statistics.median(run() for _ in range(_REPEATS.value + 2))
  return seconds, sum(kernel.nbytes for kernel in kernels)


def batch_speedup(target: Checkpoint, prompts: Mapping[int, Sequence[int]]) -> tuple[float, float]:
  """Tokens a second of one row and of a batch of ragged prompts."""
  rows = [list(ids) for ids in prompts.values()]
  rows = [rows[i % len(rows)][: len(rows[i % len(rows)]) - i] for i in range(_BATCH.value)]
  rates = []
  for batch in (rows[:1], rows):
    times = []
    for _ in range(_REPEATS.value + 1):
      session = open_session(
        target.model,
        target.params,
        batch,
        max_new_tokens=32,
        capacity=-(-(max(map(len, rows)) + 33) // 128) * 128,
      ).block_until_ready()
      began = time.perf_counter()
      session.advance()
      times.append(time.perf_counter() - began)
    rates.append(32 * len(batch) / statistics.median(times[1:]))
  return rates[0], rates[1]


def note(text: str) -> None:
  """Progress goes to stderr, results to stdout."""
  print(text, file=sys.stderr, flush=True)


def summarise(
  timings: dict[tuple[str, str, int], Timing], prompts: Sequence[Prompt]
) -> tuple[str, dict[str, Any]]:
  """The table and the ratios, each of total tokens/s over the prompts that it is about."""
  header = ("prompt", "method", "specjax ms/token", "transformers ms/token", "ratio", "tokens")
  lines, raw = [], []
  for (system, method, index), ours in timings.items():
    if system != "specjax":
      continue
    theirs = timings.get(("transformers", method, index))
    same, ratio, agree = None, None, ""
    if theirs is not None:
      same, ratio = ours.tokens == theirs.tokens, theirs.per_token / ours.per_token
      agree = "equal" if same else difference(ours.tokens, theirs.tokens)
    lines.append(
      (
        f"{index} {prompts[index].category}",
        method,
        f"{1e3 * ours.per_token:.1f}",
        "" if theirs is None else f"{1e3 * theirs.per_token:.1f}",
        "" if ratio is None else f"{ratio:.2f}",
        agree,
      )
    )
    raw.append(
      {
        "prompt_index": index,
        "category": prompts[index].category,
        "method": method,
        "new_tokens": len(ours.tokens),
        "target_calls": ours.calls,
        "specjax_seconds": ours.seconds,
        "transformers_seconds": None if theirs is None else theirs.seconds,
        "tokens_equal": same,
      }
    )
  return format_table(header, lines), {"raw": raw, **_ratios(timings, prompts)}


def _ratios(
  timings: dict[tuple[str, str, int], Timing], prompts: Sequence[Prompt]
) -> dict[str, float | None]:
  every = sorted({index for _, _, index in timings})
  editing = [index for index in every if prompts[index].category == EDITING] or every

  def per_token(system: str, method: str, indices: Sequence[int]) -> float | None:
    found = [timings[system, method, i] for i in indices if (system, method, i) in timings]
    if not found:
      return None
    seconds = sum(statistics.median(timing.seconds) for timing in found)
    return seconds / sum(max(len(timing.tokens) - 1, 1) for timing in found)

  def ratio(slow: float | None, fast: float | None) -> float | None:
    return None if slow is None or fast is None else slow / fast

  ours, theirs = "specjax", "transformers"
  plain, lookup = "autoregressive", "prompt_lookup"
  return {
    "ratio_autoregressive": ratio(per_token(theirs, plain, every), per_token(ours, plain, every)),
    "ratio_prompt_lookup": ratio(
      per_token(theirs, lookup, editing), per_token(ours, lookup, editing)
    ),
    "ratio_prompt_lookup_all_prompts": ratio(
      per_token(theirs, lookup, every), per_token(ours, lookup, every)
    ),
    "speedup_prompt_lookup": ratio(
      per_token(ours, plain, editing), per_token(ours, lookup, editing)
    ),
    "speedup_prompt_lookup_all_prompts": ratio(
      per_token(ours, plain, every), per_token(ours, lookup, every)
    ),
  }


def difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
  """Where two token sequences part."""
  pairs = zip(ours, theirs, strict=False)
  first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
  return f"differ from {first}"


def main(argv: Sequence[str]) -> None:
  """Runs the benchmark and prints its tables."""
  if len(argv) > 1:
    raise app.UsageError(f"unexpected argument {argv[1]!r}")
  target = checkpoints.load(_MODEL.value, log=note)
  encode: Callable[..., list[int]] = TextGenerator(target).encode
  prompts = {index: encode(prompt.turns[0]) for index, prompt in enumerate(BUILT_IN)}
  drafters = {"autoregressive": None, "prompt_lookup": PromptLookup(_DRAFT.value)}
  with tempfile.TemporaryDirectory() as folder:
    systems: dict[str, Any] = {"specjax": Specjax(target)}
    if _PEERS.value:
      systems["transformers"] = Peer(Transformers(target, Path(folder)))
    table, figures = summarise(measure(systems, prompts, drafters), BUILT_IN)
  costs = block_costs(target, prompts[0])
  floor, size = matmul_floor(target.params)
  one, many = batch_speedup(target, prompts)
  figures |= {
    "ratio_empty_drafter_over_bare_loop": loop_overhead(target, prompts[0]),
    "block_cost": {str(width): seconds / costs[1] for width, seconds in costs.items()},
    "block_seconds": {str(width): seconds for width, seconds in costs.items()},
    "bandwidth_share": floor / costs[1],
    "floor_seconds": floor,
    "weight_bytes": size,
    "batch_size": _BATCH.value,
    "ratio_batch": many / one,
    "device": jax.devices()[0].device_kind,
    "dtype": str(target.model.dtype),
    "jax": jax.__version__,
    "model": target.source,
    "python": sys.version.split()[0],
  }
  print(table)
  for name, value in figures.items():
    if name.startswith(("ratio", "speedup")) and value is not None:
      print(f"{name}: {value:.2f}")
  costs_text = ", ".join(f"{width}: {cost:.2f}" for width, cost in figures["block_cost"].items())
  print(f"block_cost (time of T tokens over one): {costs_text}")
  print(
    f"bandwidth_share: {figures['bandwidth_share']:.2f} (a round takes {1e3 * costs[1]:.1f} ms; "
    f"its matmuls alone {1e3 * floor:.1f} ms, {size / floor / 1e9:.1f} GB/s)"
  )
  if _JSON.value:
    Path(_JSON.value).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
  app.run(main)
