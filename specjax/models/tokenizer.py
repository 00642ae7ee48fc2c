# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back, for the checkpoints that `specjax.models` loads."""

import dataclasses
import functools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from specjax.models import chat_template as chat_templates
from specjax.models import gguf_tokenizer
from specjax.models.gguf_file import GGUFFile, open_gguf
from specjax.models.optional_packages import require
from specjax.models.stream_decoder import StreamDecoder
from specjax.models.text_files import read_json_if_there, read_text

# The names under which a Hugging Face configuration keeps single special tokens.
_NAMED = (
  "bos_token",
  "eos_token",
  "unk_token",
  "sep_token",
  "pad_token",
  "cls_token",
  "mask_token",
)
_LISTED = ("additional_special_tokens", "extra_special_tokens")


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
  """A `tokenizers.Tokenizer` with the facts that its checkpoint states beside it.

  Attributes:
    backend: the `tokenizers.Tokenizer`.
    bos_id: beginning of sequence; None where the checkpoint has none.
    eos_id: end of sequence. A model may end on further tokens: see `Checkpoint.eos_ids`.
    pad_id: padding.
    chat_template: Jinja source of the chat template, or None.
  """

  backend: Any
  bos_id: int | None = None
  eos_id: int | None = None
  pad_id: int | None = None
  chat_template: str | None = None

  @classmethod
  def from_huggingface(cls, folder: str | os.PathLike) -> "Tokenizer":
    """Reads `tokenizer.json` and the files beside it.

    Whether texts get a BOS is what `tokenizer.json` says; `add_bos_token` of the configuration
    is for slow tokenizers, and `transformers` does not look at it here either.

    Raises:
      ValueError: for a missing or broken file, naming it.
    """
    folder = Path(folder)
    backend = _read_backend(folder / "tokenizer.json")
    config = read_json_if_there(folder / "tokenizer_config.json")
    # Old checkpoints keep their special tokens in a file of its own.
    old = read_json_if_there(folder / "special_tokens_map.json")
    config = old | config if "added_tokens_decoder" in config else config | old
    _add_configured_tokens(backend, config)
    text = {name: _token_text(config.get(name)) for name in _NAMED}

    def find(name: str) -> int | None:
      return None if text[name] is None else backend.token_to_id(text[name])

    return cls(
      backend=backend,
      bos_id=find("bos_token"),
      eos_id=find("eos_token"),
      pad_id=find("pad_token"),
      chat_template=_read_chat_template(folder, config),
    )

  @classmethod
  def from_gguf(cls, source: str | os.PathLike | GGUFFile) -> "Tokenizer":
    """Builds the tokenizer that a GGUF file's metadata describes.

    Raises:
      ValueError: for a broken file, or a tokenizer of a kind that is not known.
    """
    file = source if isinstance(source, GGUFFile) else open_gguf(source)
    return cls(
      backend=gguf_tokenizer.build_backend(file),
      bos_id=gguf_tokenizer.special_id(file, "bos_token_id"),
      eos_id=gguf_tokenizer.special_id(file, "eos_token_id"),
      pad_id=gguf_tokenizer.special_id(file, "padding_token_id"),
      chat_template=file.get("tokenizer.chat_template"),
    )

  def save(self, folder: str | os.PathLike) -> None:
    """Writes the files that `from_huggingface` reads into an existing folder."""
    folder = Path(folder)
    ids = {"bos_token": self.bos_id, "eos_token": self.eos_id, "pad_token": self.pad_id}
    config = {name: None if i is None else self.id_to_token(i) for name, i in ids.items()}
    files = {
      "tokenizer.json": self.backend.to_str(pretty=True),
      "tokenizer_config.json": json.dumps(config, indent=2, ensure_ascii=False),
      "chat_template.jinja": self.chat_template,
    }
    for name, text in files.items():
      if text is not None:
        (folder / name).write_text(text, encoding="utf-8")

  def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Token ids of `text`. Special tokens written in the text become their ids.

    Args:
      text: any Unicode text.
      add_special_tokens: puts BOS and EOS at the ends where the checkpoint is used with them.
        False for a rendered chat template, which has them already.

    Raises:
      ValueError: for what is not text, or holds half a surrogate pair.
    """
    if not isinstance(text, str):
      raise ValueError(f"text must be a string, got {type(text).__name__}")
    try:
      text.encode("utf-8")
    except UnicodeEncodeError as error:
      raise ValueError(f"text is not valid Unicode: {error.reason} at {error.start}") from error
    return list(self.backend.encode(text, add_special_tokens=add_special_tokens).ids)

  def decode(
    self, token_ids: Sequence[int] | np.ndarray, *, skip_special_tokens: bool = False
  ) -> str:
    """The text of token ids; ids past the vocabulary have no text, broken UTF-8 is U+FFFD.

    Args:
      token_ids: a sequence or array of integers, `[T]`.
      skip_special_tokens: leaves special tokens out.

    Raises:
      ValueError: for a negative id.
    """
    ids = np.asarray(token_ids, np.int64).reshape(-1)
    if ids.size and ids.min() < 0:
      raise ValueError(f"token_ids must not be negative, got {ids.min()}")
    ids = ids[ids < self.vocab_size]
    return self.backend.decode(ids.tolist(), skip_special_tokens=skip_special_tokens)

  def encode_chat(self, messages: Sequence[chat_templates.Message], **variables: Any) -> list[int]:
    """Token ids of a conversation in the checkpoint's chat template, ready for the answer.

    Args:
      messages: see `chat_template.render`, as are the errors.
      **variables: passed to it (`add_generation_prompt`, `tools`, ...).
    """
    return self.encode(self.render_chat(messages, **variables), add_special_tokens=False)

  def render_chat(self, messages: Sequence[chat_templates.Message], **variables: Any) -> str:
    """The conversation as text; see `chat_template.render`.

    Raises:
      ValueError: as `chat_template.render`, and where the checkpoint has no template.
    """
    if self.chat_template is None:
      raise ValueError("this checkpoint has no chat template: encode the plain text instead")
    return chat_templates.render(
      self.chat_template,
      messages,
      bos_token=None if self.bos_id is None else self.id_to_token(self.bos_id),
      eos_token=None if self.eos_id is None else self.id_to_token(self.eos_id),
      **variables,
    )

  @functools.cached_property
  def tokens(self) -> tuple[str | None, ...]:
    """Every token's string by id, added tokens included; None where an id is not used."""
    vocab = self.backend.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * (1 + max(vocab.values(), default=-1))
    for token, token_id in vocab.items():
      tokens[token_id] = token
    return tuple(tokens)

  @property
  def vocab_size(self) -> int:
    """One more than the largest id. The model's own V can be larger, padded."""
    return len(self.tokens)

  def id_to_token(self, token_id: int) -> str | None:
    """The token's string as the vocabulary spells it; None for an id that is not used."""
    return self.tokens[token_id] if 0 <= token_id < len(self.tokens) else None

  def token_to_id(self, token: str) -> int | None:
    """The id of a token's string; None if there is none."""
    return self.backend.token_to_id(token)

  @functools.cached_property
  def special_ids(self) -> frozenset[int]:
    """Ids that `skip_special_tokens` leaves out."""
    added = self.backend.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)

  @functools.cached_property
  def byte_level(self) -> bool:
    """Whether tokens are bytes in the alphabet of byte-level BPE."""
    decoder = self.backend.decoder
    return decoder is not None and json.loads(decoder.__getstate__())["type"] == "ByteLevel"

  @functools.cached_property
  def anchor(self) -> tuple[int, str]:
    """An ordinary token and its text, which stands unchanged in front of any other text."""
    for token_id, token in enumerate(self.tokens):
      if token and token.isascii() and token.isalpha() and token_id not in self.special_ids:
        return token_id, self.decode([token_id])
    raise ValueError("the vocabulary has no token of plain letters, which streaming needs")


