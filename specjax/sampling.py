# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The sampling policy: what turns logits into the distribution of the next token.

`log_probs` is that function. Plain sampling, drafting and verification all call it, so that
the guarantee of speculative decoding is about the distribution *after* the policy. The
functions on a row are written for one row; `jax.vmap` them over the batch:

  policy = SamplingPolicy(temperature=0.8, top_p=0.9).resolve(batch, vocab_size, eos_ids)
  context = initial_context(policy, tokens, lengths, prompt_lengths, vocab_size)  # [B, ...]
  log_probs = jax.vmap(sampling.log_probs)(policy, logits, context)  # [B, V]
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import policy_arguments, processors
from specjax.types import Array, PolicyContext, pytree_dataclass

# What a user writes: a number for all rows, or one a row. Resolved: an array `[B]`.
Number = Any
# What a user writes: token ids for all rows, or one list a row. Resolved: `[B, L]`, -1 padded.
Ids = Any
# What a user writes: `{id: Number}`. Resolved: ids `[B, L]` and biases `[B, L]`.
Biases = Any

# Streams of random numbers that a position has.
DRAFT, ACCEPT, NEXT = 0, 1, 2

# A row below this temperature is greedy: dividing by less could overflow.
_MIN_TEMPERATURE = 1e-30


@pytree_dataclass
class SamplingPolicy:
  """How the next token is chosen. The default is greedy.

  A number is one for all rows or one value per row. None says that a step does not exist; so
  does a neutral number given to every row. Which steps exist is static, their numbers are not:
  new numbers compile nothing. The steps are taken in the order of `transformers`: penalties
  and bias, `min_new_tokens`, forced and forbidden tokens, `processor`, then temperature,
  top-k, top-p and min-p.

  Attributes:
    temperature: 0 takes the likeliest token (the first of equals), 1 samples from the model.
    top_k: keep the k likeliest tokens, ties with the k-th included; 0 keeps all.
    top_p: keep the likeliest tokens that hold this much probability; 1 keeps all.
    min_p: keep tokens at least this likely compared with the likeliest; 0 keeps all.
    repetition_penalty: divides positive and multiplies negative logits of tokens in the prompt
      or the text generated so far; 1 is neutral.
    presence_penalty: subtracted from the logits of tokens generated so far; 0 is neutral.
    frequency_penalty: the same, once for each time that the token was generated.
    min_new_tokens: ids that end a row are masked until it has this many new tokens.
    forbidden_tokens: ids that never appear: for all rows, or one list per row.
    forced_tokens: ids that the first new tokens are: for all rows, or one list per row. -1
      leaves a position free.
    logit_bias: `{token id: number}` added to the logits.
    processor: a user's pure function `(scores [V] float32, context) -> scores [V]` for one row
      (it is vmapped), which masks a token with -inf. It must be hashable and the same object
      in every call, or each call compiles anew. `context.tokens` and the lengths are filled
      in; the counts only if a penalty needs them. A row that it masks completely gets token 0.
    tail: set by `resolve`: 1 - top_p.
    eos_ids: set by `resolve`: ids `[B, E]` that `min_new_tokens` masks, -1 for none.
    sampled: set by `resolve`, static: whether any row may have a temperature above 0.
  """

  temperature: Number = 0.0
  _: dataclasses.KW_ONLY
  top_k: Number | None = None
  top_p: Number | None = None
  min_p: Number | None = None
  repetition_penalty: Number | None = None
  presence_penalty: Number | None = None
  frequency_penalty: Number | None = None
  min_new_tokens: Number | None = None
  forbidden_tokens: Ids | None = None
  forced_tokens: Ids | None = None
  logit_bias: Biases | None = None
  tail: Any = None
  eos_ids: Any = None
  processor: Callable[[Array, PolicyContext], Array] | None = dataclasses.field(
    default=None, metadata={"static": True}
  )
  sampled: bool | None = dataclasses.field(default=None, metadata={"static": True})

  @property
  def needs_counts(self) -> bool:
    """Whether the context must count tokens, static."""
    return self.repetition_penalty is not None or self.needs_prompt_counts

  @property
  def needs_prompt_counts(self) -> bool:
    """Whether the context must count the prompt's tokens apart, static."""
    return self.presence_penalty is not None or self.frequency_penalty is not None

  @property
  def needs_tokens(self) -> bool:
    """Whether the context must hold the tokens themselves, static."""
    return self.processor is not None

  def resolve(
    self, batch: int, vocab_size: int, eos_ids: Sequence[int] | np.ndarray | Array | None
  ) -> "SamplingPolicy":
    """The policy as `[B]` arrays, checked, without the steps that change no row.

    Args:
      batch: B.
      vocab_size: V.
      eos_ids: ids that end a row, `[E]` or `[B, E]`; None, an empty list and -1 are none.

    Returns:
      The policy that the functions of this module take. Resolving it again returns it.

    Raises:
      ValueError: naming the argument, what it got and what it takes. The values of tracers
        cannot be looked at: only their shapes and dtypes are checked.
    """
    if self.sampled is not None:
      if np.shape(self.temperature) != (batch,):
        rows = np.shape(self.temperature)[0]
        raise ValueError(f"batch must be {rows}, for which the policy was resolved, got {batch}")
      return self
    policy_arguments.check_processor(self.processor)
    temperature = policy_arguments.numbers("temperature", self.temperature, batch)
    greedy = temperature < _MIN_TEMPERATURE if _is_known(temperature) else np.zeros(batch, bool)
    top_p = self._number("top_p", batch, lambda v: (v == 1) | greedy)
    ends = None if eos_ids is None else policy_arguments.ids("eos_ids", eos_ids, batch, vocab_size)
    return SamplingPolicy(
      temperature=temperature,
      top_k=self._number("top_k", batch, lambda v: (v == 0) | (v >= vocab_size) | greedy),
      top_p=top_p,
      min_p=self._number("min_p", batch, lambda v: (v == 0) | greedy),
      repetition_penalty=self._number("repetition_penalty", batch, lambda v: v == 1),
      presence_penalty=self._number("presence_penalty", batch, lambda v: v == 0),
      frequency_penalty=self._number("frequency_penalty", batch, lambda v: v == 0),
      **self._constraints(batch, vocab_size, ends),
      tail=None if top_p is None else policy_arguments.tail(self.top_p, batch),
      processor=self.processor,
      sampled=not greedy.all(),
    )

  def as_greedy(self) -> "SamplingPolicy":
    """This resolved policy at temperature 0."""
    return dataclasses.replace(
      self,
      temperature=jnp.zeros_like(self.temperature),
      top_k=None,
      top_p=None,
      tail=None,
      min_p=None,
      sampled=False,
    )

  def _number(
    self, name: str, batch: int, is_neutral: Callable[[np.ndarray], np.ndarray]
  ) -> Array | None:
    """The field as `[B]`; None where it is neutral for every row."""
    value = getattr(self, name)
    if value is None:
      return None
    values = policy_arguments.numbers(name, value, batch)
    return None if _is_known(values) and is_neutral(values).all() else values

  def _constraints(self, batch: int, vocab_size: int, ends: Any) -> dict[str, Any]:
    """The fields about single tokens."""
    min_new_tokens = self._number("min_new_tokens", batch, lambda v: v == 0)
    if ends is None:
      min_new_tokens = None  # there is nothing to mask
    forbidden, forced = (
      None if value is None else policy_arguments.ids(name, value, batch, vocab_size)
      for name, value in (
        ("forbidden_tokens", self.forbidden_tokens),
        ("forced_tokens", self.forced_tokens),
      )
    )
    if forbidden is not None:
      policy_arguments.check_something_is_left(forbidden, forced, vocab_size)
    bias = self.logit_bias
    return {
      "min_new_tokens": min_new_tokens,
      "eos_ids": None if min_new_tokens is None else ends,
      "forbidden_tokens": forbidden,
      "forced_tokens": forced,
      "logit_bias": None if bias is None else policy_arguments.biases(bias, batch, vocab_size),
    }


