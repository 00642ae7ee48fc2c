# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""`generate` as a file: lowered once for several platforms, loaded and called without its source.

    from specjax.export import export_generate, load_exported

    export_generate("runs/sky", model, params, drafter=drafter, platforms=("tpu", "cuda", "cpu"))
    loaded = load_exported("runs/sky")
    generation = loaded.generate(params, [[1, 2, 3]])

An artefact is a folder of two files. `generate.stablehlo` holds what `jax.export` serialises: the
whole of `specjax.generate`, prefill and loop, as one StableHLO program for fixed shapes.
`manifest.json` says of what: model, drafter, verifier, shapes, platforms, versions, checksums.
Weights are arguments of the program and no part of it, so an artefact stays small; a fingerprint
of those that it was made with is in the manifest, and others are refused.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax import sampling
from specjax.arguments import check_integer
from specjax.decoding import generate, make_scheme
from specjax.generation import Generation, Records
from specjax.loop_state import Scheme
from specjax.models import cached_files
from specjax.models.fingerprint import fingerprint, same_target
from specjax.requests import Prompts, Request, make_request
from specjax.sampling import SamplingPolicy
from specjax.sharding.mesh import describe_mesh, make_mesh
from specjax.sharding.rules import Rules
from specjax.types import Array, Drafter, Model, Params, Verifier

FORMAT = "specjax-export"
FORMAT_VERSION = 1
PROGRAM_FILE = "generate.stablehlo"
MANIFEST_FILE = "manifest.json"
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# The numbers of a policy that are arguments of the program, with the value that changes no row.
_NUMBERS: dict[str, Any] = {
  "temperature": np.float32(0),
  "top_k": np.int32(0),
  "top_p": np.float32(1),
  "tail": np.float32(0),
  "min_p": np.float32(0),
  "repetition_penalty": np.float32(1),
  "presence_penalty": np.float32(0),
  "frequency_penalty": np.float32(0),
}
_RECORDS = ("log_probs", "call", "drafted", "proposed", "deviates")


# --- writing -------------------------------------------------------------------------------


