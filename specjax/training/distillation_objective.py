# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Distils the target into a draft model that is made of some of its own layers.

Zhou et al. (2023, DistillSpec, arXiv 2310.08461), section 4: a draft model is trained to be like
the target by one of several losses, on text of the target or, on-policy, on text that the draft
model writes itself and the target scores. Here the draft model is the target's embedding, chosen
layers, the final norm and the target's output head, restricted to the tokens that are frequent
(Zhao et al. 2025, FR-Spec, arXiv 2502.14856). Layers and norm are trained, the rest stays the
target's.

What a step costs, in multiplications a token: three times the weights of the layers, two or three
times those of the restricted head, and, if the teacher is recomputed, once the target's. With the
labels or the stored top-k distributions the target does not run at all.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.arguments import check_integer
from specjax.drafters.base import check_draft_length
from specjax.models.prefill import prefill
from specjax.models.transformer import Transformer
from specjax.models.truncation import layer_indices, select_layers
from specjax.models.vocabulary_subset import TokenSubset, check_tokens, restrict_vocabulary
from specjax.models.weight_changes import (
  STORAGES,
  apply_changes,
  encode_changes,
  init_changes,
)
from specjax.training import losses
from specjax.training.chunked_scores import score_in_chunks
from specjax.training.objective import Metrics, TrainedDrafter
from specjax.training.teacher import hidden_states
from specjax.training.token_data import TokenBatch
from specjax.types import Array, Block, Params

CRITERIA = ("cross_entropy", "forward_kl", "reverse_kl", "jensen_shannon", "total_variation")
TEACHERS = ("labels", "top_k", "recompute")
DATA_SOURCES = ("teacher", "student", "mix")


