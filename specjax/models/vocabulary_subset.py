# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A model that only says the most frequent tokens: a draft model with a short output head.

Zhao et al. (2025, FR-Spec, arXiv 2502.14856), section 3: a small draft model spends most of its
time in the output head of a large vocabulary, most tokens of which hardly ever come. The head
is restricted to the *draft vocabulary*; all other tokens get the logit -inf. Drafting stays
lossless: the law that tokens are drawn from is the restricted one, and that is the law which the
verifier is told. Every token can still be read.

Where a sampling policy leaves no token of the draft vocabulary, `specjax.sampling` proposes token
0 with probability 1, which the target rejects unless it wants it. A forced token is proposed even
if it is outside.
"""

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from specjax.models.transformer import Transformer
from specjax.types import Array, Block, Cache, Model, ModelOutput, Params


@dataclasses.dataclass(frozen=True)
class TokenSubset:
  """A draft vocabulary: a hashable set of token ids in rising order, for static fields.

  Thousands of ids in a tuple are slow to hash, and a static field is hashed in every call of a
  compiled function. Python hashes bytes once.

  Attributes:
    packed: the ids as little-endian int32; `of` and `most_frequent` make it.
  """

  packed: bytes

  @classmethod
  def of(cls, ids: Sequence[int] | np.ndarray) -> "TokenSubset":
    """From token ids in any order.

    Raises:
      ValueError: for no id, a negative one, or one that comes twice.
    """
    values = np.sort(np.asarray(ids).reshape(-1))
    if not values.size or not np.issubdtype(values.dtype, np.integer) or values[0] < 0:
      raise ValueError(f"ids must be integers >= 0, at least one, got {ids!r}")
    twice = values[:-1][values[1:] == values[:-1]]
    if twice.size:
      raise ValueError(f"ids must hold each token once, got {twice[0]} more often")
    return cls(values.astype("<i4").tobytes())

  @classmethod
  def most_frequent(
    cls, counts: Sequence[int] | np.ndarray, size: int, always: Sequence[int] = ()
  ) -> "TokenSubset":
    """The tokens that come most often.

    Args:
      counts: `[V]`, how often each token comes in text of the target. Of equals the lower id
        wins: the ids of a byte-pair vocabulary are themselves in the order of frequency.
      size: R, how many tokens to keep, at most V.
      always: ids that are kept whatever their count, such as those that end a text.

    Raises:
      ValueError: for a size that is out of range, or an id in `always` that is.
    """
    values = np.asarray(counts, np.float64).copy()
    wanted = np.unique(np.asarray(list(always), np.int64))
    if wanted.size and not 0 <= wanted[0] <= wanted[-1] < values.size:
      raise ValueError(f"always must hold ids in 0 .. {values.size - 1}, got {tuple(always)}")
    smallest = max(1, wanted.size)
    if not isinstance(size, int) or not smallest <= size <= values.size:
      raise ValueError(f"size must be an integer in {smallest} .. {values.size}, got {size!r}")
    values[wanted] = np.inf
    return cls.of(np.argsort(-values, kind="stable")[:size])

  @property
  def ids(self) -> np.ndarray:
    """`[R]` int32, rising; read-only."""
    return np.frombuffer(self.packed, "<i4")

  @property
  def size(self) -> int:
    """R."""
    return len(self.packed) // 4

  def index_of(self, tokens: Array, vocab_size: int) -> Array:
    """Where `tokens [...]` int32 stand in `ids`: `[...]` int32, -1 for those that do not."""
    table = np.full((vocab_size,), -1, np.int32)
    table[self.ids] = np.arange(self.size, dtype=np.int32)
    return jnp.asarray(table)[tokens]

  def __repr__(self) -> str:
    return f"TokenSubset({self.size} tokens)"


@dataclasses.dataclass(frozen=True)
class VocabularySubset:
  """A `specjax.types.Model` that gives all but R tokens the logit -inf.

  Its parameters are `{"model": ..., "kept": [R] int32}`: those of `model` with the columns `kept`
  of the output head alone, `head/kernel` `[D, R]`. `restrict_vocabulary` makes them.

  Attributes:
    model: the model whose head is restricted.
    size: R, static.
  """

  model: Transformer
  size: int

  def __post_init__(self):
    _transformer(self.model)
    if not isinstance(self.size, int) or not 1 <= self.size <= self.model.vocab_size:
      raise ValueError(f"size must be in 1 .. {self.model.vocab_size}, got {self.size!r}")

  @property
  def vocab_size(self) -> int:
    """V, that of the whole model."""
    return self.model.vocab_size

  @property
  def hidden_size(self) -> int:
    """D."""
    return self.model.hidden_size

  @property
  def max_positions(self) -> int | None:
    """The longest sequence that the model was made for."""
    return self.model.max_positions

  @property
  def position_addressed(self) -> bool:
    """As the whole model."""
    return self.model.position_addressed

  def init_cache(self, batch: int, capacity: int) -> Cache:
    """An empty cache of `capacity` slots for each of `batch` rows."""
    return self.model.init_cache(batch, capacity)

  def embed(self, params: Params, tokens: Array) -> Array:
    """Token ids `[B, T]` int32, any of V, to embeddings `[B, T, D]`."""
    return self.model.embed(params["model"], tokens)

  def apply(
    self,
    params: Params,
    inputs: Array,
    block: Block,
    cache: Cache,
    *,
    hidden_layers: tuple[int, ...] = (),
  ) -> ModelOutput:
    """Runs the model on a block: token ids `[B, T]` int32, any of V, or embeddings."""
    return self.model.apply(params["model"], inputs, block, cache, hidden_layers=hidden_layers)

  def kept_logits(self, params: Params, hidden: Array) -> Array:
    """Hidden states `[..., D]` to float32 logits `[..., R]`, in the order of `params["kept"]`."""
    return self.model.logits(params["model"], hidden)

  def logits(self, params: Params, hidden: Array) -> Array:
    """Hidden states `[..., D]` to float32 logits `[..., V]`, -inf outside the draft vocabulary."""
    kept = self.kept_logits(params, hidden)
    masked = jnp.full((*kept.shape[:-1], self.vocab_size), -jnp.inf, kept.dtype)
    return masked.at[..., params["kept"]].set(kept)

  def keep(self, cache: Cache, block: Block, path: Array, kept: Array) -> Cache:
    """The cache after each row kept a path of the block. See `Model`."""
    return self.model.keep(cache, block, path, kept)


def restrict_vocabulary(
  model: Model, params: Params, tokens: TokenSubset
) -> tuple[VocabularySubset, Params]:
  """The model that only says `tokens`.

  Args:
    model: a Transformer.
    params: its parameters; not copied, but for the columns of the output head.
    tokens: the draft vocabulary.

  Returns:
    The model and its parameters. Differentiable in `params`.

  Raises:
    ValueError: for a token that the model does not have, or another kind of model.
  """
  restricted = VocabularySubset(model=_transformer(model), size=check_tokens(tokens, model))
  head = {"kernel": jnp.take(params["head"]["kernel"], tokens.ids, axis=1, mode="clip")}
  return restricted, {"model": {**params, "head": head}, "kept": jnp.asarray(tokens.ids)}


def check_tokens(tokens: TokenSubset, model: Model) -> int:
  """The size of a draft vocabulary.

  Raises:
    ValueError: for a token that the model does not have.
  """
  if tokens.ids[-1] >= model.vocab_size:
    raise ValueError(
      f"the draft vocabulary must hold ids in 0 .. {model.vocab_size - 1}, got {tokens.ids[-1]}"
    )
  return tokens.size


def _transformer(model: Model) -> Transformer:
  if not isinstance(model, Transformer):
    raise ValueError(
      f"the vocabulary of a Transformer alone can be restricted, got {type(model).__name__}"
    )
  return model