def export_generate(
  folder: str | os.PathLike,
  model: Model,
  params: Params,
  *,
  drafter: Drafter | None = None,
  drafter_params: Params = None,
  verifier: Verifier | None = None,
  policy: SamplingPolicy | None = None,
  batch_size: int = 1,
  prompt_tokens: int = 64,
  max_new_tokens: int = 128,
  capacity: int | None = None,
  eos_ids: Sequence[int] = (),
  narrow: bool = True,
  platforms: Sequence[str] = ("tpu", "cuda", "cpu"),
  name: str = "",
  made_by: Mapping[str, Any] | None = None,
  mesh: Mesh | str | None = None,
  rules: Rules | str | None = None,
  drafter_rules: Rules | str | None = None,
) -> dict[str, Any]:
  """Lowers `specjax.generate` for some platforms and writes it to a folder.

  None of the platforms needs to be there. The folder is written whole or not at all; an earlier
  artefact in it is replaced, and a folder that holds anything else is refused.

  Args:
    folder: where the artefact goes.
    model: the target model.
    params: its parameters; they are looked at, and not stored.
    drafter: who drafts; None decodes autoregressively.
    drafter_params: the drafter's parameters.
    verifier: who decides; `RejectionSampling()` by default.
    policy: greedy by default. Which of its numbers exist is fixed; their values are those that
      `ExportedGenerate.generate` takes by default. It may consist of temperature, top-k, top-p,
      min-p and the three penalties.
    batch_size: B, the rows of a call.
    prompt_tokens: the longest prompt; rounded up to a bucket of `specjax.buckets`.
    max_new_tokens: the default of a call. Together with `prompt_tokens` it sets the capacity.
    capacity: S; the bucket that fits by default.
    eos_ids: the default of a call. As many as fit in multiples of 4 can be given there.
    narrow: see `specjax.loop_state.Scheme`.
    platforms: of "cpu", "cuda", "rocm" and "tpu".
    name: what people call the model, for the manifest.
    made_by: JSON values that say how the artefact was made, for the manifest.
    mesh: makes a program for several devices, such as "data:2,model:4". As many devices must be
      there (on a CPU machine they can be forced), of whatever platform.
    rules: what is cut by which axis of the mesh, as `specjax.generate` takes it.
    drafter_rules: the same for the drafter's arrays.

  Returns:
    The manifest.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
    ImportError: where the package flatbuffers is missing.
  """
  _require_flatbuffers()
  folder = Path(folder).expanduser()
  check_folder(folder)
  check_platforms(platforms)
  for argument, value in (("batch_size", batch_size), ("prompt_tokens", prompt_tokens)):
    check_integer(argument, value, 1)
  placement: dict[str, Any] = {"mesh": mesh, "rules": rules, "drafter_rules": drafter_rules}
  scheme = make_scheme(model, drafter, verifier, narrow=narrow, **placement)
  if scheme.partitioning is not None:
    scheme.partitioning.check_batch(batch_size, "batch_size")
  request = make_request(
    np.zeros((batch_size, prompt_tokens), np.int32),
    prompt_lengths=None,
    max_new_tokens=max_new_tokens,
    eos_ids=eos_ids,
    capacity=capacity,
    block_width=scheme.block_width,
    vocab_size=model.vocab_size,
    max_positions=model.max_positions,
  )
  policy = SamplingPolicy() if policy is None else policy
  resolved = policy.resolve(batch_size, model.vocab_size, request.eos_ids)
  scheme.verifier.check(resolved)
  numbers = _numbers(resolved)
  inputs = {
    "tokens": request.tokens,
    "prompt_lengths": request.prompt_lengths,
    "max_new_tokens": np.full(batch_size, max_new_tokens, np.int32),
    "eos_ids": request.eos_ids,
    "row_keys": np.asarray(jax.random.key_data(_row_keys(0, batch_size))),
    "policy": numbers,
  }
  tree, drafter_tree = jax.tree.structure(params), jax.tree.structure(drafter_params)

  def run(leaves, drafter_leaves, inputs):
    generation = generate(
      model,
      jax.tree.unflatten(tree, leaves),
      inputs["tokens"],
      drafter=scheme.drafter,
      drafter_params=jax.tree.unflatten(drafter_tree, drafter_leaves),
      verifier=scheme.verifier,
      policy=SamplingPolicy(**inputs["policy"], sampled=resolved.sampled),
      max_new_tokens=inputs["max_new_tokens"],
      eos_ids=inputs["eos_ids"],
      row_keys=jax.random.wrap_key_data(inputs["row_keys"], impl=_key_impl()),
      prompt_lengths=inputs["prompt_lengths"],
      capacity=request.capacity,
      narrow=narrow,
      **placement,
    )
    records = {name: getattr(generation.records, name) for name in _RECORDS}
    return {
      "tokens": generation.tokens,
      "prompt_lengths": generation.prompt_lengths,
      "lengths": generation.lengths,
      "finish": generation.finish,
      **{name: value for name, value in records.items() if value is not None},
    }

  abstract = _abstract(scheme, params, drafter_params, inputs)
  with _without_source_lines():
    exported = jax_export.export(jax.jit(run), platforms=list(platforms))(*abstract)
  program = bytes(exported.serialize())
  manifest = {
    "format": FORMAT,
    "format_version": FORMAT_VERSION,
    "specjax_version": _specjax_version(),
    "jax_version": jax.__version__,
    "calling_convention_version": exported.calling_convention_version,
    "platforms": list(exported.platforms),
    "model": {
      "name": name,
      "vocab_size": model.vocab_size,
      "max_positions": model.max_positions,
      "settings": _describe(model),
      "fingerprint": fingerprint(model, params),
    },
    "drafter": {
      "settings": _describe(scheme.drafter),
      "fingerprint": _drafter_fingerprint(model.vocab_size, drafter_params),
      "block_width": scheme.block_width,
      "max_depth": scheme.drafter.max_depth - scheme.drafter.certain_nodes,
      "certain_nodes": scheme.drafter.certain_nodes,
    },
    "verifier": {"settings": _describe(scheme.verifier), "lossless": scheme.verifier.lossless},
    "policy": {
      "sampled": bool(resolved.sampled),
      "defaults": {name: value.tolist() for name, value in numbers.items()},
    },
    "dtype": str(getattr(model, "dtype", "")),
    "batch_size": batch_size,
    "prompt_tokens": int(request.tokens.shape[1]),
    "capacity": request.capacity,
    "max_new_tokens": max_new_tokens,
    "eos_ids": [int(i) for i in request.eos_ids],
    "narrow": narrow,
    "mesh": None if scheme.partitioning is None else describe_mesh(scheme.partitioning.mesh),
    "key_impl": _key_impl(),
    "arguments": {
      "params": _signature(params),
      "drafter_params": _signature(drafter_params),
      "inputs": _signature(inputs),
    },
    "results": {
      key: [list(value.shape), str(value.dtype)]
      for key, value in jax.tree.unflatten(exported.out_tree, exported.out_avals).items()
    },
    "made_by": dict(made_by or {}),
    "program": {
      "file": PROGRAM_FILE,
      "bytes": len(program),
      "sha256": hashlib.sha256(program).hexdigest(),
    },
  }
  manifest["sha256"] = _checksum(manifest)
  with cached_files.temporary_folder(folder.absolute().parent) as aside:
    whole = aside / "artefact"
    whole.mkdir()
    (whole / PROGRAM_FILE).write_bytes(program)
    cached_files.write_text(whole / MANIFEST_FILE, json.dumps(manifest, indent=1) + "\n")
    cached_files.replace_folder(whole, folder.absolute())
  return manifest


