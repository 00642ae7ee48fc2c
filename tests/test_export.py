# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Exported programs give the tokens of `generate`, and refuse what does not fit them."""

import hashlib
import json
import shutil

import jax
import numpy as np
import pytest

import specjax
from specjax import export
from specjax.drafters import DraftModel, PromptLookup
from specjax.models import Transformer, TransformerConfig
from specjax.sampling import SamplingPolicy

pytestmark = pytest.mark.usefixtures("fast_compilation")

MODEL = Transformer(
  TransformerConfig(
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    max_positions=200,
  ),
  dtype="float32",
)
PARAMS = MODEL.init(jax.random.key(0))
OTHERS = MODEL.init(jax.random.key(1))
DRAFTER = DraftModel(MODEL, draft_length=2)
SAMPLED = SamplingPolicy(temperature=0.7, top_p=0.9)
# Of a program with a draft model that has weights of its own.
SAMPLING = {
  "drafter": DRAFTER,
  "drafter_params": OTHERS,
  "policy": SAMPLED,
  "batch_size": 2,
  "prompt_tokens": 12,
  "max_new_tokens": 10,
}
PROMPTS = [[5, 6, 7], [1, 2, 3, 1, 2, 3, 1]]


@pytest.fixture(scope="module")
def greedy(tmp_path_factory):
  """Prompt lookup for all platforms."""
  folder = tmp_path_factory.mktemp("greedy") / "program"
  export.export_generate(
    folder,
    MODEL,
    PARAMS,
    drafter=PromptLookup(draft_length=3),
    batch_size=2,
    prompt_tokens=12,
    max_new_tokens=10,
    eos_ids=(39,),
    name="tiny",
  )
  return folder


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
  """A draft model with weights of its own, sampling."""
  folder = tmp_path_factory.mktemp("sampled") / "program"
  export.export_generate(
    folder,
    MODEL,
    PARAMS,
    **SAMPLING,
    platforms=("cpu",),
  )
  return folder


@pytest.fixture
def copied(greedy, tmp_path):
  """A copy that a test may damage."""
  return shutil.copytree(greedy, tmp_path / "copied")


def rewrite(folder, **changes):
  """Changes the manifest as its author would: with a checksum that fits."""
  path = folder / export.MANIFEST_FILE
  manifest = json.loads(path.read_text()) | changes
  manifest["sha256"] = export._checksum(manifest)
  path.write_text(json.dumps(manifest))


def assert_same(ours, theirs):
  assert ours.new_tokens() == theirs.new_tokens()
  assert ours.finish_reasons == theirs.finish_reasons
  for name in ("accepted_histogram", "target_calls", "drafted_tokens", "prompt_lengths"):
    np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
  np.testing.assert_allclose(ours.records.log_probs, theirs.records.log_probs, atol=1e-5)


def test_a_loaded_program_gives_the_tokens_and_statistics_of_generate(greedy):
  loaded = export.load_exported(greedy)
  options = {"drafter": PromptLookup(draft_length=3), "capacity": loaded.manifest["capacity"]}
  for prompts, new in ((PROMPTS, 10), ([[9], list(range(12))], [4, 10])):
    ours = loaded.generate(PARAMS, prompts, max_new_tokens=new, eos_ids=(39, 4))
    theirs = specjax.generate(
      MODEL, PARAMS, prompts, max_new_tokens=new, eos_ids=(39, 4), **options
    )
    assert_same(ours, theirs)
  assert sum(map(len, ours.new_tokens())) > 4


def test_a_sampled_program_draws_what_generate_draws_from_the_same_seed(sampled):
  loaded = export.load_exported(sampled)
  options = {"drafter": DRAFTER, "drafter_params": OTHERS, "max_new_tokens": 10}
  options["capacity"] = loaded.manifest["capacity"]
  drawn = []
  for key, policy in ((0, None), (7, None), (7, SamplingPolicy(temperature=[0.0, 1.5]))):
    ours = loaded.generate(PARAMS, PROMPTS, drafter_params=OTHERS, key=key, policy=policy)
    if policy is None:  # the program without top-p is another one: its numbers are compared below
      theirs = specjax.generate(MODEL, PARAMS, PROMPTS, policy=SAMPLED, key=key, **options)
      assert_same(ours, theirs)
    drawn.append(ours.new_tokens())
  assert drawn[0] != drawn[1]
  # A row at temperature 0 is greedy: the same under another seed.
  mixed = SamplingPolicy(temperature=[0.0, 1.5])
  again = loaded.generate(PARAMS, PROMPTS, drafter_params=OTHERS, key=3, policy=mixed)
  assert again.new_tokens()[0] == drawn[2][0] and again.new_tokens()[1] != drawn[2][1]


