# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""One decode seen round by round: what was drafted, what the verifier kept, what was committed.

    session = tracing.open_trace(model, params, prompts, drafter=drafter, max_new_tokens=32)
    for trace_round in session.rounds():
      (step,) = trace_round.steps
      print([node.outcome for node in step.nodes], step.tokens)

A round is `specjax.decoding.decode_round`, the body of the compiled loop, called from the host:
the tokens are those of `specjax.generate`. To look inside, the scheme's verifier is wrapped by one
that keeps what it was given and what it decided.
"""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax import processors, sampling, trees
from specjax.decoding import Session, decode_round, open_session
from specjax.generation import FINISH_REASONS, RUNNING
from specjax.loop_state import Fixed, LoopState, Scheme
from specjax.requests import Prompts
from specjax.types import (
  Array,
  Context,
  Draft,
  Model,
  Params,
  PolicyContext,
  Verdict,
  pytree_dataclass,
)

# What became of a drafted node. CERTAIN: the target itself had given the token to the drafter
# (`Drafter.certain_nodes`). CUT: accepted, but the row ended before it. UNREACHED: never looked
# at, because something before it was rejected or a sibling was accepted.
ACCEPTED, CERTAIN, CUT = "accepted", "certain", "cut"
REJECTED, UNREACHED = "rejected", "unreached"
# Why the target put a token of its own: in place of a rejected one, after a draft whose whole path
# was accepted, or because nothing was drafted.
CORRECTED, BONUS, UNDRAFTED = "corrected", "bonus", "undrafted"


@dataclasses.dataclass(frozen=True)
class Node:
  """A node of a draft.

  Attributes:
    token: its id.
    parent: index in `Step.nodes`; -1 is the newest token before the round.
    outcome: `ACCEPTED`, `CERTAIN`, `CUT`, `REJECTED` or `UNREACHED`.
    draft_log_prob: of the token under the law that the drafter drew it from; None where the draft
      is a deterministic function of the text.
    target_log_prob: of the token under the target's law after the node's parent: the policy's law
      where the row samples; where it is greedy, the softmax of the scores that the argmax is
      taken of.
    deviates: whether a verifier that is not lossless accepted it in place of another token.
  """

  token: int
  parent: int
  outcome: str
  draft_log_prob: float | None
  target_log_prob: float
  deviates: bool = False


@dataclasses.dataclass(frozen=True)
class OwnToken:
  """The token that the target itself put at the end of a round.

  Attributes:
    token: its id.
    outcome: `CORRECTED`, `BONUS` or `UNDRAFTED`.
    target_log_prob: as in `Node`.
  """

  token: int
  outcome: str
  target_log_prob: float


@dataclasses.dataclass(frozen=True)
class Step:
  """What one round did to one row.

  Attributes:
    length: tokens of the row before the round, prompt included.
    nodes: the nodes of the draft that could be accepted (the valid ones), in the draft's order.
    own: the target's own token; None where the row ended before it.
    tokens: ids that the round committed, in order: accepted nodes, then the own token.
    finish_reason: "running", "eos", "length" or "stop".
  """

  length: int
  nodes: tuple[Node, ...]
  own: OwnToken | None
  tokens: tuple[int, ...]
  finish_reason: str

  @property
  def path(self) -> tuple[int, ...]:
    """Indices of the committed nodes, from the root down."""
    kept = (ACCEPTED, CERTAIN)
    return tuple(index for index, node in enumerate(self.nodes) if node.outcome in kept)


@dataclasses.dataclass(frozen=True)
class Round:
  """One round of a batch.

  Attributes:
    index: from 0.
    seconds: wall-clock time of draft, score, verify and commit; compilation and what the trace
      itself computes are not in it.
    steps: of each row; None for a row that had ended before.
  """

  index: int
  seconds: float
  steps: tuple[Step | None, ...]


class TracedSession(Session):
  """A session whose rounds can be looked at. `open_trace` makes one."""

  _num_rounds = 0
  _warm = False

  @classmethod
  def of(cls, session: Session) -> "TracedSession":
    """Takes a session over: the other one must not be advanced any more."""
    return cls(*session._arguments, session._state)

  @property
  def scheme(self) -> Scheme:
    """The model, the drafter and the verifier."""
    return self._arguments[0]

  @property
  def running(self) -> bool:
    """Whether any row goes on."""
    return bool(np.any(np.asarray(self._state.finish) == RUNNING))

  def rounds(self) -> Iterator[Round]:
    """Runs round after round until every row has ended."""
    while self.running:
      yield self.run_round()

  def run_round(self) -> Round:
    """Runs one round; compiles it first, outside the time that it tells.

    Raises:
      ValueError: if no row goes on.
    """
    if not self.running:
      raise ValueError("every row has ended: there is no round to run")
    scheme, _, _, fixed = self._arguments
    self._warm_up()
    length, finish = jax.device_get((self._state.length, self._state.finish))
    started = time.perf_counter()
    state, seen = jax.block_until_ready(_traced_round(*self._arguments, self._state))
    seconds = time.perf_counter() - started
    self._state = state
    facts = jax.device_get((_facts(fixed, seen), state.tokens, state.length, state.finish))
    steps = tuple(
      _step(scheme, row, length, *facts) if finish[row] == RUNNING else None
      for row in range(length.shape[0])
    )
    self._num_rounds += 1
    return Round(index=self._num_rounds - 1, seconds=seconds, steps=steps)

  def _warm_up(self) -> None:
    """Compiles the round by running it on a copy of the state, which is donated."""
    if not self._warm:
      jax.block_until_ready(_traced_round(*self._arguments, jax.tree.map(jnp.copy, self._state)))
      self._warm = True


def open_trace(model: Model, params: Params, prompts: Prompts, **options: Any) -> TracedSession:
  """Reads prompts and returns a session to run round by round.

  Args:
    model: the target model.
    params: its parameters.
    prompts: as `specjax.generate` takes them.
    **options: what `specjax.generate` takes.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  return TracedSession.of(open_session(model, params, prompts, **options))


