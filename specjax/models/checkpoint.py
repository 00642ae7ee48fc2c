# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The one door to all checkpoints: a name or a path to model, parameters and tokenizer."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from specjax.models import gguf_checkpoint, gguf_tokenizer, resolver
from specjax.models.gguf_config import config_from_gguf
from specjax.models.gguf_file import GGUFFile, is_gguf, open_gguf
from specjax.models.huggingface import load_huggingface, read_huggingface_model
from specjax.models.shapes import read_shape
from specjax.models.text_files import read_json_if_there
from specjax.models.tokenizer import Tokenizer
from specjax.models.transformer import Transformer
from specjax.sharding.mesh import make_mesh
from specjax.sharding.partitioning import Partitioning
from specjax.sharding.rules import Rules
from specjax.types import Params

# Before the name of a shape, or a folder with a config.json: that architecture, random weights.
RANDOM = "random:"
# How chat templates end a turn. A GGUF file without an `eot_token_id` may still mean one.
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>")


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
  """A model that is ready to decode.

  Attributes:
    model: the architecture; static.
    params: its parameters; None where `read` left them out.
    tokenizer: None where the checkpoint has none, or none was asked for.
    eos_ids: the tokens that end a text; may be several, or none.
    name: what it was asked for as.
    source: where it came from, for result files: a file, or what the resolver says.
    mesh: the devices that the parameters lie on; None is one device.
    rules: what is cut by which axis of the mesh, over `specjax.sharding.DEFAULT_RULES`.
    path: the file or folder; None for random weights.
  """

  model: Transformer
  params: Params
  tokenizer: Tokenizer | None
  eos_ids: tuple[int, ...]
  name: str
  source: str
  mesh: Mesh | None = None
  rules: Rules | str | None = None
  path: Path | None = None

  @property
  def placement(self) -> dict[str, Any]:
    """The arguments of `specjax.generate` that decode where the parameters lie."""
    return {"mesh": self.mesh, "rules": self.rules}


def load(
  name_or_path: str | os.PathLike,
  *,
  dtype: Any = None,
  precision: str | None = None,
  tokenizer: bool = True,
  cache_dir: str | os.PathLike | None = None,
  log: Callable[[str], object] = print,
  mesh: Mesh | str | None = None,
  rules: Rules | str | None = None,
) -> Checkpoint:
  """Loads a checkpoint.

  Args:
    name_or_path: a Hugging Face folder, a `.gguf` file, a folder that `save_orbax` wrote, a
      short name (`smollm2-135m-instruct`) or a hub id (`org/name`). What exists on disk comes
      first. `random:` before a key of `specjax.models.shapes.SHAPES`, or before a folder with a
      `config.json`, is that architecture with random weights (always the same ones) and without
      a tokenizer: for timing a size of which there are no weights at hand.
    dtype: of parameters, computation and cache. None is float32 on the CPU and bfloat16
      elsewhere (for an Orbax checkpoint: what it was saved with).
    precision: of matrix products, see `Transformer`.
    tokenizer: whether to read the tokenizer.
    cache_dir: where fetched files are kept; `resolver.default_cache_dir()` if None.
    log: is given a line for each step of fetching.
    mesh: loads straight into the shards of a mesh of devices, or its text such as "model:4".
    rules: over `specjax.sharding.DEFAULT_RULES`; what is cut by which axis of the mesh.

  Raises:
    ValueError: for an unknown name, or a checkpoint that is broken or not supported.
    ConnectionError: when a known name could not be fetched from anywhere.
    ImportError: where an optional package is missing, naming the extra that brings it.
  """
  mesh = None if mesh is None else make_mesh(mesh)
  outline = read(
    name_or_path,
    dtype=dtype,
    precision=precision,
    tokenizer=tokenizer,
    cache_dir=cache_dir,
    log=log,
  )
  return load_weights(outline, mesh=mesh, rules=rules)


def read(
  name_or_path: str | os.PathLike,
  *,
  dtype: Any = None,
  precision: str | None = None,
  tokenizer: bool = True,
  cache_dir: str | os.PathLike | None = None,
  log: Callable[[str], object] = print,
) -> Checkpoint:
  """A checkpoint without its weights: what prompts can be checked against before they are read.

  Takes and raises what `load` does. `load_weights` reads the rest.
  """
  name = os.fspath(name_or_path)
  options = {"dtype": dtype, "precision": precision}
  if name.startswith(RANDOM):
    config = read_shape(f"what follows {RANDOM!r}", name.removeprefix(RANDOM))
    return Checkpoint(Transformer(config, **options), None, None, (), name, name)
  path, source = _find(name, cache_dir, log)
  kind, path = _kind(path)
  if kind == "gguf":
    file = open_gguf(path)
    model = Transformer(config_from_gguf(file), **options)
    has_tokenizer = "tokenizer.ggml.model" in file.metadata
    text = Tokenizer.from_gguf(file) if tokenizer and has_tokenizer else None
    eos_ids = gguf_eos_ids(file)
  else:
    model = _folder_reader(kind)[0](path, **options)
    text, eos_ids = _folder_text(path, tokenizer)
  return Checkpoint(model, None, text, eos_ids, name, source, path=path)