@dataclasses.dataclass(frozen=True)
class DistillationObjective:
  """Trains a draft model of the target's layers. See the module; satisfies `Objective`.

  Attributes:
    model: the target.
    layers: its layers that the draft model consists of, in rising order.
    draft_vocabulary: the tokens that the draft model can say; None is all of them.
    rank: of the change of each weight matrix (LoRA); 0 changes whole matrices.
    storage: of the changes in the exported file, "bfloat16" or "int8".
    criterion: "cross_entropy", "forward_kl", "reverse_kl", "jensen_shannon" or "total_variation";
      see `specjax.training.losses`.
    beta: of the Jensen-Shannon divergence.
    teacher: where the target's distribution on its own text comes from. "labels": the text itself,
      for the cross-entropy, which takes no other. "top_k": the batch's stored likeliest tokens.
      "recompute": a forward pass of the target.
    data_source: whose text is trained on. "teacher": the batch's. "student": on-policy, what the
      draft model samples at temperature 1 after a prefix of the batch's text, one place a window;
      whatever `teacher` is, the target is run to score it. "mix": each step draws one of the two.
    student_fraction: "mix": the probability of a step on the student's text.
    student_prefix: how many tokens of the text the student continues, at most.
    student_tokens: how many tokens it samples.
    draft_length: K, the draft positions that the metrics tell apart, and the draft length of the
      exported drafter.
    head_fraction: the share of a batch's places for which logits are computed, at most. Only
      places before an answer's token need them; where the batch has more of these, the last ones
      are left out. The head is more work than a few layers, so this should be a little above the
      share of answer tokens in the data, and not 1 where that is small.
  """

  model: Transformer
  layers: tuple[int, ...]
  draft_vocabulary: TokenSubset | None = None
  rank: int = 0
  storage: str = "int8"
  criterion: str = "forward_kl"
  beta: float = 0.5
  teacher: str = "top_k"
  data_source: str = "teacher"
  student_fraction: float = 0.5
  student_prefix: int = 128
  student_tokens: int = 32
  draft_length: int = 5
  head_fraction: float = 1.0

  def __post_init__(self):
    object.__setattr__(self, "layers", layer_indices(self.model, self.layers))
    if self.draft_vocabulary is not None:
      check_tokens(self.draft_vocabulary, self.model)
    check_draft_length(self.draft_length)
    losses.check_beta(self.beta)
    for name, known in (
      ("storage", STORAGES),
      ("criterion", CRITERIA),
      ("teacher", TEACHERS),
      ("data_source", DATA_SOURCES),
    ):
      if getattr(self, name) not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
    for name, minimum in (("rank", 0), ("student_prefix", 2), ("student_tokens", 1)):
      check_integer(name, getattr(self, name), minimum)
    if (self.criterion == "cross_entropy") != (self.teacher == "labels"):
      raise ValueError(
        "criterion 'cross_entropy' and teacher 'labels' go together, got criterion "
        f"{self.criterion!r} and teacher {self.teacher!r}"
      )
    if self.data_source != "teacher" and self.teacher == "labels":
      raise ValueError(
        "data_source 'student' and 'mix' need the target's distribution on text without labels: "
        "teacher must be 'top_k' or 'recompute', got 'labels'"
      )
    for name in ("student_fraction", "head_fraction"):
      if not 0 < getattr(self, name) <= 1:
        raise ValueError(f"{name} must be in (0, 1], got {getattr(self, name)!r}")

  @property
  def num_drafted(self) -> int:
    """K: the draft length."""
    return self.draft_length

  def init(self, key: Array, target_params: Params) -> Params:
    """The changes of the layers and the final norm (`specjax.models.weight_changes`), all none."""
    _, params = self._untrained(target_params)
    return init_changes(key, _trained_part(params), self.rank)

  def loss(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    """The criterion on the text that `data_source` names. See `metrics` for what is judged."""
    choose_key, student_key = jax.random.split(key)

    def on_teacher_text():
      return self._on_teacher_text(trainable, target_params, batch)

    def on_student_text():
      return self._on_student_text(trainable, target_params, batch, student_key)

    if self.data_source == "teacher":
      return on_teacher_text()
    if self.data_source == "student":
      return on_student_text()
    drawn = jax.random.bernoulli(choose_key, self.student_fraction)
    return jax.lax.cond(drawn, on_student_text, on_teacher_text)

  def metrics(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    """The criterion on the batch's own text, whatever `data_source` is.

    A draft counts as the target's where it is the text's token, given the text before it. On
    greedy text of the target that is exactly what greedy verification accepts: an accepted draft
    is the text. The text of a student (`loss`) is judged by the target's best tokens instead.
    """
    del key
    return self._on_teacher_text(trainable, target_params, batch)

  def export(self, trainable: Params, target_params: Params) -> TrainedDrafter:
    """The changes, rounded to `storage`, and the ids of the draft vocabulary."""
    _, params = self._untrained(target_params)
    arrays = encode_changes(_trained_part(params), trainable, self.storage)
    if self.draft_vocabulary is not None:
      arrays["kept"] = self.draft_vocabulary.ids
    settings = {
      "layers": list(self.layers),
      "draft_length": self.draft_length,
      "rank": self.rank,
      "storage": self.storage,
    }
    return TrainedDrafter(scheme="draft_model", settings=settings, arrays=arrays)

  # --- the two kinds of text -----------------------------------------------------------------

  def _on_teacher_text(
    self, trainable: Params, target_params: Params, batch: TokenBatch
  ) -> Metrics:
    size = batch.tokens.size
    next_tokens, wanted = batch.ahead(1)
    count = min(math.ceil(self.head_fraction * size), size)
    (places,) = jnp.nonzero(wanted.reshape(-1), size=count, fill_value=size)
    model, params, head = self._student(trainable, target_params)
    hidden = hidden_states(model, params, batch.tokens, batch.block())
    teacher = {"labels": _at(next_tokens, places)}
    if self.teacher == "top_k":
      if batch.top_ids is None or batch.top_log_probs is None:
        raise ValueError(
          "teacher 'top_k' needs data that was made with the target's top-k distributions"
        )
      teacher["top_ids"] = _at(batch.top_ids, places)
      teacher["top_log_probs"] = _at(batch.top_log_probs, places)
    elif self.teacher == "recompute":
      target_hidden = hidden_states(self.model, target_params, batch.tokens, batch.block())
      teacher["hidden"] = _at(target_hidden, places)
    values, matched = score_in_chunks(
      self._judge, (head, target_params), _at(hidden, places), teacher
    )
    counted = places < size
    if self.teacher == "labels":
      counted &= self._index_of(teacher["labels"]) >= 0

    def spread(values):
      flat = jnp.zeros((size,), bool).at[places].set(values, mode="drop")
      return flat.reshape(batch.tokens.shape)

    hit, judged = spread(matched), spread(jnp.ones_like(matched))
    distances = range(self.draft_length)
    valid = [batch.ahead(1 + i)[1] & _shift(judged, i) & wanted for i in distances]
    return _metrics(values, counted, hit, valid)

  def _on_student_text(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    model, params, head = self._student(trainable, target_params)
    frozen = jax.lax.stop_gradient({**params, "head": head["head"]})
    text, length, usable = self._student_text(model, frozen, batch, key)
    rows, width = text.shape
    block = Block.chain(jnp.zeros((rows,), jnp.int32), width)
    # The places before the sampled tokens.
    places = jnp.arange(rows, dtype=jnp.int32)[:, None] * width + length[:, None] - 1
    places = (places + jnp.arange(self.student_tokens, dtype=jnp.int32)).reshape(-1)
    hidden = _at(hidden_states(model, params, text, block), places)
    teacher = {"hidden": _at(hidden_states(self.model, target_params, text, block), places)}
    values, matched = score_in_chunks(self._judge, (head, target_params), hidden, teacher)
    shape = (rows, self.student_tokens)
    counted = jnp.broadcast_to(usable[:, None], shape)
    valid = [_shift(counted, i) for i in range(self.draft_length)]
    return _metrics(values.reshape(shape), counted, matched.reshape(shape), valid)

  def _student_text(
    self, model: Transformer, params: Params, batch: TokenBatch, key: Array
  ) -> tuple[Array, Array, Array]:
    """What the student writes after a random place of each window.

    Args:
      model: the student.
      params: its parameters, with the head over the draft vocabulary.
      batch: the windows.
      key: a typed key.

    Returns:
      `[B, P + G]` int32 prefix and sampled tokens, right-padded; `[B]` int32 the prefix's length;
      `[B]` bool, whether the window has any answer to continue.
    """
    rows = batch.tokens.shape[0]
    place_key, sample_key = jax.random.split(key)
    _, wanted = batch.ahead(1)
    chance = jax.random.uniform(place_key, wanted.shape)
    last = jnp.argmax(jnp.where(wanted, chance, -1.0), axis=1).astype(jnp.int32)[:, None]
    segment = jnp.take_along_axis(batch.segments, last, axis=1)
    first = jnp.argmax(batch.segments == segment, axis=1).astype(jnp.int32)[:, None]
    length = jnp.minimum(last - first + 1, self.student_prefix)
    offset = jnp.arange(self.student_prefix, dtype=jnp.int32)[None, :]
    index = jnp.clip(last + 1 - length + offset, 0, batch.tokens.shape[1] - 1)
    prefix = jnp.take_along_axis(batch.tokens, index, axis=1)
    prefix = jnp.where(offset < length, prefix, 0)
    length = length[:, 0]
    cache = model.init_cache(rows, self.student_prefix + self.student_tokens)
    cache, _ = prefill(model, params, cache, prefix, length)

    def write(carry, step):
      cache, token = carry
      output = model.apply(params, token[:, None], Block.chain(length - 1 + step, 1), cache)
      logits = model.logits(params, output.hidden[:, 0])
      keys = jax.random.split(jax.random.fold_in(sample_key, step), rows)
      drawn = jax.vmap(sampling.draw)(keys, jax.nn.log_softmax(logits, axis=-1))
      token = self._token_at(drawn.astype(jnp.int32))
      return (output.cache, token), token

    newest = jnp.take_along_axis(prefix, length[:, None] - 1, axis=1)[:, 0]
    steps = jnp.arange(self.student_tokens, dtype=jnp.int32)
    _, sampled = jax.lax.scan(write, (cache, newest), steps)
    text = jnp.pad(prefix, ((0, 0), (0, self.student_tokens)))
    row = jnp.arange(rows, dtype=jnp.int32)[:, None]
    text = text.at[row, length[:, None] + steps[None, :]].set(sampled.T)
    return text, length, jnp.any(wanted, axis=1)

  # --- student and teacher -------------------------------------------------------------------

  def _untrained(self, target_params: Params) -> tuple[Transformer, Params]:
    """The draft model before training, its head the target's whole one."""
    return select_layers(self.model, target_params, self.layers)

  def _student(
    self, trainable: Params, target_params: Params
  ) -> tuple[Transformer, Params, Params]:
    """The draft model, its parameters, and the target's with the draft model's head."""
    model, untrained = self._untrained(target_params)
    params = apply_changes(untrained, trainable)
    if self.draft_vocabulary is None:
      return model, params, target_params
    _, restricted = restrict_vocabulary(self.model, target_params, self.draft_vocabulary)
    return model, params, restricted["model"]

  def _judge(
    self, frozen: tuple[Params, Params], hidden: Array, teacher: dict[str, Array]
  ) -> tuple[Array, Array]:
    """What places cost, `[n]` float32, and whether the student's best token is right, `[n]` bool.

    Args:
      frozen: the target's parameters, once with the student's head and once with its own.
      hidden: `[n, D]`, the student's.
      teacher: `labels [n]`, or else the target's best token is the right one; `top_ids [n, R]`
        and `top_log_probs [n, R]`, or the target's `hidden [n, D]`, or the labels alone.
    """
    head, target_params = frozen
    logits = self.model.logits(head, hidden)
    target_logits: Any = None
    labels: Any = None
    if "hidden" in teacher:
      target_logits = self.model.logits(target_params, teacher["hidden"])
    if "labels" in teacher:
      labels = self._index_of(teacher["labels"])
      matched = losses.is_best(logits, labels)
    else:
      own = self._token_at(jnp.argmax(logits, axis=-1).astype(jnp.int32))
      matched = losses.is_best(target_logits, own)
    if target_logits is not None:
      log_probs = jax.nn.log_softmax(target_logits, axis=-1)
      if self.draft_vocabulary is not None:
        log_probs = jnp.take(log_probs, self.draft_vocabulary.ids, axis=-1, mode="clip")
      return self._divergence(logits, log_probs), matched
    if "top_ids" in teacher:
      ids = self._index_of(teacher["top_ids"])
      events = losses.lump_others(logits, ids, teacher["top_log_probs"])
      return self._divergence(*events), matched
    return losses.cross_entropy(logits, labels), matched

  def _divergence(self, student_logits: Array, teacher_log_probs: Array) -> Array:
    if self.criterion == "jensen_shannon":
      return losses.jensen_shannon(student_logits, teacher_log_probs, beta=self.beta)
    return getattr(losses, self.criterion)(student_logits, teacher_log_probs)

  def _index_of(self, tokens: Array) -> Array:
    """Where tokens stand in the draft vocabulary; -1 for those that do not."""
    if self.draft_vocabulary is None:
      return tokens
    return self.draft_vocabulary.index_of(tokens, self.model.vocab_size)

  def _token_at(self, index: Array) -> Array:
    """The inverse of `_index_of`."""
    if self.draft_vocabulary is None:
      return index
    return jnp.asarray(self.draft_vocabulary.ids)[index]


def _trained_part(params: Params) -> Params:
  """What of the draft model is trained."""
  return {name: params[name] for name in ("layers", "final_norm")}


def _metrics(values: Array, counted: Array, hit: Array, valid: list[Array]) -> Metrics:
  """The metrics of a text, where the draft's token i is what was judged i places further on.

  Args:
    values: losses, of any shape.
    counted: bool of that shape, which of them count.
    hit: `[B, T]` bool, where the student's best token is right.
    valid: K arrays `[B, T]` bool, where the draft from a place on can be judged at position i.
  """
  return Metrics.of_matches(
    jnp.sum(jnp.where(counted, values, 0.0)),
    jnp.sum(counted, dtype=jnp.float32),
    jnp.stack([_shift(hit, i) for i in range(len(valid))], axis=-1),
    jnp.stack(valid, axis=-1),
  )


def _at(values: Array, places: Array) -> Array:
  """`values [B, T, ...]` at flat `places [n]`; anything where there is no such place."""
  flat = values.reshape(-1, *values.shape[2:])
  return jnp.take(flat, places, axis=0, mode="clip")


def _shift(values: Array, distance: int) -> Array:
  """`values [B, T]` bool of the place `distance` further on; False past the end."""
  return jnp.pad(values, ((0, 0), (0, distance)))[:, distance:]
