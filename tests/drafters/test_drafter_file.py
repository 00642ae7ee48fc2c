# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Trained drafters in files: they come back as they were, for their own target only."""

import dataclasses
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny_drafters
from safetensors.numpy import load_file, save_file

import specjax
from specjax.drafters import drafter_file, shipped
from specjax.drafters.drafter_file import load_drafter, read_drafter, read_header, save_drafter
from specjax.models import Transformer, TransformerConfig
from specjax.training.objective import TrainedDrafter

pytestmark = pytest.mark.usefixtures("fast_compilation")

MODEL = Transformer(
  TransformerConfig(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    max_positions=64,
  ),
  dtype="float32",
)
PARAMS = MODEL.init(jax.random.key(0))
OTHER_PARAMS = MODEL.init(jax.random.key(1))
RNG = np.random.default_rng(0)
ARRAYS = {
  "whole": RNG.normal(size=(3, 4)).astype(np.float32),
  "half": RNG.normal(size=(5,)).astype(jnp.bfloat16),
  "small/er": RNG.integers(-128, 128, (2, 3), np.int8),
  "ids": np.arange(4, dtype=np.int32),
}
FAKE = TrainedDrafter("fake", {"heads": 3, "names": ["a"], "rate": 0.5}, ARRAYS)


@pytest.fixture(autouse=True)
def _fake_scheme(monkeypatch):
  def from_trained(trained, model, params, *, draft_length=None):
    if draft_length == 0:
      raise ValueError("draft_length must be at least 1, got 0")
    return (trained.settings["heads"], draft_length), {"w": trained.arrays["whole"]}

  monkeypatch.setitem(drafter_file.BUILDERS, "fake", from_trained)


@pytest.fixture
def path(tmp_path):
  path = tmp_path / "folder" / "fake.safetensors"
  save_drafter(path, FAKE, MODEL, PARAMS, "Tiny-1")
  return path


def rewrite(path, **changes):
  """Changes fields of the header; a value of None removes the field."""
  with open(path, "rb") as file:
    length = int.from_bytes(file.read(8), "little")
    fields = json.loads(json.loads(file.read(length))["__metadata__"]["specjax_drafter"])
  fields = {name: value for name, value in (fields | changes).items() if value is not None}
  save_file(load_file(path), path, metadata={"specjax_drafter": json.dumps(fields)})


# --- there and back ------------------------------------------------------------------------


def test_arrays_settings_and_target_come_back_as_they_were(path):
  trained, header = read_drafter(path)
  assert trained.scheme == header.scheme == "fake"
  assert trained.settings == FAKE.settings
  assert header.target_name == "Tiny-1" and header.specjax_version == specjax.__version__
  assert read_header(path) == header
  assert set(trained.arrays) == set(ARRAYS)
  for name, array in ARRAYS.items():
    assert trained.arrays[name].dtype == array.dtype
    np.testing.assert_array_equal(trained.arrays[name], array)


def test_the_same_drafter_is_the_same_bytes(path, tmp_path):
  arrays = {name: jnp.asarray(array) for name, array in reversed(ARRAYS.items())}
  settings = dict(reversed(FAKE.settings.items()))
  again = tmp_path / "again"
  save_drafter(again, TrainedDrafter("fake", settings, arrays), MODEL, PARAMS, "Tiny-1")
  assert again.read_bytes() == path.read_bytes()


def test_a_file_can_be_read_by_whoever_can_read_other_new_files(path, tmp_path):
  (tmp_path / "plain").write_bytes(b"")
  assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_arrays_that_are_views_are_saved_as_they_look(tmp_path):
  whole = np.arange(12, dtype=np.float32).reshape(3, 4)
  trained = dataclasses.replace(FAKE, arrays={"turned": whole.T, "part": whole[:, ::2]})
  save_drafter(tmp_path / "views", trained, MODEL, PARAMS, "Tiny-1")
  arrays = read_drafter(tmp_path / "views")[0].arrays
  np.testing.assert_array_equal(arrays["turned"], whole.T)
  np.testing.assert_array_equal(arrays["part"], whole[:, ::2])


