# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer from the metadata of a GGUF file, as a `tokenizers.Tokenizer`.

A GGUF names its tokenizer by `tokenizer.ggml.model` (the algorithm) and `tokenizer.ggml.pre` (how
text is split before merging). What the two names stand for is written in the `tokenizer.json`
of the model that each is named after, and that is what is built here, with one exception. For a
file of the kind

  smollm     `transformers` 5 splits like GPT-2, so that of several spaces before a digit the
             last joins the digit, as in "    12"; SmolLM2's own `tokenizer.json` sets every
             digit apart first. Here the ids are those of `transformers` reading the same file,
             so that its results can be compared token by token;
  llama-bpe  `transformers` does not take a whole word that is a token without merging;
  qwen2      `transformers` leaves out the NFC normalisation of combining marks.

Elsewhere the token ids are the same.
"""

from typing import Any

from specjax.models.gguf_file import GGUFFile
from specjax.models.optional_packages import require
from specjax.models.stream_decoder import byte_alphabet

# tokenizer.ggml.token_type
CONTROL = 3
USER_DEFINED = 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
  r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
  r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# tokenizer.ggml.pre to the rules that cut the text, one after the other.
PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
  **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "olmo", "smollm"), (_GPT2,)),
  **dict.fromkeys(("starcoder", "refact", "command-r"), (r"\p{N}", _GPT2)),
  **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), (_LLAMA3,)),
  **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
  "tekken": (_TEKKEN,),
}
_WHOLE_WORDS_FIRST = {"llama3", "llama-v3", "llama-bpe", "falcon3", "tekken"}
_ADD_BOS = {"llama3", "llama-v3", "llama-bpe"}
_NORMALIZE_NFC = {"qwen2", "deepseek-r1-qwen"}


def build_backend(file: GGUFFile) -> Any:
  """The `tokenizers.Tokenizer` that the file describes; it adds BOS and EOS as the file says.

  Raises:
    ValueError: for an algorithm or a way of splitting that is not known, or broken metadata.
  """
  model = file.require("tokenizer.ggml.model")
  if model == "gpt2":
    backend = _byte_level(file)
  elif model == "llama":
    gemma = str(file.get("general.architecture", "")).startswith("gemma")
    backend = _gemma(file) if gemma else _sentencepiece(file)
  else:
    raise ValueError(
      f"{file.path}: tokenizer.ggml.model is {model!r}, supported are 'gpt2' and 'llama'"
    )
  _add_special_tokens(backend, file)
  add_bos, add_eos = _added_at_the_ends(file)
  tokens = file.require("tokenizer.ggml.tokens")
  ends = []
  for wanted, key in ((add_bos, "bos_token_id"), (add_eos, "eos_token_id")):
    token_id = special_id(file, key) if wanted else None
    ends.append(None if token_id is None else tokens[token_id])
  _set_ends(backend, *ends)
  return backend


def special_id(file: GGUFFile, key: str) -> int | None:
  """The id under `tokenizer.ggml.<key>`; None where there is none.

  Raises:
    ValueError: where it is not in the vocabulary.
  """
  token_id = file.get(f"tokenizer.ggml.{key}")
  if token_id is None:
    return None
  size = len(file.require("tokenizer.ggml.tokens"))
  if not 0 <= token_id < size:
    raise ValueError(f"{file.path}: {key} is {token_id}, the vocabulary has {size} tokens")
  return int(token_id)


def _set_ends(backend: Any, bos: str | None, eos: str | None) -> None:
  """Makes `backend` put these tokens at the ends of a text encoded with special tokens."""
  processors = require("tokenizers.processors")
  single = [bos or "", "$A", eos or ""]
  ends = [(token, backend.token_to_id(token)) for token in dict.fromkeys((bos, eos)) if token]
  backend.post_processor = processors.TemplateProcessing(
    single=[part for part in single if part], special_tokens=ends
  )


def _added_at_the_ends(file: GGUFFile) -> tuple[bool, bool]:
  """Whether the text gets a BOS and an EOS; old files do not say and mean the model's habit."""
  habit = file.get("tokenizer.ggml.model") == "llama" or _pre_name(file) in _ADD_BOS
  add_bos = bool(file.get("tokenizer.ggml.add_bos_token", habit))
  return add_bos, bool(file.get("tokenizer.ggml.add_eos_token", False))


def _pre_name(file: GGUFFile) -> str:
  return file.get("tokenizer.ggml.pre", "default")


def _byte_level(file: GGUFFile) -> Any:
  """Byte-level BPE with the merges of the file."""
  tokenizers = require("tokenizers")
  pre = _pre_name(file)
  if pre not in PRE_TOKENIZERS:
    raise ValueError(
      f"{file.path}: tokenizer.ggml.pre is {pre!r}, supported are {sorted(PRE_TOKENIZERS)}"
    )
  merges = [tuple(merge.split(" ")) for merge in file.require("tokenizer.ggml.merges")]
  backend = tokenizers.Tokenizer(
    _bpe(file, _byte_level_vocab(file), merges, ignore_merges=pre in _WHOLE_WORDS_FIRST)
  )
  cuts = [
    tokenizers.pre_tokenizers.Split(tokenizers.Regex(rule), behavior="isolated")
    for rule in PRE_TOKENIZERS[pre]
  ]
  spell = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*cuts, spell])
  backend.decoder = tokenizers.decoders.ByteLevel()
  if pre in _NORMALIZE_NFC:
    backend.normalizer = tokenizers.normalizers.NFC()
  return backend


