# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers of every kind, as GGUF files and as Hugging Face folders."""

import functools
import json

import gguf
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

AWKWARD_TEXTS = (
  "",
  "hello world",
  "The quick brown fox jumped over the lazy dogs, didn't it? I'LL SAY they're QUICK.",
  "🤖 emoji 👩‍👩‍👧‍👦 and flags 🇩🇪🏴‍☠️",
  "def f(x):\n    return x**2  # comment\n\n\n\tif a==b: pass\r\n",
  "日本語のテキスト。中文字符、한국어",
  "a     b      c   ",
  "   lead and trail   ",
  "tabs\t\tand\nnewlines\n\n\n",
  "<s>hello<|im_start|>user\nhi<|im_end|>\n<|endoftext|>x</s> <|im_end|>",
  "12345 3.14159 and 7",
  "مرحبا بالعالم שלום",
  "\x00\x01\x7f control\x1b[0m",
  "x" * 3000,
  "\u200b\u200d\ufeff zero width",
  "a\xa0b\u3000c",
  "\ufffd",
  "▁ underscores ▁▁ ▁a",
  "<0x41> is not a byte",
)
# The runs and digits on which the ways of splitting differ.
SPLIT_TEXTS = (*AWKWARD_TEXTS, "a  2024", "    12 + 3", "x\t\t5", "  ٣ ½ ² Ⅳ", "e\u0301 o\u0308")

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

_CORPUS = [
  "the quick brown fox jumped over the lazy dogs and then they didn't say hello world again",
  "def f(x):\n    return x\n\n\nif a == b:\n\tpass\n" * 3,
  "emoji 🤖 🤖 日本語 日本語 中文 مرحبا é é ö",
  "a     b        c\n\n\n\n        12 12 2024 2024 345",
  "hello hello world world underscores trail lead newline user users using",
]

CHAT_TEMPLATE = (
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
  "{{ '<|im_start|>system\nYou help<|im_end|>\n' }}{% endif %}"
  "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def split_digits():
  """What SmolLM2's own `tokenizer.json` says."""
  return pre_tokenizers.Sequence(
    [
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
  )


@functools.cache
def byte_level_parts(digits_apart=True):
  """(tokens in the order of their ids, merges) of a byte-level BPE trained on a few lines."""
  backend = tokenizers.Tokenizer(models.BPE())
  whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.pre_tokenizer = split_digits() if digits_apart else whole
  trainer = trainers.BpeTrainer(
    vocab_size=420,
    special_tokens=list(SPECIAL),
    initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    show_progress=False,
  )
  backend.train_from_iterator(_CORPUS, trainer)
  return _tokens_and_merges(backend)


@functools.cache
def sentencepiece_parts():
  """(tokens, types, scores): control tokens, bytes, merged pieces best first, characters."""
  backend = tokenizers.Tokenizer(models.BPE())
  backend.pre_tokenizer = pre_tokenizers.Metaspace()
  backend.train_from_iterator(_CORPUS, trainers.BpeTrainer(vocab_size=260, show_progress=False))
  trained, merges = _tokens_and_merges(backend)
  pieces = [left + right for left, right in merges]
  characters = [token for token in trained if token not in set(pieces)]
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
  types = [2, 3, 3, *[6] * 256, *[1] * len(pieces + characters)]
  scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces + characters))]
  return [*tokens, *pieces, *characters], types, scores


def _tokens_and_merges(backend):
  vocab = backend.get_vocab()
  merges = [tuple(pair) for pair in _model_merges(backend)]
  return sorted(vocab, key=vocab.get), merges


def _model_merges(backend):
  return json.loads(backend.to_str())["model"]["merges"]


def _writer(path, architecture):
  writer = gguf.GGUFWriter(path, architecture)
  # What transformers needs to know the model's kind.
  writer.add_block_count(1)
  writer.add_context_length(64)
  writer.add_embedding_length(8)
  writer.add_feed_forward_length(8)
  writer.add_head_count(1)
  writer.add_head_count_kv(1)
  writer.add_layer_norm_rms_eps(1e-5)
  writer.add_rope_freq_base(10000.0)
  return writer


def _finish(writer):
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def write_byte_level(path, pre, *, architecture="llama", tokens=None, merges=None, **flags):
  """A GGUF file without tensors that holds a byte-level tokenizer."""
  trained, trained_merges = byte_level_parts()
  tokens = list(trained) if tokens is None else tokens
  merges = trained_merges if merges is None else merges
  writer = _writer(path, architecture)
  writer.add_tokenizer_model("gpt2")
  if pre is not None:
    writer.add_tokenizer_pre(pre)
  writer.add_token_list(tokens)
  writer.add_token_types([3 if token in SPECIAL else 1 for token in tokens])
  writer.add_token_merges([" ".join(pair) for pair in merges])
  writer.add_bos_token_id(flags.get("bos", 1))
  writer.add_eos_token_id(flags.get("eos", 2))
  writer.add_pad_token_id(2)
  writer.add_chat_template(CHAT_TEMPLATE)
  if "add_bos" in flags:
    writer.add_add_bos_token(flags["add_bos"])
  _finish(writer)
  return path


def write_sentencepiece(path, *, architecture="llama", **flags):
  """A GGUF file without tensors that holds a SentencePiece tokenizer."""
  tokens, types, scores = sentencepiece_parts()
  tokens, types, scores = list(tokens), list(types), list(scores)
  if architecture.startswith("gemma"):
    tokens[:3] = ["<pad>", "<eos>", "<bos>"]
    tokens, types = [*tokens, "<unk>", "<mask>", "  ", "   "], [*types, 2, 3, 4, 4]
    scores += [0.0] * 4
  writer = _writer(path, architecture)
  if architecture.startswith("gemma"):
    writer.add_key_length(8)
    writer.add_sliding_window(16)
  writer.add_tokenizer_model("llama")
  writer.add_token_list(tokens)
  writer.add_token_scores(scores)
  writer.add_token_types(types)
  writer.add_bos_token_id(2 if architecture.startswith("gemma") else 1)
  writer.add_eos_token_id(1 if architecture.startswith("gemma") else 2)
  writer.add_unk_token_id(tokens.index("<unk>"))
  writer.add_pad_token_id(0)
  if "add_bos" in flags:
    writer.add_add_bos_token(flags["add_bos"])
  if "add_space_prefix" in flags:
    writer.add_add_space_prefix(flags["add_space_prefix"])
  _finish(writer)
  return path


def byte_level_backend():
  """The tokenizer of `write_byte_level(..., "starcoder")`, put together by hand."""
  tokens, merges = byte_level_parts()
  vocab = {token: index for index, token in enumerate(tokens)}
  backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
  backend.pre_tokenizer = split_digits()
  backend.decoder = decoders.ByteLevel()
  backend.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in SPECIAL])
  return backend
