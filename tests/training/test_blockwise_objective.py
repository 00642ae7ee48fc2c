# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of blockwise heads on the greedy text of a tiny target."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.drafters import Blockwise, Empty
from specjax.models import Transformer, TransformerConfig
from specjax.models.orbax_checkpoint import load_orbax, save_orbax
from specjax.models.vocabulary_subset import TokenSubset
from specjax.training import train_loop
from specjax.training.blockwise_objective import BlockwiseObjective
from specjax.training.optimizer import OptimizerOptions
from specjax.training.token_data import TokenBatch
from specjax.training.train_loop import TrainOptions
from specjax.types import Block
from specjax.verifiers import GreedyMatch

pytestmark = pytest.mark.usefixtures("fast_compilation")

V, K, WIDTH = 15, 4, 48
CONFIG = TransformerConfig(
  vocab_size=V,
  hidden_size=16,
  intermediate_size=24,
  num_layers=1,
  num_heads=2,
  num_kv_heads=1,
  head_dim=8,
  max_positions=256,
)
TARGET = Transformer(CONFIG, dtype="float32")
PROMPT = 5
SUBSET = TokenSubset.of([t for t in range(V) if t % 5])


@functools.cache
def target_params():
  """A target whose text mostly goes round in a cycle of all tokens: a language to learn."""
  params = TARGET.init(jax.random.key(0))
  # A residual stream that mostly holds the newest token, and embeddings at right angles.
  for layer in params["layers"].values():
    layer["attention"]["output"]["kernel"] *= 0.3
    layer["mlp"]["down"]["kernel"] *= 0.3
  table = jnp.linalg.qr(jax.random.normal(jax.random.key(3), (CONFIG.hidden_size,) * 2))[0][:V]
  head = 0.3 * params["head"]["kernel"] + jnp.roll(table, 1, axis=0).T
  return {**params, "embed": {"embedding": table}, "head": {"kernel": head}}


@functools.cache
def greedy_rows(count=48, length=22, seed=0):
  """Prompts and the target's own greedy answers, `[count, length]`."""
  prompts = np.random.default_rng(seed).integers(0, V, (count, PROMPT))
  generation = specjax.generate(
    TARGET,
    target_params(),
    prompts,
    prompt_lengths=[PROMPT] * count,
    max_new_tokens=length - PROMPT,
    drafter=Empty(),
  )
  return np.asarray(generation.tokens)[:, :length]


def pack(rows, width=WIDTH):
  """Two rows a window and padding; the second row of every window is cut short."""
  windows = []
  for first, second in zip(rows[::2], rows[1::2], strict=True):
    second = second[:-3]
    rest = width - len(first) - len(second)
    windows.append(
      {
        "tokens": [*first, *second, *[0] * rest],
        "segments": [1] * len(first) + [2] * len(second) + [0] * rest,
        "positions": [*range(len(first)), *range(len(second)), *[0] * rest],
        "answer": [False] * PROMPT
        + [True] * (len(first) - PROMPT)
        + [False] * PROMPT
        + [True] * (len(second) - PROMPT)
        + [False] * rest,
      }
    )
  return TokenBatch(
    **{name: jnp.asarray(np.array([w[name] for w in windows])) for name in windows[0]}
  )


def objective(**changes):
  return BlockwiseObjective(TARGET, **{"draft_length": K - 1, "head_width": 12, **changes})


def disturbed(trainable, seed=1, scale=0.2):
  """Parameters that are nowhere zero."""
  leaves, tree = jax.tree.flatten(trainable)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  noise = [scale * jax.random.normal(key, x.shape) for key, x in zip(keys, leaves, strict=True)]
  return jax.tree.unflatten(tree, [x + n for x, n in zip(leaves, noise, strict=True)])


# --- the oracle -----------------------------------------------------------------------------


def rows_of(batch):
  """The rows that a batch was packed of, and which of their tokens are answers."""
  for window in range(batch.tokens.shape[0]):
    for segment in (1, 2):
      inside = np.asarray(batch.segments[window]) == segment
      yield np.asarray(batch.tokens[window])[inside], np.asarray(batch.answer[window])[inside]


