# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What a run of `experiments.decode` was asked for, checked: flags laid over a config."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import base
from specjax import drafters, verifiers
from specjax.sampling import SamplingPolicy
from specjax.types import Verifier

# The names that --methods takes, each with the drafter that it decodes with, by the name in
# specjax.drafters.REGISTRY. Two methods may be two ways to use one drafter.
METHODS = {name: name for name in drafters.REGISTRY} | {"pass_merged": "pass"}

# Settings that only some verifiers take: by verifier, argument and the setting that it is.
VERIFIER_ARGUMENTS = {
  "top_k_match": {"k": "accept_top_k", "min_block_size": "min_block_size"},
  "distance_match": {
    "distance": "accept_distance",
    "min_block_size": "min_block_size",
    "first_token": "first_number_token",
    "last_token": "last_number_token",
  },
}
# Settings that are flags and no key of a config, for callers that have no such flag.
_FLAG_DEFAULTS: dict[str, Any] = {"raw": False, "seed": 0, "batch_size": 1, "stop": ()}
_VERIFIER_SETTINGS = tuple(
  dict.fromkeys(name for names in VERIFIER_ARGUMENTS.values() for name in names.values())
)


@dataclasses.dataclass(frozen=True)
class Settings:
  """Everything that a row of results depends on, beside its prompt and the weights.

  Attributes: the flags of `experiments.decode` and the keys of `configs/base.py`, by name.
  """

  model: str
  dtype: str | None
  raw: bool
  seed: int
  batch_size: int
  stop: tuple[str, ...]
  methods: tuple[str, ...]
  verifier: str
  accept_top_k: int | None
  accept_distance: int | None
  min_block_size: int | None
  first_number_token: int | None
  last_number_token: int | None
  max_new_tokens: int
  temperature: float
  top_k: int
  top_p: float
  min_p: float
  repetition_penalty: float
  drafter: tuple[str, ...]
  draft_length: int | None
  max_ngram: int
  min_ngram: int
  occurrence: str
  wrap: bool
  draft_checkpoint: str | None
  draft_layers: int | None
  draft_temperature: float | None
  fallback_min_tokens: int

  def __post_init__(self):
    for name, accepts, words in _RANGES:
      value = getattr(self, name)
      if value is not None and not accepts(value):
        raise ValueError(f"{name} must be {words}, got {value!r}")
    _check_names("methods", self.methods, METHODS)
    _check_names("verifier", (self.verifier,), verifiers.REGISTRY)
    self._check_verifier_settings()
    first, last = self.first_number_token or 0, self.last_number_token
    if last is not None and last <= first:
      raise ValueError(
        f"last_number_token must be above first_number_token, got {last} and {first}"
      )
    if self.min_ngram > self.max_ngram:
      raise ValueError(
        f"min_ngram must be at most max_ngram, got {self.min_ngram} and {self.max_ngram}"
      )

  def _check_verifier_settings(self) -> None:
    """A setting that the chosen verifier does not take would be ignored in silence."""
    taken = VERIFIER_ARGUMENTS.get(self.verifier, {}).values()
    for name in _VERIFIER_SETTINGS:
      if getattr(self, name) is not None and name not in taken:
        takers = [key for key, names in VERIFIER_ARGUMENTS.items() if name in names.values()]
        raise ValueError(
          f"{name} is a setting of the verifier {' or '.join(takers)}, got {getattr(self, name)} "
          f"with the verifier {self.verifier}"
        )

  def make_verifier(self) -> Verifier:
    """The verifier with its settings; those that are None are its own defaults."""
    arguments = {
      argument: getattr(self, name)
      for argument, name in VERIFIER_ARGUMENTS.get(self.verifier, {}).items()
      if getattr(self, name) is not None
    }
    return verifiers.REGISTRY[self.verifier](**arguments)

  @property
  def greedy(self) -> bool:
    """Whether tokens are argmaxes rather than samples."""
    return self.temperature == 0

  def policy(self) -> SamplingPolicy:
    """The sampling policy of the target."""
    names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    return SamplingPolicy(**{name: getattr(self, name) for name in names})

  def to_json(self) -> dict[str, Any]:
    """The settings as plain JSON values."""
    return {
      name: list(value) if isinstance(value, tuple) else value
      for name, value in dataclasses.asdict(self).items()
    }


