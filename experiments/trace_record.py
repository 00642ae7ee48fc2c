# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A traced decode as JSON values: what `trace.json` and the page hold.

A token has its id, `token`, and its own `text`. A committed token's `piece` is what it adds to the
running text: a token that ends inside a character adds nothing, and the next one adds all of it.
"""

import math
from collections.abc import Sequence
from typing import Any

from specjax.models.stream_decoder import StreamDecoder, token_bytes
from specjax.models.tokenizer import Tokenizer
from specjax.tracing import Round, Step

Json = dict[str, Any]


class TraceRecord:
  """Collects the rounds of one row.

  Attributes:
    steps: a JSON object for each round so far.
  """

  def __init__(
    self,
    tokenizer: Tokenizer,
    prompt_ids: Sequence[int],
    facts: Json,
    certain_nodes: int = 0,
  ):
    """Nothing is decoded yet.

    Args:
      tokenizer: of the target.
      prompt_ids: what the target read.
      facts: JSON values about the run as a whole: method, model, settings.
      certain_nodes: `specjax.types.Drafter.certain_nodes`.
    """
    self._certain_nodes = certain_nodes
    self.steps: list[Json] = []
    self._tokenizer = tokenizer
    self._prompt_ids = [int(token) for token in prompt_ids]
    self._facts = facts
    self._stream = StreamDecoder(tokenizer)

  def add(self, one: Round) -> Json:
    """Takes a round, of which the first row is looked at; returns its JSON object."""
    step = one.steps[0]
    if step is None:
      raise ValueError("one must be a round in which the row went on, got one after its end")
    nodes = [
      self._token(node.token)
      | {
        "parent": node.parent,
        "outcome": node.outcome,
        "draft_probability": _probability(node.draft_log_prob),
        "target_probability": _probability(node.target_log_prob),
        "deviates": node.deviates,
      }
      for node in step.nodes
    ]
    own = step.own and self._token(step.own.token) | {
      "outcome": step.own.outcome,
      "target_probability": _probability(step.own.target_log_prob),
    }
    self.steps.append(
      {
        "round": one.index,
        "seconds": one.seconds,
        "length": step.length,
        "newest": self._token(self._newest()),
        "nodes": nodes,
        "own": own,
        "committed": self._committed(step),
        "finish_reason": step.finish_reason,
      }
    )
    return self.steps[-1]

  def to_json(self) -> Json:
    """The whole trace."""
    prompt = {
      "text": self._tokenizer.decode(self._prompt_ids),
      "token_ids": self._prompt_ids,
    }
    return {**self._facts, "prompt": prompt, "summary": self._summary(), "steps": self.steps}

  def _summary(self) -> Json:
    """Sums over the steps; calls and drafted tokens are counted as in `specjax.Generation`."""
    drafted = [max(len(step["nodes"]) - self._certain_nodes, 0) for step in self.steps]
    accepted = sum(node["outcome"] == "accepted" for step in self.steps for node in step["nodes"])
    committed = sum(len(step["committed"]) for step in self.steps)
    calls = len(self.steps) + self._certain_nodes * sum(count > 0 for count in drafted)
    return {
      "new_tokens": committed,
      "target_calls": calls,
      "drafted_tokens": sum(drafted),
      "accepted_tokens": accepted,
      "block_efficiency": committed / calls if calls else None,
      "acceptance_rate": accepted / sum(drafted) if sum(drafted) else None,
      "seconds": sum(step["seconds"] for step in self.steps),
      "finish_reason": self.steps[-1]["finish_reason"] if self.steps else "running",
    }

  def _newest(self) -> int:
    """The token that the next draft hangs off."""
    return self.steps[-1]["committed"][-1]["token"] if self.steps else self._prompt_ids[-1]

  def _committed(self, step: Step) -> list[Json]:
    """The tokens that a step added to the text; the last one also gives what is held back."""
    outcomes = [step.nodes[index].outcome for index in step.path]
    if step.own is not None:
      outcomes.append(step.own.outcome)
    pieces = [self._stream.push(token) for token in step.tokens]
    if step.finish_reason != "running":
      pieces[-1] += self._stream.flush()
    return [
      {"token": token, "piece": piece, "outcome": outcome}
      for token, piece, outcome in zip(step.tokens, pieces, outcomes, strict=True)
    ]

  def _token(self, token: int) -> Json:
    return {"token": token, "text": token_text(self._tokenizer, token)}


def token_text(tokenizer: Tokenizer, token: int) -> str:
  """The text of one token in the middle of others; bytes that are no text read `<0xE2>`."""
  spelled = tokenizer.id_to_token(token)
  if spelled is None:
    return f"<{token}>"
  if tokenizer.byte_level:
    data = token_bytes(spelled)
    try:
      return data.decode("utf-8")
    except UnicodeDecodeError:
      return "".join(f"<0x{byte:02X}>" for byte in data)
  anchor, anchor_text = tokenizer.anchor
  text = tokenizer.decode([anchor, token])[len(anchor_text) :]
  return spelled if not text or "\ufffd" in text else text


def _probability(log_prob: float | None) -> float | None:
  return None if log_prob is None else round(math.exp(log_prob), 6)