# --- reading -------------------------------------------------------------------------------


class ExportedGenerate:
  """A loaded artefact. What it takes and returns is fixed but for values; see its manifest.

  Attributes:
    manifest: what `manifest.json` says.
  """

  def __init__(self, manifest: dict[str, Any], exported: jax_export.Exported):
    self.manifest = manifest
    self._call = jax.jit(exported.call)
    # Of the arguments, in order; None is one device.
    self._shardings: list[Any] | None = None
    if manifest.get("mesh") is not None:
      self._shardings = list(exported.in_shardings_jax(make_mesh(manifest["mesh"])))
    self._checked: list[Any] = []

  def generate(
    self,
    params: Params,
    prompts: Prompts,
    *,
    drafter_params: Params = None,
    policy: SamplingPolicy | None = None,
    max_new_tokens: int | Sequence[int] | None = None,
    eos_ids: Sequence[int] | None = None,
    key: Array | int | None = None,
    row_keys: Array | None = None,
    prompt_lengths: Sequence[int] | None = None,
  ) -> Generation:
    """What `specjax.generate` returns for these arguments, from the program in the artefact.

    Args:
      params: the target's parameters, those that the artefact was made with.
      prompts: one list of token ids a row, or right-padded `[B, P]` with `prompt_lengths`.
      drafter_params: the drafter's parameters, likewise.
      policy: its numbers; None takes those that the artefact was made with. A greedy policy fits
        any artefact; a number that the program does not have is refused.
      max_new_tokens: one number or one a row; None is the artefact's.
      eos_ids: ids that end a row; None takes the artefact's.
      key: a typed key or a seed, from which every row gets its own; or `row_keys [B]`.
      row_keys: typed keys `[B]`.
      prompt_lengths: `[B]`, for padded prompts.

    Returns:
      `Generation`, on the device.

    Raises:
      ValueError: for weights that are not those of the artefact, or arguments that do not fit its
        shapes.
    """
    manifest = self.manifest
    self.check_weights(params, drafter_params)
    request = self._request(prompts, prompt_lengths, max_new_tokens, eos_ids)
    inputs = {
      "tokens": request.tokens,
      "prompt_lengths": request.prompt_lengths,
      "max_new_tokens": request.limit - request.prompt_lengths,
      "eos_ids": request.eos_ids,
      "row_keys": self._key_data(key, row_keys),
      "policy": self._policy(policy),
    }
    arguments = (jax.tree.leaves(params), jax.tree.leaves(drafter_params), inputs)
    result = self._call(*self._placed(arguments))
    records = {name: result.get(name) for name in _RECORDS}
    return Generation(
      tokens=result["tokens"],
      prompt_lengths=result["prompt_lengths"],
      lengths=result["lengths"],
      finish=result["finish"],
      records=Records(**records),
      max_depth=manifest["drafter"]["max_depth"],
      certain_nodes=manifest["drafter"]["certain_nodes"],
    )

  def check_weights(self, params: Params, drafter_params: Params = None) -> None:
    """Checks that these are the parameters that the artefact was made with.

    Names, shapes and dtypes must be equal, and the values those of the same model, however they
    were rounded (see `specjax.models.fingerprint`).

    Raises:
      ValueError: saying what differs.
    """
    leaves = jax.tree.leaves((params, drafter_params))
    if len(leaves) == len(self._checked) and all(
      ours is theirs for ours, theirs in zip(leaves, self._checked, strict=True)
    ):
      return
    manifest = self.manifest
    for argument, value in (("params", params), ("drafter_params", drafter_params)):
      _check_signature(argument, value, manifest["arguments"][argument])
    vocab_size = manifest["model"]["vocab_size"]
    if not same_target(manifest["model"]["fingerprint"], _fingerprint(vocab_size, params)):
      raise ValueError(
        f"params are not the weights of {manifest['model']['name'] or 'the model'} that the "
        "artefact was made with: same shapes, other values"
      )
    expected = manifest["drafter"]["fingerprint"]
    if expected is not None and not same_target(
      expected, _drafter_fingerprint(vocab_size, drafter_params) or expected
    ):
      raise ValueError(
        "drafter_params are not the weights of the drafter that the artefact was made with: same "
        "shapes, other values"
      )
    self._checked = leaves

  def _placed(self, arguments: Any) -> Any:
    """The arguments on the mesh of the program; what is there already is not copied."""
    if self._shardings is None:
      return arguments
    leaves, tree = jax.tree.flatten(arguments)
    return jax.tree.unflatten(tree, jax.device_put(leaves, self._shardings))

  def _request(
    self, prompts: Prompts, prompt_lengths: Any, max_new_tokens: Any, eos_ids: Any
  ) -> Request:
    """The batch in the shapes of the program."""
    manifest = self.manifest
    default = [i for i in manifest["eos_ids"] if i >= 0]
    request = make_request(
      prompts,
      prompt_lengths=prompt_lengths,
      max_new_tokens=manifest["max_new_tokens"] if max_new_tokens is None else max_new_tokens,
      eos_ids=default if eos_ids is None else eos_ids,
      capacity=manifest["capacity"],
      block_width=manifest["drafter"]["block_width"],
      vocab_size=manifest["model"]["vocab_size"],
      max_positions=manifest["model"]["max_positions"],
    )
    rows, width = request.tokens.shape
    if rows != manifest["batch_size"]:
      raise ValueError(
        f"prompts must have the {manifest['batch_size']} rows that the artefact was made for, got "
        f"{rows}; rows of max_new_tokens 0 fill a batch up"
      )
    longest, limit = int(request.prompt_lengths.max()), manifest["prompt_tokens"]
    if longest > limit:
      raise ValueError(
        f"prompts must have at most the {limit} tokens that the artefact was made for, got "
        f"{longest}"
      )
    slots = len(manifest["eos_ids"])
    ends = request.eos_ids[request.eos_ids >= 0]
    if ends.size > slots:
      raise ValueError(f"eos_ids must be at most {slots} in this artefact, got {ends.size}")
    tokens: Any = np.pad(request.tokens, ((0, 0), (0, max(limit - width, 0))))[:, :limit]
    padded: Any = np.pad(ends, (0, slots - ends.size), constant_values=-1)
    return dataclasses.replace(request, tokens=tokens, eos_ids=padded)

  def _key_data(self, key: Any, row_keys: Any) -> Array:
    batch, impl = self.manifest["batch_size"], self.manifest["key_impl"]
    if row_keys is None:
      row_keys = _row_keys(0 if key is None else key, batch)
    if row_keys.shape != (batch,):
      raise ValueError(f"row_keys must be typed keys [{batch}], got shape {row_keys.shape}")
    if (given := str(jax.random.key_impl(row_keys))) != impl:
      raise ValueError(f"key must be of the kind {impl} in this artefact, got {given}")
    return jax.random.key_data(row_keys)

  def _policy(self, policy: SamplingPolicy | None) -> dict[str, Any]:
    """The numbers of the program's policy, `[B]` each."""
    stated, batch = self.manifest["policy"], self.manifest["batch_size"]
    names = tuple(stated["defaults"])
    if policy is None:  # JSON keeps a float32 exactly
      return {name: np.asarray(stated["defaults"][name], _NUMBERS[name].dtype) for name in names}
    resolved = policy.resolve(batch, self.manifest["model"]["vocab_size"], ())
    if resolved.sampled and not stated["sampled"]:
      raise ValueError(
        "policy must be greedy in this artefact, which was made for temperature 0; got one that "
        "samples"
      )
    given = _numbers(resolved)
    unknown = sorted(set(given) - set(names))
    if unknown:
      raise ValueError(
        f"policy may have {', '.join(_public(names))} in this artefact, got {unknown[0]}"
      )
    filled = {name: np.full(batch, _NUMBERS[name]) for name in names}
    return {name: given.get(name, neutral) for name, neutral in filled.items()}