def test_a_drafter_is_built_for_its_target_in_any_dtype(path):
  drafter, params = load_drafter(path, MODEL, PARAMS)
  assert drafter == (3, None)
  np.testing.assert_array_equal(params["w"], ARRAYS["whole"])
  half = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), PARAMS)
  drafter, _ = load_drafter(
    path, dataclasses.replace(MODEL, dtype="bfloat16"), half, draft_length=2
  )
  assert drafter == (3, 2)


@pytest.mark.parametrize("scheme", sorted(drafter_file.BUILDERS))
def test_each_scheme_decodes_what_the_target_says_from_its_file(scheme, tmp_path):
  path = tmp_path / f"{scheme}.safetensors"
  save_drafter(path, tiny_drafters.trained(scheme, MODEL, PARAMS), MODEL, PARAMS, "Tiny-1")
  drafter, drafter_params = load_drafter(path, MODEL, PARAMS)
  assert type(drafter) is specjax.drafters.REGISTRY[scheme]
  plain = specjax.generate(MODEL, PARAMS, [[3, 1, 4]], max_new_tokens=12)
  ours = specjax.generate(
    MODEL, PARAMS, [[3, 1, 4]], max_new_tokens=12, drafter=drafter, drafter_params=drafter_params
  )
  assert ours.new_tokens() == plain.new_tokens()
  assert int(ours.drafted_tokens[0]) > 0


# --- refusals --------------------------------------------------------------------------------


def refused(path, *arguments, **options):
  with pytest.raises(ValueError) as error:
    load_drafter(path, *(arguments or (MODEL, PARAMS)), **options)
  text = str(error.value)
  assert "\n" not in text and str(path) in text
  return text


def test_another_target_is_refused_with_both_names(path):
  text = refused(path, MODEL, OTHER_PARAMS, target_name="Tiny-2")
  assert "was made for Tiny-1 (fingerprint " in text and "not for Tiny-2 (fingerprint " in text
  deeper = dataclasses.replace(MODEL.config, num_layers=3, layer_types=())
  model = Transformer(deeper, dtype="float32")
  assert "not for this target (" in refused(path, model, model.init(jax.random.key(0)))


def test_a_file_that_is_not_there_or_is_a_folder_is_refused(tmp_path):
  assert "there is no such drafter file" in refused(tmp_path / "nowhere")
  assert "is a folder; a trained drafter is one file" in refused(tmp_path)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.97])
def test_a_truncated_file_is_refused(path, share):
  data = path.read_bytes()
  path.write_bytes(data[: int(share * len(data))])
  assert "is truncated or damaged" in refused(path)


def test_an_empty_file_is_truncated(path):
  path.write_bytes(b"")
  assert "is truncated or damaged" in refused(path)


@pytest.mark.parametrize("data", [b"GGUF\x03\x00\x00\x00\x10\x00", b"hello, this is some text"])
def test_another_kind_of_file_is_refused(path, data):
  path.write_bytes(data)
  assert "is not a drafter file" in refused(path)


def test_weights_that_are_no_drafter_are_refused(path):
  save_file({"w": ARRAYS["whole"]}, path, metadata={"format": "pt"})
  assert "is not a drafter file: it is a safetensors file without" in refused(path)
  save_file({"w": ARRAYS["whole"]}, path)
  assert "is not a drafter file: it is a safetensors file without" in refused(path)


@pytest.mark.parametrize("version", [0, 2, "1"])
def test_another_version_is_refused_with_both(tmp_path, version):
  path = tmp_path / "file"
  trained = dataclasses.replace(FAKE, arrays={"whole": ARRAYS["whole"]})
  save_drafter(path, trained, MODEL, PARAMS, "Tiny-1")
  rewrite(path, version=version, specjax_version="9.9.9", a_new_field=1)
  expected = f"has the drafter format {version!r}, written by specjax 9.9.9; this specjax"
  assert expected in refused(path)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"scheme": "magic"}, "unknown scheme 'magic' of a trained drafter; the schemes are blockwise"),
    ({"scheme": None}, "has a damaged header"),
    ({"version": None}, "has a damaged header"),
    ({"target_fingerprint": "x"}, "has a damaged header: not a fingerprint"),
    ({"target_fingerprint": 3}, "has a damaged header"),
    ({"surprise": 3}, "has a damaged header"),
  ],
)
def test_a_damaged_header_is_refused(tmp_path, changes, message):
  path = tmp_path / "file"
  trained = dataclasses.replace(FAKE, arrays={"whole": ARRAYS["whole"]})
  save_drafter(path, trained, MODEL, PARAMS, "Tiny-1")
  rewrite(path, **changes)
  assert message in refused(path)