_is_known = policy_arguments.is_concrete


# --- one row: logits to the distribution ---------------------------------------------------


def scores(policy: SamplingPolicy, logits: Array, context: PolicyContext) -> Array:
  """The logits after every step that changes which token is the best one.

  Args:
    policy: one row of a resolved policy.
    logits: `[V]` float.
    context: what stands before the token.

  Returns:
    `[V]` float32; masked tokens are -inf.

  Raises:
    ValueError: when the policy is not resolved, or the context lacks what it needs.
  """
  _check_row(policy, logits, context)
  new_tokens = context.length - context.prompt_length
  values = _penalise(policy, logits.astype(jnp.float32), context)
  if policy.logit_bias is not None:
    values = processors.add_bias(values, *policy.logit_bias)
  if policy.min_new_tokens is not None:
    values = processors.mask_tokens(values, policy.eos_ids, new_tokens < policy.min_new_tokens)
  if policy.forced_tokens is not None:
    forced = jnp.asarray(policy.forced_tokens).at[new_tokens].get(mode="fill", fill_value=-1)
    values = processors.force_token(values, forced)
  if policy.forbidden_tokens is not None:
    values = processors.mask_tokens(values, policy.forbidden_tokens)
  if policy.processor is not None:
    values = _apply_user_function(policy.processor, values, context)
  return values