def check_compatible(target: Tokenizer, draft: Tokenizer, *, allow_extra_tail: bool = True) -> None:
  """Checks that a draft model's token ids mean the same as the target's.

  Args:
    target: the target's tokenizer.
    draft: the draft model's.
    allow_extra_tail: lets one vocabulary go on where the other ends (padded vocabularies). The
      drafter must then never propose an id that the target lacks.

  Raises:
    ValueError: naming the first id whose strings differ, or both sizes.
  """
  for token_id, (ours, theirs) in enumerate(zip(target.tokens, draft.tokens, strict=False)):
    if ours != theirs:
      raise ValueError(
        f"the draft model's tokenizer differs from the target's: id {token_id} is {ours!r} for "
        f"the target and {theirs!r} for the draft model"
      )
  if target.vocab_size != draft.vocab_size and not allow_extra_tail:
    raise ValueError(
      f"the target's tokenizer has {target.vocab_size} tokens and the draft model's "
      f"{draft.vocab_size}; allow_extra_tail=True takes vocabularies that differ in length only"
    )


def tokens_covering(
  tokenizer: Tokenizer,
  token_ids: Sequence[int],
  text_length: int,
  *,
  skip_special_tokens: bool = False,
) -> int:
  """How many leading tokens it takes to write the first `text_length` characters of the text.

  Where a stop string ends the text inside a token, that token still counts: its log-probability
  and its cache entry belong to the text that is kept.

  Raises:
    ValueError: where the text of `token_ids` is shorter.
  """
  ids = [int(token_id) for token_id in token_ids]
  text = tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
  if not 0 <= text_length <= len(text):
    raise ValueError(f"text_length must be in 0..{len(text)}, got {text_length}")
  decoder = StreamDecoder(tokenizer, skip_special_tokens=skip_special_tokens)
  written = 0
  for count, token_id in enumerate(ids):
    # A character that is still incomplete reads U+FFFD, and then does not match.
    if _covers(text, written, decoder.pending, text_length):
      return count
    written += len(decoder.push(token_id))
  return len(ids)