# --- on the device -------------------------------------------------------------------------


@pytree_dataclass
class _Seen:
  """What a verifier was given and decided: `logits [B, 1 + N, V]`, see `specjax.types`."""

  draft: Draft
  logits: Array
  policy_context: PolicyContext
  verdict: Verdict


@dataclasses.dataclass
class _WatchedVerifier:
  """A verifier that keeps what it sees while one round is traced by `jax.jit`."""

  verifier: Any
  seen: _Seen | None = None

  @property
  def lossless(self) -> bool:
    return self.verifier.lossless

  def check(self, policy: Any) -> None:
    self.verifier.check(policy)

  def verify(self, draft: Draft, logits: Array, context: Context, max_depth: int) -> Verdict:
    verdict = self.verifier.verify(draft, logits, context, max_depth)
    # Without the cache: as an output of the program it would be copied.
    shown = dataclasses.replace(draft, probes=None, target_cache=None)
    self.seen = _Seen(shown, logits, context.policy_context, verdict)
    return verdict


def _round_and_sight(
  scheme: Scheme, params: Params, drafter_params: Params, fixed: Fixed, state: LoopState
) -> tuple[LoopState, _Seen]:
  """One round of the loop, and what its verifier saw."""
  watched = _WatchedVerifier(scheme.verifier)
  scheme = dataclasses.replace(scheme, verifier=watched)
  state = decode_round(scheme, params, drafter_params, fixed, state)
  assert watched.seen is not None
  return state, watched.seen


_traced_round = jax.jit(_round_and_sight, static_argnums=0, donate_argnums=4)


@jax.jit
def _facts(fixed: Fixed, seen: _Seen) -> dict[str, Array | None]:
  """What `_step` needs of a round, small enough to bring to the host."""
  draft, verdict = seen.draft, seen.verdict
  laws = jax.vmap(_target_laws)(
    fixed.policy, seen.logits, draft.parents, draft.tokens, seen.policy_context
  )
  rows = jnp.arange(draft.tokens.shape[0])[:, None]
  last = jnp.take_along_axis(verdict.path, verdict.num_accepted[:, None], axis=1)
  drawn_from = None
  if draft.log_probs is not None:
    drawn_from = jnp.take_along_axis(draft.log_probs, draft.tokens[:, :, None], axis=2)[:, :, 0]
  return {
    "tokens": draft.tokens,
    "parents": draft.parents,
    "valid": draft.valid,
    "draft_log_probs": drawn_from,
    "target_log_probs": laws[rows, draft.parents + 1, draft.tokens],
    "path": verdict.path,
    "num_accepted": verdict.num_accepted,
    "next_token": verdict.next_token,
    "next_log_prob": laws[rows, last, verdict.next_token[:, None]][:, 0],
    "deviates": verdict.deviates,
  }