def load_exported(folder: str | os.PathLike) -> ExportedGenerate:
  """Loads an artefact of `export_generate` for the platform that JAX runs on here.

  Raises:
    ValueError: in one line, for a folder that holds no artefact, a damaged one, one of another
      version, one that was not lowered for this platform, or one for more devices than are here.
    ImportError: where the package flatbuffers is missing.
  """
  _require_flatbuffers()
  folder = Path(folder).expanduser()
  manifest = read_manifest(folder)
  _check_versions(folder, manifest)
  platform = jax_export.default_export_platform()
  if platform not in manifest["platforms"]:
    raise ValueError(
      f"{folder} was lowered for {', '.join(manifest['platforms'])}, and JAX runs on {platform} "
      "here"
    )
  stated = manifest["program"]
  try:
    cached_files.check(folder / PROGRAM_FILE, stated["bytes"], stated["sha256"])
    exported = jax_export.deserialize(bytearray((folder / PROGRAM_FILE).read_bytes()))
  except Exception as error:  # what damage does to a flatbuffer, JAX does not say
    raise ValueError(f"{folder} is damaged: {' '.join(str(error).split())}") from error
  return ExportedGenerate(manifest, exported)


def read_manifest(folder: str | os.PathLike) -> dict[str, Any]:
  """What an artefact says of itself, whatever platform and JAX version it is for.

  Raises:
    ValueError: for a folder without an artefact, a damaged manifest, or another format version.
  """
  path = Path(folder).expanduser() / MANIFEST_FILE
  try:
    manifest = json.loads(path.read_text(encoding="utf-8"))
  except FileNotFoundError:
    raise ValueError(f"{folder} holds no exported program: it has no {MANIFEST_FILE}") from None
  except NotADirectoryError:
    raise ValueError(f"{folder} is not a folder of an exported program") from None
  except ValueError as error:
    raise ValueError(f"{path} is damaged: {error}") from None
  if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
    raise ValueError(f"{path} is not the manifest of an exported program of specjax")
  if manifest.get("format_version") != FORMAT_VERSION:
    raise ValueError(
      f"{folder} has format version {manifest.get('format_version')}, this specjax reads "
      f"{FORMAT_VERSION}; export it again"
    )
  return manifest


