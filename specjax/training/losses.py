# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""How far a draft model's distribution is from the target's: the losses of distillation.

Zhou et al. (2023, DistillSpec, arXiv 2310.08461), Table 1; the generalised Jensen-Shannon
divergence is that of Agarwal et al. (2023, GKD, arXiv 2306.13649), section 2. p is the teacher
(the target model), q the student (the draft model).

All losses take the student's logits, of any float type, and the teacher's log-probabilities,
both `[..., V]`, and compute in float32 at least; what they return is `[...]`. Either may hold -inf:

  * A student's -inf is a token that it cannot draft: its vocabulary is the *draft vocabulary*.
    The teacher may also be given over the draft vocabulary alone. The divergences compare with
    the teacher renormalised over the draft vocabulary (they would be infinite or constant
    elsewhere). The total variation distance is exact: the teacher's mass outside counts as lost.
  * A teacher's -inf is a token that the target never emits. It counts as probability e^-60, so
    that the reverse divergence of a student that drafts it is large instead of infinite.

No loss and no gradient is ever NaN as long as the student has one finite logit.
"""

import jax
import jax.numpy as jnp

from specjax.types import Array

# Stands for the log of 0 where a product with it must stay finite.
_LOWEST = -60.0
# The smallest probability of "all other tokens" that float32 can tell from rounding.
_SMALLEST_REST = 1e-7


def cross_entropy(student_logits: Array, labels: Array) -> Array:
  """-log q(label): the loss of hard labels (the target's own tokens).

  Args:
    student_logits: `[..., V]`.
    labels: `[...]` int32. One outside the draft vocabulary (a logit of -inf, or an index out of
      `0 .. V - 1`) costs 0: no student of that vocabulary can do better or worse there.
  """
  logits = _wide(student_logits)
  chosen = _gather(logits, labels[..., None])[..., 0]
  known = jnp.isfinite(chosen)
  normaliser = jax.nn.logsumexp(logits, axis=-1)
  return jnp.where(known, normaliser - jnp.where(known, chosen, 0.0), 0.0)


def is_best(logits: Array, labels: Array) -> Array:
  """`[...]` bool: whether `labels [...]` are the best tokens of `logits [..., V]`; -1 never is."""
  chosen = jnp.take_along_axis(logits, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
  # XLA's CPU backend vectorises a maximum, but not an argmax.
  return (labels >= 0) & (chosen >= jnp.max(logits, axis=-1))


def forward_kl(student_logits: Array, teacher_log_probs: Array) -> Array:
  """KL(p || q) = sum_x p(x) log(p(x) / q(x)): covers all of the target's modes."""
  log_q, log_p, support = _over_draft_vocabulary(student_logits, teacher_log_probs)
  terms = jnp.exp(log_p) * (log_p - log_q)
  return jnp.sum(jnp.where(support, terms, 0.0), axis=-1)


def reverse_kl(student_logits: Array, teacher_log_probs: Array) -> Array:
  """KL(q || p) = sum_x q(x) log(q(x) / p(x)): seeks one of the target's modes."""
  log_q, log_p, support = _over_draft_vocabulary(student_logits, teacher_log_probs)
  terms = jnp.exp(log_q) * (log_q - log_p)
  return jnp.sum(jnp.where(support, terms, 0.0), axis=-1)


def jensen_shannon(student_logits: Array, teacher_log_probs: Array, *, beta: float = 0.5) -> Array:
  """beta KL(p || m) + (1 - beta) KL(q || m) with the mixture m = beta p + (1 - beta) q.

  Symmetric in p and q at 0.5. Divided by beta it becomes the forward divergence for beta -> 0;
  divided by 1 - beta, the reverse divergence for beta -> 1.

  Args:
    student_logits: `[..., V]`.
    teacher_log_probs: `[..., V]`.
    beta: static, in (0, 1).

  Raises:
    ValueError: for a beta outside (0, 1).
  """
  check_beta(beta)
  log_q, log_p, support = _over_draft_vocabulary(student_logits, teacher_log_probs)
  log_m = jnp.logaddexp(jnp.log(beta) + log_p, jnp.log1p(-beta) + log_q)
  terms = beta * jnp.exp(log_p) * (log_p - log_m)
  terms = terms + (1 - beta) * jnp.exp(log_q) * (log_q - log_m)
  return jnp.sum(jnp.where(support, terms, 0.0), axis=-1)


def total_variation(student_logits: Array, teacher_log_probs: Array) -> Array:
  """1/2 sum_x |p(x) - q(x)| = 1 - sum_x min(p(x), q(x)) = 1 - alpha.

  alpha is the probability that rejection sampling accepts a token that the student draws
  (Leviathan, Kalman, Matias 2023, arXiv 2211.17192, Theorem 3.5).
  """
  logits = _wide(student_logits)
  # Summed where q exceeds p, so that p need not be known where q is 0.
  excess = jax.nn.softmax(logits, axis=-1) - jnp.exp(_wide(teacher_log_probs))
  return jnp.sum(jax.nn.relu(excess), axis=-1)


def check_beta(beta: float) -> None:
  """Raises ValueError unless `beta` is in (0, 1)."""
  if not 0 < beta < 1:
    raise ValueError(f"beta must be in (0, 1), got {beta!r}")


def lump_others(student_logits: Array, top_ids: Array, top_log_probs: Array) -> tuple[Array, Array]:
  """Both laws over the teacher's R likeliest tokens and one event "any other token".

  What the losses above make of the result is a lower bound of what they make of the whole laws
  (data processing inequality), tight where the teacher's other tokens hold little.

  Args:
    student_logits: `[..., V]`.
    top_ids: `[..., R]` int32, distinct indices of V; one that is out of range stands for a token
      outside the draft vocabulary.
    top_log_probs: `[..., R]` float32, the teacher's log-probabilities of them.

  Returns:
    The student's and the teacher's log-probabilities `[..., R + 1]` of these events: arguments
    for the losses above.
  """
  logits = _wide(student_logits)
  top_log_probs = _wide(top_log_probs)
  chosen = _gather(logits, top_ids)
  known = jnp.isfinite(chosen)
  normaliser = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  log_q = jnp.where(known, jnp.where(known, chosen, 0.0) - normaliser, -jnp.inf)
  q = jnp.where(known, jnp.exp(jnp.where(known, log_q, 0.0)), 0.0)
  student = jnp.concatenate([log_q, _log_rest(q)], axis=-1)
  teacher = jnp.concatenate([top_log_probs, _log_rest(jnp.exp(top_log_probs))], axis=-1)
  return student, teacher


def _log_rest(probabilities: Array) -> Array:
  """`[..., 1]`: the log of what `probabilities [..., R]` leave of 1."""
  rest = 1.0 - jnp.sum(probabilities, axis=-1, keepdims=True)
  return jnp.log(jnp.maximum(rest, _SMALLEST_REST))


def _gather(logits: Array, ids: Array) -> Array:
  """`logits [..., V]` at `ids [..., R]`; -inf for ids out of range, negative ones included."""
  vocab_size = logits.shape[-1]
  inside = (ids >= 0) & (ids < vocab_size)
  found = jnp.take_along_axis(logits, jnp.clip(ids, 0, vocab_size - 1), axis=-1)
  return jnp.where(inside, found, -jnp.inf)


def _wide(values: Array) -> Array:
  """`values` in float32 at least."""
  return values.astype(jnp.promote_types(values.dtype, jnp.float32))


def _over_draft_vocabulary(
  student_logits: Array, teacher_log_probs: Array
) -> tuple[Array, Array, Array]:
  """Both laws as finite log-probabilities, and where they count.

  Returns:
    log q and log p, each `[..., V]`, normalised over the draft vocabulary, and the draft
    vocabulary itself, bool `[..., V]`. Outside it both are finite but mean nothing.
  """
  logits = _wide(student_logits)
  teacher = _wide(teacher_log_probs)
  support = logits > -jnp.inf
  # Finite before they are multiplied with anything: 0 * inf would be a NaN, here or in a gradient.
  log_q = jnp.where(support, jax.nn.log_softmax(logits, axis=-1), _LOWEST)
  inside = jnp.where(support, jnp.maximum(teacher, _LOWEST), -jnp.inf)
  log_p = jnp.where(support, jax.nn.log_softmax(inside, axis=-1), _LOWEST)
  return log_q, log_p, support
