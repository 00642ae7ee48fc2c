# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import importlib
import pathlib
import sys

import pytest

import configs
from configs import base
from experiments import flags
from experiments.settings import Settings, make_settings

FLAGS = {"model": "m", "raw": False, "seed": 0, "batch_size": 1, "stop": ()}
# Configs of the other commands have keys of their own.
NOT_OF_DECODE = ("train_", "generate_", "reproduce_", "spec_bench")
CONFIGS = sorted(
  path.stem
  for path in pathlib.Path(configs.__file__).parent.glob("*.py")
  if path.stem != "__init__" and not path.stem.startswith(NOT_OF_DECODE)
)


def make(**changes):
  return make_settings(base.get_config(), FLAGS | changes)


def test_a_flag_that_is_not_given_leaves_the_configs_value():
  config = base.get_config()
  config.temperature = 0.7
  config.top_k = 5
  settings = make_settings(config, FLAGS | {"temperature": None, "top_k": 9})
  assert settings.temperature == 0.7
  assert settings.top_k == 9


def test_a_flag_of_zero_is_given():
  config = base.get_config()
  config.temperature = 0.7
  assert make_settings(config, FLAGS | {"temperature": 0.0}).greedy


def test_the_policy_holds_every_number_of_the_settings():
  settings = make(temperature=0.5, top_k=3, top_p=0.8, min_p=0.05, repetition_penalty=1.2)
  policy = settings.policy()
  assert (policy.temperature, policy.top_k, policy.top_p) == (0.5, 3, 0.8)
  assert (policy.min_p, policy.repetition_penalty) == (0.05, 1.2)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config_is_made_of_known_keys(name):
  config = importlib.import_module(f"configs.{name}").get_config()
  assert set(config) == set(base.get_config())
  assert isinstance(make_settings(config, FLAGS), Settings)


def test_a_config_without_a_key_has_its_default():
  config = base.get_config()
  del config.min_p
  assert make_settings(config, FLAGS).min_p == 0


def test_an_unknown_key_is_refused():
  config = base.get_config()
  config.draft_lenght = 3
  with pytest.raises(ValueError, match=r"unknown config key 'draft_lenght'; the keys are .*wrap"):
    make_settings(config, FLAGS)


@pytest.mark.parametrize(
  ("name", "value"),
  [
    ("max_new_tokens", -1),
    ("max_new_tokens", 1.5),
    ("batch_size", 0),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", float("inf")),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("repetition_penalty", 0.0),
    ("draft_length", 0),
    ("max_ngram", 0),
    ("min_ngram", 0),
    ("occurrence", "last"),
    ("draft_layers", 0),
    ("drafter", ("a", "")),
    ("accept_top_k", 0),
    ("accept_distance", -1),
    ("min_block_size", 0),
    ("accept_top_k", 2),
    ("accept_distance", 2),
    ("min_block_size", 2),
    ("first_number_token", -1),
    ("first_number_token", 3),
    ("last_number_token", 0),
    ("draft_length", True),
    ("draft_temperature", -1.0),
    ("fallback_min_tokens", 0),
    ("seed", -1),
    ("seed", 2**32),
    ("dtype", "int8"),
    ("methods", ("autoregressive", "autoregressive")),
    ("methods", ("magic",)),
    ("methods", ()),
    ("verifier", "magic"),
    ("stop", ("a", "")),
  ],
)
def test_a_value_out_of_range_is_named(name, value):
  with pytest.raises(ValueError, match=rf"^{name}\b"):
    make(**{name: value})


def test_the_longest_n_gram_is_not_shorter_than_the_shortest():
  with pytest.raises(ValueError, match=r"min_ngram must be at most max_ngram, got 4 and 3"):
    make(min_ngram=4)


def test_a_setting_of_a_verifier_is_refused_by_the_others():
  with pytest.raises(
    ValueError,
    match=r"min_block_size is a setting of the verifier top_k_match or distance_match, got 2 with "
    "the verifier greedy_match",
  ):
    make(verifier="greedy_match", min_block_size=2)
  with pytest.raises(
    ValueError, match="last_number_token must be above first_number_token, got 7 and 7"
  ):
    make(verifier="distance_match", first_number_token=7, last_number_token=7)
  with pytest.raises(
    ValueError, match="accept_top_k is a setting of the verifier top_k_match, got"
  ):
    make(verifier="distance_match", accept_top_k=2)


# --- the command line --------------------------------------------------------------------------


def parse(*arguments):
  return flags.parse(["decode", *arguments])


def test_overrides_reach_the_config_and_flags_the_settings():
  options = parse(
    f"--config={pathlib.Path(configs.__file__).parent / 'speculative_sampling.py'}",
    "--config.draft_length=6",
    "--methods=autoregressive, fallback",
    "--prompt=one",
    "--prompt=two, three",
    "--stop=a,b",
    "--drafter=one,file",
    "--drafter=two",
    "--temperature=0",
  )
  assert options.config.draft_length == 6
  assert options.prompt == ("one", "two, three")
  settings = make_settings(options.config, options.settings)
  assert settings.methods == ("autoregressive", "fallback")
  assert settings.stop == ("a,b",)
  assert settings.drafter == ("one,file", "two")
  assert settings.greedy and settings.top_p == 0.8


def test_the_default_config_compares_autoregressive_decoding_with_prompt_lookup():
  options = parse()
  settings = make_settings(options.config, options.settings)
  assert settings.methods == ("autoregressive", "prompt_lookup")
  assert settings.model == "smollm2-135m-instruct"


def test_help_explains_every_flag_in_full_sentences():
  with pytest.raises(flags.HelpRequested) as request:
    parse("--help")
  text = str(request.value)
  for name in ("config", "methods", "prompt", "prompts", "max_new_tokens", "temperature", "top_k",
               "top_p", "min_p", "repetition_penalty", "seed", "batch_size", "stop", "raw",
               "output", "model", "dtype", "limit", "drafter",
               "compilation_cache_dir"):  # fmt: skip
    assert f"--{name}\n" in text or f"--[no]{name}\n" in text
  explanations = text.split("\n  --")[1:]
  for explanation in explanations:
    sentence = " ".join(explanation.split("\n", 1)[1].split()).split(" (default")[0]
    assert sentence[0].isupper() and sentence.endswith("."), sentence


def test_flags_are_defined_nowhere_by_importing():
  from absl import flags as absl_flags

  for name in ("config", "prompt", "methods"):
    assert name not in absl_flags.FLAGS


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config.nonsense=1"], "unknown config key: nonsense; the keys are"),
    (["--config.draft_length=six"], "--config.draft_length=six"),
    (["--config=nowhere.py"], "the config file cannot be loaded: .*nowhere.py"),
    (["--temperature=warm"], "--temperature=warm"),
    (["--tempreture=1"], "Unknown command line flag 'tempreture'"),
    (["hello"], "unexpected argument 'hello'"),
    (["--limit=0"], "limit must be an integer >= 1, got 0"),
    (["--prompt"], "prompt"),
  ],
)
def test_a_command_line_that_cannot_be_understood_is_one_line(arguments, message):
  with pytest.raises(ValueError, match=message) as error:
    parse(*arguments)
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("source", ["def get_config(:", "raise RuntimeError('no')", "import nope"])
def test_a_broken_config_file_is_one_line(tmp_path, source):
  path = tmp_path / "broken.py"
  path.write_text(source)
  with pytest.raises(ValueError, match="the config file cannot be") as error:
    parse(f"--config={path}")
  assert "\n" not in str(error.value)
  sys.modules.pop("broken", None)