def _check_versions(folder: Path, manifest: Mapping[str, Any]) -> None:
  """JAX reads what an older JAX wrote, within the limits that it states itself."""
  lowest = jax_export.minimum_supported_calling_convention_version
  highest = jax_export.maximum_supported_calling_convention_version
  convention = manifest.get("calling_convention_version")
  written, here = manifest.get("jax_version"), jax.__version__
  readable = isinstance(convention, int) and lowest <= convention <= highest
  if not readable or _version(written) > _version(here):
    raise ValueError(
      f"{folder} was made with JAX {written} (calling convention {convention}), this is JAX {here} "
      f"(conventions {lowest} to {highest}); a program is read by the JAX that wrote it and by "
      "later ones: export it again, or update JAX"
    )
  if manifest.get("sha256") != _checksum(manifest):
    raise ValueError(f"{folder / MANIFEST_FILE} is damaged: its checksum is another one")


# --- parts ---------------------------------------------------------------------------------


def _require_flatbuffers() -> None:
  if importlib.util.find_spec("flatbuffers") is None:
    raise ImportError(
      "exported programs need the package 'flatbuffers', which jax.export serialises with: pip "
      "install 'specjax[export]'"
    )


def check_folder(folder: Path) -> None:
  """Whether an artefact may be written to `folder`: only an earlier one is ever replaced.

  Raises:
    ValueError: if it is no folder, or holds anything else.
  """
  if not folder.exists():
    return
  if not folder.is_dir():
    raise ValueError(f"output {folder} is not a folder")
  others = sorted({path.name for path in folder.iterdir()} - {PROGRAM_FILE, MANIFEST_FILE})
  if others:
    raise ValueError(f"output {folder} holds something else ({others[0]}); choose another one")