@jax.jit
def logits_by_head(trainable, params, tokens):
  """Logits `[k, T, V]` of p_1 .. p_k along one row: no packing, no chunks."""
  heads = trainable["heads"]
  block = Block.chain(jnp.zeros((1,), jnp.int32), tokens.shape[0])
  cache = TARGET.init_cache(1, tokens.shape[0])
  hidden = TARGET.apply(params, tokens[None], block, cache).hidden[0]
  inner = jax.nn.silu(hidden @ heads["hidden"]["kernel"] + heads["hidden"]["bias"][None])
  states = [hidden]
  for i in range(K - 1):
    output = inner @ heads["output"]["kernel"][i] + heads["output"]["bias"][i][None]
    states.append(hidden + output)
  return jnp.stack([TARGET.logits(params, state) for state in states])


def expected(trainable, params, batch, kept=None):
  """For each of the k heads: summed loss, places in it, matches, places judged."""
  kept = np.arange(V) if kept is None else np.asarray(kept)
  loss, weight, matches, judged = (np.zeros(K) for _ in range(4))
  for tokens, answer in rows_of(batch):
    logits = np.asarray(logits_by_head(trainable, params, tokens), np.float64)
    for place in range(len(tokens)):
      for head in range(K):
        there = place + 1 + head
        if there >= len(tokens) or not answer[there] or not answer[place + 1]:
          continue
        # p_1 is the target: it has the whole vocabulary.
        known = np.arange(V) if head == 0 else kept
        scores, label = logits[head, place, known], tokens[there]
        judged[head] += 1
        if label in known:
          weight[head] += 1
          loss[head] += np.log(np.exp(scores).sum()) - logits[head, place, label]
          matches[head] += known[scores.argmax()] == label
  return loss, weight, matches, judged


@pytest.mark.parametrize("subset", [None, SUBSET], ids=["whole", "draft vocabulary"])
def test_the_mean_loss_and_the_matches_are_those_of_a_python_loop(subset):
  task, batch = objective(draft_vocabulary=subset), pack(greedy_rows()[:8])
  trainable = disturbed(task.init(jax.random.key(0), target_params()))
  metrics = jax.jit(task.loss)(trainable, target_params(), batch, jax.random.key(1))
  kept = None if subset is None else subset.ids
  loss, weight, matches, judged = expected(trainable, target_params(), batch, kept)
  np.testing.assert_allclose(metrics.loss, loss[1:].sum(), rtol=1e-5)
  assert metrics.weight == weight[1:].sum()
  np.testing.assert_array_equal(metrics.matches, matches[1:])
  np.testing.assert_array_equal(metrics.drafted, judged[1:])
  # The place before the last heads' tokens is the last that a whole block can be judged at.
  assert metrics.blocks == judged[-1]


@pytest.mark.parametrize("fine_tune", [False, True], ids=["frozen", "fine-tuned"])
def test_random_takes_the_loss_of_one_head_and_each_in_its_turn(fine_tune):
  task = objective(head_loss="random", fine_tune=fine_tune)
  batch = pack(greedy_rows()[:4])
  trainable = disturbed(task.init(jax.random.key(0), target_params()))
  params = task.tuned_target(trainable) if fine_tune else target_params()
  loss, weight, matches, _ = expected(trainable, params, batch)
  run, drawn = jax.jit(task.loss), set()
  for seed in range(24):
    metrics = run(trainable, target_params(), batch, jax.random.key(seed))
    head = int(np.argmin(np.abs(loss - float(metrics.loss))))
    drawn.add(head)
    np.testing.assert_allclose(metrics.loss, loss[head], rtol=1e-5)
    assert metrics.weight == weight[head]
    judged = np.zeros(K)
    judged[head] = matches[head]
    np.testing.assert_array_equal(metrics.matches, judged[1:])
    summary = metrics.summary()
    assert summary["block_length"] is None
    assert sum(value is not None for value in summary["agreement"]) == (head > 0)
  assert drawn == set(range(0 if fine_tune else 1, K))


def test_validation_judges_all_heads_whichever_loss_is_trained():
  batch, key = pack(greedy_rows()[:4]), jax.random.key(3)
  trainable = disturbed(objective().init(jax.random.key(0), target_params()))
  ours = jax.jit(objective(head_loss="random").metrics)(trainable, target_params(), batch, key)
  mean = jax.jit(objective().loss)(trainable, target_params(), batch, key)
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(mean), strict=True):
    np.testing.assert_array_equal(a, b)


