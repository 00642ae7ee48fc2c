# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Tokenizers against `transformers`, and the helpers that count characters and tokens."""

import itertools
import json

import gguf
import pytest
import tiny_tokenizers as tiny
import tokenizers
import transformers
from tiny_tokenizers import AWKWARD_TEXTS, SPLIT_TEXTS

from specjax.models.gguf_tokenizer import merges_from_scores
from specjax.models.tokenizer import Tokenizer, check_compatible


def _transformers_gguf(path):
  return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


def _assert_same(ours, theirs, texts):
  """The same ids with and without special tokens, and the same text of these ids."""
  for text in texts:
    for special in (True, False):
      ids = ours.encode(text, add_special_tokens=special)
      assert ids == theirs.encode(text, add_special_tokens=special), (text, special)
      for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(
          ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
        )


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


def test_ids_of_a_kind_that_sets_digits_apart_are_those_of_its_tokenizer_json(tmp_path):
  ours = Tokenizer.from_gguf(tiny.write_byte_level(tmp_path / "tiny.gguf", "starcoder"))
  own = tiny.byte_level_backend()
  for text in SPLIT_TEXTS:
    assert ours.encode(text) == own.encode(text).ids, text


@pytest.mark.parametrize(
  ("pre", "texts"),
  [
    ("gpt-2", SPLIT_TEXTS),
    ("default", SPLIT_TEXTS),
    (None, SPLIT_TEXTS),
    ("smollm", SPLIT_TEXTS),
    # transformers leaves out rules that these names stand for: see gguf_tokenizer.py.
    ("qwen2", AWKWARD_TEXTS),
    ("tekken", AWKWARD_TEXTS),
  ],
)
def test_byte_level_gguf_ids_equal_transformers(tmp_path, pre, texts):
  path = tiny.write_byte_level(tmp_path / "tiny.gguf", pre, add_bos=False)
  _assert_same(Tokenizer.from_gguf(path), _transformers_gguf(path), texts)


@pytest.mark.parametrize("add_bos", [True, False])
def test_llama3_gguf_ids_equal_transformers(tmp_path, add_bos):
  path = tiny.write_byte_level(tmp_path / "tiny.gguf", "llama-bpe", add_bos=add_bos)
  ours = Tokenizer.from_gguf(path)
  _assert_same(ours, _transformers_gguf(path), SPLIT_TEXTS)
  assert ours.encode("hello")[: int(add_bos)] == [1] * add_bos


def test_llama3_takes_a_whole_word_that_is_a_token_without_merging(tmp_path):
  tokens, merges = tiny.byte_level_parts()
  # "zqzq" is a token, but no merges lead to it.
  path = tmp_path / "tiny.gguf"
  tiny.write_byte_level(path, "llama-bpe", tokens=[*tokens, "zqzq"], merges=merges, add_bos=False)
  assert Tokenizer.from_gguf(path).encode("zqzq") == [len(tokens)]


def test_qwen2_gguf_ids_equal_the_qwen2_class_of_transformers(tmp_path):
  tokens, merges = tiny.byte_level_parts()
  vocab = {token: index for index, token in enumerate(tokens)}
  reference = transformers.Qwen2Tokenizer(
    vocab=vocab, merges=list(merges), additional_special_tokens=list(tiny.SPECIAL)
  )
  path = tiny.write_byte_level(tmp_path / "tiny.gguf", "qwen2", architecture="qwen2", add_bos=False)
  ours = Tokenizer.from_gguf(path)
  for text in SPLIT_TEXTS:
    assert ours.encode(text) == reference.encode(text), text


@pytest.mark.parametrize("flags", [{}, {"add_bos": False}])
def test_sentencepiece_gguf_ids_equal_transformers(tmp_path, flags):
  path = tiny.write_sentencepiece(tmp_path / "tiny.gguf", **flags)
  ours = Tokenizer.from_gguf(path)
  _assert_same(ours, _transformers_gguf(path), SPLIT_TEXTS)
  assert (ours.encode("hello")[0] == ours.bos_id) == (not flags)


