# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Prompts that the target writes itself, on a tiny checkpoint."""

import json

import pytest
import tiny_checkpoint

from experiments import generate_prompts
from specjax.models import checkpoint

pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))


def run(model, output, *arguments):
  flags = [f"--model={model}", f"--output={output}", "--batch_size=8", "--max_tokens=24"]
  # Hot enough for the end of a message, which the tiny target's greedy text never reaches.
  return generate_prompts.main(
    ["generate_prompts", *flags, "--temperature=3", "--top_p=1", *arguments]
  )


def read(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def done(model, tmp_path_factory):
  path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
  assert run(model, path, "--count=4") == 0
  return path


def test_the_prefix_is_the_template_up_to_the_users_words(model):
  target = checkpoint.load(model)
  prefix = generate_prompts.prompt_prefix(target)
  assert target.tokenizer.decode(prefix, skip_special_tokens=False) == (
    "<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\n"
  )
  whole = target.tokenizer.encode_chat([{"role": "user", "content": "hello"}])
  assert whole[: len(prefix)] == prefix


def test_prompts_are_whole_and_different(done):
  texts = [row["prompt"] for row in read(done)]
  assert len(texts) >= 4
  assert len(set(texts)) == len(texts)
  assert all(text and text == text.strip() and "<|im_end|>" not in text for text in texts)


def test_a_file_that_was_cut_off_grows_to_what_it_would_have_been(model, done, tmp_path):
  whole = read(done)
  path = tmp_path / "prompts.jsonl"
  lines = done.read_text().splitlines(keepends=True)
  path.write_text(lines[0] + lines[1][:10])
  assert run(model, path, "--count=4") == 0
  assert read(path) == whole


def test_enough_prompts_need_no_model(done, capsys):
  before = done.read_text()
  assert run("no-such-model", done, "--count=4") == 2
  assert "was not made with" in capsys.readouterr().err
  model = read(done)[0]["made_with"]["model"]
  assert run(model, done, "--count=2") == 0
  assert done.read_text() == before


def test_bad_input_is_one_line(model, tmp_path, capsys):
  assert generate_prompts.main(["generate_prompts"]) == 2
  assert capsys.readouterr().err.strip().endswith("--output must be given")
  plain = tiny_checkpoint.write(tmp_path / "plain", chat=False)
  assert run(plain, tmp_path / "x.jsonl") == 2
  error = capsys.readouterr().err
  assert "no chat template" in error and error.count("\n") == 1
  assert generate_prompts.main(["generate_prompts", "--help"]) == 0
