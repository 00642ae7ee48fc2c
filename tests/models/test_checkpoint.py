# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The one door: every kind of checkpoint, by path and by name."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_checkpoint
import tiny_gguf
import tiny_tokenizers as tiny
import torch
import transformers

from specjax.models import checkpoint, resolver
from specjax.models.huggingface_config import config_to_huggingface
from specjax.models.orbax_checkpoint import save_orbax
from specjax.types import Block

_NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def original():
  return tiny_gguf.build("llama")


def _tokenizer_metadata(**changes):
  """Metadata of a byte-level tokenizer with 96 tokens, as many as the network has."""
  tokens = [*tiny.SPECIAL, *(chr(code) for code in range(0x21, 0x7E))]
  metadata = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": tokens,
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 93],
    "tokenizer.ggml.merges": ["t h"],
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.chat_template": tiny.CHAT_TEMPLATE,
  }
  return {key: value for key, value in (metadata | changes).items() if value is not None}


def _gguf_file(path, original, **changes):
  metadata = _tokenizer_metadata(**changes)
  # "th" must be a token for the merge to be one.
  metadata["tokenizer.ggml.tokens"][95] = "th"
  return tiny_gguf.write(path, "llama", original, extra=metadata)


def _folder(path, original, **files):
  original.save_pretrained(path)
  (path / "generation_config.json").unlink(missing_ok=True)
  (path / "tokenizer.json").write_text(tiny.byte_level_backend().to_str())
  (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
  for name, fields in files.items():
    (path / f"{name}.json").write_text(json.dumps(fields))
  return path


def _same(ours, theirs):
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), ours, theirs
  )


def test_the_same_weights_come_through_every_door(tmp_path, original):
  folder = checkpoint.load(_folder(tmp_path / "hf", original))
  file = checkpoint.load(_gguf_file(tmp_path / "tiny.gguf", original))
  save_orbax(
    tmp_path / "orbax", file.model, file.params, tokenizer=file.tokenizer, eos_ids=file.eos_ids
  )
  saved = checkpoint.load(tmp_path / "orbax")
  _same(file.params, folder.params)
  _same(saved.params, folder.params)
  assert file.model == folder.model == saved.model
  assert saved.eos_ids == file.eos_ids
  assert saved.tokenizer.encode_chat([{"role": "user", "content": "thx"}]) == (
    file.tokenizer.encode_chat([{"role": "user", "content": "thx"}])
  )
  assert saved.tokenizer.eos_id == file.tokenizer.eos_id == 0
  assert folder.tokenizer.eos_id == 2
  assert {entry.source for entry in (folder, file, saved)} == {
    f"file:{tmp_path / name}" for name in ("hf", "tiny.gguf", "orbax")
  }
  for loaded in (folder, file, saved):
    outline = checkpoint.read(loaded.name)
    assert outline.params is None
    assert (outline.model, outline.eos_ids) == (loaded.model, loaded.eos_ids)
    assert outline.tokenizer.encode("thx") == loaded.tokenizer.encode("thx")
    whole = checkpoint.load_weights(outline)
    assert (whole.model, whole.source, whole.mesh) == (loaded.model, loaded.source, None)
    _same(whole.params, loaded.params)


def test_folder_with_one_gguf_file_is_that_file(tmp_path, original):
  (tmp_path / "model").mkdir()
  _gguf_file(tmp_path / "model" / "tiny.gguf", original)
  loaded = checkpoint.load(tmp_path / "model", tokenizer=False)
  assert loaded.tokenizer is None
  assert loaded.model.vocab_size == 96


