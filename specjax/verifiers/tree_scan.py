# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The one way to verify: a scan over the nodes of a draft in topological order.

The scan carries the node that was accepted last and *the law that the next token must have*.
A node is considered only if its parent is that node. An acceptance rule says whether it is
accepted, and what the law becomes if it is not; siblings are thereby tried in turn (multi-step
speculative sampling, Miao et al. 2023, arXiv 2305.09781, Algorithm 2). A chain is the special
case in which every node has one child.

Rules are written for one row and one node; batching happens in `scan_tree` alone.
"""

from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp

from specjax import sampling
from specjax.types import Array, Context, Draft, PolicyContext, PyTree, Verdict


class AcceptanceRule(Protocol):
  """When a drafted token is accepted. One row, one node; frozen and hashable.

  A *law* is whatever the rule needs to know of the next token's distribution: an array `[V]`
  of probabilities, or a single token id. `draw_key` is the key of the position that the law is
  about; it is the same in `law` and `draw`, and a rule uses it in one of the two only.
  """

  def law(
    self, policy: sampling.SamplingPolicy, logits: Array, context: PolicyContext, draw_key: Array
  ) -> PyTree:
    """The law after a node, from the target's raw `logits [V]` there."""
    ...

  def judge(
    self, law: PyTree, token: Array, log_probs: Array | None, uniform: Array, depth: Array
  ) -> tuple[Array, PyTree]:
    """Judges a drafted token.

    Args:
      law: the law that the next token must have.
      token: `[]` int32, the drafted token.
      log_probs: `[V]`, the log of the law that it was drawn from; None for a point mass.
      uniform: `[]` float32 in [0, 1), fresh for this node.
      depth: `[]` int32, how many nodes have been accepted before.

    Returns:
      `[]` bool, whether it is accepted, and the law that the next token must have if not.
    """
    ...

  def draw(self, law: PyTree, draw_key: Array) -> Array:
    """The target's own next token, `[]` int32, once no node is left to consider."""
    ...


def scan_tree(
  rule: AcceptanceRule,
  draft: Draft,
  logits: Array,
  context: Context,
  max_depth: int,
  *,
  lossless: bool = True,
) -> Verdict:
  """Verifies a draft by one rule. Shapes as in `specjax.types.Verifier.verify`.

  Args:
    rule: when a token is accepted.
    draft: the draft.
    logits: `[B, 1 + N, V]`.
    context: the context before the draft.
    max_depth: static.
    lossless: static; False has the verdict say which accepted tokens are not those that
      `rule.draw` would have put in their place.
  """
  scan = jax.vmap(partial(_scan_row, rule, max_depth, lossless))
  nodes = (draft.tokens, draft.parents, draft.valid, draft.log_probs)
  return scan(nodes, logits, context.policy, context.policy_context, context.row_keys)


def _scan_row(
  rule: AcceptanceRule,
  max_depth: int,
  lossless: bool,
  nodes: tuple[Array, Array, Array, Array | None],
  logits: Array,
  policy: sampling.SamplingPolicy,
  context: PolicyContext,
  row_key: Array,
) -> Verdict:
  """One row: `nodes` are tokens, parents, valid `[N]` and log_probs `[N, V]`."""
  tokens, parents, valid, log_probs = nodes

  def law_after(block_index: Array | int, context: PolicyContext) -> PyTree:
    draw_key = sampling.position_key(row_key, context.length, sampling.NEXT)
    return rule.law(policy, logits[block_index], context, draw_key)

  def own_token(law: PyTree, context: PolicyContext) -> Array:
    return rule.draw(law, sampling.position_key(row_key, context.length, sampling.NEXT))

  def consider(carry, node):
    current, context, law, path, deviates, depth = carry
    considered = valid[node] & (parents[node] + 1 == current)
    # The position keys the draw, the node tells siblings at that position apart.
    accept_key = sampling.position_key(row_key, context.length, sampling.ACCEPT)
    uniform = jax.random.uniform(jax.random.fold_in(accept_key, node))
    accept, law_if_rejected = rule.judge(
      law, tokens[node], None if log_probs is None else log_probs[node], uniform, depth
    )
    accept = considered & accept
    if deviates is not None:
      deviation = tokens[node] != own_token(law, context)
      deviates = jnp.where(accept, deviates.at[depth].set(deviation), deviates)
    advanced = context.advance(tokens[node])
    law_if_accepted = law_after(node + 1, advanced)
    context = _select(accept, advanced, context)
    law = _select(accept, law_if_accepted, _select(considered, law_if_rejected, law))
    depth = depth + accept
    path = jnp.where(accept, path.at[depth].set(node + 1), path)
    current = jnp.where(accept, node + 1, current)
    return (current, context, law, path, deviates, depth), None

  root = jnp.zeros((), jnp.int32)
  path = jnp.zeros((max_depth + 1,), jnp.int32)
  deviates = None if lossless else jnp.zeros((max_depth + 1,), bool)
  carry = (root, context, law_after(0, context), path, deviates, root)
  # The nodes are indexed inside the scan: as scanned-over inputs, the batched logits would
  # first be transposed, which copies the largest buffer there is.
  if tokens.shape[0]:
    carry, _ = jax.lax.scan(consider, carry, jnp.arange(tokens.shape[0], dtype=jnp.int32))
  _, context, law, path, deviates, depth = carry
  return Verdict(
    path=path, num_accepted=depth, next_token=own_token(law, context), deviates=deviates
  )


def _select(condition: Array, if_true: PyTree, if_false: PyTree) -> PyTree:
  """`where` over two pytrees of one structure."""
  return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
