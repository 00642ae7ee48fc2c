# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Trains a drafter on token data that `experiments.generate_data` made.

  python -m experiments.train --config=configs/train_blockwise.py --data=runs/data
  python -m experiments.train --config=configs/train_pass.py --data=runs/data --steps=200

Stopped at any moment, the same command with the same --output goes on to the same result. The
folder ends up with drafter.safetensors (which `experiments.decode --drafter` takes),
metrics.jsonl, metrics.png and the checkpoints.
Exit codes: 0, 2 for bad input, 130 for Ctrl-C, 143 for SIGTERM.
"""

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from experiments import train_flags
from experiments.command import answer


class StopRequest:
  """Set by a signal: the running step is finished and saved first. A second one stops at once.

  Signals are its own while its context lasts.

  Attributes:
    signal: the signal that came, or None.
  """

  def __init__(self) -> None:
    self.signal: int | None = None
    self._before: dict[int, Any] = {}

  def __enter__(self) -> "StopRequest":
    for number in (signal.SIGINT, signal.SIGTERM):
      self._before[number] = signal.signal(number, self._receive)
    return self

  def __exit__(self, *details: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _receive(self, number: int, frame: FrameType | None) -> None:
    del frame
    if self.signal is not None:
      raise KeyboardInterrupt
    self.signal = number
    print("\nstopping after this step", file=sys.stderr, flush=True)

  def __call__(self) -> bool:
    """Whether to stop."""
    return self.signal is not None


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  return answer(
    lambda: train(train_flags.parse(argv)),
    "interrupted; the same command goes on from the newest checkpoint",
  )


def train(options: train_flags.TrainOptionsRead) -> int:
  """Trains what the command line asks for; returns the exit code.

  Raises:
    ValueError: for bad input.
  """
  with options.processes.joined():
    return _train(options)


def _train(options: train_flags.TrainOptionsRead) -> int:
  settings = options.settings
  # Imported late: a mistyped flag is answered at once, not after JAX has started.
  from experiments.objectives import make_objective
  from experiments.results import fresh_folder
  from experiments.train_display import make_train_display
  from experiments.train_plot import plot_metrics
  from specjax.drafters.drafter_file import save_drafter
  from specjax.models import checkpoint
  from specjax.models.fingerprint import fingerprint
  from specjax.sharding import processes
  from specjax.training.joined_tokens import open_token_data
  from specjax.training.packing import PackedData
  from specjax.training.train_loop import train as run

  train_options = train_flags.loop_options(settings)
  placement = options.mesh.load_options(settings["batch_size"])
  folder = open_token_data(options.data)
  data = PackedData(
    folder,
    window=settings["window"],
    batch_size=settings["batch_size"],
    seed=settings["seed"],
    max_rows=settings["max_rows"],
    max_validation_rows=settings["max_validation_rows"],
    part=settings["data_part"],
  )
  output = Path(processes.from_first(lambda: str(options.output or fresh_folder())))
  target = checkpoint.load(options.model, dtype=options.dtype, **placement)
  if target.model.vocab_size != folder.manifest["vocab_size"]:
    raise ValueError(
      f"data {options.data} was made with a vocabulary of {folder.manifest['vocab_size']} tokens, "
      f"{target.name} has {target.model.vocab_size}"
    )
  objective = make_objective(settings["scheme"], settings["objective"], target, data.token_counts)
  described = {
    **settings,
    "model": target.name,
    "dtype": str(target.model.dtype),
    "target": fingerprint(target.model, target.params),
    "data": folder.manifest,
    "data_rows": len(folder.rows),
  }
  processes.check_same("settings or data", described)
  processes.from_first(lambda: _check_same_run(output, described))
  print(
    f"{settings['scheme']} for {target.name}: {data.num_train_rows} rows of {options.data}, "
    f"{train_options.num_steps} steps; results go to {output}",
    flush=True,
  )
  with StopRequest() as stop, make_train_display(train_options.num_steps) as display:
    result = run(
      objective,
      target.params,
      data,
      train_options,
      output,
      display.show,
      stop,
      **target.placement,
    )
  if not result.finished:
    print(
      f"stopped after step {int(result.state.step)}; to go on, run the same command with "
      f"--output={output}",
      file=sys.stderr,
    )
    return 128 + int(stop.signal or signal.SIGINT)
  model, params = target.model, target.params
  if getattr(objective, "fine_tune", False):
    # A target that was trained along is another target: it is saved, and the drafter is its own.
    params = objective.tuned_target(result.trainable)  # type: ignore[attr-defined]
    _save_target(output / "target", target, params)
  trained = objective.export(result.trainable, params)
  save_drafter(output / "drafter.safetensors", trained, model, params, target.name)
  if not processes.is_first():
    return 0
  print(f"\n{_closing_table(result.rows)}\n")
  note = plot_metrics(result.rows, output / "metrics.png")
  print(note or f"Plot: {output / 'metrics.png'}")
  print(f"Drafter: {output / 'drafter.safetensors'}")
  return 0


def _save_target(folder: Path, target: Any, params: Any) -> None:
  from specjax.models.orbax_checkpoint import save_orbax

  save_orbax(
    folder,
    target.model,
    params,
    tokenizer=target.tokenizer,
    eos_ids=target.eos_ids,
    overwrite=True,
  )


# Settings that change nothing of what is trained: how often a run tells, judges and saves.
_FREE = ("log_every", "validate_every", "save_every", "keep")


def _check_same_run(output: Path, settings: dict[str, Any]) -> None:
  """Writes the settings of a new run; for one that is resumed, they must be the same.

  Those of `_FREE` may change.
  """
  from specjax.models import cached_files

  path = output / "config.json"
  wanted = json.loads(json.dumps(settings))
  if not path.exists():
    output.mkdir(parents=True, exist_ok=True)
    cached_files.write_text(path, json.dumps(wanted, indent=2) + "\n")
    return
  try:
    found = dict(json.loads(path.read_text()))
  except (TypeError, ValueError) as error:
    raise ValueError(f"{path} is not the settings of a run: {error}") from None
  found, wanted = _flat(found), _flat(wanted)
  for name in sorted((set(found) | set(wanted)) - set(_FREE)):
    if found.get(name) != wanted.get(name):
      raise ValueError(
        f"{output} was begun with {name} {found.get(name)!r:.200}, this run has "
        f"{wanted.get(name)!r:.200}; take another --output"
      )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
  """Nested dictionaries as one, of names such as "objective.draft_length"."""
  flat: dict[str, Any] = {}
  for name, value in values.items():
    if isinstance(value, dict):
      flat |= _flat(value, f"{prefix}{name}.")
    else:
      flat[prefix + name] = value
  return flat


def _closing_table(rows: Sequence[dict[str, Any]]) -> str:
  """The last row of each part of the data, and what the run took."""
  from experiments.train_display import duration, shown

  lines = [f"{'':<12}{'loss':>9}{'block length':>14}  agreement at each draft position"]
  for split in ("train", "validation"):
    row = next((row for row in reversed(rows) if row["split"] == split), None)
    if row is not None:
      agreement = " ".join(map(shown, row["agreement"]))
      lines.append(f"{split:<12}{row['loss']:>9.3f}{shown(row['block_length']):>14}  {agreement}")
  last = rows[-1]
  lines.append(f"{last['step']} steps, {last['tokens']} tokens in {duration(last['seconds'])}")
  return "\n".join(lines)


if __name__ == "__main__":
  sys.exit(main(sys.argv))