def _penalise(policy: SamplingPolicy, values: Array, context: PolicyContext) -> Array:
  """The three penalties."""
  if policy.repetition_penalty is not None and context.counts is not None:
    values = processors.repetition_penalty(values, context.counts, policy.repetition_penalty)
  if context.counts is not None and context.prompt_counts is not None:
    generated = context.counts - context.prompt_counts
    if policy.frequency_penalty is not None:
      values = processors.frequency_penalty(values, generated, policy.frequency_penalty)
    if policy.presence_penalty is not None:
      values = processors.presence_penalty(values, generated, policy.presence_penalty)
  return values


def log_probs(policy: SamplingPolicy, logits: Array, context: PolicyContext) -> Array:
  """The log of the distribution that the policy gives the next token.

  A row at temperature 0 has all its probability at the first of the best tokens.

  Args:
    policy: one row of a resolved policy.
    logits: `[V]` float.
    context: what stands before the token.

  Returns:
    `[V]` float32, normalised; a token that cannot come is exactly -inf.
  """
  values = scores(policy, logits, context)
  best = processors.first_argmax(values)
  point_mass = jnp.where(jnp.arange(values.shape[0]) == best, 0.0, processors.MASKED)
  if not policy.sampled:
    return point_mass
  # A row without any token left has no distribution: it is treated like a greedy one.
  is_greedy = (policy.temperature < _MIN_TEMPERATURE) | (values[best] == processors.MASKED)
  temperature = jnp.where(is_greedy, 1.0, policy.temperature)
  values = processors.divide_by_temperature(values, temperature)
  if policy.top_k is not None:
    values = processors.keep_top_k(values, policy.top_k)
  if policy.top_p is not None:
    values = processors.keep_top_p(values, policy.tail)
  if policy.min_p is not None:
    values = processors.keep_min_p(values, policy.min_p)
  return jnp.where(is_greedy, point_mass, processors.log_softmax(values))


def greedy(policy: SamplingPolicy, logits: Array, context: PolicyContext) -> Array:
  """The best token under the policy, whatever its temperature: `[]` int32."""
  return processors.first_argmax(scores(policy, logits, context))


def _apply_user_function(
  processor: Callable[[Array, PolicyContext], Array], values: Array, context: PolicyContext
) -> Array:
  """The user's function, its result checked."""
  result = processor(values, context)
  if jnp.shape(result) != values.shape:
    raise ValueError(
      f"processor must return scores of shape {values.shape}, got {jnp.shape(result)}"
    )
  return result.astype(jnp.float32)