def test_sentencepiece_ids_equal_greedy_merging_by_score(llama):
  tokens, _, scores = tiny.sentencepiece_parts()
  score_of = dict(zip(tokens, scores, strict=True))

  def merge_by_hand(text):
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
      unions = [a + b for a, b in itertools.pairwise(pieces)]
      known = [(score_of[union], -at) for at, union in enumerate(unions) if union in score_of]
      if not known:
        break
      at = -max(known)[1]
      pieces[at : at + 2] = [unions[at]]
    spelled = []
    for piece in pieces:
      in_bytes = [f"<0x{byte:02X}>" for byte in piece.encode("utf-8")]
      spelled += [piece] if piece in score_of else in_bytes
    return [tokens.index(piece) for piece in spelled]

  for text in ("hello world", "the fox didn't say ½ 日本 x", "a     b  c", "🤖\n\n\tx = 12"):
    assert llama.encode(text, add_special_tokens=False) == merge_by_hand(text), text


def test_sentencepiece_without_prefix_space_adds_none(tmp_path):
  path = tiny.write_sentencepiece(tmp_path / "tiny.gguf", add_space_prefix=False)
  ours = Tokenizer.from_gguf(path)
  ids = ours.encode(" hello", add_special_tokens=False)
  assert ours.decode(ids) == " hello"
  assert ours.encode("hello", add_special_tokens=False) != ids


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3"])
def test_gemma_gguf_ids_equal_transformers(tmp_path, architecture):
  path = tiny.write_sentencepiece(tmp_path / "tiny.gguf", architecture=architecture)
  _assert_same(Tokenizer.from_gguf(path), _transformers_gguf(path), SPLIT_TEXTS)


def test_control_token_with_letters_outside_the_byte_alphabet_keeps_its_id(tmp_path):
  tokens, merges = tiny.byte_level_parts()
  path = tmp_path / "tiny.gguf"
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre("deepseek-r1-qwen")
  writer.add_token_list([*tokens, "<█begin▁of▁sentence█>"])
  writer.add_token_types([1] * len(tokens) + [3])
  writer.add_token_merges([" ".join(pair) for pair in merges])
  writer.add_bos_token_id(len(tokens))
  writer.add_add_bos_token(True)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.close()
  ours = Tokenizer.from_gguf(path)
  assert ours.vocab_size == len(tokens) + 1
  assert ours.encode("<█begin▁of▁sentence█>", add_special_tokens=False) == [len(tokens)]
  assert ours.encode("hi")[0] == len(tokens)


@pytest.mark.parametrize(
  ("key", "value", "message"),
  [
    ("pre", "martian-bpe", r"tokenizer\.ggml\.pre is 'martian-bpe', supported are .*smollm"),
    ("model", "rwkv", r"tokenizer\.ggml\.model is 'rwkv'"),
    ("bos", 10**6, r"bos_token_id is 1000000, the vocabulary has"),
  ],
)
def test_gguf_tokenizer_of_unknown_kind_is_refused_by_name(tmp_path, key, value, message):
  path = tmp_path / "tiny.gguf"
  if key == "model":
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
  else:
    flags = {"bos": value} if key == "bos" else {}
    tiny.write_byte_level(path, value if key == "pre" else "gpt-2", **flags)
  with pytest.raises(ValueError, match=message):
    Tokenizer.from_gguf(path)


# Hugging Face folders.


def _save_folder(folder, backend=None, **options):
  tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_object=backend or tiny.byte_level_backend(),
    bos_token="<|im_start|>",
    eos_token="<|im_end|>",
    pad_token="<|im_end|>",
    unk_token="<|endoftext|>",
    **options,
  )
  tokenizer.save_pretrained(folder)
  return folder


def _edit(folder, **changes):
  path = folder / "tokenizer_config.json"
  path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _of_transformers(folder):
  return transformers.AutoTokenizer.from_pretrained(folder)


