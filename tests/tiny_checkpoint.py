# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A whole checkpoint small enough for tests, with a byte-level tokenizer.

Its greedy text goes round in `CYCLE`, which has a character of two bytes: after the first round
a prompt-lookup drafter copies long blocks.
"""

import dataclasses
import json
import pathlib

import jax
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from specjax.models import Transformer, TransformerConfig, save_huggingface
from specjax.models.stream_decoder import byte_alphabet

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TEMPLATE = (
  "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
  "<|im_start|>system\nHelp.<|im_end|>\n{% endif %}"
  "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
  "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CYCLE = "abcdefghijklmnopqrstuvwxyz \u00e9"
CONFIG = TransformerConfig(
  vocab_size=256 + len(SPECIAL),
  hidden_size=64,
  intermediate_size=48,
  num_layers=3,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  max_positions=512,
)


def backend():
  """A tokenizer whose tokens are single bytes."""
  vocab = {token: byte for byte, token in byte_alphabet().items()}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(list(SPECIAL))
  return tokenizer


def _follow_the_cycle(params):
  """Makes each byte of the cycle the likeliest after the one before it, "\\n" included."""
  layers = params["layers"]
  # A residual stream that mostly holds the newest token.
  for layer in layers.values():
    layer["attention"]["output"]["kernel"] *= 0.2
    layer["mlp"]["down"]["kernel"] *= 0.2
  embedding = jax.random.normal(jax.random.key(1), params["embed"]["embedding"].shape)
  head = 0.02 * jax.random.normal(jax.random.key(2), params["head"]["kernel"].shape)
  cycle = list(CYCLE.encode())
  for token, following in [(ord("\n"), cycle[0]), *zip(cycle, cycle[1:] + cycle[:1], strict=True)]:
    head = head.at[:, following].add(0.15 * embedding[token])
  return {**params, "embed": {"embedding": embedding}, "head": {"kernel": head}}


def write(folder, *, seed=0, chat=True, **changes) -> pathlib.Path:
  """Writes the checkpoint as a Hugging Face folder; `changes` are to its configuration."""
  model = Transformer(dataclasses.replace(CONFIG, layer_types=(), **changes), dtype="float32")
  params = model.init(jax.random.key(seed))
  params = _follow_the_cycle(params)
  folder.mkdir(parents=True, exist_ok=True)
  save_huggingface(folder, model, params)
  (folder / "tokenizer.json").write_text(backend().to_str())
  fields = {"eos_token": "<|im_end|>"} | ({"chat_template": TEMPLATE} if chat else {})
  (folder / "tokenizer_config.json").write_text(json.dumps(fields))
  return folder