def test_dtype_and_precision_reach_the_model(tmp_path, original):
  path = _gguf_file(tmp_path / "tiny.gguf", original)
  loaded = checkpoint.load(path, dtype=jnp.bfloat16, precision="highest", tokenizer=False)
  assert (loaded.model.dtype, loaded.model.precision) == (jnp.bfloat16, "highest")
  save_orbax(tmp_path / "orbax", loaded.model, loaded.params)
  again = checkpoint.load(tmp_path / "orbax")
  assert (again.model.dtype, again.model.precision) == (jnp.bfloat16, "highest")
  assert checkpoint.load(tmp_path / "orbax", dtype=jnp.float32).model.dtype == jnp.float32


@pytest.mark.parametrize(
  ("files", "wanted"),
  [
    ({"generation_config": {"eos_token_id": [7, 5, 7]}}, (7, 5)),
    ({"generation_config": {"eos_token_id": 0}}, (0,)),
    ({"generation_config": {"eos_token_id": None}}, (2,)),
    ({}, (2,)),
  ],
)
def test_folder_ends_texts_where_its_files_say(tmp_path, original, files, wanted):
  folder = _folder(tmp_path / "hf", original, **files)
  assert checkpoint.folder_eos_ids(folder) == (wanted if "generation_config" in files else (2,))
  assert checkpoint.load(folder).eos_ids == wanted


def test_config_and_then_tokenizer_say_where_texts_end(tmp_path):
  tokenizer = checkpoint.Tokenizer(tiny.byte_level_backend(), eos_id=1)
  assert checkpoint.folder_eos_ids(tmp_path) == ()
  assert checkpoint.folder_eos_ids(tmp_path, tokenizer) == (1,)
  (tmp_path / "config.json").write_text('{"text_config": {"eos_token_id": 4}}')
  assert checkpoint.folder_eos_ids(tmp_path, tokenizer) == (4,)
  (tmp_path / "config.json").write_text('{"eos_token_id": "</s>"}')
  with pytest.raises(ValueError, match=r"config\.json: eos_token_id must be token ids, got '</s>'"):
    checkpoint.folder_eos_ids(tmp_path)


@pytest.mark.parametrize(
  ("changes", "wanted"),
  [
    # The template ends turns with <|im_end|>, which the file does not call EOS.
    ({}, (0, 2)),
    ({"tokenizer.ggml.eot_token_id": 1}, (0, 1, 2)),
    ({"tokenizer.ggml.eos_token_id": 2}, (2,)),
    ({"tokenizer.chat_template": None}, (0,)),
    ({"tokenizer.chat_template": None, "tokenizer.ggml.eos_token_id": None}, ()),
  ],
)
def test_gguf_ends_texts_at_eos_and_at_the_end_of_a_turn(tmp_path, original, changes, wanted):
  assert checkpoint.load(_gguf_file(tmp_path / "tiny.gguf", original, **changes)).eos_ids == wanted


def test_name_is_resolved_and_its_source_kept(tmp_path, original, monkeypatch):
  path = _gguf_file(tmp_path / "tiny.gguf", original)
  asked = []

  def resolve(name, *, cache_dir, log):
    asked.append((name, cache_dir))
    return resolver.Resolved(path, "pypi:somewhere")

  monkeypatch.setattr(resolver, "resolve_with_source", resolve)
  loaded = checkpoint.load("specjax-tests/tiny", cache_dir=tmp_path)
  assert (loaded.name, loaded.source) == ("specjax-tests/tiny", "pypi:somewhere")
  assert asked == [("specjax-tests/tiny", tmp_path)]


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("gpt-17", rf"unknown model 'gpt-17'.*{_NAME}.*org/name.*file or folder"),
    ("./gone", r"\./gone: there is no such file or folder"),
    ("gone.gguf", r"gone\.gguf: there is no such file or folder"),
    ("a/b/c", r"a/b/c: there is no such file or folder"),
  ],
)
def test_unknown_name_says_what_was_tried(tmp_path, monkeypatch, name, message):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ValueError, match=message):
    checkpoint.load(name)


