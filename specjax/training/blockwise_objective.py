# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of the heads of blockwise parallel decoding.

Stern, Shazeer, Uszkoreit (2018, arXiv 1811.03115), section 6: head i learns the token i places
ahead by cross-entropy, with the target frozen or trained along. On the target's own
greedy text (distilled data in the paper's words) that is what greedy verification will compare
with.
"""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from specjax.arguments import check_integer
from specjax.drafters.base import check_draft_length
from specjax.drafters.blockwise import (
  check_activation,
  feed_forward,
  gather_columns,
  head_logits,
  init_heads,
  one_output,
)
from specjax.models.vocabulary_subset import TokenSubset
from specjax.training import losses
from specjax.training.chunked_scores import score_in_chunks
from specjax.training.objective import Metrics, TrainedDrafter
from specjax.training.teacher import hidden_states
from specjax.training.token_data import TokenBatch
from specjax.types import Array, Model, Params, PyTree, pytree_dataclass

HEAD_LOSSES = ("random", "mean")


@dataclasses.dataclass(frozen=True)
class BlockwiseObjective:
  """Cross-entropy of heads 2 .. k, and of p_1 too where the target is trained along.

  What is trained is `{"heads": ...}` (see `specjax.drafters.blockwise.init_heads`), and with
  `fine_tune` also `"target"`, a copy of the target's parameters. At step 0 every head is the
  target, that is p_1.

  Attributes:
    model: the target.
    draft_length: k - 1, at least 1.
    head_width: H, the width of the heads' hidden layer. In the paper k times D; less is a low-rank
      layer that makes a small file.
    activation: of that layer.
    head_loss: "random" draws one head for the whole step, as the paper does to save memory; "mean"
      takes all heads, which costs their projections but not their memory: one head's logits
      exist at a time.
    fine_tune: train the target too. It becomes another target: `tuned_target` returns it.
    draft_vocabulary: the tokens that the heads can propose; None is all of them. A place whose
      token is not among them is not trained on and counts as a mismatch.
  """

  model: Model
  draft_length: int = 5
  head_width: int = 256
  activation: str = "silu"
  head_loss: str = "mean"
  fine_tune: bool = False
  draft_vocabulary: TokenSubset | None = None

  def __post_init__(self):
    check_draft_length(self.draft_length)
    check_activation(self.activation)
    check_integer("head_width", self.head_width, 1)
    if self.head_loss not in HEAD_LOSSES:
      raise ValueError(f"head_loss must be one of {', '.join(HEAD_LOSSES)}, got {self.head_loss!r}")

  @property
  def num_drafted(self) -> int:
    """K = k - 1: the heads."""
    return self.draft_length

  def init(self, key: Array, target_params: Params) -> Params:
    """Heads that all equal p_1, and a copy of the target where it is trained."""
    heads = init_heads(key, self.draft_length, self.model.hidden_size, self.head_width)
    if not self.fine_tune:
      return {"heads": heads}
    target = dict(target_params)
    if self._tied:
      # Stored twice, but one matrix: the head is made of the embedding in every step.
      del target["head"]
    # Copies: a training loop may donate what it trains, and the target must survive that.
    return {"heads": heads, "target": jax.tree.map(partial(jnp.array, copy=True), target)}

  def tuned_target(self, trainable: Params) -> Params:
    """The parameters of the trained target, for `specjax.models.save_orbax`.

    Raises:
      ValueError: without `fine_tune`.
    """
    if not self.fine_tune:
      raise ValueError("fine_tune is off: the target is what it was")
    target = dict(trainable["target"])
    if self._tied:
      target["head"] = {"kernel": target["embed"]["embedding"].T}
    return target

  def loss(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    """One head's loss or all heads', see `head_loss`. Only the heads of the loss are judged."""
    if self.head_loss == "mean":
      return self.metrics(trainable, target_params, batch, key)
    task = self._prepare(trainable, target_params, batch)
    first = 0 if self.fine_tune else 1
    drawn = jax.random.randint(key, (), first, self.draft_length + 1)
    one_head = jax.tree.map(lambda leaf: leaf[jnp.maximum(drawn - 1, 0)], task.heads)
    if self.fine_tune:
      scored = jax.lax.cond(drawn == 0, task.score_target, lambda: task.score_head(one_head))
    else:
      scored = task.score_head(one_head)
    loss, weight, matched = scored
    is_drawn = jnp.arange(1, self.draft_length + 1) == drawn
    return Metrics.of_matches(
      loss, weight, matched[:, None] & is_drawn, task.heads.valid.T & is_drawn
    )

  def metrics(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    """The mean loss of all heads and what all of them would draft, whatever `head_loss` is."""
    del key
    task = self._prepare(trainable, target_params, batch)
    loss, weight, matched = jax.lax.map(task.score_head, task.heads)
    loss, weight = jnp.sum(loss), jnp.sum(weight)
    if self.fine_tune:
      target_loss, target_weight, _ = task.score_target()
      loss, weight = loss + target_loss, weight + target_weight
    return Metrics.of_matches(loss, weight, matched.T, task.heads.valid.T)

  def export(self, trainable: Params, target_params: Params) -> TrainedDrafter:
    """The heads in bfloat16 and the ids of the draft vocabulary."""
    del target_params
    arrays = {
      f"{layer}/{name}": leaf.astype(jnp.bfloat16)
      for layer, leaves in trainable["heads"].items()
      for name, leaf in leaves.items()
    }
    if self.draft_vocabulary is not None:
      arrays["kept"] = jnp.asarray(self.draft_vocabulary.ids, jnp.int32)
    settings = {"draft_length": self.draft_length, "activation": self.activation}
    return TrainedDrafter(scheme="blockwise", settings=settings, arrays=arrays)

  @property
  def _tied(self) -> bool:
    return getattr(getattr(self.model, "config", None), "tie_embeddings", False)

  def _prepare(self, trainable: Params, target_params: Params, batch: TokenBatch) -> "_Task":
    """The target's hidden states and every head's labels."""
    model = self.model
    target = self.tuned_target(trainable) if self.fine_tune else target_params
    hidden = hidden_states(model, target, batch.tokens, batch.block())
    if not self.fine_tune:
      hidden = jax.lax.stop_gradient(hidden)
    next_tokens, is_answer = batch.ahead(1)
    ahead = [batch.ahead(2 + head) for head in range(self.draft_length)]
    labels = jnp.stack([tokens for tokens, _ in ahead])
    # The heads of a place are used once p_1's token is committed: it must be an answer's, too.
    valid = jnp.stack([valid & is_answer for _, valid in ahead])
    columns = None
    if self.draft_vocabulary is not None:
      columns = gather_columns(model, target, self.draft_vocabulary)
      labels = self.draft_vocabulary.index_of(labels, model.vocab_size)
    labels = jnp.where(valid, labels, -1)
    # Places with anything to predict come first: the output head is spared the others.
    order = jnp.argsort(~jnp.any(valid, axis=0).reshape(-1))

    def rank(values: Array) -> Array:
      """`[..., B, T]` to `[..., P]`, the P = B T places in that order."""
      return values.reshape(*values.shape[:-2], -1)[..., order]

    hidden = hidden.reshape(-1, model.hidden_size)[order]
    return _Task(
      heads=_Heads(output=trainable["heads"]["output"], labels=rank(labels), valid=rank(valid)),
      inner=feed_forward(trainable["heads"], hidden, self.activation),
      hidden=hidden,
      target_labels=rank(jnp.where(is_answer, next_tokens, -1)),
      score=partial(self._score, target, columns),
      score_whole=partial(self._score, target, None),
    )

  def _score(
    self, target: Params, columns: Array | None, hidden: Array, labels: Array
  ) -> tuple[Array, Array]:
    """Losses `[P]` of hidden states `[P, D]`, and whether the label is the best token, `[P]`."""
    judge = partial(_judge, self.model)
    if self.fine_tune:
      # Logits are made again for the gradient, not kept.
      return jax.checkpoint(judge)((target, columns), hidden, labels)
    return score_in_chunks(judge, (target, columns), hidden, labels)


@pytree_dataclass
class _Heads:
  """What tells one head from another, with a leading axis of k - 1 or, for one head, without.

  Attributes:
    output: the head's `kernel [H, D]` and `bias [D]`.
    labels: `[P]` int32, indices of the draft vocabulary, -1 where there is nothing to learn.
    valid: `[P]` bool, where there is a token to predict, of the draft vocabulary or not.
  """

  output: PyTree
  labels: Array
  valid: Array


@dataclasses.dataclass(frozen=True)
class _Task:
  """One batch of P places, ready to be scored head by head."""

  heads: _Heads
  inner: Array
  hidden: Array
  target_labels: Array
  score: partial
  score_whole: partial

  def score_head(self, head: _Heads) -> tuple[Array, Array, Array]:
    """The summed loss of one head, over how many places, and where it is right, `[P]` bool."""
    hidden = one_output(head.output, self.inner, self.hidden)
    values, matched = self.score(hidden, head.labels)
    return jnp.sum(values), jnp.sum(head.labels >= 0, dtype=jnp.float32), matched

  def score_target(self) -> tuple[Array, Array, Array]:
    """The same of p_1, over the whole vocabulary."""
    values, matched = self.score_whole(self.hidden, self.target_labels)
    return jnp.sum(values), jnp.sum(self.target_labels >= 0, dtype=jnp.float32), matched


def _judge(
  model: Model, frozen: tuple[Params, Array | None], hidden: Array, teacher: Array
) -> tuple[Array, Array]:
  """Cross-entropy of c places with the labels `teacher [c]`, and whether these are the best tokens.

  A label of -1 costs 0.
  """
  labels = teacher

  def score(hidden):
    logits = head_logits(model, frozen[0], hidden, frozen[1])
    return losses.cross_entropy(logits, labels), losses.is_best(logits, labels)

  def skip(hidden):
    del hidden
    return jnp.zeros(labels.shape, jnp.float32), jnp.zeros(labels.shape, bool)

  return jax.lax.cond(jnp.any(labels >= 0), score, skip, hidden)