def check_platforms(platforms: Sequence[str]) -> None:
  """Raises ValueError unless `platforms` are some of `PLATFORMS`, each named once."""
  for index, platform in enumerate(platforms):
    if platform not in PLATFORMS:
      raise ValueError(f"platforms must be of {', '.join(PLATFORMS)}, got {platform!r}")
    if platform in platforms[:index]:
      raise ValueError(f"platforms must not name {platform!r} twice")
  if not platforms:
    raise ValueError(f"platforms must name at least one of {', '.join(PLATFORMS)}")


def _numbers(policy: SamplingPolicy) -> dict[str, np.ndarray]:
  """The numbers of a resolved policy by name, `[B]` each.

  Raises:
    ValueError: for a policy with anything else in it.
  """
  fixed = (*_NUMBERS, "sampled")
  for field in dataclasses.fields(policy):
    if field.name not in fixed and getattr(policy, field.name) is not None:
      raise ValueError(
        f"policy may consist of {', '.join(_public(_NUMBERS))} where a program is "
        f"exported, got {field.name}"
      )
  values = {name: getattr(policy, name) for name in _NUMBERS}
  return {name: np.asarray(value) for name, value in values.items() if value is not None}


@contextlib.contextmanager
def _without_source_lines() -> Iterator[None]:
  """A program carries the file names of this machine otherwise, a quarter of its size."""
  name = "jax_traceback_in_locations_limit"
  before = getattr(jax.config, name)
  jax.config.update(name, 0)
  try:
    yield
  finally:
    jax.config.update(name, before)


