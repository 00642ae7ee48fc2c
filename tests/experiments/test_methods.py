# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import jax
import numpy as np
import pytest
import tiny_checkpoint
import tiny_drafters

from configs import base
from experiments.methods import BUILDERS, build_methods
from experiments.settings import METHODS, make_settings
from specjax import drafters, verifiers
from specjax.drafters import drafter_file, shipped
from specjax.models import checkpoint
from specjax.models.truncation import truncate
from specjax.types import Block

pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
  return checkpoint.load(tiny_checkpoint.write(tmp_path_factory.mktemp("target")))


@pytest.fixture(scope="module")
def files(target, tmp_path_factory):
  """A drafter file of each scheme for the target."""
  folder = tmp_path_factory.mktemp("drafters")
  return {
    scheme: str(tiny_drafters.write(folder / scheme, scheme, target.model, target.params))
    for scheme in tiny_drafters.SCHEMES
  }


@pytest.fixture(autouse=True)
def nothing_shipped(tmp_path, monkeypatch):
  """Tests do not depend on which drafters come with specjax. Returns the folder for them."""
  monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
  return tmp_path / "shipped"


def build(target, *methods, **changes):
  config = base.get_config()
  if not {"draft_layers", "draft_checkpoint"} & set(changes):
    config.draft_layers = 2
  flags = {"model": "m", "raw": False, "seed": 0, "batch_size": 1, "stop": (), **changes}
  return build_methods(make_settings(config, flags | {"methods": methods}), target)


def test_every_drafter_of_the_registry_can_be_built(target, files):
  assert set(BUILDERS) == set(METHODS) >= set(drafters.REGISTRY)
  for method in build(target, *BUILDERS, drafter=(files["blockwise"], files["pass"])):
    assert type(method.generator.drafter) is drafters.REGISTRY[METHODS[method.name]]
    assert method.lossless


def test_the_draft_length_reaches_every_method_that_drafts(target, files):
  given = (files["blockwise"], files["pass"])
  for method in build(target, *BUILDERS, draft_length=2, drafter=given):
    drafter = method.generator.drafter
    expected = 0 if method.name == "autoregressive" else 2
    assert drafter.num_nodes - drafter.certain_nodes == expected
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


# --- trained drafters --------------------------------------------------------------------------


def test_files_serve_the_methods_of_their_scheme(target, files):
  methods = ("blockwise", "pass", "pass_merged", "draft_model", "fallback", "prompt_lookup")
  built = build(target, *methods, drafter=tuple(files.values()), draft_layers=None)
  by_name = {method.name: method for method in built}
  assert by_name["blockwise"].generator.drafter.draft_length == tiny_drafters.LENGTH
  for name, merged in (("pass", False), ("pass_merged", True)):
    drafter = by_name[name].generator.drafter
    assert drafter.look_ahead == tiny_drafters.LENGTH and drafter.merged is merged
  assert by_name["draft_model"].generator.drafter.draft_length == tiny_drafters.LENGTH
  draft_params = by_name["draft_model"].generator.drafter_params
  assert by_name["fallback"].generator.drafter_params[1] is draft_params
  schemes = ("blockwise", "pass", "pass", "draft_model", "draft_model")
  for method, scheme in zip(built, schemes, strict=False):
    assert str(method.drafter_file) == files[scheme] and len(method.drafter_checksum) == 64
  assert by_name["prompt_lookup"].drafter_file is by_name["prompt_lookup"].drafter_checksum is None


def test_the_draft_temperature_reaches_a_trained_draft_model(target, files):
  (method,) = build(
    target, "draft_model", drafter=(files["draft_model"],), draft_layers=None, draft_temperature=0.5
  )
  assert method.generator.drafter.temperature == 0.5


def test_a_drafter_that_ships_is_found_by_the_weights_of_the_target(
  target, nothing_shipped, files, tmp_path
):
  place = nothing_shipped / "any name"
  for scheme in tiny_drafters.SCHEMES:
    tiny_drafters.write(place / f"{scheme}.safetensors", scheme, target.model, target.params)
  half = checkpoint.load(target.name, dtype="bfloat16")
  for method in build(half, "blockwise", "pass", "draft_model", draft_layers=None):
    assert method.drafter_file == place / f"{method.name}.safetensors"
  (method,) = build(target, "pass", drafter=(files["pass"],))
  assert str(method.drafter_file) == files["pass"]
  (method,) = build(target, "draft_model", draft_layers=1)
  assert method.drafter_file is None and method.generator.drafter.model.num_layers == 1
  other = checkpoint.load(tiny_checkpoint.write(tmp_path / "other", seed=1))
  with pytest.raises(
    ValueError, match=f"no trained pass drafter comes with specjax for {other.name}"
  ):
    build(other, "pass")


@pytest.mark.parametrize("method", ["blockwise", "pass", "pass_merged", "draft_model", "fallback"])
def test_without_a_trained_drafter_the_error_says_how_to_get_one(target, method):
  with pytest.raises(ValueError) as error:
    build(target, method, draft_layers=None)
  scheme = "draft_model" if method == "fallback" else METHODS[method]
  assert str(error.value).startswith(f"no trained {scheme} drafter comes with specjax for ")
  for part in (f"--config=configs/train_{scheme}.py", "--drafter=FILE"):
    assert part in str(error.value)
  assert ("draft_layers" in str(error.value)) == (scheme == "draft_model")


def test_files_that_no_method_uses_or_two_of_one_scheme_are_refused(target, files):
  with pytest.raises(ValueError, match=r"is of the scheme 'pass', which none of .* blockwise uses"):
    build(target, "blockwise", drafter=(files["blockwise"], files["pass"]))
  with pytest.raises(ValueError, match=r"must name one file of each scheme, .* both of 'pass'"):
    build(target, "pass", drafter=(files["pass"], files["pass"]))
  with pytest.raises(ValueError, match=r"each name a draft model; choose one"):
    build(target, "draft_model", drafter=(files["draft_model"],), draft_layers=2)
  with pytest.raises(ValueError, match=r"each name a draft model; choose one"):
    build(target, "draft_model", drafter=(files["draft_model"],), draft_checkpoint="x")


def test_more_tokens_than_a_drafter_was_trained_for_are_refused_with_the_file(target, files):
  for scheme in ("blockwise", "pass"):
    with pytest.raises(ValueError, match=rf"{files[scheme]}: .* must be at most 3, .* got 4"):
      build(target, scheme, drafter=(files[scheme],), draft_length=4)


def test_every_scheme_of_a_file_has_a_method():
  assert set(drafter_file.BUILDERS) <= set(METHODS.values())


def test_the_settings_of_a_verifier_reach_it(target):
  cases = [
    ({"verifier": "top_k_match"}, verifiers.TopKMatch()),
    (
      {"verifier": "top_k_match", "accept_top_k": 3, "min_block_size": 2},
      verifiers.TopKMatch(k=3, min_block_size=2),
    ),
    (
      {"verifier": "distance_match", "accept_distance": 0, "min_block_size": 1},
      verifiers.DistanceMatch(distance=0, min_block_size=1),
    ),
    (
      {"verifier": "distance_match", "first_number_token": 5, "last_number_token": 9},
      verifiers.DistanceMatch(first_token=5, last_token=9),
    ),
  ]
  for changes, expected in cases:
    plain, lookup = build(target, "autoregressive", "prompt_lookup", **changes)
    assert lookup.generator.verifier == expected
    assert lookup.lossless == expected.lossless and plain.lossless
