# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Our own checkpoints: whole, never overwritten by accident, the same on other devices."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import v1 as ocp

from specjax.models.config import RopeScaling, TransformerConfig
from specjax.models.orbax_checkpoint import is_orbax_checkpoint, load_orbax, save_orbax
from specjax.models.transformer import Transformer

_CONFIG = TransformerConfig(
  vocab_size=40,
  hidden_size=16,
  intermediate_size=24,
  num_layers=2,
  num_heads=4,
  num_kv_heads=2,
  head_dim=8,
  max_positions=64,
  rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 32),
  tie_embeddings=True,
  qk_norm=True,
  sliding_window=8,
  layer_types=("sliding", "full"),
  rms_norm_eps=1e-5,
)


@pytest.fixture
def trained():
  model = Transformer(_CONFIG, dtype=jnp.float32)
  return model, model.init(jax.random.key(0))


def _assert_same(ours, theirs):
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
  jax.tree.map(
    lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), ours, theirs
  )


def test_model_and_parameters_come_back_exactly(tmp_path, trained):
  model, params = trained
  save_orbax(tmp_path / "run", model, params)
  loaded, loaded_params = load_orbax(tmp_path / "run")
  assert loaded == model
  _assert_same(loaded_params, params)
  assert is_orbax_checkpoint(tmp_path / "run")
  assert not is_orbax_checkpoint(tmp_path)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_dtype_of_the_loaded_parameters_can_be_chosen(tmp_path, trained, dtype):
  model, params = trained
  save_orbax(tmp_path / "run", model, params)
  loaded, loaded_params = load_orbax(tmp_path / "run", dtype=dtype)
  assert loaded.dtype == dtype
  _assert_same(loaded_params, jax.tree.map(lambda leaf: leaf.astype(dtype), params))


def test_parameters_are_loaded_onto_the_shardings_asked_for(tmp_path, trained):
  model, params = trained
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
  everywhere = NamedSharding(mesh, PartitionSpec())
  spread = jax.device_put(params, everywhere)
  save_orbax(tmp_path / "run", model, spread)

  _, alone = load_orbax(tmp_path / "run")
  assert {leaf.sharding for leaf in jax.tree.leaves(alone)} == {
    jax.sharding.SingleDeviceSharding(jax.devices()[0])
  }
  _, both = load_orbax(tmp_path / "run", shardings=everywhere)
  assert {leaf.sharding for leaf in jax.tree.leaves(both)} == {everywhere}

  rows = NamedSharding(mesh, PartitionSpec("data"))
  chosen = jax.tree.map(lambda leaf: rows if leaf.ndim == 2 else everywhere, params)
  _, mixed = load_orbax(tmp_path / "run", shardings=chosen)
  assert jax.tree.map(lambda leaf: leaf.sharding, mixed) == chosen
  _assert_same(mixed, params)
  with pytest.raises(ValueError, match="shardings must be one sharding, or a tree"):
    load_orbax(tmp_path / "run", shardings={"embed": rows})


def test_existing_folder_is_never_overwritten_unasked(tmp_path, trained):
  model, params = trained
  folder = tmp_path / "run"
  save_orbax(folder, model, params)
  other = jax.tree.map(lambda leaf: leaf + 1, params)
  with pytest.raises(FileExistsError, match=str(folder)):
    save_orbax(folder, model, other)
  _assert_same(load_orbax(folder)[1], params)
  save_orbax(folder, model, other, overwrite=True)
  _assert_same(load_orbax(folder)[1], other)
  assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError("disk full")])
def test_interrupted_save_leaves_what_was_there(tmp_path, trained, monkeypatch, interruption):
  model, params = trained
  folder = tmp_path / "run"
  save_orbax(folder, model, params)
  real_save = ocp.save

  def stop_halfway(path, tree):
    real_save(path, {"embed": tree["embed"]})
    raise interruption

  monkeypatch.setattr(ocp, "save", stop_halfway)
  other = jax.tree.map(lambda leaf: leaf + 1, params)
  for name, overwrite in (("run", True), ("fresh", False)):
    with pytest.raises((KeyboardInterrupt, OSError)):
      save_orbax(tmp_path / name, model, other, overwrite=overwrite)
  assert [path.name for path in tmp_path.iterdir()] == ["run"]
  _assert_same(load_orbax(folder)[1], params)


def test_parameters_that_do_not_fit_are_refused_before_anything_is_written(tmp_path, trained):
  model, params = trained
  lacking = {key: value for key, value in params.items() if key != "final_norm"}
  with pytest.raises(ValueError, match="tensor 'final_norm/scale' is missing"):
    save_orbax(tmp_path / "run", model, lacking)
  reshaped = params | {"final_norm": {"scale": jnp.zeros((3,))}}
  with pytest.raises(ValueError, match=r"'final_norm/scale' has shape \(3,\), .* \(16,\)"):
    save_orbax(tmp_path / "run", model, reshaped)
  with pytest.raises(ValueError, match="no tensor 'extra'"):
    save_orbax(tmp_path / "run", model, params | {"extra": jnp.zeros(2)})
  assert list(tmp_path.iterdir()) == []


def _edit_config(folder, **changes):
  path = folder / "specjax_config.json"
  fields = json.loads(path.read_text())
  fields["config"] |= changes
  path.write_text(json.dumps(fields))


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    ({"num_layers": 3, "layer_types": []}, r"'layers/2/\S+' is missing"),
    ({"intermediate_size": 32}, r"'layers/0/mlp/\S+' has shape .*24.*, the model takes .*32"),
    ({"num_layers": 1, "layer_types": []}, r"the model has no tensor 'layers/1/"),
    ({"colour": "blue"}, r"specjax_config\.json: unknown keys of TransformerConfig: colour"),
  ],
)
def test_tensor_that_the_architecture_lacks_or_shapes_otherwise_is_named(
  tmp_path, trained, changes, message
):
  folder = tmp_path / "run"
  save_orbax(folder, *trained)
  _edit_config(folder, **changes)
  with pytest.raises(ValueError, match=message) as error:
    load_orbax(folder)
  assert str(folder) in str(error.value)


# Orbax closes its event loop under the reads that failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_broken_checkpoint_is_one_clear_error(tmp_path, trained):
  with pytest.raises(ValueError, match=r"specjax_config\.json: there is no such file"):
    load_orbax(tmp_path / "gone")
  folder = tmp_path / "run"
  save_orbax(folder, *trained)
  for data in (folder / "params").rglob("d/*"):
    data.write_bytes(data.read_bytes()[:-20])
  with pytest.raises(ValueError, match=r"params cannot be read|not a complete Orbax") as error:
    load_orbax(folder)
  assert str(folder) in str(error.value)
  for path in sorted((folder / "params").rglob("*"), reverse=True):
    path.unlink() if path.is_file() else path.rmdir()
  with pytest.raises(ValueError, match="not a complete Orbax checkpoint"):
    load_orbax(folder)
  (folder / "specjax_config.json").write_bytes(b"\xff\xff")
  with pytest.raises(ValueError, match=r"specjax_config\.json is not UTF-8"):
    load_orbax(folder)