def _check_row(policy: SamplingPolicy, logits: Array, context: PolicyContext) -> None:
  if policy.sampled is None:
    raise ValueError(
      "policy must be resolved, got one as the user wrote it: "
      "call policy.resolve(batch, vocab_size, eos_ids) first"
    )
  if logits.ndim != 1 or jnp.ndim(policy.temperature) != 0:
    raise ValueError(
      f"logits and policy must be one row, got logits {logits.shape} and temperature "
      f"{jnp.shape(policy.temperature)}: use jax.vmap over the batch"
    )
  needs = {
    "counts": policy.needs_counts,
    "prompt_counts": policy.needs_prompt_counts,
    "tokens": policy.needs_tokens,
  }
  for name, needed in needs.items():
    if needed and getattr(context, name) is None:
      raise ValueError(
        f"context must hold {name} for this policy, got None: sampling.initial_context makes one"
      )


# --- one row: drawing ----------------------------------------------------------------------


def draw(key: Array, log_probs: Array) -> Array:
  """A sample of the distribution with these `log_probs [V]`: `[]` int32.

  A token at -inf never comes out; a point mass always gives its token.
  """
  return sample_from_weights(key, jnp.exp(log_probs))


def sample_from_weights(key: Array, weights: Array) -> Array:
  """A sample in proportion to `weights [V]`, non-negative, not normalised: `[]` int32.

  A token of weight 0 never comes out, unless all are 0 (then it is token 0). By inverting the
  running sum: on a CPU a tenth of the time that V Gumbel variables take.
  """
  return processors.find_by_mass(weights, jax.random.uniform(key, (2,)))


# --- keys and contexts ---------------------------------------------------------------------


def row_keys(key: Array, batch: int) -> Array:
  """`[B]` typed keys, one a row: row b has the same one in a batch of any size."""
  return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch, dtype=jnp.uint32))


def position_key(row_key: Array, position: Array, stream: int) -> Array:
  """The key for one purpose (`DRAFT`, `ACCEPT`, `NEXT`) at one position of a row.

  It does not depend on the round in which the position is reached, on other rows, or on the
  number of devices. `position` is `[]` int32.
  """
  return jax.random.fold_in(jax.random.fold_in(row_key, position), stream)


def propose(
  policy: SamplingPolicy, logits: Array, context: PolicyContext, row_key: Array
) -> tuple[Array, Array | None]:
  """Drafts one token of one row, and says what law it was drawn from: the one place for both.

  Args:
    policy: the policy to draft under.
    logits: `[V]`, the drafter's.
    context: what stands before the token.
    row_key: the row's key.

  Returns:
    The token, `[]` int32, and the log of its law `[V]`; None, a point mass, where no row of the
    policy samples.
  """
  if not policy.sampled:
    return greedy(policy, logits, context).astype(jnp.int32), None
  law = log_probs(policy, logits, context)
  key = position_key(row_key, context.length, DRAFT)
  return draw(key, law).astype(jnp.int32), law


def initial_context(
  policy: SamplingPolicy, tokens: Array, length: Array, prompt_length: Array, vocab_size: int
) -> PolicyContext:
  """What the policy needs to know of sequences, no more.

  Args:
    policy: the resolved policy.
    tokens: `[B, S]` int32; what stands from `length` on is not looked at.
    length: `[B]` int32.
    prompt_length: `[B]` int32, at most `length`.
    vocab_size: V.

  Returns:
    The context of the next token, with a leading B.
  """
  length = jnp.asarray(length, jnp.int32)
  prompt_length = jnp.asarray(prompt_length, jnp.int32)
  prompt_counts = _count(tokens, prompt_length, vocab_size) if policy.needs_prompt_counts else None
  return PolicyContext(
    length=length,
    prompt_length=prompt_length,
    counts=_count(tokens, length, vocab_size) if policy.needs_counts else None,
    prompt_counts=prompt_counts,
    tokens=tokens if policy.needs_tokens else None,
  )


def _count(tokens: Array, length: Array, vocab_size: int) -> Array:
  """`[B, V]` int32: how often each token stands in `tokens[b, :length[b]]`."""
  before = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :] < length[:, None]
  # Out of range is dropped; a negative id would be wrapped.
  ids = jnp.where(before & (tokens >= 0), tokens, vocab_size)
  rows = jnp.arange(tokens.shape[0], dtype=jnp.int32)[:, None]
  counts = jnp.zeros((tokens.shape[0], vocab_size), jnp.int32)
  return counts.at[rows, ids].add(1, mode="drop")