def make_settings(config: ConfigDict, flags: Mapping[str, Any]) -> Settings:
  """The config with the flags laid over it: a flag that is None leaves the config's value.

  Args:
    config: of `configs/base.py`'s keys; those it lacks have their defaults.
    flags: values by the names of the fields of `Settings`.

  Raises:
    ValueError: for an unknown key, or naming the setting, what it got and what it takes.
  """
  known = base.get_config().to_dict()
  given = config.to_dict() if isinstance(config, ConfigDict) else dict(config)
  for key in given:
    if key not in known:
      raise ValueError(f"unknown config key {key!r}; the keys are {', '.join(known)}")
  values = (
    _FLAG_DEFAULTS
    | known
    | given
    | {name: value for name, value in flags.items() if value is not None}
  )
  values["methods"] = _names(values["methods"])
  values["drafter"] = _names(values["drafter"])
  values["dtype"] = flags.get("dtype")
  return Settings(**values)


def _names(value: Any) -> tuple[str, ...]:
  names = (value,) if isinstance(value, str) else tuple(value)
  return tuple(str(name).strip() for name in names)


def _check_names(what: str, names: tuple[str, ...], registry: Mapping[str, Any]) -> None:
  known = ", ".join(sorted(registry))
  if not names:
    raise ValueError(f"{what} must name at least one of {known}")
  for index, name in enumerate(names):
    if name not in registry:
      raise ValueError(f"{what}: unknown name {name!r}; the names are {known}")
    if name in names[:index]:
      raise ValueError(f"{what} must not name {name!r} twice")


def _integer(minimum: int):
  def accepts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum

  return accepts


def _number(accepts):
  return lambda value: isinstance(value, int | float) and math.isfinite(value) and accepts(value)


# Checked here, before a model is loaded. (name, test, what it takes)
_RANGES = (
  ("max_new_tokens", _integer(0), "an integer >= 0"),
  ("batch_size", _integer(1), "an integer >= 1"),
  ("temperature", _number(lambda value: value >= 0), "a finite number >= 0"),
  ("top_k", _integer(0), "an integer >= 0 (0 keeps all tokens)"),
  ("top_p", _number(lambda value: 0 < value <= 1), "in (0, 1]"),
  ("min_p", _number(lambda value: 0 <= value <= 1), "in [0, 1]"),
  ("repetition_penalty", _number(lambda value: value > 0), "a finite number > 0"),
  ("draft_length", _integer(1), "an integer >= 1"),
  ("accept_top_k", _integer(1), "an integer >= 1"),
  ("accept_distance", _integer(0), "an integer >= 0"),
  ("min_block_size", _integer(1), "an integer >= 1"),
  ("first_number_token", _integer(0), "an integer >= 0"),
  ("last_number_token", _integer(1), "an integer >= 1"),
  ("drafter", lambda value: all(value), "paths that are not empty"),
  ("max_ngram", _integer(1), "an integer >= 1"),
  ("min_ngram", _integer(1), "an integer >= 1"),
  ("occurrence", ("latest", "first").__contains__, "'latest' or 'first'"),
  ("draft_layers", _integer(1), "an integer >= 1"),
  ("draft_temperature", _number(lambda value: value >= 0), "a finite number >= 0"),
  ("fallback_min_tokens", _integer(1), "an integer >= 1"),
  ("seed", lambda value: isinstance(value, int) and 0 <= value < 2**32, "in 0 .. 2^32 - 1"),
  ("dtype", ("float32", "bfloat16", "float16").__contains__, "float32, bfloat16 or float16"),
  ("stop", lambda value: all(value), "strings that are not empty"),
)
