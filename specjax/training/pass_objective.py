# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of the look-ahead embeddings of PaSS, with everything else frozen.

Monea, Joulin, Grave (2023, arXiv 2311.13581): L input embeddings are learned by cross-entropy of
the tokens that they predict. Where they are inserted is our choice: at random places of the
answers, as they may be inserted anywhere when decoding. See `specjax.drafters.pass_look_ahead` for
which embedding predicts what.
"""

import dataclasses

import jax
import jax.numpy as jnp

from specjax.arguments import check_integer
from specjax.drafters.pass_look_ahead import SCHEME
from specjax.training import losses
from specjax.training.chunked_scores import score_in_chunks
from specjax.training.objective import Metrics, TrainedDrafter
from specjax.training.token_data import TokenBatch
from specjax.types import Array, Block, Model, Params, pytree_dataclass


@pytree_dataclass
class Groups:
  """Where look-ahead embeddings are inserted into B windows: G groups of K a window.

  K is L, or the number of those that are trained.

  Attributes:
    place: `[B, G]` int32, the window's index of the token that a group is inserted after.
    labels: `[B, G, K]` int32, the tokens to predict: embedding i from 1 has the one at
      `place + i + 1`.
    valid: `[B, G, K]` bool, whether there is such a token in the answer.
    top_ids: `[B, G, K, R]` int32, the likeliest tokens there under the target, or None.
    top_log_probs: `[B, G, K, R]` float32, their log-probabilities.
  """

  place: Array
  labels: Array
  valid: Array
  top_ids: Array | None = None
  top_log_probs: Array | None = None


@dataclasses.dataclass(frozen=True)
class PaSSObjective:
  """Trains `{"look_ahead": [L, D]}` float32, L x D numbers and nothing else.

  A window is read once, without gradients. Then all groups of look-ahead embeddings are read in one
  block over the cache that this left: each sees its own row up to the token that it was inserted
  after, and the embeddings before it in its own group. Only those columns have a backward pass
  and logits.

  Attributes:
    model: the target.
    look_ahead: L.
    trained: only the first so many are inserted and trained; the others stay as they start (of an
      `init_file`, say; the optimizer must then have no weight decay). The first embeddings do not
      see the later ones, and one that the draft hardly ever reaches costs as much as the first.
      None trains all L.
    spacing: one group for so many tokens of a window. More groups make more of a window that is
      read; fewer vary more from window to window for the same work.
    position_weights: a factor on the loss of each trained embedding; None weighs all alike.
    soft: learn the target's likeliest tokens and their probabilities (the forward divergence over
      `TokenBatch.top_ids` and "any other token") instead of the text's tokens.
    init_token: the token whose embedding they start from, a mask token for one; None: the mean
      of all embeddings.
    init_noise: the standard deviation of the noise around it, in units of that of the vocabulary's
      embeddings, so that no two start alike.
    init_file: a PaSS drafter file of this target with at least L embeddings, which training goes on
      from in place of all that; None starts anew.
  """

  model: Model
  look_ahead: int = 4
  trained: int | None = None
  spacing: int = 4
  position_weights: tuple[float, ...] | None = None
  soft: bool = False
  init_token: int | None = None
  init_noise: float = 0.1
  init_file: str | None = None

  def __post_init__(self):
    for name in ("look_ahead", "spacing"):
      check_integer(name, getattr(self, name), 1)
    if self.trained is not None:
      check_integer("trained", self.trained, 1)
      if self.trained > self.look_ahead:
        raise ValueError(
          f"trained must be at most look_ahead, which is {self.look_ahead}, got {self.trained!r}"
        )
    weights = self.position_weights
    if weights is not None and (len(weights) != self.num_drafted or min(weights) < 0):
      raise ValueError(
        f"position_weights must be {self.num_drafted} numbers >= 0, one for each look-ahead "
        f"embedding that is trained, got {weights!r}"
      )
    token = self.init_token
    if token is not None and not 0 <= token < self.model.vocab_size:
      raise ValueError(
        f"init_token must be within 0 .. {self.model.vocab_size - 1} or None, got {token!r}"
      )
    if not self.init_noise >= 0:
      raise ValueError(f"init_noise must be >= 0, got {self.init_noise!r}")

  @property
  def num_drafted(self) -> int:
    """K, of those trained: the token before them, which the target gives itself, is none."""
    return self.look_ahead if self.trained is None else self.trained

  def init(self, key: Array, target_params: Params) -> Params:
    """Look-ahead embeddings near one token's, near the mean of all tokens', or those of a file.

    Raises:
      ValueError: for a file that is no PaSS drafter of this target, or has too few embeddings.
    """
    if self.init_file is not None:
      # Imported here: drafter files know the schemes, and the schemes their training.
      from specjax.drafters.drafter_file import load_drafter, read_header

      scheme = read_header(self.init_file).scheme
      if scheme != SCHEME:
        raise ValueError(f"init_file must be a PaSS drafter, {self.init_file} is of {scheme!r}")
      _, start = load_drafter(self.init_file, self.model, target_params, look_ahead=self.look_ahead)
      return {"look_ahead": jnp.asarray(start["look_ahead"][: self.look_ahead], jnp.float32)}
    ids = jnp.arange(self.model.vocab_size, dtype=jnp.int32)[None]
    table = self.model.embed(target_params, ids)[0].astype(jnp.float32)
    center = jnp.mean(table, axis=0) if self.init_token is None else table[self.init_token]
    scale = self.init_noise * jnp.std(table, axis=0)
    noise = jax.random.normal(key, (self.look_ahead, table.shape[1]), jnp.float32)
    return {"look_ahead": center + scale * noise}

  def loss(
    self, trainable: Params, target_params: Params, batch: TokenBatch, key: Array
  ) -> Metrics:
    """See `specjax.training.objective.Objective.loss`; `key` draws where groups are inserted.

    Raises:
      ValueError: with `soft`, for a batch that lacks the target's likeliest tokens.
    """
    groups = self.insert(batch, key)
    hidden = self.read_ahead(trainable, target_params, batch, groups)
    teacher = (groups.labels, groups.top_ids, groups.top_log_probs)
    teacher = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), teacher)
    hidden = hidden.reshape(-1, hidden.shape[-1])
    scored = score_in_chunks(self._judge, target_params, hidden, teacher)
    values, matched = (leaf.reshape(groups.labels.shape) for leaf in scored)
    weights = jnp.asarray(self.position_weights or (1.0,) * self.num_drafted, jnp.float32)
    weights = jnp.where(groups.valid, weights, 0.0)
    return Metrics.of_matches(jnp.sum(weights * values), jnp.sum(weights), matched, groups.valid)

  def export(self, trainable: Params, target_params: Params) -> TrainedDrafter:
    """The embeddings as they are: a few kilobytes."""
    del target_params
    embeddings = trainable["look_ahead"].astype(jnp.float32)
    return TrainedDrafter(
      scheme=SCHEME, settings={"look_ahead": self.look_ahead}, arrays={"look_ahead": embeddings}
    )

  def insert(self, batch: TokenBatch, key: Array) -> Groups:
    """Draws the places of the groups, without replacement.

    Drafting begins at the last token of a prompt, whose successor the target gives itself: places
    are those where at least the first two tokens ahead belong to the answer.
    """
    num_tokens = batch.tokens.shape[1]
    num_groups = max(num_tokens // self.spacing, 1)
    _, certain = batch.ahead(1)
    ahead = [batch.ahead(1 + index) for index in range(1, self.num_drafted + 1)]
    order = jax.random.uniform(key, batch.tokens.shape)
    # Where a window has too few places, what is left over is not valid and counts for nothing.
    order = jnp.where(certain & ahead[0][1], order, -1.0)
    _, place = jax.lax.top_k(order, num_groups)

    def at_places(values):
      return jnp.take_along_axis(values, place, axis=1)

    groups = Groups(
      place=place,
      labels=jnp.stack([at_places(tokens) for tokens, _ in ahead], axis=-1),
      valid=jnp.stack([at_places(certain & valid) for _, valid in ahead], axis=-1),
    )
    if not self.soft:
      return groups
    if batch.top_ids is None or batch.top_log_probs is None:
      raise ValueError(
        "soft needs the target's likeliest tokens (top_ids), which this data was made without"
      )
    # What the target says of a token stands one place before it.
    before = place[:, :, None] + 1 + jnp.arange(self.num_drafted, dtype=jnp.int32)
    rows = jnp.arange(place.shape[0], dtype=jnp.int32)[:, None, None]
    before = jnp.minimum(before, num_tokens - 1)
    return dataclasses.replace(
      groups,
      top_ids=batch.top_ids[rows, before],
      top_log_probs=batch.top_log_probs[rows, before],
    )

  def read_ahead(
    self, trainable: Params, target_params: Params, batch: TokenBatch, groups: Groups
  ) -> Array:
    """The last hidden states `[B, G * K, D]` of all look-ahead embeddings, group after group."""
    model = self.model
    rows, num_tokens = batch.tokens.shape
    num_groups = groups.place.shape[1]
    capacity = num_tokens + num_groups * self.num_drafted
    cache = model.init_cache(rows, capacity)
    cache = model.apply(target_params, batch.tokens, batch.block(), cache).cache
    inputs = jnp.tile(trainable["look_ahead"][: self.num_drafted], (num_groups, 1))
    inputs = jnp.broadcast_to(inputs, (rows, *inputs.shape))
    block = self._block(batch, groups, capacity)
    return model.apply(target_params, inputs, block, jax.lax.stop_gradient(cache)).hidden

  def _block(self, batch: TokenBatch, groups: Groups, capacity: int) -> Block:
    """All groups as one block over a cache in which the window is written."""
    rows, num_tokens = batch.tokens.shape
    num_groups, length = groups.place.shape[1], self.num_drafted
    place = jnp.repeat(groups.place, length, axis=1)
    step = jnp.tile(jnp.arange(1, length + 1, dtype=jnp.int32), num_groups)
    pad = ((0, 0), (0, capacity - num_tokens))
    segments = jnp.take_along_axis(batch.segments, place, axis=1)
    own_row = segments[:, :, None] == jnp.pad(batch.segments, pad)[:, None, :]
    until = jnp.arange(capacity, dtype=jnp.int32) <= place[:, :, None]
    group = jnp.repeat(jnp.arange(num_groups), length)
    return Block(
      start=jnp.full((rows,), num_tokens, jnp.int32),
      positions=jnp.take_along_axis(batch.positions, place, axis=1) + step,
      mask=((group[:, None] == group[None, :]) & (step[None, :] <= step[:, None]))[None],
      committed_mask=own_row & until,
      committed_positions=jnp.pad(batch.positions, pad),
    )

  def _judge(
    self, params: Params, hidden: Array, teacher: tuple[Array, Array | None, Array | None]
  ) -> tuple[Array, Array]:
    """Losses and matches `[n]` of hidden states `[n, D]`."""
    labels, top_ids, top_log_probs = teacher
    logits = self.model.logits(params, hidden)
    matched = losses.is_best(logits, labels)
    if top_ids is None or top_log_probs is None:
      return losses.cross_entropy(logits, labels), matched
    return losses.forward_kl(*losses.lump_others(logits, top_ids, top_log_probs)), matched
