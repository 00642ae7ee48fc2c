# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face checkpoints: a folder of config.json and safetensors, in and out."""

import dataclasses
import json
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from specjax.models.cached_files import replace_file, temporary_folder
from specjax.models.config import TransformerConfig
from specjax.models.huggingface_config import config_from_huggingface, config_to_huggingface
from specjax.models.optional_packages import require
from specjax.models.text_files import read_json
from specjax.models.transformer import Transformer
from specjax.sharding.partitioning import Partitioning
from specjax.sharding.processes import place
from specjax.sharding.rules import Rules
from specjax.types import Params

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Rows of two large tables that are compared at a time.
_ROWS = 4096

_LAYER_NAMES: dict[tuple[str, ...], str] = {
  ("attention", "query"): "self_attn.q_proj",
  ("attention", "key"): "self_attn.k_proj",
  ("attention", "value"): "self_attn.v_proj",
  ("attention", "output"): "self_attn.o_proj",
  ("attention", "query_norm"): "self_attn.q_norm",
  ("attention", "key_norm"): "self_attn.k_norm",
  ("mlp", "gate"): "mlp.gate_proj",
  ("mlp", "up"): "mlp.up_proj",
  ("mlp", "down"): "mlp.down_proj",
  ("attention_norm",): "input_layernorm",
}
_PLAIN_NORMS: dict[tuple[str, ...], str] = {("mlp_norm",): "post_attention_layernorm"}
# Gemma 2 and 3 use the name of the norm *before* the feed-forward layer for the one after
# attention.
_SANDWICH_NORMS: dict[tuple[str, ...], str] = {
  ("post_attention_norm",): "post_attention_layernorm",
  ("mlp_norm",): "pre_feedforward_layernorm",
  ("post_mlp_norm",): "post_feedforward_layernorm",
}


def load_huggingface(
  folder: str | os.PathLike,
  *,
  dtype: Any = None,
  precision: str | None = None,
  mesh: Mesh | str | None = None,
  rules: Rules | str | None = None,
) -> tuple[Transformer, Params]:
  """Loads `config.json` and `model.safetensors` (or its shards) of a local folder.

  Args:
    folder: a folder as `save_pretrained` writes it.
    dtype: of the parameters and of the computation; None takes `default_dtype()`.
    precision: see `Transformer`.
    mesh: loads onto a mesh of devices, or its text such as "model:4": of each tensor only the
      slices are read that the devices of this process hold.
    rules: over `specjax.sharding.DEFAULT_RULES`; what is cut by which axis of the mesh.

  Raises:
    ValueError: naming what is missing, unreadable, of another shape or not supported.
  """
  folder = Path(folder)
  config = config_from_huggingface(read_json(folder / "config.json"))
  with _Tensors(folder) as tensors:
    if config.tie_embeddings and _has_other_head(tensors):
      config = dataclasses.replace(config, tie_embeddings=False)
    model = Transformer(config, dtype=dtype, precision=precision)
    params = params_from_tensors(
      config,
      tensors.get,
      tensors.names,
      dtype=model.dtype,
      source=tensors.source,
      get_slice=tensors.get_slice,
      partitioning=None if mesh is None else Partitioning.of(mesh, rules, model),
    )
  return model, params


def read_huggingface_model(
  folder: str | os.PathLike, *, dtype: Any = None, precision: str | None = None
) -> Transformer:
  """The architecture of a folder, from `config.json` alone. See `load_huggingface`."""
  config = config_from_huggingface(read_json(Path(folder) / "config.json"))
  return Transformer(config, dtype=dtype, precision=precision)