def test_folder_ids_equal_transformers(tmp_path):
  folder = _save_folder(tmp_path / "tiny", chat_template=tiny.CHAT_TEMPLATE)
  ours = Tokenizer.from_huggingface(folder)
  _assert_same(ours, _of_transformers(folder), SPLIT_TEXTS)
  assert (ours.bos_id, ours.eos_id, ours.pad_id) == (1, 2, 2)
  assert ours.chat_template == tiny.CHAT_TEMPLATE


@pytest.mark.parametrize("family", ["LlamaTokenizer", "GemmaTokenizer", "Qwen2Tokenizer"])
def test_folder_saved_by_a_family_of_transformers_gives_its_ids(tmp_path, family):
  if family == "Qwen2Tokenizer":
    tokens, merges = tiny.byte_level_parts()
  else:
    tokens, _, scores = tiny.sentencepiece_parts()
    merges = merges_from_scores(
      {token: index for index, token in enumerate(tokens)},
      dict(zip(tokens, scores, strict=True)),
    )
  vocab = {token: index for index, token in enumerate(tokens)}
  theirs = getattr(transformers, family)(vocab=vocab, merges=list(merges))
  theirs.save_pretrained(tmp_path)
  ours = Tokenizer.from_huggingface(tmp_path)
  _assert_same(ours, theirs, SPLIT_TEXTS)
  assert (ours.bos_id, ours.eos_id) == (theirs.bos_token_id, theirs.eos_token_id)


@pytest.mark.parametrize(("bos", "eos"), [(True, False), (True, True), (False, True)])
def test_folder_whose_tokenizer_file_adds_bos_and_eos_gets_them(tmp_path, bos, eos):
  backend = tiny.byte_level_backend()
  parts = ["<|im_start|>"] * bos + ["$A"] + ["<|im_end|>"] * eos
  backend.post_processor = tokenizers.processors.TemplateProcessing(
    single=parts, special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
  )
  folder = _save_folder(tmp_path / "tiny", backend)
  (folder / "tokenizer.json").write_text(backend.to_str())
  # The flags are for slow tokenizers: transformers does not heed them beside a tokenizer.json.
  _edit(folder, add_bos_token=not bos, add_eos_token=not eos)
  ours = Tokenizer.from_huggingface(folder)
  _assert_same(ours, _of_transformers(folder), AWKWARD_TEXTS)
  assert ours.encode("") == [1] * bos + [2] * eos


def test_tokens_that_only_the_configuration_declares_are_added_as_transformers_does(tmp_path):
  folder = _save_folder(tmp_path / "tiny", additional_special_tokens=["<tool>"])
  size = tiny.byte_level_backend().get_vocab_size()
  (folder / "tokenizer.json").write_text(tiny.byte_level_backend().to_str())
  entry = {"lstrip": False, "rstrip": True, "single_word": False, "normalized": False}
  added = {str(size): entry | {"content": "<think>", "special": False}}
  _edit(folder, added_tokens_decoder=added)
  ours, theirs = Tokenizer.from_huggingface(folder), _of_transformers(folder)
  texts = ["<think>  plan</think> <tool>x", "a<tool><think>\n"]
  _assert_same(ours, theirs, texts)
  assert ours.token_to_id("<think>") == size
  assert ours.token_to_id("<tool>") in ours.special_ids
  assert ours.token_to_id("<think>") not in ours.special_ids


def test_truncation_and_padding_saved_in_the_file_do_not_cut_text(tmp_path):
  backend = tiny.byte_level_backend()
  backend.enable_truncation(4)
  backend.enable_padding(length=8)
  (tmp_path / "tokenizer.json").write_text(backend.to_str())
  ours = Tokenizer.from_huggingface(tmp_path)
  assert ours.encode("hello world " * 4) == tiny.byte_level_backend().encode("hello world " * 4).ids
  assert ours.encode("") == []