def load_weights(
  outline: Checkpoint, *, mesh: Mesh | str | None = None, rules: Rules | str | None = None
) -> Checkpoint:
  """The checkpoint that `read` returned, with its weights.

  Args:
    outline: what `read` returned.
    mesh: loads straight into the shards of a mesh of devices, or its text such as "model:4".
    rules: over `specjax.sharding.DEFAULT_RULES`; what is cut by which axis of the mesh.

  Raises:
    ValueError: for weights that are broken or not supported.
  """
  mesh = None if mesh is None else make_mesh(mesh)
  model = outline.model
  if outline.path is None:
    params = _random_params(model, mesh, rules)
  else:
    kind, path = _kind(outline.path)
    options = {"dtype": model.dtype, "precision": model.precision, "mesh": mesh, "rules": rules}
    if kind == "gguf":
      model, params, _ = gguf_checkpoint.load_gguf(path, **options)
    else:
      model, params = _folder_reader(kind)[1](path, **options)
  return dataclasses.replace(outline, model=model, params=params, mesh=mesh, rules=rules)


def _random_params(model: Transformer, mesh: Mesh | None, rules: Any) -> Params:
  """Each device makes its own shards: a model larger than one device's memory fits, too."""
  shardings = None
  if mesh is not None:
    shardings = Partitioning.of(mesh, rules, model).shardings(model.param_shapes())
  return jax.jit(model.init, out_shardings=shardings)(jax.random.key(0))


def _find(name: str, cache_dir: Any, log: Callable[[str], object]) -> tuple[Path, str]:
  """Where a checkpoint lies, fetched if need be, and where it came from."""
  path = Path(name).expanduser()
  if path.exists():
    return path, f"file:{path.absolute()}"
  if _looks_like_a_path(name):
    raise ValueError(f"{name}: there is no such file or folder")
  resolved = _resolve(name, cache_dir, log)
  return resolved.path, resolved.source


def _folder_reader(kind: str) -> tuple[Callable[..., Transformer], Callable[..., Any]]:
  """What reads a folder's architecture, and what reads it with its weights."""
  if kind == "orbax":
    # Orbax takes a while to import, and most checkpoints are not its own.
    from specjax.models.orbax_checkpoint import load_orbax, read_orbax_model

    return read_orbax_model, load_orbax
  return read_huggingface_model, load_huggingface


def _kind(path: Path) -> tuple[str, Path]:
  """What a checkpoint is, "gguf", "orbax" or "huggingface", and its file or folder."""
  if path.is_file():
    if is_gguf(path):
      return "gguf", path
    raise ValueError(f"{path} is not a GGUF file; other checkpoints are folders")
  if (path / "specjax_config.json").is_file():
    return "orbax", path
  if (path / "config.json").is_file():
    return "huggingface", path
  files = sorted(path.glob("*.gguf"))
  if len(files) == 1:
    return "gguf", files[0]
  raise ValueError(
    f"{path} is not a checkpoint: it has neither config.json (Hugging Face), nor "
    f"specjax_config.json (Orbax), nor one .gguf file but {len(files)}"
  )


def _resolve(name: str, cache_dir: Any, log: Callable[[str], object]) -> resolver.Resolved:
  try:
    return resolver.resolve_with_source(name, cache_dir=cache_dir, log=log)
  except ValueError as error:
    raise ValueError(f"{error}; nor is there a file or folder of that name") from None


def _looks_like_a_path(name: str) -> bool:
  return name.startswith((".", "/", "~")) or name.endswith(".gguf") or name.count("/") > 1


def gguf_eos_ids(file: GGUFFile) -> tuple[int, ...]:
  """The tokens that end a text: EOS, end of turn, and what the chat template ends a turn with."""
  if "tokenizer.ggml.tokens" not in file.metadata:
    return ()
  ids = [gguf_tokenizer.special_id(file, key) for key in ("eos_token_id", "eot_token_id")]
  template = file.get("tokenizer.chat_template") or ""
  kinds = file.get("tokenizer.ggml.token_type") or ()
  for token_id, kind in enumerate(kinds):
    if kind == gguf_tokenizer.CONTROL:
      token = file.metadata["tokenizer.ggml.tokens"][token_id]
      if token in _END_OF_TURN and token in template:
        ids.append(token_id)
  return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _folder_text(folder: Path, tokenizer: bool) -> tuple[Tokenizer | None, tuple[int, ...]]:
  """The tokenizer and the EOS ids of a folder, which may have neither."""
  there = (folder / "tokenizer.json").is_file()
  text = Tokenizer.from_huggingface(folder) if tokenizer and there else None
  return text, folder_eos_ids(folder, text)


def folder_eos_ids(folder: Path, tokenizer: Tokenizer | None = None) -> tuple[int, ...]:
  """The tokens that end a text, from the first place that says so, as `transformers` looks.

  Raises:
    ValueError: where a file is broken or holds something else than token ids.
  """
  for name in ("generation_config.json", "config.json"):
    fields = read_json_if_there(folder / name)
    found = fields.get("eos_token_id", fields.get("text_config", {}).get("eos_token_id"))
    if found is None:
      continue
    ids = found if isinstance(found, list) else [found]
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
      raise ValueError(f"{folder / name}: eos_token_id must be token ids, got {found!r}")
    return tuple(dict.fromkeys(ids))
  return () if tokenizer is None or tokenizer.eos_id is None else (tokenizer.eos_id,)