def params_from_tensors(
  config: TransformerConfig,
  get_tensor: Callable[[str], np.ndarray],
  names: Collection[str],
  *,
  dtype: Any = None,
  source: Callable[[str], str] | str = "the checkpoint",
  get_slice: Callable[[str], Any] | None = None,
  partitioning: Partitioning | None = None,
) -> Params:
  """The parameters of `Transformer(config)` from tensors under Hugging Face names.

  Tensors are fetched, converted and released one by one.

  Args:
    config: the architecture.
    get_tensor: returns a tensor by its Hugging Face name and in its layout (`[out, in]` for
      matrices), in any floating dtype.
    names: the names that there are. Extra ones are ignored.
    dtype: of the parameters; None takes `default_dtype()`.
    source: the file that a tensor comes from (or a function of the tensor's name), for errors.
    get_slice: returns something with a `shape` that reads a part of a tensor when it is indexed
      by a tuple of slices; None reads whole tensors by `get_tensor`, and cuts them.
    partitioning: puts every parameter on a mesh, shard by shard; None, on the first device.

  Raises:
    ValueError: for a tensor that is missing or has another shape.
  """
  model = Transformer(config, dtype=dtype)
  prefix = _prefix(names)

  def fetch(name: str, shape: tuple[int, ...]) -> Any:
    """The tensor, or what reads slices of it."""
    where = source if isinstance(source, str) else source(name)
    if name not in names:
      raise ValueError(f"tensor {name} {shape} is missing in {where}")
    if partitioning is None or get_slice is None:
      tensor = np.asarray(get_tensor(name))
    else:
      tensor = get_slice(name)
    if tensor.shape != shape:
      raise ValueError(f"tensor {name} must have shape {shape}, got {tensor.shape} in {where}")
    return tensor

  params: dict[str, Any] = {}
  shardings = None if partitioning is None else partitioning.shardings(model.param_shapes())
  for path, shape in _leaves(model):
    name, transposed = tensor_name(config, path, prefix)
    sharding = None if shardings is None else _lookup(shardings, path)
    if path[0] == "head" and config.tie_embeddings:
      leaf = params["embed"]["embedding"].T
      leaf = leaf if sharding is None else place(leaf, sharding)
    else:
      tensor = fetch(name, shape[::-1] if transposed else shape)
      if sharding is None:
        leaf = jnp.asarray(tensor.T if transposed else tensor, model.dtype)
      else:
        leaf = _load_shards(tensor, shape, transposed, model.dtype, sharding)
    _insert(params, path, leaf)
  return params


def _load_shards(
  tensor: Any, shape: tuple[int, ...], transposed: bool, dtype: Any, sharding: NamedSharding
) -> jax.Array:
  """An array on the devices of a sharding, of slices of `tensor`: each is read once."""
  parts: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

  def read(index: Any) -> np.ndarray:
    bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    key = tuple(bounds)
    if key not in parts:
      stored = tuple(slice(*pair) for pair in (bounds[::-1] if transposed else bounds))
      part = np.asarray(tensor[stored])
      parts[key] = np.ascontiguousarray(part.T if transposed else part).astype(dtype)
    return parts[key]

  return jax.make_array_from_callback(shape, sharding, read)


def tensor_name(
  config: TransformerConfig, path: tuple[str, ...], prefix: str = "model."
) -> tuple[str, bool]:
  """The Hugging Face name of the parameter at `path`, and whether it is stored transposed."""
  kind, suffix = path[-1], "bias" if path[-1] == "bias" else "weight"
  if path[0] == "embed":
    return f"{prefix}embed_tokens.weight", False
  if path[0] == "final_norm":
    return f"{prefix}norm.weight", False
  if path[0] == "head":
    return f"{_head_prefix(prefix)}lm_head.weight", True
  names = _LAYER_NAMES | (_SANDWICH_NORMS if config.post_norms else _PLAIN_NORMS)
  part = names[path[2:-1]]
  return f"{prefix}layers.{path[1]}.{part}.{suffix}", kind == "kernel"


def save_huggingface(folder: str | os.PathLike, model: Transformer, params: Params) -> None:
  """Writes `config.json` and `model.safetensors`, for `load_huggingface` and transformers.

  A tied output head is not stored. Files are replaced whole, never half written.

  Raises:
    ValueError: if the architecture has no Hugging Face format, or a parameter is missing or of
      another shape.
  """
  save_file = require("safetensors.numpy").save_file
  fields = config_to_huggingface(model.config)
  fields["dtype"] = str(model.dtype)
  tensors = {}
  for path, shape in _leaves(model):
    if path[0] == "head" and model.config.tie_embeddings:
      continue
    leaf = _checked_lookup(params, path, shape)
    name, transposed = tensor_name(model.config, path)
    array = np.asarray(jax.device_get(leaf))
    tensors[name] = np.ascontiguousarray(array.T if transposed else array)
  with temporary_folder(Path(folder)) as aside:
    save_file(tensors, str(aside / _WEIGHTS), metadata={"format": "pt"})
    text = json.dumps(fields, indent=2) + "\n"
    (aside / "config.json").write_text(text, encoding="utf-8")
    for name in (_WEIGHTS, "config.json"):
      replace_file(aside / name, Path(folder) / name)


