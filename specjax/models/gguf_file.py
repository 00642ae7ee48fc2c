# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Reads a GGUF file: metadata, tensor index, tensors dequantised one at a time.

The header is parsed here rather than with `gguf.GGUFReader`, which makes several NumPy views for
every vocabulary entry: 2 s for 49,152 tokens, 10 s for Gemma's 262,144. The `gguf` package still
knows the block formats and dequantises.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import dataclasses
import math
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np

from specjax.models.optional_packages import require

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
# Value types by their number in the format; 8 is a string, 9 an array.
_SCALARS = dict(zip((*range(8), 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
# Beyond this many dimensions a header is not a header.
_MAX_DIMENSIONS = 8


@dataclasses.dataclass(frozen=True)
class TensorEntry:
  """Where a tensor lies in its file.

  Attributes:
    shape: in NumPy's order (rows first); the file stores it reversed.
    type_number: the `gguf.GGMLQuantizationType`.
    offset: in bytes, from the start of the file.
    num_bytes: as stored.
  """

  shape: tuple[int, ...]
  type_number: int
  offset: int
  num_bytes: int


@dataclasses.dataclass(frozen=True)
class GGUFFile:
  """An opened GGUF file.

  Attributes:
    path: the file.
    metadata: key to number, string, bool or list of these.
    tensors: name to entry, in the file's order.
  """

  path: Path
  metadata: dict[str, Any]
  tensors: dict[str, TensorEntry]

  def get(self, key: str, default: Any = None) -> Any:
    """The metadata value of `key`, or `default`."""
    return self.metadata.get(key, default)

  def require(self, key: str) -> Any:
    """The metadata value of `key`.

    Raises:
      ValueError: where the file does not have it.
    """
    if key not in self.metadata:
      raise ValueError(f"{self.path}: the GGUF metadata has no {key!r}")
    return self.metadata[key]

  def read(self, name: str) -> np.ndarray:
    """The tensor `name`, dequantised to float32, in the shape of its entry.

    Raises:
      ValueError: where there is no such tensor, or its format is not known.
    """
    if name not in self.tensors:
      raise ValueError(f"{self.path}: the tensor {name!r} is missing")
    gguf = require("gguf")
    entry = self.tensors[name]
    kind = gguf.GGMLQuantizationType(entry.type_number)
    mapped = np.memmap(self.path, np.uint8, "r", offset=entry.offset, shape=(entry.num_bytes,))
    # A plain view: every slice that the dequantiser takes of a memmap would cost microseconds.
    raw = mapped.view(np.ndarray)
    if kind == gguf.GGMLQuantizationType.F32:
      return np.array(raw.view(np.float32).reshape(entry.shape))
    if kind == gguf.GGMLQuantizationType.F16:
      return raw.view(np.float16).reshape(entry.shape).astype(np.float32)
    try:
      rows = raw.reshape(*entry.shape[:-1], -1)
      return np.asarray(gguf.quants.dequantize(rows, kind), np.float32).reshape(entry.shape)
    except NotImplementedError:
      raise ValueError(f"{self.path}: tensor {name!r} has the format {kind.name}") from None


def is_gguf(path: str | os.PathLike) -> bool:
  """Whether the file at `path` starts like a GGUF file."""
  with open(path, "rb") as file:
    return file.read(len(_MAGIC)) == _MAGIC


def open_gguf(path: str | os.PathLike) -> GGUFFile:
  """Reads the header of a GGUF file and checks that all tensors it lists are there.

  Raises:
    ValueError: for a file that is missing, not a GGUF, truncated, or of another version.
  """
  path = Path(path)
  if not path.is_file():
    raise ValueError(f"{path}: there is no such file")
  size = path.stat().st_size
  if not is_gguf(path):
    raise ValueError(f"{path} is not a GGUF file")
  with (
    path.open("rb") as file,
    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
  ):
    try:
      metadata, tensors = _read_header(_Cursor(data, offset=len(_MAGIC)))
    except UnicodeDecodeError as error:
      raise ValueError(f"{path}: a string of the GGUF header is not UTF-8") from error
    except (struct.error, IndexError, MemoryError, OverflowError) as error:
      raise ValueError(f"{path} is truncated or damaged: the GGUF header ends early") from error
    except _FormatError as error:
      raise ValueError(f"{path}: {error}") from None
  end = max((entry.offset + entry.num_bytes for entry in tensors.values()), default=0)
  if end > size:
    raise ValueError(f"{path} is truncated: it has {size} bytes, its tensors end at {end}")
  return GGUFFile(path, metadata, tensors)


class _FormatError(Exception):
  """What is wrong with the header, without the file's name."""


class _Cursor:
  """Reads little-endian values one after the other."""

  def __init__(self, data: mmap.mmap, offset: int):
    self.data = data
    self.offset = offset

  def scalar(self, code: str) -> Any:
    value = struct.unpack_from("<" + code, self.data, self.offset)[0]
    self.offset += struct.calcsize("<" + code)
    return value

  def string(self) -> str:
    raw = self.take(self.scalar("Q"))
    return raw.decode("utf-8")

  def take(self, count: int) -> bytes:
    raw = self.data[self.offset : self.offset + count]
    if len(raw) != count:
      raise IndexError("past the end")
    self.offset += count
    return raw

  def value(self, kind: int) -> Any:
    if kind == _STRING:
      return self.string()
    if kind == _ARRAY:
      return self.array()
    if kind not in _SCALARS:
      raise _FormatError(f"unknown GGUF value type {kind}")
    return self.scalar(_SCALARS[kind])

  def array(self) -> list[Any]:
    kind, count = self.scalar("I"), self.scalar("Q")
    if kind in _SCALARS:
      code = _SCALARS[kind]
      raw = self.take(count * struct.calcsize("<" + code))
      return [value for (value,) in struct.iter_unpack("<" + code, raw)]
    return [self.value(kind) for _ in range(count)]


def _read_header(cursor: _Cursor) -> tuple[dict[str, Any], dict[str, TensorEntry]]:
  version = cursor.scalar("I")
  if version not in _VERSIONS:
    raise _FormatError(f"GGUF version {version} is not supported, only little-endian {_VERSIONS}")
  num_tensors, num_values = cursor.scalar("Q"), cursor.scalar("Q")
  metadata = {}
  for _ in range(num_values):
    key = cursor.string()
    metadata[key] = cursor.value(cursor.scalar("I"))
  listed = [_read_tensor_info(cursor) for _ in range(num_tensors)]
  alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
  if alignment < 1:
    raise _FormatError(f"general.alignment is {alignment}")
  start = -(-cursor.offset // alignment) * alignment
  tensors = {}
  for name, shape, type_number, offset in listed:
    num_bytes = _stored_bytes(name, shape, type_number)
    tensors[name] = TensorEntry(shape, type_number, start + offset, num_bytes)
  return metadata, tensors


def _read_tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
  """One entry: name, shape in NumPy's order, type number, offset in the data section."""
  name = cursor.string()
  num_dimensions = cursor.scalar("I")
  if num_dimensions > _MAX_DIMENSIONS:
    raise _FormatError(f"tensor {name!r} has {num_dimensions} dimensions")
  dimensions = [cursor.scalar("Q") for _ in range(num_dimensions)]
  return name, tuple(reversed(dimensions)), cursor.scalar("I"), cursor.scalar("Q")


def _stored_bytes(name: str, shape: tuple[int, ...], type_number: int) -> int:
  gguf = require("gguf")
  try:
    kind = gguf.GGMLQuantizationType(type_number)
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
  except (ValueError, KeyError):
    raise _FormatError(f"tensor {name!r} has the unknown type {type_number}") from None
  elements = math.prod(shape)
  if elements % block:
    raise _FormatError(f"tensor {name!r} of {elements} elements is not whole blocks of {block}")
  return elements // block * block_bytes