def _byte_level_vocab(file: GGUFFile) -> dict[str, int]:
  """Token to id; an ordinary token that is not spelled in the byte alphabet is respelled."""
  spelling = byte_alphabet()
  alphabet = set(spelling.values())
  vocab = {}
  for token_id, (token, kind) in enumerate(_tokens_and_kinds(file)):
    if kind not in (CONTROL, USER_DEFINED) and not alphabet.issuperset(token):
      token = "".join(spelling[byte] for byte in token.encode("utf-8"))
    vocab[token] = token_id
  return vocab


def _sentencepiece(file: GGUFFile) -> Any:
  """SentencePiece BPE: merges follow from the scores, unknown characters fall back to bytes."""
  tokenizers = require("tokenizers")
  tokens = file.require("tokenizer.ggml.tokens")
  vocab = {token: token_id for token_id, token in enumerate(tokens)}
  merges = _file_merges(file)
  if merges is None:
    scores = file.require("tokenizer.ggml.scores")
    merges = merges_from_scores(vocab, dict(zip(tokens, scores, strict=True)))
  backend = tokenizers.Tokenizer(_bpe(file, vocab, merges, fuse_unk=True, byte_fallback=True))
  prefix_space = bool(file.get("tokenizer.ggml.add_space_prefix", True))
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(
    prepend_scheme="first" if prefix_space else "never", split=False
  )
  decoders = _sentencepiece_decoders(tokenizers)
  if prefix_space:
    decoders.append(tokenizers.decoders.Strip(content=" ", left=1))
  backend.decoder = tokenizers.decoders.Sequence(decoders)
  return backend


def _gemma(file: GGUFFile) -> Any:
  """Gemma's SentencePiece: no prefix space, and merges in the order of the vocabulary."""
  tokenizers = require("tokenizers")
  # Runs of spaces stand in the file as spaces, while all other tokens write a space as "▁".
  tokens = [
    token.replace(" ", "▁") if token and not token.strip(" ") else token
    for token in file.require("tokenizer.ggml.tokens")
  ]
  vocab = {token: token_id for token_id, token in enumerate(tokens)}
  merges = _file_merges(file)
  if merges is None:
    merges = merges_from_scores(vocab, {token: -float(vocab[token]) for token in tokens})
  unknown = "<unk>" if "<unk>" in vocab else None
  model = _bpe(file, vocab, merges, fuse_unk=True, byte_fallback=True, unk_token=unknown)
  backend = tokenizers.Tokenizer(model)
  backend.normalizer = tokenizers.normalizers.Replace(" ", "▁")
  backend.decoder = tokenizers.decoders.Sequence(_sentencepiece_decoders(tokenizers))
  return backend


def _sentencepiece_decoders(tokenizers: Any) -> list[Any]:
  decoders = tokenizers.decoders
  return [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def merges_from_scores(vocab: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
  """All ways to make a token of two others, best score of the result first.

  SentencePiece merges the neighbours whose union scores best; BPE applies its list from the top.
  Ties go to the longer left part, then to the longer right one, as in published conversions.
  """
  found = []
  for token, score in scores.items():
    splits = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
    pairs = [(left, right) for left, right in splits if left in vocab and right in vocab]
    pairs.sort(key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    found += [(score, pair) for pair in pairs]
  found.sort(key=lambda entry: (entry[0], len(entry[1][0]), len(entry[1][1])), reverse=True)
  return [pair for _, pair in found]


def _file_merges(file: GGUFFile) -> list[Any] | None:
  merges = file.get("tokenizer.ggml.merges")
  return None if merges is None else [tuple(merge.split(" ")) for merge in merges]


def _bpe(file: GGUFFile, vocab: dict[str, int], merges: list[Any], **options: Any) -> Any:
  models = require("tokenizers.models")
  try:
    return models.BPE(vocab=vocab, merges=merges, **options)
  except Exception as error:
    # The Rust side raises plain Exception, for example for a merge of tokens that do not exist.
    raise ValueError(f"{file.path}: the tokenizer's vocabulary is broken: {error}") from error


def _tokens_and_kinds(file: GGUFFile) -> list[tuple[str, int]]:
  tokens = file.require("tokenizer.ggml.tokens")
  kinds = file.get("tokenizer.ggml.token_type") or [1] * len(tokens)
  if len(kinds) != len(tokens):
    raise ValueError(f"{file.path}: {len(tokens)} tokens but {len(kinds)} token types")
  return list(zip(tokens, kinds, strict=True))


def _add_special_tokens(backend: Any, file: GGUFFile) -> None:
  """Tokens that text is searched for before anything else: control and user-defined ones."""
  added_token = require("tokenizers").AddedToken
  named = {
    special_id(file, key)
    for key in ("bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id")
  }
  special, ordinary = [], []
  for token_id, (token, kind) in enumerate(_tokens_and_kinds(file)):
    if backend.token_to_id(token) != token_id:
      continue  # respelled: the literal text is not a token
    if kind == CONTROL or token_id in named:
      special.append(added_token(token, normalized=False, special=True))
    elif kind == USER_DEFINED:
      ordinary.append(added_token(token, normalized=False, special=False))
  backend.add_special_tokens(special)
  backend.add_tokens(ordinary)
