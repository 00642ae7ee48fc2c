# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""When does speculation pay? On paper, for hardware that need not be at hand.

  python -m experiments.scaling --model=llama-3.1-8b --hardware=h100 --mesh=model:4 --alpha=0.7
  python -m experiments.scaling --hardware=v5e,h200 --mesh=model:8 --draft_model=llama-3.2-1b

Prints a Markdown table by batch size, with the draft length that is best for each, and the batch at
which the speed-up falls under 1 (Su et al. 2023, arXiv 2310.18813). --output gets the table, the
same as JSON, and the speed-up over the batch size as a plot. What is counted and what is not is in
`specjax/evaluation/scaling.py`. Exit codes: 0, 2 for bad input.
"""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from experiments.command import answer, read_flags, read_integers
from specjax.evaluation import scaling
from specjax.evaluation.hardware import HARDWARE, find_hardware
from specjax.models import cached_files
from specjax.models.shapes import SHAPES, read_shape

_HEADER = (
  *("batch", "fits", "target call ms", "draft step ms", "verify ms", "collectives ms", "bound by"),
  *("autoregressive tokens/s", "tokens/s", "speed-up", "best draft length"),
)


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: predict(read_flags(argv, _define, __doc__)),
    "interrupted",
  )


def _define(values: flags.FlagValues) -> None:
  def string(name, default, text):
    flags.DEFINE_string(name, default, text, flag_values=values)

  def integer(name, default, text, lower=1):
    flags.DEFINE_integer(name, default, text, lower_bound=lower, flag_values=values)

  def integers(name, default, text):
    flags.DEFINE_list(name, default, text, flag_values=values)

  shapes = ", ".join(SHAPES)
  string("model", "llama-3.1-8b", f"Target model: {shapes}, or a folder with a config.json.")
  flags.DEFINE_list("hardware", ["h100"], f"Of {', '.join(HARDWARE)}.", flag_values=values)
  string("mesh", "model:1", 'Axes and sizes such as "data:2,model:4".')
  flags.DEFINE_float("alpha", 0.7, "Acceptance rate of a drafted token.", 0, 1, flag_values=values)
  integer("draft_length", 4, "Drafted tokens a round, for the table.", 1)
  integers("draft_lengths", ["1", "2", "4", "8"], "Those of the plot.")
  flags.DEFINE_float(
    "drafter_cost",
    None,
    "Seconds of a draft step over seconds of a target call on one token. The default is 0 (prompt "
    "lookup) without --draft_model.",
    lower_bound=0,
    flag_values=values,
  )
  string("draft_model", None, "Draft model, in place of --drafter_cost: as --model takes it.")
  flags.DEFINE_boolean(
    "replicated_drafter",
    True,
    "Whether each device has the whole draft model rather than its part of it.",
    flag_values=values,
  )
  integer("context", 1024, "Slots of the cache that attention runs over.")
  integers("batch_sizes", ["1", "2", "4", "8", "16", "32", "64", "128", "256", "512"], "Rows.")
  integer("max_batch_size", 4096, "Where the search for the batch that loses ends.")
  integer("weight_bytes", 2, "Bytes of a number: 2 is bfloat16. The peak stays bfloat16's.")
  flags.DEFINE_boolean(
    "fused_attention",
    False,
    "Whether attention scores stay on the chip; specjax writes them to memory.",
    flag_values=values,
  )
  flags.DEFINE_float(
    "collective_latency_us",
    None,
    "Microseconds of a collective beside its bytes; the default is an estimate by hardware.",
    lower_bound=0,
    flag_values=values,
  )
  string("output", None, "Folder for the table and the plot. The default is a fresh one in runs/.")


def predict(values: flags.FlagValues) -> None:
  """Prints and writes what the flags ask for.

  Raises:
    ValueError: for bad input.
  """
  settings = _settings(values)
  batches = sorted(read_integers("batch_sizes", values.batch_sizes))
  lengths = sorted(read_integers("draft_lengths", values.draft_lengths))
  output = _output(values.output)
  parts, raw = [], []
  for setting in settings:
    rows = [scaling.predict(setting, batch, values.draft_length) for batch in batches]
    losing = scaling.smallest_losing_batch(setting, values.draft_length, values.max_batch_size)
    parts.append(report(values, setting, rows, losing))
    raw += [_json(setting, row, losing) for row in rows]
  text = "\n\n".join(parts)
  print(text)
  output.mkdir(parents=True, exist_ok=True)
  cached_files.write_text(output / "scaling.md", text + "\n")
  cached_files.write_text(output / "scaling.json", json.dumps(raw, indent=1) + "\n")
  drawn = plot(settings, lengths, max(batches), output / "scaling.png")
  print(f"\n{drawn or output / 'scaling.png'}")


def _settings(values: flags.FlagValues) -> list[scaling.Setting]:
  """One for each of --hardware."""
  if values.draft_model and values.drafter_cost is not None:
    raise ValueError(
      f"drafter_cost and draft_model each say what a draft step costs, got {values.drafter_cost} "
      f"and {values.draft_model}"
    )
  drafter = scaling.DrafterCost(
    config=read_shape("draft_model", values.draft_model) if values.draft_model else None,
    replicated=values.replicated_drafter,
    ratio=values.drafter_cost or 0.0,
  )
  names = [name.strip() for name in values.hardware]
  if not names:
    raise ValueError(f"hardware must name at least one of {', '.join(HARDWARE)}")
  settings = []
  for name in names:
    hardware = find_hardware(name)
    if values.collective_latency_us is not None:
      latency = values.collective_latency_us * 1e-6
      hardware = dataclasses.replace(hardware, collective_latency=latency)
    settings.append(
      scaling.Setting(
        config=read_shape("model", values.model),
        mesh=scaling.MeshShape.parse(values.mesh),
        hardware=hardware,
        acceptance=values.alpha,
        drafter=drafter,
        context=values.context,
        weight_bytes=values.weight_bytes,
        fused_attention=values.fused_attention,
      )
    )
  return settings


def _output(name: str | None) -> Path:
  from experiments.results import fresh_folder

  output = Path(name) if name else fresh_folder()
  if output.exists() and not output.is_dir():
    raise ValueError(f"output {output} is not a folder")
  return output


def report(
  values: flags.FlagValues,
  setting: scaling.Setting,
  rows: Sequence[scaling.Prediction],
  losing: int | None,
) -> str:
  """A heading, the table, and two sentences."""
  hardware, mesh = setting.hardware, setting.mesh
  if values.draft_model:
    drafter = f"draft model {values.draft_model}"
  else:
    drafter = f"draft step {setting.drafter.ratio:g} of a target call"
  lines = [
    f"### {values.model} on {mesh.num_devices} x {hardware.name} ({values.mesh})",
    "",
    f"alpha {values.alpha:g}, draft length {values.draft_length}, {drafter}, {setting.context} "
    f"slots, {setting.weight_bytes} bytes a number; {hardware.source}",
    "",
    f"| {' | '.join(_HEADER)} |",
    f"|{' ---: |' * len(_HEADER)}",
    *(f"| {' | '.join(_cells(setting, row))} |" for row in rows),
    "",
  ]
  if losing is None:
    lines.append(f"The speed-up stays at 1 or above up to a batch of {values.max_batch_size}.")
  else:
    lines.append(f"The speed-up falls under 1 at a batch of {losing}.")
  fitting = scaling.largest_fitting_batch(setting)
  if fitting:
    lines[-1] += f" The devices have memory for {fitting} rows."
  else:
    lines[-1] += " The parameters do not fit the devices' memory."
  return "\n".join(lines)


def _cells(setting: scaling.Setting, row: scaling.Prediction) -> list[str]:
  best = scaling.choose_draft_length(setting, row.batch_size)
  return [
    str(row.batch_size),
    "yes" if row.fits else "no",
    f"{1e3 * row.autoregressive.seconds:.2f}",
    f"{1e3 * row.draft.seconds:.2f}",
    f"{1e3 * row.verify.seconds:.2f}",
    f"{1e3 * row.collective_seconds:.2f}",
    row.verify.bound,
    f"{row.autoregressive_tokens_per_second:,.0f}",
    f"{row.tokens_per_second:,.0f}",
    f"{row.speed_up:.2f}",
    str(best.draft_length),
  ]


def _json(setting: scaling.Setting, row: scaling.Prediction, losing: int | None) -> dict[str, Any]:
  return {
    "hardware": setting.hardware.name,
    **dataclasses.asdict(row),
    "speed_up": row.speed_up,
    "tokens_per_second": row.tokens_per_second,
    "autoregressive_tokens_per_second": row.autoregressive_tokens_per_second,
    "smallest_losing_batch": losing,
  }


def plot(
  settings: Sequence[scaling.Setting], lengths: Sequence[int], largest: int, path: Path
) -> str | None:
  """Draws the speed-up over the batch size; returns a line where matplotlib is missing.

  Args:
    settings: a panel each.
    lengths: draft lengths, a line each.
    largest: batch size at which the axis ends.
    path: the PNG.
  """
  try:
    import matplotlib
  except ImportError:
    return "no plot: matplotlib is not installed (pip install 'specjax[plots]')"
  matplotlib.use("Agg")
  from matplotlib import pyplot

  size = (6 * len(settings), 4.2)
  figure, grid = pyplot.subplots(
    1, len(settings), figsize=size, layout="constrained", squeeze=False
  )
  for axis, setting in zip(grid[0], settings, strict=True):
    step = setting.mesh.row_shards
    # Eight points between one batch and its double, where there are as many.
    count = max(8 * (largest // step).bit_length(), 2)
    ends = [(max(largest, step) / step) ** (index / (count - 1)) for index in range(count)]
    batches = sorted({step * round(end) for end in ends})
    for length in lengths:
      speed_ups = [scaling.predict(setting, batch, length).speed_up for batch in batches]
      axis.plot(batches, speed_ups, label=f"draft length {length}")
    axis.axhline(1, color="black", linewidth=0.8)
    fitting = scaling.largest_fitting_batch(setting)
    if fitting < batches[-1]:
      axis.axvspan(max(fitting, batches[0] / 2), batches[-1], color="grey", alpha=0.2)
      axis.text(0.98, 0.03, "grey: beyond the memory", transform=axis.transAxes, ha="right")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:.0f}")
    axis.set_xlabel("batch size")
    axis.set_ylabel("predicted speed-up")
    axis.set_title(f"{setting.mesh.num_devices} x {setting.hardware.name}")
    axis.grid(alpha=0.3)
    axis.legend()
  figure.savefig(path, dpi=120)
  pyplot.close(figure)
  return None


if __name__ == "__main__":
  sys.exit(main(sys.argv))