def _public(names: Iterable[str]) -> list[str]:
  """The fields that a user sets; `tail` goes with `top_p`."""
  return [name for name in names if name != "tail"]


def _row_keys(key: Array | int, batch: int) -> Array:
  return sampling.row_keys(jax.random.key(key) if isinstance(key, int) else key, batch)


def _key_impl() -> str:
  return str(jax.random.key_impl(jax.random.key(0)))


def _abstract(scheme: Scheme, params: Params, drafter_params: Params, inputs: Any) -> Any:
  """The arguments of a program as shapes, each with its place on the mesh if there is one."""

  def shape(value: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(np.shape(value), jnp.result_type(value), sharding=sharding)

  ours, drafters = scheme.partitioning, scheme.drafter_partitioning
  if ours is None or drafters is None:
    return jax.tree.map(shape, (jax.tree.leaves(params), jax.tree.leaves(drafter_params), inputs))
  everywhere = NamedSharding(ours.mesh, PartitionSpec())
  return (
    jax.tree.leaves(jax.tree.map(shape, params, ours.shardings(params))),
    jax.tree.leaves(jax.tree.map(shape, drafter_params, drafters.shardings(drafter_params))),
    jax.tree.map(lambda value: shape(value, everywhere), inputs),
  )


def _signature(tree: Params) -> list[list[Any]]:
  """Name, shape and dtype of each array, in the order of the program's arguments."""
  return [
    [jax.tree_util.keystr(path, simple=True, separator="/"), list(leaf.shape), str(leaf.dtype)]
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
  ]


def _check_signature(argument: str, tree: Params, expected: Sequence[Sequence[Any]]) -> None:
  """Raises ValueError at the first array that is not what the program takes."""
  given = {name: (shape, dtype) for name, shape, dtype in _signature(tree)}
  wanted = {name: (shape, dtype) for name, shape, dtype in expected}
  for name in [*wanted, *given]:
    if name not in given:
      raise ValueError(f"{argument} must have {name} {_text(wanted[name])}, which is missing")
    if name not in wanted:
      raise ValueError(f"{argument} has {name} {_text(given[name])}, which the artefact lacks")
    if given[name] != wanted[name]:
      raise ValueError(
        f"{argument} must have {name} as {_text(wanted[name])}, got {_text(given[name])}"
      )


def _text(array: tuple[Any, Any]) -> str:
  return f"{array[1]}{array[0]}"


@dataclasses.dataclass(frozen=True)
class _Sized:
  """What `fingerprint` asks of a model."""

  vocab_size: int


def _fingerprint(vocab_size: int, params: Params) -> str:
  model: Any = _Sized(vocab_size)
  return fingerprint(model, params)


def _drafter_fingerprint(vocab_size: int, params: Params) -> str | None:
  """None where a drafter has no weights."""
  leaves = jax.tree.leaves(params)
  if not any(jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.size for leaf in leaves):
    return None
  return _fingerprint(vocab_size, params)


def _describe(value: Any) -> Any:
  """Static settings as JSON values."""
  if dataclasses.is_dataclass(value) and not isinstance(value, type):
    fields = {f.name: _describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return {"class": type(value).__name__, **fields}
  if value is None or isinstance(value, bool | int | float | str):
    return value
  if isinstance(value, tuple | list):
    return [_describe(item) for item in value]
  return getattr(value, "__qualname__", None) or str(value)


def _checksum(manifest: Mapping[str, Any]) -> str:
  rest = {name: value for name, value in manifest.items() if name != "sha256"}
  return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _version(text: Any) -> tuple[int, ...]:
  """The leading numbers of a version; one that has none counts as newer than any."""
  numbers = []
  for part in str(text).split(".")[:3]:
    if not part.isdigit():
      break
    numbers.append(int(part))
  return tuple(numbers) or (10**9,)


def _specjax_version() -> str:
  from specjax import __version__

  return __version__