def test_template_file_comes_before_the_configuration(tmp_path):
  folder = _save_folder(tmp_path / "tiny")
  (folder / "chat_template.jinja").unlink(missing_ok=True)
  several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
  _edit(folder, chat_template=several)
  assert Tokenizer.from_huggingface(folder).chat_template == "D"
  _edit(folder, chat_template="C")
  assert Tokenizer.from_huggingface(folder).chat_template == "C"
  (folder / "chat_template.jinja").write_text("J")
  assert Tokenizer.from_huggingface(folder).chat_template == "J"


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("tokenizer.json", None, "no such file"),
    ("tokenizer.json", b"\xff\xfe{}", "not UTF-8"),
    ("tokenizer.json", b"{]", "not a tokenizer"),
    ("tokenizer.json", b'{"model": {"type": "Nonsense"}}', "not a tokenizer"),
    ("tokenizer_config.json", b"\xff", "not UTF-8"),
    ("tokenizer_config.json", b"[1]", "expected an object"),
    ("tokenizer_config.json", b"{", "not JSON"),
    ("chat_template.jinja", b"\xff", "not UTF-8"),
  ],
)
def test_broken_file_of_a_folder_is_named(tmp_path, name, content, message):
  folder = _save_folder(tmp_path / "tiny")
  if content is None:
    (folder / name).unlink()
  else:
    (folder / name).write_bytes(content)
  with pytest.raises(ValueError, match=message) as error:
    Tokenizer.from_huggingface(folder)
  assert str(folder / name) in str(error.value)


# Text in, text out.


def test_rendered_chat_is_encoded_without_a_second_bos(tmp_path):
  path = tiny.write_byte_level(tmp_path / "tiny.gguf", "llama-bpe", add_bos=True)
  ours, theirs = Tokenizer.from_gguf(path), _transformers_gguf(path)
  messages = [{"role": "user", "content": "hello"}]
  ids = ours.encode_chat(messages)
  want = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
  assert ids == want
  assert ids[:2] != [ours.bos_id, ours.bos_id]
  assert ours.encode(ours.render_chat(messages))[:2] == [ours.bos_id, ours.bos_id]


def test_checkpoint_without_template_says_so(llama):
  with pytest.raises(ValueError, match="no chat template"):
    llama.encode_chat([{"role": "user", "content": "hello"}])


def test_text_that_is_not_unicode_is_refused(smollm):
  with pytest.raises(ValueError, match="text must be a string, got int"):
    smollm.encode(3)
  with pytest.raises(ValueError, match="not valid Unicode"):
    smollm.encode("half a pair: \ud83d")


def test_ids_outside_the_vocabulary_have_no_text_and_negative_ones_are_refused(smollm):
  ids = smollm.encode("hello")
  assert smollm.decode([*ids, smollm.vocab_size, 10**9]) == "hello"
  with pytest.raises(ValueError, match="must not be negative, got -1"):
    smollm.decode([*ids, -1])


# Two tokenizers.


def _with_tokens(tmp_path, name, tokens):
  _, merges = tiny.byte_level_parts()
  path = tiny.write_byte_level(tmp_path / f"{name}.gguf", "gpt-2", tokens=tokens, merges=merges)
  return Tokenizer.from_gguf(path)


def test_draft_vocabulary_that_differs_is_refused_naming_the_first_id(tmp_path, smollm):
  tokens = list(tiny.byte_level_parts()[0])
  tokens[40], tokens[41], tokens[60], tokens[61] = tokens[41], tokens[40], tokens[61], tokens[60]
  draft = _with_tokens(tmp_path, "draft", tokens)
  with pytest.raises(ValueError, match=rf"id 40 is '{tokens[41]}' .*target.*'{tokens[40]}'"):
    check_compatible(smollm, draft)


@pytest.mark.parametrize("extra", [3, -3])
def test_vocabularies_of_other_length_pass_with_the_option_only(tmp_path, smollm, extra):
  tokens = list(tiny.byte_level_parts()[0])
  longer = _with_tokens(tmp_path, "longer", [*tokens, "[PAD1]", "[PAD2]", "[PAD3]"])
  target, draft = (smollm, longer) if extra > 0 else (longer, smollm)
  check_compatible(target, draft)
  with pytest.raises(ValueError, match=f"{target.vocab_size} tokens .* {draft.vocab_size}"):
    check_compatible(target, draft, allow_extra_tail=False)
  check_compatible(target, target, allow_extra_tail=False)
