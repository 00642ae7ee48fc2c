# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Streamed text is the decoded text, in pieces; characters are counted back into tokens."""

import random

import pytest
import tiny_tokenizers as tiny
from tiny_tokenizers import AWKWARD_TEXTS

from specjax.models.stream_decoder import StreamDecoder
from specjax.models.tokenizer import Tokenizer, tokens_covering


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
  """A byte-level tokenizer of SmolLM2's kind, from a GGUF file."""
  path = tmp_path_factory.mktemp("smollm") / "tiny.gguf"
  return Tokenizer.from_gguf(tiny.write_byte_level(path, "smollm"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
  """A SentencePiece tokenizer of Llama 2's kind, from a GGUF file."""
  path = tmp_path_factory.mktemp("llama") / "tiny.gguf"
  return Tokenizer.from_gguf(tiny.write_sentencepiece(path))


def _random_ids(tokenizer, kind, rng):
  """Ids that break characters: all tokens, or those of single bytes only."""
  size = tokenizer.vocab_size
  tokens = tokenizer.tokens
  single = [i for i, token in enumerate(tokens) if len(token) == 1 or token.startswith("<0x")]
  choices = range(size + 2) if kind == "any" else single
  return [rng.choice(choices) for _ in range(rng.randrange(14))]


@pytest.mark.parametrize("kind", ["any", "bytes"])
@pytest.mark.parametrize("name", ["smollm", "llama"])
def test_streamed_pieces_join_to_the_decoded_text(request, name, kind):
  tokenizer = request.getfixturevalue(name)
  rng = random.Random(0)
  sequences = [_random_ids(tokenizer, kind, rng) for _ in range(400)]
  sequences += [tokenizer.encode(text) for text in AWKWARD_TEXTS]
  for ids in sequences:
    for skip in (False, True):
      decoder = StreamDecoder(tokenizer, skip_special_tokens=skip)
      pieces = [decoder.push(token_id) for token_id in ids]
      assert decoder.pending == decoder.flush() or not ids
      decoder = StreamDecoder(tokenizer, skip_special_tokens=skip)
      text = decoder.extend(ids) + decoder.flush()
      assert text == tokenizer.decode(ids, skip_special_tokens=skip), ids
      assert "".join(pieces) == text[: len("".join(pieces))]


@pytest.mark.parametrize("name", ["smollm", "llama"])
def test_streamed_piece_never_ends_inside_a_character(request, name):
  tokenizer = request.getfixturevalue(name)
  text = "naïve ½ 🤖 日本語 \x01 é"
  decoder = StreamDecoder(tokenizer)
  pieces = [decoder.push(token_id) for token_id in tokenizer.encode(text, add_special_tokens=False)]
  pieces.append(decoder.flush())
  assert "".join(pieces) == text
  assert not any("\ufffd" in piece for piece in pieces)
  assert sum(piece == "" for piece in pieces) >= 3  # some characters do span tokens


def test_streaming_a_token_does_not_decode_the_text_before_it(llama, monkeypatch):
  decoded = []
  original = Tokenizer.decode

  def counted(self, token_ids, **options):
    decoded.append(len(token_ids))
    return original(self, token_ids, **options)

  monkeypatch.setattr(Tokenizer, "decode", counted)
  ids = llama.encode("hello world " * 200)
  StreamDecoder(llama).extend(ids)
  assert sum(decoded) <= 3 * len(ids)


@pytest.mark.parametrize("name", ["smollm", "llama"])
def test_tokens_covering_is_the_smallest_count_that_writes_the_text(request, name):
  tokenizer = request.getfixturevalue(name)
  rng = random.Random(1)
  sequences = [_random_ids(tokenizer, kind, rng) for kind in ("any", "bytes") for _ in range(60)]
  sequences += [tokenizer.encode("hello ½ 🤖 world<|im_end|>", add_special_tokens=True)]
  for ids in sequences:
    for skip in (False, True):
      prefixes = [tokenizer.decode(ids[:n], skip_special_tokens=skip) for n in range(len(ids) + 1)]
      for length in range(len(prefixes[-1]) + 1):
        wanted = prefixes[-1][:length]
        smallest = next(n for n, text in enumerate(prefixes) if text[:length] == wanted)
        got = tokens_covering(tokenizer, ids, length, skip_special_tokens=skip)
        assert got == smallest, (ids, length)


def test_tokens_covering_refuses_a_length_past_the_text(smollm):
  with pytest.raises(ValueError, match=r"text_length must be in 0\.\.5, got 6"):
    tokens_covering(smollm, smollm.encode("hello"), 6)
