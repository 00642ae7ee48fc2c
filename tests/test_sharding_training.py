# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Training on eight devices: the loss and the parameters of one."""

import jax
import numpy as np
import pytest

from specjax.models import Transformer, TransformerConfig
from specjax.sharding import Partitioning
from specjax.training.blockwise_objective import BlockwiseObjective
from specjax.training.optimizer import OptimizerOptions
from specjax.training.token_data import TokenBatch
from specjax.training.train_loop import TrainOptions, first_state, make_update, train

pytestmark = pytest.mark.usefixtures("fast_compilation")

MESHES = ["data:8", "data:4,model:2", "data:2,model:4", "model:8"]
CONFIG = TransformerConfig(
  vocab_size=64,
  hidden_size=16,
  intermediate_size=32,
  num_layers=1,
  num_heads=8,
  num_kv_heads=8,
  head_dim=2,
  max_positions=64,
)
MODEL = Transformer(CONFIG, dtype="float32")
# The target is trained along: its whole backward pass runs on the mesh.
OBJECTIVE = BlockwiseObjective(MODEL, draft_length=1, head_width=8, fine_tune=True)
OPTIONS = TrainOptions(num_steps=2, optimizer=OptimizerOptions(learning_rate=0.01, warmup_steps=0))


@pytest.fixture(scope="module")
def params():
  return MODEL.init(jax.random.key(0))


class Texts:
  """Random text, rows of two segments."""

  def batch_at(self, step):
    rng = np.random.default_rng(step)
    segments = np.repeat([[1, 2]], 6, axis=1) * np.ones((8, 1), np.int32)
    return TokenBatch(
      tokens=rng.integers(0, 64, (8, 12)).astype(np.int32),
      segments=segments.astype(np.int32),
      positions=np.tile(np.arange(6, dtype=np.int32), (8, 2)),
      answer=rng.random((8, 12)) < 0.7,
    )

  def validation_batches(self):
    return []


def run_two_steps(params, partitioning=None):
  """Mean losses of two steps, and the parameters after them."""
  update = make_update(OBJECTIVE, OPTIONS, partitioning)
  state = first_state(OBJECTIVE, params, OPTIONS)
  if partitioning is not None:
    state, params = partitioning.shard(state), partitioning.shard(params)
  losses = []
  for step in range(2):
    batches = jax.tree.map(lambda leaf: leaf[None], Texts().batch_at(step))
    state, metrics = update(state, params, batches)
    losses.append(float(metrics.loss) / float(metrics.weight))
  return losses, state


@pytest.fixture(scope="module")
def one_device(params):
  losses, state = run_two_steps(params)
  return losses, jax.device_get(state.trainable)


@pytest.mark.parametrize("mesh", MESHES)
def test_the_loss_on_a_mesh_is_that_of_one_device(mesh, params, one_device):
  partitioning = Partitioning.of(mesh, None, OBJECTIVE)
  losses, state = run_two_steps(params, partitioning)
  # The second loss depends on the first step's gradient.
  np.testing.assert_allclose(losses, one_device[0], rtol=0, atol=1e-5)
  assert losses[0] != losses[1]
  for ours, theirs in zip(
    jax.tree.leaves(state.trainable), jax.tree.leaves(one_device[1]), strict=True
  ):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)
  # Parameters and moments leave the step as they entered it.
  for leaf, wanted in zip(
    jax.tree.leaves(state), jax.tree.leaves(partitioning.shardings(state)), strict=True
  ):
    assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim)


def test_a_run_on_a_mesh_resumes_on_another(tmp_path, params, one_device):
  mesh = "data:2,model:4"
  first = train(
    OBJECTIVE, params, Texts(), OPTIONS, tmp_path, should_stop=lambda: True, mesh="fsdp:4,model:2"
  )
  assert int(first.state.step) == 1
  second = train(OBJECTIVE, params, Texts(), OPTIONS, tmp_path, mesh=mesh)
  assert [row["step"] for row in second.rows if row["split"] == "train"] == [1, 2]
  losses = [row["loss"] for row in second.rows if row["split"] == "train"]
  np.testing.assert_allclose(losses, one_device[0], rtol=0, atol=1e-5)
  wanted = Partitioning.of(mesh, None, OBJECTIVE).shardings(second.state)
  for leaf, sharding in zip(jax.tree.leaves(second.state), jax.tree.leaves(wanted), strict=True):
    assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


@pytest.mark.parametrize(
  ("options", "words"),
  [({"mesh": "data:3"}, "batch_size must be a multiple of 3"), ({"rules": {}}, "no mesh")],
)
def test_a_batch_that_does_not_divide_is_refused(options, words, params):
  with pytest.raises(ValueError, match=words):
    train(OBJECTIVE, params, Texts(), OPTIONS, **options)
