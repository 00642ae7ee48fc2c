# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What studies work with: a target, prompts, decoding that resumes, training that resumes."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.display import Display
from experiments.mesh_flags import MeshOptions
from experiments.methods import Method
from experiments.prompts import Prompt, prompts_fingerprint
from experiments.results import ResultsFolder, Row
from experiments.runner import Runner
from experiments.settings import make_settings
from experiments.target import check_prompts
from specjax.models.checkpoint import Checkpoint


@dataclasses.dataclass(frozen=True)
class Bench:
  """One run of a study.

  Attributes:
    options: the config's settings of this study alone, by name.
    target: the target; None for a study whose module says `NEEDS_TARGET = False`.
    prompts: what is decoded.
    data: folder of the token data that drafters are trained on.
    work: folder for everything that lets the study resume.
    decode_settings: of `experiments.settings.Settings`, for all decoding.
    train_settings: of `configs/train_base.py`, for all training.
    dtype: of the target's weights, as on the command line; None suits the device.
    display: shows progress.
    mesh: the devices that drafters are trained on; decoding is done where the target lies.
  """

  options: Mapping[str, Any]
  target: Checkpoint | Any  # Any: the studies that have it need not ask whether it is None.
  prompts: Sequence[Prompt]
  data: Path
  work: Path
  decode_settings: Mapping[str, Any]
  train_settings: Mapping[str, Any]
  dtype: str | None
  display: Display
  mesh: MeshOptions = dataclasses.field(default_factory=MeshOptions)

  def decode(
    self, name: str, methods: Sequence[Method], target: Checkpoint | None = None, **settings: Any
  ) -> dict[str, list[Row]]:
    """Decodes the prompts with every method in turn, or reads what an earlier run decoded.

    Args:
      name: of the folder of its rows, unlike those of the study's other calls.
      methods: ways to decode; their names tell their rows apart.
      target: where it is not the bench's own.
      **settings: over `decode_settings`, such as `temperature`.

    Returns:
      The rows of each method, by its name.

    Raises:
      ValueError: if the folder holds rows of other settings, or of other drafter files.
    """
    target = self.target if target is None else target
    values = {"model": target.name, **self.decode_settings, **settings}
    made = make_settings({"methods": ("autoregressive",)}, {"dtype": self.dtype, **values})
    check_prompts(made, target, self.prompts)
    described = made.to_json() | {"prompts": prompts_fingerprint(self.prompts)}
    results = ResultsFolder(self.work / "decoded" / name, described)
    results.check_source(target.source)
    known = {row["method"]: row["drafter_sha256"] for row in results.rows.values()}
    results.check_drafters(known | {method.name: method.drafter_checksum for method in methods})
    self.display.note(f"{name}: {', '.join(method.name for method in methods)}")
    runner = Runner(made, target, methods, self.prompts, results, self.display, few_shapes=True)
    runner.run()
    return {
      method.name: [row for row in results.rows.values() if row["method"] == method.name]
      for method in methods
    }

  def train(self, name: str, config: str, changes: Mapping[str, Any]) -> Path:
    """Trains a drafter with `experiments.train`, or takes the one that is there.

    Args:
      name: of the run's folder.
      config: a module of `configs`, such as "train_blockwise".
      changes: over that config and `train_settings`; `objective` is merged key by key.

    Returns:
      The run's folder, with `drafter.safetensors` and `metrics.jsonl`.

    Raises:
      ValueError: for settings that do not fit, or other ones than the folder was begun with.
      KeyboardInterrupt: if it was stopped; the same study goes on from there.
    """
    import importlib

    from configs import train_base
    from experiments import train, train_flags

    settings = train_base.get_config().to_dict()
    for part in (
      importlib.import_module(f"configs.{config}").get_config().to_dict(),
      self.train_settings,
      changes,
    ):
      objective = {**settings["objective"], **dict(part.get("objective", {}))}
      settings = {**settings, **part, "objective": objective}
    folder = self.work / "trained" / name
    self.display.note(f"training {name}")
    code = train.train(
      train_flags.TrainOptionsRead(
        settings=settings,
        data=str(self.data),
        output=str(folder),
        model=self.target.name,
        dtype=self.dtype,
        mesh=self.mesh,
      )
    )
    if code:
      raise KeyboardInterrupt
    return folder
