# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import numpy as np
import pytest
import tiny_checkpoint

from configs import base
from experiments.methods import BUILDERS, build_methods
from experiments.settings import make_settings
from specjax import drafters
from specjax.models import checkpoint
from specjax.models.truncation import truncate
from specjax.types import Block


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  return checkpoint.load(tiny_checkpoint.write(tmp_path_factory.mktemp("target")))


def build(target, *methods, **changes):
  config = base.get_config()
  config.draft_layers = 2
  flags = {"model": "m", "raw": False, "seed": 0, "batch_size": 1, "stop": (), **changes}
  return build_methods(make_settings(config, flags | {"methods": methods}), target)


def test_every_drafter_of_the_registry_can_be_built(target):
  assert set(BUILDERS) == set(drafters.REGISTRY)
  for method in build(target, *BUILDERS):
    assert type(method.generator.drafter) is drafters.REGISTRY[method.name]
    assert method.lossless


def test_the_draft_length_reaches_every_method_that_drafts(target):
  for method in build(target, *BUILDERS, draft_length=3):
    expected = 0 if method.name == "autoregressive" else 3
    assert method.generator.drafter.num_nodes == expected
  (lookup,) = build(target, "prompt_lookup")
  assert lookup.generator.drafter.draft_length == drafters.PromptLookup.draft_length


def test_without_a_checkpoint_the_first_layers_of_the_target_draft(target):
  draft, fallback = build(target, "draft_model", "fallback")
  assert draft.generator.drafter.model.num_layers == 2
  first, second = fallback.generator.drafter_params
  assert first is None
  assert second["head"]["kernel"] is target.params["head"]["kernel"]


def test_more_layers_than_the_target_has_are_refused(target):
  with pytest.raises(ValueError, match=r"draft_layers must be at most 3, .* got 4"):
    build(target, "draft_model", draft_layers=4)


def test_a_draft_checkpoint_is_loaded_and_its_tokenizer_compared(target, tmp_path):
  good = tiny_checkpoint.write(tmp_path / "good", num_layers=1)
  (method,) = build(target, "draft_model", draft_checkpoint=str(good))
  assert method.generator.drafter.model.num_layers == 1
  assert not method.generator.drafter.pad_vocabulary
  other = tiny_checkpoint.write(tmp_path / "other", num_layers=1)
  path = other / "tokenizer.json"
  path.write_text(path.read_text().replace('"a":97', '"TEMP":97').replace('"b":98', '"a":98')
                  .replace('"TEMP":97', '"b":97'))  # fmt: skip
  with pytest.raises(ValueError, match=r"differs from the target's: id 97 is 'a'"):
    build(target, "draft_model", draft_checkpoint=str(other))


def test_a_draft_checkpoint_with_a_padded_vocabulary_serves(target, tmp_path):
  folder = tiny_checkpoint.write(tmp_path / "padded", num_layers=1, vocab_size=272)
  (method,) = build(target, "draft_model", draft_checkpoint=str(folder))
  assert method.generator.drafter.pad_vocabulary
  (answer,) = method.generator.generate(["hello"], max_new_tokens=20)
  (plain,) = build(target, "autoregressive")
  assert answer.token_ids == plain.generator.generate(["hello"], max_new_tokens=20)[0].token_ids


def test_a_truncated_model_is_the_model_run_on_its_first_layers(target):
  model, params = truncate(target.model, target.params, 2)
  tokens = np.arange(6, dtype=np.int32)[None]
  block = Block.chain(np.zeros(1, np.int32), 6)
  ours = model.apply(params, tokens, block, model.init_cache(1, 8)).hidden
  cache = target.model.init_cache(1, 8)
  theirs = target.model.apply(target.params, tokens, block, cache, layers=(0, 1)).hidden
  np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
  assert hash(model) == hash(dataclasses.replace(model))
  assert len(jax.tree.leaves(params)) < len(jax.tree.leaves(target.params))


@pytest.mark.parametrize("layers", [0, 4])
def test_truncation_names_a_wrong_number_of_layers(target, layers):
  with pytest.raises(ValueError, match=rf"num_layers must be in 1 \.\. 3, got {layers}"):
    truncate(target.model, target.params, layers)