def _target_laws(
  policy: sampling.SamplingPolicy,
  logits: Array,
  parents: Array,
  tokens: Array,
  context: PolicyContext,
) -> Array:
  """One row: the log of the target's law after the root and after each node, `[1 + N, V]`."""
  num_nodes = tokens.shape[0]
  above = jnp.concatenate([jnp.zeros((1, num_nodes), bool), trees.ancestors(parents)])

  def law(logits, above):
    def read(context, node):
      advanced = context.advance(tokens[node])
      return jax.tree.map(lambda a, b: jnp.where(above[node], a, b), advanced, context), None

    after = context
    if num_nodes:
      after, _ = jax.lax.scan(read, context, jnp.arange(num_nodes))
    softmax = processors.log_softmax(sampling.scores(policy, logits, after))
    if not policy.sampled:
      return softmax
    return jnp.where(policy.temperature > 0, sampling.log_probs(policy, logits, after), softmax)

  return jax.vmap(law)(logits, above)


# --- on the host ---------------------------------------------------------------------------


def _step(
  scheme: Scheme,
  row: int,
  length_before: np.ndarray,
  facts: dict[str, np.ndarray | None],
  tokens: np.ndarray,
  length: np.ndarray,
  finish: np.ndarray,
) -> Step:
  """What a round did to one row, from the facts of the batch."""
  fact: dict[str, Any] = {
    name: None if value is None else value[row] for name, value in facts.items()
  }
  committed = tokens[row, length_before[row] : length[row]].tolist()
  num_accepted = int(fact["num_accepted"])
  path = [int(index) - 1 for index in fact["path"][1 : num_accepted + 1]]
  outcomes = _outcomes(fact, path, len(committed), scheme.drafter.certain_nodes)
  place = {node: index for index, node in enumerate(outcomes)}
  laws, deviates = fact["draft_log_probs"], fact["deviates"]
  nodes = tuple(
    Node(
      token=int(fact["tokens"][node]),
      parent=place.get(int(fact["parents"][node]), -1),
      outcome=outcome,
      draft_log_prob=None if laws is None else float(laws[node]),
      target_log_prob=float(fact["target_log_probs"][node]),
      deviates=deviates is not None and node in path and bool(deviates[path.index(node)]),
    )
    for node, outcome in outcomes.items()
  )
  own = None
  if len(committed) == num_accepted + 1:
    last = path[-1] if path else -1
    refused = any(
      outcome == REJECTED and int(fact["parents"][node]) == last
      for node, outcome in outcomes.items()
    )
    own = OwnToken(
      token=int(fact["next_token"]),
      outcome=CORRECTED if refused else BONUS if path else UNDRAFTED,
      target_log_prob=float(fact["next_log_prob"]),
    )
  return Step(
    length=int(length_before[row]),
    nodes=nodes,
    own=own,
    tokens=tuple(committed),
    finish_reason=FINISH_REASONS[finish[row]],
  )


def _outcomes(
  fact: dict[str, Any], path: list[int], num_committed: int, certain_nodes: int
) -> dict[int, str]:
  """What became of each node that could be accepted, in the draft's order.

  A verifier looks at a node if its parent is the node accepted last, as `tree_scan` does.
  """
  outcomes: dict[int, str] = {}
  current = -1
  for node, (parent, valid) in enumerate(zip(fact["parents"], fact["valid"], strict=True)):
    if not valid or (parent >= 0 and int(parent) not in outcomes):
      continue
    if node in path:
      current = node
      kept = CERTAIN if node < certain_nodes else ACCEPTED
      outcomes[node] = kept if path.index(node) < num_committed else CUT
    else:
      outcomes[node] = REJECTED if parent == current else UNREACHED
  return outcomes