def autodiff_loss(trainable, params, batch, subset):
  """The mean loss, differentiable and without any tricks."""
  total = 0.0
  for tokens, answer in rows_of(batch):
    logits = logits_by_head(trainable, params, tokens)
    for head in range(1, K):
      log_probs = logits[head]
      if subset is not None:
        outside = jnp.asarray(~np.isin(np.arange(V), subset.ids))
        log_probs = jnp.where(outside[None], -jnp.inf, log_probs)
      log_probs = jax.nn.log_softmax(log_probs)
      for place in range(len(tokens) - 1 - head):
        label = int(tokens[place + 1 + head])
        if answer[place + 1] and (subset is None or label in subset.ids):
          total -= log_probs[place, label]
  return total


@pytest.mark.parametrize("subset", [None, SUBSET], ids=["whole", "draft vocabulary"])
def test_the_gradient_that_is_taken_with_the_loss_is_that_of_autodiff(subset):
  batch = pack(greedy_rows()[:2])
  task = objective(draft_vocabulary=subset)
  trainable = disturbed(task.init(jax.random.key(0), target_params()))
  key = jax.random.key(0)
  ours = jax.jit(jax.grad(lambda x: task.loss(x, target_params(), batch, key).loss))(trainable)
  theirs = jax.grad(autodiff_loss)(trainable, target_params(), batch, subset)
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# --- training --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class OneBatch:
  """The same batch in every step and for validation."""

  batch: TokenBatch

  def batch_at(self, step):
    del step
    return self.batch

  def validation_batches(self):
    return [self.batch]


def train(task, batch, steps):
  """The trainable parameters at the end, the losses on the way and the validation."""
  options = TrainOptions(
    num_steps=steps, log_every=1, validate_every=steps, optimizer=OptimizerOptions(0.02)
  )
  result = train_loop.train(task, target_params(), OneBatch(batch), options)
  losses = [row["loss"] for row in result.rows if row["split"] == "train"]
  return result.trainable, losses, result.rows[-1]


def tokens_a_call(task, trainable):
  """Real decoding of prompts that no training saw, through the exported file."""
  params = target_params()
  drafter, drafter_params = Blockwise.from_trained(task.export(trainable, params), TARGET, params)
  generation = specjax.generate(
    TARGET,
    params,
    np.random.default_rng(99).integers(0, V, (16, PROMPT)),
    prompt_lengths=[PROMPT] * 16,
    drafter=drafter,
    drafter_params=drafter_params,
    verifier=GreedyMatch(),
    max_new_tokens=24,
  )
  return float(generation.num_new_tokens.sum() / generation.target_calls.sum())


def test_training_lowers_the_loss_and_raises_acceptance_in_decoding():
  task = objective(head_width=32, draft_vocabulary=TokenSubset.of(range(1, V)))
  batch = pack(greedy_rows())
  before = task.init(jax.random.key(0), target_params())
  after, seen, validation = train(task, batch, 100)
  assert np.mean(seen[-10:]) < 0.5 * np.mean(seen[:10])
  assert tokens_a_call(task, after) > 1.5 * tokens_a_call(task, before)
  assert min(validation["agreement"]) > 0.5
  assert 2 < validation["block_length"] <= K


def test_at_step_0_every_head_is_the_target():
  task = objective()
  trainable = task.init(jax.random.key(0), target_params())
  logits = logits_by_head(trainable, target_params(), greedy_rows()[0])
  for head in range(1, K):
    np.testing.assert_array_equal(logits[head], logits[0])


def test_the_same_key_gives_the_same_start():
  first, second, other = (
    objective().init(jax.random.key(seed), target_params()) for seed in (0, 0, 1)
  )
  same = jax.tree.map(lambda a, b: bool((a == b).all()), first, second)
  assert all(jax.tree.leaves(same))
  kernels = [x["heads"]["hidden"]["kernel"] for x in (first, other)]
  assert (kernels[0] != kernels[1]).any()