def test_one_program_holds_all_platforms_and_no_weights(greedy):
  manifest = export.read_manifest(greedy)
  assert manifest["platforms"] == ["tpu", "cuda", "cpu"]
  assert manifest["drafter"]["settings"]["class"] == "PromptLookup"
  assert manifest["verifier"]["settings"]["class"] == "RejectionSampling"
  assert (manifest["batch_size"], manifest["prompt_tokens"], manifest["capacity"]) == (2, 16, 128)
  assert manifest["dtype"] == "float32" and manifest["jax_version"] == jax.__version__
  program = (greedy / export.PROGRAM_FILE).read_bytes()
  for leaf in jax.tree.leaves(PARAMS):
    if leaf.size >= 64:  # a norm's ones may stand anywhere
      assert np.asarray(leaf).tobytes() not in program
  assert b"specjax/decoding.py" not in program  # nor the file names of this machine


def test_the_program_depends_on_nothing_but_its_arguments(greedy, tmp_path):
  again = tmp_path / "again"
  export.export_generate(
    again,
    MODEL,
    PARAMS,
    drafter=PromptLookup(draft_length=3),
    batch_size=2,
    prompt_tokens=12,
    max_new_tokens=10,
    eos_ids=(39,),
    name="tiny",
  )
  first, second = export.read_manifest(greedy), export.read_manifest(again)
  assert first["program"]["bytes"] == second["program"]["bytes"]
  assert first["arguments"] == second["arguments"]
  assert {path.name for path in again.iterdir()} == {export.PROGRAM_FILE, export.MANIFEST_FILE}
  export.export_generate(again, MODEL, PARAMS, max_new_tokens=4, platforms=("cpu",))  # replaced
  assert export.read_manifest(again)["max_new_tokens"] == 4


def test_other_weights_are_refused(greedy, sampled):
  loaded = export.load_exported(greedy)
  with pytest.raises(ValueError, match="params are not the weights of tiny"):
    loaded.check_weights(OTHERS)
  with pytest.raises(ValueError, match=r"params must have final_norm/scale .*, which is missing"):
    loaded.check_weights({name: leaf for name, leaf in PARAMS.items() if name != "final_norm"})
  with pytest.raises(ValueError, match=r"as float32\[40, 16\], got float16\[40, 16\]"):
    loaded.check_weights(jax.tree.map(lambda leaf: leaf.astype("float16"), PARAMS))
  with pytest.raises(ValueError, match="drafter_params has embed/embedding"):
    loaded.check_weights(PARAMS, OTHERS)
  loaded.check_weights(PARAMS)
  loaded = export.load_exported(sampled)
  with pytest.raises(ValueError, match="drafter_params are not the weights of the drafter"):
    loaded.check_weights(PARAMS, PARAMS)
  with pytest.raises(ValueError, match=r"drafter_params must have .*, which is missing"):
    loaded.check_weights(PARAMS)