def test_a_header_that_is_no_json_is_refused(path):
  save_file({"w": ARRAYS["whole"]}, path, metadata={"specjax_drafter": "{"})
  assert "has a damaged header" in refused(path)


@pytest.mark.parametrize("scheme", sorted(drafter_file.BUILDERS))
def test_a_missing_array_and_one_of_another_shape_are_named(scheme, tmp_path):
  path = tmp_path / "file"
  trained = tiny_drafters.trained(scheme, MODEL, PARAMS)
  name = min(trained.arrays)
  fewer = {key: value for key, value in trained.arrays.items() if key != name}
  if scheme != "draft_model":  # an array of a draft model that did not change is not stored
    save_drafter(path, dataclasses.replace(trained, arrays=fewer), MODEL, PARAMS, "Tiny-1")
    assert repr(name) in refused(path)
  wrong = fewer | {name: np.ones((2, 3, 5), np.asarray(trained.arrays[name]).dtype)}
  save_drafter(path, dataclasses.replace(trained, arrays=wrong), MODEL, PARAMS, "Tiny-1")
  refused(path)


def test_an_option_that_does_not_fit_is_refused_with_the_file(path):
  assert refused(path, draft_length=0).endswith(": draft_length must be at least 1, got 0")


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
  path = tmp_path / "file"
  with pytest.raises(ValueError, match="unknown scheme 'magic'"):
    save_drafter(path, dataclasses.replace(FAKE, scheme="magic"), MODEL, PARAMS, "Tiny-1")
  for settings in ({"a": np.arange(2)}, {"a": float("nan")}):
    with pytest.raises(ValueError, match="settings of a trained drafter must be JSON values"):
      save_drafter(path, dataclasses.replace(FAKE, settings=settings), MODEL, PARAMS, "Tiny-1")
  assert os.listdir(tmp_path) == []


def test_a_write_that_fails_leaves_the_old_file(path, monkeypatch):
  before = path.read_bytes()

  def fail(*arguments, **options):
    raise OSError("disk full")

  monkeypatch.setattr("safetensors.numpy.save", fail)
  with pytest.raises(OSError, match="disk full"):
    save_drafter(path, FAKE, MODEL, OTHER_PARAMS, "Tiny-2")
  assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


# --- shipped -----------------------------------------------------------------------------------


def test_a_shipped_drafter_is_found_by_the_weights_of_the_target(tmp_path, monkeypatch):
  monkeypatch.setattr(shipped, "FOLDER", tmp_path)
  assert shipped.find_shipped("fake", MODEL, PARAMS) is None
  for name, params in (("a", OTHER_PARAMS), ("b", PARAMS)):
    save_drafter(tmp_path / name / "fake.safetensors", FAKE, MODEL, params, name)
  half = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), PARAMS)
  found = shipped.find_shipped("fake", MODEL, half)
  assert found == tmp_path / "b" / "fake.safetensors"
  assert shipped.find_shipped("fake", MODEL, OTHER_PARAMS) == tmp_path / "a" / "fake.safetensors"
  assert shipped.find_shipped("pass", MODEL, PARAMS) is None
  assert shipped.find_shipped("fake", MODEL, MODEL.init(jax.random.key(2))) is None


def test_shipped_files_are_small_and_of_the_scheme_that_they_are_named_after():
  paths = shipped.shipped_drafters()
  assert sum(path.stat().st_size for path in paths) < 10e6
  for path in paths:
    assert read_header(path).scheme == path.stem