def test_a_file_holds_what_was_trained_and_not_what_the_target_has():
  task = objective(draft_vocabulary=SUBSET, activation="relu")
  trainable = disturbed(task.init(jax.random.key(0), target_params()))
  trained = task.export(trainable, target_params())
  assert trained.scheme == "blockwise"
  assert sum(np.size(a) for a in trained.arrays.values()) == SUBSET.size + sum(
    leaf.size for leaf in jax.tree.leaves(trainable)
  )
  drafter, params = Blockwise.from_trained(trained, TARGET, target_params())
  assert drafter == Blockwise(TARGET, K - 1, "relu")
  np.testing.assert_array_equal(params["kept"], SUBSET.ids)
  np.testing.assert_array_equal(params["head"], target_params()["head"]["kernel"][:, SUBSET.ids])
  rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), trainable["heads"])
  for a, b in zip(jax.tree.leaves(params["heads"]), jax.tree.leaves(rounded), strict=True):
    np.testing.assert_array_equal(a, b)


# --- the target trained along ------------------------------------------------------------------


def test_fine_tuning_by_one_head_a_step_lowers_every_heads_loss_and_moves_the_target():
  batch = pack(greedy_rows()[:8])
  task = objective(head_loss="random", fine_tune=True)
  trainable, _, validation = train(task, batch, 60)
  before = task.init(jax.random.key(0), target_params())
  means = []
  for state in (before, trainable):
    loss, weight, _, _ = expected(state, task.tuned_target(state), batch)
    means.append(loss / weight)
  assert (means[1] < means[0]).all()
  # All heads are judged in validation, whichever were trained.
  np.testing.assert_allclose(validation["loss"], means[1].mean(), rtol=0.1)
  assert min(validation["agreement"]) > 0


def test_the_mean_loss_of_fine_tuning_includes_p_1():
  task, batch = objective(fine_tune=True), pack(greedy_rows()[:4])
  trainable = disturbed(task.init(jax.random.key(0), target_params()), scale=0.05)
  metrics = jax.jit(task.loss)(trainable, target_params(), batch, jax.random.key(1))
  loss, weight, matches, _ = expected(trainable, task.tuned_target(trainable), batch)
  np.testing.assert_allclose(metrics.loss, loss.sum(), rtol=1e-5)
  assert metrics.weight == weight.sum()
  np.testing.assert_array_equal(metrics.matches, matches[1:])


def test_a_tuned_target_is_saved_as_another_target_with_its_tied_head_in_step(tmp_path):
  model = Transformer(dataclasses.replace(CONFIG, tie_embeddings=True), dtype="float32")
  params = model.init(jax.random.key(1))
  task = BlockwiseObjective(model, draft_length=2, head_width=4, fine_tune=True)
  trainable = task.init(jax.random.key(0), params)
  assert "head" not in trainable["target"]
  batch, key = pack(greedy_rows()[:2]), jax.random.key(0)
  gradient = jax.jit(jax.grad(lambda x: task.loss(x, params, batch, key).loss))(trainable)
  trainable = jax.tree.map(lambda x, g: x - 0.01 * g, trainable, gradient)
  tuned = task.tuned_target(trainable)
  table = tuned["embed"]["embedding"]
  assert (table != params["embed"]["embedding"]).any()
  np.testing.assert_array_equal(tuned["head"]["kernel"], table.T)
  save_orbax(tmp_path / "tuned", model, tuned)
  _, loaded = load_orbax(tmp_path / "tuned")
  np.testing.assert_array_equal(loaded["embed"]["embedding"], table)


def test_the_copy_that_is_trained_shares_no_buffer_with_the_target():
  trainable = objective(fine_tune=True).init(jax.random.key(0), target_params())
  ours = {x.unsafe_buffer_pointer() for x in jax.tree.leaves(trainable["target"])}
  assert not ours & {x.unsafe_buffer_pointer() for x in jax.tree.leaves(target_params())}


# --- what it refuses ---------------------------------------------------------------------------


@pytest.mark.parametrize(
  ("changes", "name"),
  [
    ({"draft_length": 0}, "draft_length"),
    ({"head_width": 0}, "head_width"),
    ({"activation": "sine"}, "activation"),
    ({"head_loss": "sum"}, "head_loss"),
  ],
)
def test_an_argument_out_of_range_is_named(changes, name):
  with pytest.raises(ValueError, match=f"^{name} must be"):
    objective(**changes)


def test_without_fine_tuning_there_is_no_tuned_target():
  with pytest.raises(ValueError, match="fine_tune"):
    objective().tuned_target({})