@pytest.mark.parametrize("name", [export.PROGRAM_FILE, export.MANIFEST_FILE])
@pytest.mark.parametrize("damage", ["cut off", "flipped", "empty", "missing"])
def test_a_damaged_artefact_is_refused_in_one_line(copied, name, damage):
  path = copied / name
  data = bytearray(path.read_bytes())
  if damage == "flipped":
    # In the manifest: a digit of a checksum or a size, so that it stays JSON.
    place = data.index(b'"capacity": 128') + 14 if name == export.MANIFEST_FILE else len(data) // 2
    data[place] ^= 1
  path.write_bytes({"cut off": data[: len(data) // 2], "empty": b""}.get(damage, data))
  if damage == "missing":
    path.unlink()
  with pytest.raises(ValueError, match=r"is damaged|holds no exported program") as caught:
    export.load_exported(copied)
  assert "\n" not in str(caught.value) and str(copied) in str(caught.value)


def test_a_damaged_program_that_fits_its_checksum_is_refused(copied):
  data = b"\x08\x00\x00\x00" + b"not a program" * 20
  (copied / export.PROGRAM_FILE).write_bytes(data)
  stated = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
  rewrite(copied, program=stated)
  with pytest.raises(ValueError, match="is damaged") as caught:
    export.load_exported(copied)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"format_version": 2}, "has format version 2, this specjax reads 1"),
    ({"format": "other"}, "is not the manifest of an exported program"),
    ({"jax_version": "99.0.0"}, r"was made with JAX 99\.0\.0 .*, this is JAX"),
    ({"jax_version": "unknown"}, "was made with JAX unknown"),
    ({"calling_convention_version": 1}, r"calling convention 1\)"),
    ({"calling_convention_version": 999}, r"calling convention 999\)"),
    ({"platforms": ["tpu", "cuda"]}, "was lowered for tpu, cuda, and JAX runs on cpu here"),
  ],
)
def test_another_version_or_platform_is_refused(copied, changes, message):
  rewrite(copied, **changes)
  with pytest.raises(ValueError, match=message) as caught:
    export.load_exported(copied)
  assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"prompts": [[1]]}, "prompts must have the 2 rows .* got 1"),
    ({"prompts": [[1], [1] * 17]}, "prompts must have at most the 16 tokens .* got 17"),
    ({"prompts": [[1], [40]]}, "outside the vocabulary"),
    ({"max_new_tokens": 125}, r"capacity must be at least 136 .* got 128"),
    ({"eos_ids": range(5)}, "eos_ids must be at most 4 in this artefact, got 5"),
    ({"policy": SAMPLED}, "policy must be greedy in this artefact"),
    ({"policy": SamplingPolicy(repetition_penalty=2.0)}, "may have temperature .* got repetition"),
    ({"policy": SamplingPolicy(forbidden_tokens=[3])}, "may consist of .* got forbidden_tokens"),
    ({"row_keys": jax.random.split(jax.random.key(0), 3)}, r"typed keys \[2\], got shape \(3,\)"),
    ({"key": jax.random.key(0, impl="rbg")}, "of the kind threefry2x32 .* got rbg"),
  ],
)
def test_arguments_that_do_not_fit_the_program_are_refused(greedy, options, message):
  options = {"prompts": PROMPTS} | options
  with pytest.raises(ValueError, match=message):
    export.load_exported(greedy).generate(PARAMS, **options)


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"platforms": ("cpu", "metal")}, "platforms must be of .* got 'metal'"),
    ({"platforms": ("cpu", "cpu")}, "must not name 'cpu' twice"),
    ({"platforms": ()}, "must name at least one"),
    ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
    ({"prompt_tokens": 150, "max_new_tokens": 60}, "need 210 positions, the model takes 200"),
    ({"policy": SamplingPolicy(logit_bias={1: 1.0})}, "policy may consist of .* got logit_bias"),
  ],
)
def test_what_cannot_be_exported_is_refused_before_anything_is_written(tmp_path, options, message):
  with pytest.raises(ValueError, match=message):
    export.export_generate(tmp_path / "program", MODEL, PARAMS, **options)
  assert not list(tmp_path.iterdir())


def test_a_folder_with_anything_else_in_it_is_never_written_to(tmp_path):
  (tmp_path / "thesis.tex").write_text("all of it")
  with pytest.raises(ValueError, match="holds something else"):
    export.export_generate(tmp_path, MODEL, PARAMS)
  assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
  with pytest.raises(ValueError, match="is not a folder"):
    export.export_generate(tmp_path / "thesis.tex", MODEL, PARAMS)


def test_a_program_for_a_mesh_gives_the_tokens_of_one_device(tmp_path):
  folder = tmp_path / "program"
  manifest = export.export_generate(
    folder,
    MODEL,
    PARAMS,
    **SAMPLING,
    platforms=("cpu", "tpu"),
    mesh="data:2,model:4",
    drafter_rules="replicated",
  )
  assert manifest["mesh"] == "data:2,model:4"
  loaded = export.load_exported(folder)
  options = {"drafter_params": OTHERS, "key": 3}
  ours = loaded.generate(PARAMS, PROMPTS, **options)
  theirs = specjax.generate(
    MODEL, PARAMS, PROMPTS, drafter=DRAFTER, policy=SAMPLED, max_new_tokens=10, **options
  )
  assert ours.new_tokens() == theirs.new_tokens()
  # The program itself is cut: each device has its part of the vocabulary.
  head = loaded._shardings[
    [name for name, *_ in manifest["arguments"]["params"]].index("head/kernel")
  ]
  assert head.shard_shape((16, 40)) == (16, 10)


def test_a_program_for_more_devices_than_there_are_is_one_line(tmp_path, monkeypatch):
  folder = tmp_path / "program"
  small = {"batch_size": 2, "prompt_tokens": 12, "max_new_tokens": 4, "platforms": ("cpu",)}
  export.export_generate(folder, MODEL, PARAMS, mesh="data:2", **small)
  monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
  with pytest.raises(ValueError, match="needs 2 devices, there are 1"):
    export.load_exported(folder)
  with pytest.raises(ValueError, match="batch_size must be a multiple of 2"):
    monkeypatch.undo()
    export.export_generate(folder, MODEL, PARAMS, mesh="data:2", **{**small, "batch_size": 3})