def test_what_is_not_a_checkpoint_is_refused_by_name(tmp_path):
  (tmp_path / "notes.txt").write_text("hello")
  with pytest.raises(ValueError, match=r"notes\.txt is not a GGUF file"):
    checkpoint.load(tmp_path / "notes.txt")
  with pytest.raises(ValueError, match=r"is not a checkpoint: it has neither config\.json"):
    checkpoint.load(tmp_path)


def test_missing_optional_package_names_the_extra(tmp_path, original, monkeypatch):
  path = _gguf_file(tmp_path / "tiny.gguf", original)
  real = __import__("importlib").import_module

  def without(name, *args):
    if name.split(".")[0] in ("tokenizers", "gguf"):
      raise ModuleNotFoundError(f"No module named {name!r}", name=name.split(".")[0])
    return real(name, *args)

  monkeypatch.setattr("importlib.import_module", without)
  with pytest.raises(ImportError, match=r"'gguf': pip install 'specjax\[models\]'"):
    checkpoint.load(path)


# The real model.


@pytest.fixture(scope="module")
def real():
  return checkpoint.load(_NAME, dtype=jnp.float32)


@pytest.fixture(scope="module")
def real_file():
  path = resolver.resolve(_NAME)
  if path.suffix != ".gguf":
    pytest.skip("the hub's safetensors are in the cache: these tests read the GGUF file")
  return path


@pytest.mark.real_model
def test_real_logits_and_greedy_tokens_equal_transformers(real, real_file):
  theirs = tiny_gguf.read_with_transformers(real_file)
  messages = [{"role": "user", "content": "Name three primary colours, please."}]
  tokens = np.array([real.tokenizer.encode_chat(messages)])
  with torch.no_grad():
    wanted = theirs(torch.from_numpy(tokens)).logits.numpy()
  block = Block.chain(jnp.zeros((1,), jnp.int32), tokens.shape[1])
  cache = real.model.init_cache(1, tokens.shape[1])
  output = real.model.apply(real.params, jnp.asarray(tokens, jnp.int32), block, cache)
  logits = np.asarray(real.model.logits(real.params, output.hidden))
  np.testing.assert_allclose(logits, wanted, atol=1e-3)
  np.testing.assert_array_equal(logits.argmax(-1), wanted.argmax(-1))


@pytest.mark.real_model
def test_real_token_ids_and_chat_equal_transformers(real, real_file):
  theirs = transformers.AutoTokenizer.from_pretrained(real_file.parent, gguf_file=real_file.name)
  for text in tiny.SPLIT_TEXTS:
    ids = real.tokenizer.encode(text)
    assert ids == theirs.encode(text), text
    assert real.tokenizer.decode(ids) == theirs.decode(ids)
  messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
  messages.append({"role": "user", "content": "What is 12 * 12?"})
  wanted = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
  assert real.tokenizer.encode_chat(messages) == wanted
  assert real.eos_ids == (theirs.eos_token_id,) == (2,)


def test_a_shape_has_random_weights_that_are_always_the_same(tmp_path):
  config = config_to_huggingface(tiny_checkpoint.CONFIG)
  (tmp_path / "config.json").write_text(json.dumps(config))
  name = f"random:{tmp_path}"
  one, mesh = checkpoint.load(name), checkpoint.load(name, mesh="model:2")
  assert one.tokenizer is None and one.eos_ids == () and one.source == name
  assert checkpoint.read(name).model == one.model == mesh.model
  expected = one.model.init(jax.random.key(0))
  for found in (one.params, mesh.params):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(ours, theirs, atol=1e-6)
  kernel = mesh.params["layers"]["0"]["mlp"]["up"]["kernel"]
  assert kernel.sharding.shard_shape(kernel.shape)[1] == kernel.shape[1] // 2


def test_an_unknown_shape_is_refused():
  with pytest.raises(ValueError, match=r"'random:' must be one of llama-3.2-1b.* got 'gpt-5'"):
    checkpoint.load("random:gpt-5")