def _covers(text: str, written: int, pending: str, text_length: int) -> bool:
  """Whether `written` characters and then `pending` start `text` up to `text_length`."""
  if written + len(pending) < text_length:
    return False
  return text[written:text_length] == pending[: max(text_length - written, 0)]


def _read_backend(path: Path) -> Any:
  text = read_text(path)
  try:
    backend = require("tokenizers").Tokenizer.from_str(text)
  except ImportError:
    raise
  except Exception as error:
    # The Rust side raises plain Exception for everything that is wrong with the file.
    raise ValueError(f"{path} is not a tokenizer that can be read: {error}") from error
  # Settings of the training run that saved it must not cut or pad our text.
  backend.no_truncation()
  backend.no_padding()
  return backend


def _token_text(value: Any) -> str | None:
  """A special token stands in the files as text or as an object with `content`."""
  return value.get("content") if isinstance(value, Mapping) else value


def _add_configured_tokens(backend: Any, config: Mapping[str, Any]) -> None:
  """Adds the tokens that only the configuration beside `tokenizer.json` declares."""
  added_token = require("tokenizers").AddedToken
  known = {token.content for token in backend.get_added_tokens_decoder().values()}
  named = [config.get(name) for name in _NAMED]
  listed = [token for name in _LISTED for token in _as_list(config.get(name))]
  by_id = config.get("added_tokens_decoder") or {}
  declared = [by_id[key] for key in sorted(by_id, key=int)]
  special_texts = {_token_text(value) for value in (*named, *listed)}
  for value in (*declared, *named, *listed):
    text = _token_text(value)
    if text is None or text in known:
      continue
    flags = (
      {}
      if isinstance(value, str)
      else {
        key: bool(value[key])
        for key in ("single_word", "lstrip", "rstrip", "normalized")
        if key in value
      }
    )
    special = text in special_texts or (not isinstance(value, str) and bool(value.get("special")))
    backend.add_tokens([added_token(text, special=special, **flags)])
    known.add(text)


def _as_list(value: Any) -> list[Any]:
  """The extra special tokens are a list, or a dict from a name to a token."""
  return list(value.values()) if isinstance(value, Mapping) else list(value or ())


def _read_chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
  """The template's own file comes before the configuration's entry, one text or several."""
  path = folder / "chat_template.jinja"
  if path.is_file():
    return read_text(path)
  template = config.get("chat_template")
  if isinstance(template, list):
    return {entry["name"]: entry["template"] for entry in template}.get("default")
  return template
