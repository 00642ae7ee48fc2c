# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Token ids to text as they come, without broken characters."""

import codecs
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
  from specjax.models.tokenizer import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class StreamDecoder:
  """Turns token ids into pieces of text that join to `Tokenizer.decode` of all the ids.

  A piece never ends inside a character: what is not certain yet is held back and comes with a
  later piece, or with `flush`. The work for a token does not grow with the text before it.

    decoder = StreamDecoder(tokenizer)
    for token in tokens:
      print(decoder.push(token), end="")
    print(decoder.flush())
  """

  def __init__(self, tokenizer: "Tokenizer", *, skip_special_tokens: bool = False):
    self._tokenizer = tokenizer
    self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
    self._state: _State = _Bytes() if tokenizer.byte_level else _Runs(tokenizer)

  def push(self, token_id: int) -> str:
    """The text that this token makes certain; often its own, sometimes none yet."""
    token_id = int(token_id)
    token = self._tokenizer.id_to_token(token_id)
    # An id outside the vocabulary (the padding of a model's embedding) has no text.
    if token is None or token_id in self._skipped:
      return ""
    return self._state.push(token_id, token)

  def extend(self, token_ids: Iterable[int]) -> str:
    """`push` for several tokens."""
    return "".join([self.push(token_id) for token_id in token_ids])

  @property
  def pending(self) -> str:
    """The text held back, as it would read if nothing followed."""
    return self._state.pending()

  def flush(self) -> str:
    """The text held back, at the end of the tokens: an unfinished character becomes U+FFFD."""
    return self._state.flush()


class _State(Protocol):
  """How the tokens of one kind of vocabulary become text."""

  def push(self, token_id: int, token: str) -> str: ...

  def pending(self) -> str: ...

  def flush(self) -> str: ...


class _Bytes:
  """Byte-level vocabularies: the text is the UTF-8 of the tokens' bytes, one after the other."""

  def __init__(self) -> None:
    self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

  def push(self, token_id: int, token: str) -> str:
    return self._decoder.decode(token_bytes(token))

  def pending(self) -> str:
    return self._decoder.getstate()[0].decode("utf-8", errors="replace")

  def flush(self) -> str:
    text = self._decoder.decode(b"", final=True)
    self._decoder.reset()
    return text


class _Runs:
  """Other vocabularies: a token's text depends on its neighbours in a run of byte tokens only.

  A run of `<0xE2><0x82><0xAC>` is valid or not as a whole, so it waits for its end. Decoders
  also treat the first token in a special way (its leading space), so every later run is decoded
  behind an ordinary token whose own text is then cut off.
  """

  def __init__(self, tokenizer: "Tokenizer"):
    self._tokenizer = tokenizer
    self._run: list[int] = []
    self._at_start = True

  def push(self, token_id: int, token: str) -> str:
    if _BYTE_TOKEN.fullmatch(token):
      self._run.append(token_id)
      return ""
    text = self.flush() + self._decode([token_id])
    self._at_start = False
    return text

  def pending(self) -> str:
    return self._decode(self._run) if self._run else ""

  def flush(self) -> str:
    text = self.pending()
    if self._run:
      self._run, self._at_start = [], False
    return text

  def _decode(self, run: list[int]) -> str:
    if self._at_start:
      return self._tokenizer.decode(run)
    anchor, anchor_text = self._tokenizer.anchor
    return self._tokenizer.decode([anchor, *run])[len(anchor_text) :]


def byte_alphabet() -> dict[int, str]:
  """How byte-level vocabularies spell each byte (GPT-2, Radford et al. 2019).

  Printable Latin-1 bytes stand for themselves, the others for the characters from 256 on.
  """
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  others = [byte for byte in range(256) if byte not in printable]
  spelling = {byte: chr(byte) for byte in printable}
  return spelling | {byte: chr(256 + index) for index, byte in enumerate(others)}


_BYTE_OF = {char: byte for byte, char in byte_alphabet().items()}


def token_bytes(token: str) -> bytes:
  """The bytes of a token of a byte-level vocabulary; added tokens stand there as plain text."""
  try:
    return bytes([_BYTE_OF[char] for char in token])
  except KeyError:
    return token.encode("utf-8")
