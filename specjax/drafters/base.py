# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What most drafters have in common: a chain, no probes, no state."""

from specjax.arguments import check_integer
from specjax.types import Array, Context, Draft, Model, Params, PyTree, TargetOutput, Verdict


class ChainDrafter:
  """Defaults of `specjax.types.Drafter` for a drafter that proposes one chain.

  A subclass is a frozen dataclass with a `draft_length` and a `draft` method.
  """

  draft_length: int

  @property
  def num_nodes(self) -> int:
    """N: the draft length."""
    return self.draft_length

  @property
  def num_probes(self) -> int:
    """M: none."""
    return 0

  @property
  def max_depth(self) -> int:
    """A chain is as deep as it is long."""
    return self.draft_length

  @property
  def is_chain(self) -> bool:
    """Always."""
    return True

  @property
  def hidden_layers(self) -> tuple[int, ...]:
    """No layer but the last is asked for."""
    return ()

  @property
  def certain_nodes(self) -> int:
    """None: the target is left to the scoring call."""
    return 0

  def check(self, model: Model) -> None:
    """Serves every target."""
    del model

  def init(self, params: Params, context: Context, prompt_width: int) -> PyTree:
    """No state."""
    del params, context, prompt_width
    return ()

  def draft(self, params: Params, state: PyTree, context: Context) -> tuple[Draft, PyTree]:
    """Every drafter has its own."""
    raise NotImplementedError

  def update(
    self, params: Params, state: PyTree, context: Context, verdict: Verdict, output: TargetOutput
  ) -> PyTree:
    """Nothing to learn from a verdict."""
    del params, context, verdict, output
    return state


def check_draft_length(draft_length: int, minimum: int = 1) -> None:
  """Raises ValueError unless `draft_length` is an integer of at least `minimum`."""
  check_integer("draft_length", draft_length, minimum)


def distance_to_limit(context: Context) -> Array:
  """`[B]` int32: how many drafted tokens a row can still use.

  The target adds a token of its own to every block, so the last token needs no draft.
  """
  return context.limit - context.length - 1
