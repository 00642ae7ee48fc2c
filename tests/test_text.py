# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The text layer against slow references that decode everything at once."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny_checkpoint

import specjax
from specjax.drafters import PromptLookup
from specjax.models import checkpoint
from specjax.models.stream_decoder import StreamDecoder
from specjax.text import TextGenerator, check_stop

pytestmark = pytest.mark.usefixtures("fast_compilation")

NEW = 80
PERIOD = len(tiny_checkpoint.CYCLE.encode())


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  return checkpoint.load(tiny_checkpoint.write(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(scope="module")
def generator(target):
  return TextGenerator(target, drafter=PromptLookup(draft_length=8))


@pytest.fixture(scope="module")
def whole(generator):
  """The answer without any stop string."""
  (answer,) = generator.generate(["hello"], max_new_tokens=NEW)
  return answer


def reference_cut(tokenizer, ids, stop):
  """The kept text and how many tokens it takes, by growing the text a character at a time."""
  text = tokenizer.decode(ids, skip_special_tokens=True)
  for end in range(1, len(text) + 1):
    starts = [end - len(string) for string in stop if text[:end].endswith(string)]
    if starts:
      kept = text[: min(starts)]
      prefixes = (tokenizer.decode(ids[:k], skip_special_tokens=True) for k in range(len(ids) + 1))
      return kept, next(k for k, prefix in enumerate(prefixes) if prefix.startswith(kept))
  return text, len(ids)


# --- stop strings ------------------------------------------------------------------------------


@pytest.mark.parametrize(
  "stop",
  [
    ["gh"],
    ["z é"],
    ["éabc"],
    ["zz"],
    ["abcd"],
    ["cdefghijkl", "ef"],
    ["bc", "abcd"],
    ["mnop", "mno", "nop"],
    ["é"],
    ["opqrstuvwxyz éabcdefg"],
  ],
)
@pytest.mark.parametrize("rounds", [1, 3, 100])
def test_text_and_tokens_end_at_the_stop_string_that_is_complete_first(
  generator, whole, stop, rounds
):
  session = generator.open(["hello"], stop=stop, max_new_tokens=NEW)
  pieces = []
  while session.running:
    pieces += session.advance(rounds)
  (answer,) = session.answers()
  text, count = reference_cut(generator.tokenizer, whole.token_ids, stop)
  assert answer.text == text == "".join(pieces)
  assert answer.token_ids == whole.token_ids[:count]
  assert answer.finish_reason == ("length" if text == whole.text else "stop")


def test_a_stop_string_early_in_a_long_accepted_block_is_found(target):
  generator = TextGenerator(target, drafter=PromptLookup(draft_length=8), raw=True)
  prompt = tiny_checkpoint.CYCLE + "abc"
  (answer,) = generator.generate([prompt], max_new_tokens=18)
  assert answer.accepted_histogram[8] == answer.target_calls == 2
  session = generator.open([prompt], stop=["fg"], max_new_tokens=18)
  assert session.advance(1) == ["de"]
  assert not session.running
  (answer,) = session.answers()
  assert (answer.text, answer.token_ids) == ("de", list(b"de"))
  assert answer.accepted_histogram == [0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_a_stop_string_that_spans_two_blocks_is_found(target):
  generator = TextGenerator(target, drafter=PromptLookup(draft_length=8), raw=True)
  prompt = tiny_checkpoint.CYCLE + "abc"
  session = generator.open([prompt], stop=["klmn"], max_new_tokens=40)
  assert session.advance(1) == ["defghij"]  # the first block is "defghijkl"
  assert session.advance(1) == [""]
  (answer,) = session.answers()
  assert (answer.text, answer.token_ids) == ("defghij", list(b"defghij"))
  assert answer.accepted_histogram == [0, 0, 0, 0, 0, 0, 0, 1, 0]


def test_tokens_log_probs_and_statistics_are_cut_where_the_text_is(generator, whole):
  session = generator.open(["hello"], stop=["yz éabcdefghijk"], max_new_tokens=NEW)
  while session.running:
    session.advance(100)  # one slice: all the tokens are there before the stop string is seen
  (answer,) = session.answers()
  assert answer.text == "abcdefghijklmnopqrstuvwx"
  assert answer.new_tokens == len(answer.log_probs) == 24
  np.testing.assert_allclose(answer.log_probs, whole.log_probs[:24], rtol=1e-6)
  assert answer.target_calls == sum(answer.accepted_histogram)
  assert answer.target_calls + answer.accepted_tokens == answer.new_tokens
  assert answer.target_calls == 24  # nothing can be copied in the first round of the cycle
  assert answer.finish_reason == "stop"


def test_a_stop_string_at_the_very_beginning_leaves_nothing(generator):
  (answer,) = generator.generate(["hello"], stop=["ab"], max_new_tokens=NEW)
  assert (answer.text, answer.token_ids, answer.log_probs) == ("", [], [])
  assert answer.target_calls == 0 and answer.finish_reason == "stop"


def test_text_that_only_begins_a_stop_string_is_handed_out_in_the_end(generator, whole):
  pieces = [piece for (piece,) in generator.stream(["hello"], stop=["bcX"], max_new_tokens=3)]
  assert "".join(pieces) == whole.text[:3] == "abc"
  assert pieces[-1] == "bc"


def test_each_row_stops_for_itself(generator):
  prompts = ["hello", "hel", "hell"]
  session = generator.open(prompts, stop=["fgh"], max_new_tokens=[40, 4, 40])
  while session.running:
    session.advance(2)
  answers = session.answers()
  assert [a.finish_reason for a in answers] == ["stop", "length", "stop"]
  assert [a.text for a in answers] == ["abcde", "abcd", "abcde"]


# --- text as it comes --------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_pieces_never_hold_half_a_character_and_join_to_the_text(generator, whole, rounds):
  session = generator.open(["hello"], max_new_tokens=NEW)
  pieces = []
  while session.running:
    pieces += session.advance(rounds)
  assert "".join(pieces) == whole.text
  assert "é" in whole.text and not any("\ufffd" in piece for piece in pieces)


def test_a_character_that_the_budget_cuts_in_half_reads_as_a_replacement(generator, whole):
  half = len("abcdefghijklmnopqrstuvwxyz ") + 1
  (answer,) = generator.generate(["hello"], max_new_tokens=half)
  assert answer.text == generator.tokenizer.decode(whole.token_ids[:half])
  assert answer.text.endswith(" \ufffd")


def test_every_token_is_decoded_once_however_many_slices_there_are(generator, monkeypatch):
  pushed = []
  push = StreamDecoder.push
  monkeypatch.setattr(
    StreamDecoder, "push", lambda self, token: pushed.append(token) or push(self, token)
  )
  session = generator.open(["hello"], stop=["never"], max_new_tokens=NEW)
  while session.running:
    session.advance(1)
  assert len(pushed) == NEW


def test_the_end_of_sequence_token_is_counted_and_not_shown(target):
  ends = dataclasses.replace(target, eos_ids=(ord("f"), ord("y")))
  (answer,) = TextGenerator(ends).generate(["hello"], max_new_tokens=NEW)
  assert answer.finish_reason == "eos"
  assert answer.token_ids == list(b"abcdef")
  special = dataclasses.replace(target.tokenizer)
  special.__dict__["special_ids"] = frozenset({ord("f")})
  hidden = dataclasses.replace(ends, tokenizer=special)
  (answer,) = TextGenerator(hidden).generate(["hello"], max_new_tokens=NEW)
  assert answer.text == "abcde" and answer.new_tokens == 6


# --- prompts -----------------------------------------------------------------------------------


def test_a_text_is_one_user_message_in_the_template_unless_raw(target):
  tokenizer = target.tokenizer
  templated = TextGenerator(target).encode("hi")
  assert tokenizer.decode(templated) == (
    "<|im_start|>system\nHelp.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
  )
  assert TextGenerator(target, raw=True).encode("hi") == list(b"hi")
  plain = dataclasses.replace(target, tokenizer=dataclasses.replace(tokenizer, chat_template=None))
  assert TextGenerator(plain).encode("hi") == list(b"hi")


def test_a_conversation_feeds_the_answer_back(generator):
  messages = [{"role": "user", "content": "hi"}]
  (first,) = generator.generate([messages], max_new_tokens=5)
  messages += [
    {"role": "assistant", "content": first.text},
    {"role": "user", "content": "more"},
  ]
  text = generator.tokenizer.decode(generator.encode(messages))
  assert "<|im_start|>assistant\nabcde<|im_end|>\n<|im_start|>user\nmore<|im_end|>" in text
  (second,) = generator.generate([messages], max_new_tokens=5)
  assert second.prompt_tokens == len(generator.encode(messages))


def test_answers_equal_the_library_without_text(generator, target, whole):
  generation = specjax.generate(
    target.model,
    target.params,
    [generator.encode("hello")],
    drafter=generator.drafter,
    max_new_tokens=NEW,
  )
  assert generation.new_tokens() == [whole.token_ids]
  np.testing.assert_allclose(generation.new_log_probs()[0], whole.log_probs, rtol=1e-6)
  assert generation.accepted_histogram.tolist() == [whole.accepted_histogram]
  assert int(generation.draft_calls[0]) == whole.draft_calls
  assert int(generation.drafted_tokens[0]) == whole.drafted_tokens


def test_sampled_text_does_not_depend_on_the_slices(generator):
  options = {
    "policy": specjax.SamplingPolicy(temperature=1.0),
    "key": jax.random.key(3),
    "max_new_tokens": 40,
    "stop": ["jk"],
  }
  texts = set()
  for rounds in (1, 4, 50):
    session = generator.open(["hello", "b"], **options)
    while session.running:
      session.advance(rounds)
    texts.add(tuple(answer.text for answer in session.answers()))
  assert len(texts) == 1


# --- bad input ---------------------------------------------------------------------------------


def test_bad_input_is_named(generator, target):
  with pytest.raises(ValueError, match=r"stop must hold strings that are not empty, got ''"):
    check_stop([""])
  with pytest.raises(ValueError, match=r"stop must be a list of strings, got .*'abc'"):
    generator.open(["x"], stop="abc")
  with pytest.raises(ValueError, match=r"prompts must be a list of prompts, got .*'abc'"):
    generator.open("abc")
  with pytest.raises(ValueError, match=r"either prompts or prompt_ids"):
    generator.open()
  with pytest.raises(ValueError, match=r"rounds must be >= 1, got 0"):
    generator.open(["x"]).advance(0)
  with pytest.raises(ValueError, match=r"prompt must hold at least one token, got ''"):
    TextGenerator(target, raw=True).encode("")
  without = dataclasses.replace(target, tokenizer=None)
  with pytest.raises(ValueError, match=r"checkpoint must have a tokenizer"):
    TextGenerator(without).encode("x")