@dataclasses.dataclass
class _Tensors:
  """The tensors of a folder, read from its safetensors files on demand."""

  folder: Path

  def __post_init__(self):
    self._files: dict[str, Path] = {}
    self._open: dict[Path, Any] = {}

  def __enter__(self) -> "_Tensors":
    index = self.folder / _INDEX
    if index.exists():
      weight_map = read_json(index).get("weight_map")
      if not isinstance(weight_map, dict):
        raise ValueError(f"{index} has no weight_map")
      self._files = {name: self.folder / file for name, file in weight_map.items()}
      for file in sorted(set(self._files.values())):
        self._open_file(file)
    else:
      weights = self.folder / _WEIGHTS
      opened = self._open_file(weights)
      self._files = dict.fromkeys(opened.keys(), weights)
    return self

  def __exit__(self, *error: object) -> None:
    self._open.clear()

  def _open_file(self, file: Path) -> Any:
    if not file.is_file():
      raise ValueError(f"{file} does not exist")
    safetensors = require("safetensors")
    try:
      self._open[file] = safetensors.safe_open(str(file), framework="np")
    except (OSError, safetensors.SafetensorError) as error:
      raise ValueError(f"{file} is not a readable safetensors file: {error}") from error
    return self._open[file]

  @property
  def names(self) -> Collection[str]:
    return self._files.keys()

  def get(self, name: str) -> np.ndarray:
    return self._file_of(name).get_tensor(name)

  def get_slice(self, name: str) -> "_TensorSlices":
    return _TensorSlices(self._file_of(name).get_slice(name))

  def _file_of(self, name: str) -> Any:
    opened = self._open[self._files[name]]
    if name not in opened.keys():  # noqa: SIM118 (a safetensors file is not a mapping)
      raise ValueError(f"tensor {name} is missing in {self._files[name]}, where the index puts it")
    return opened

  def source(self, name: str) -> str:
    return str(self._files.get(name, self.folder))


@dataclasses.dataclass(frozen=True)
class _TensorSlices:
  """A tensor of a safetensors file of which only what is indexed is read."""

  tensor: Any

  @property
  def shape(self) -> tuple[int, ...]:
    return tuple(self.tensor.get_shape())

  def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
    return self.tensor[index]


def _has_other_head(tensors: _Tensors) -> bool:
  """Whether a checkpoint that says it is tied holds a head of its own (transformers uses it)."""
  prefix = _prefix(tensors.names)
  head, table = f"{_head_prefix(prefix)}lm_head.weight", f"{prefix}embed_tokens.weight"
  if head not in tensors.names or table not in tensors.names:
    return False
  ours, theirs = tensors.get_slice(head), tensors.get_slice(table)
  if ours.shape != theirs.shape or len(ours.shape) != 2:
    return True
  # Some rows at a time: no process needs to hold two whole tables to compare them.
  starts = range(0, ours.shape[0], _ROWS)
  rows = [(slice(start, min(start + _ROWS, ours.shape[0])), slice(None)) for start in starts]
  return not all(np.array_equal(ours[part], theirs[part]) for part in rows)


def _prefix(names: Collection[str]) -> str:
  """What stands before `layers.` in this checkpoint: multimodal ones nest the language model."""
  for prefix in ("model.", "language_model.model.", "model.language_model.", ""):
    if f"{prefix}embed_tokens.weight" in names:
      return prefix
  return "model."


def _head_prefix(prefix: str) -> str:
  return "language_model." if prefix == "language_model.model." else ""


def _leaves(model: Transformer) -> Iterator[tuple[tuple[str, ...], tuple[int, ...]]]:
  """Path and shape of each parameter; the embedding comes before a head that is tied to it."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(model.param_shapes())
  for path, leaf in leaves:
    yield tuple(key.key for key in path), tuple(leaf.shape)


def _insert(params: dict[str, Any], path: tuple[str, ...], leaf: Any) -> None:
  for key in path[:-1]:
    params = params.setdefault(key, {})
  params[path[-1]] = leaf


def _lookup(tree: Any, path: tuple[str, ...]) -> Any:
  for key in path:
    tree = tree[key]
  return tree


def _checked_lookup(params: Params, path: tuple[str, ...], shape: tuple[int, ...]) -> Any:
  leaf = params
  for key in path:
    if key not in leaf:
      raise ValueError(f"params lack {'/'.join(path)} {shape}")
    leaf = leaf[key]
  if leaf.shape != shape:
    raise ValueError(f"params {'/'.join(path)} must have shape {shape}, got {leaf.shape}")
  return leaf
