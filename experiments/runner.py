# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Decodes prompts with every method in turn, timed apart from compilation.

Methods take turns prompt by prompt, so that a machine that slows down slows all of them. What
belongs to a batch (its seconds) is recorded with each of its rows, next to `batch_index` and
`batch_size`; a sum over rows must count a batch once.
"""

import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments import compiled_programs
from experiments.display import Display
from experiments.machine import PEER_PACKAGES, machine_stamp
from experiments.methods import Method
from experiments.peers import PeerAnswer, PeerMethod
from experiments.prompts import Prompt
from experiments.results import ResultsFolder, Row
from experiments.settings import Settings
from specjax import buckets
from specjax.decoding import make_scheme
from specjax.models.checkpoint import Checkpoint
from specjax.sharding import describe_mesh
from specjax.text import ROUNDS_PER_SLICE, Answer, Message, TextGenerator, TextSession

# Prompts that need no more slots than this share one compiled loop: a cache of this size is
# read in little time beside the weights.
SMALLEST_CAPACITY = 512

# With `few_shapes`, prompts are padded to the smallest of these that is wide enough.
FEW_WIDTHS = (256, 1024, 4096)

_fold_in = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))


class Runner:
  """One run of the main command: what to decode, with what, and where results go."""

  def __init__(
    self,
    settings: Settings,
    target: Checkpoint,
    methods: Sequence[Method | PeerMethod],
    prompts: Sequence[Prompt],
    results: ResultsFolder,
    display: Display,
    *,
    few_shapes: bool = False,
  ):
    """Reads every first turn once.

    Args:
      settings: of the run.
      target: who is decoded.
      methods: ways to decode, in turn. One that is another system decodes one prompt at a time,
        and greedily.
      prompts: what to answer; that they fit has been checked (`experiments.target`).
      results: the folder.
      display: shows progress.
      few_shapes: pads prompts and caches to a few sizes. Reading a prompt takes longer; with many
        methods and few prompts, compiling a program for every length of prompt takes far longer.
    """
    self._few_shapes = few_shapes
    self._settings = settings
    self._target = target
    self._methods = methods
    self._prompts = prompts
    self._results = results
    self._display = display
    self._compiled: set[tuple[Any, ...]] = set()
    # All methods read prompts alike.
    self._encode = TextGenerator(target, raw=settings.raw).encode
    peers = any(isinstance(method, PeerMethod) for method in methods)
    self._machine = machine_stamp(*(PEER_PACKAGES if peers else ()))
    self._first_ids = [self._encode(prompt.turns[0]) for prompt in prompts]

  def run(self) -> None:
    """Decodes what is not finished yet."""
    total = len(self._methods) * sum(len(prompt.turns) for prompt in self._prompts)
    with self._display.open(total, self._results.resumed):
      size = self._settings.batch_size
      for start in range(0, len(self._prompts), size):
        batch = range(start, min(start + size, len(self._prompts)))
        for method in self._methods:
          self._run_batch(method, batch)

  def _run_batch(self, method: Method | PeerMethod, batch: Sequence[int]) -> None:
    """All turns of a batch of conversations."""
    for turn in range(max(len(self._prompts[index].turns) for index in batch)):
      indices = [index for index in batch if turn < len(self._prompts[index].turns)]
      if all((method.name, index, turn) in self._results.rows for index in indices):
        continue
      # Finished rows of a batch that was cut off are decoded along: the arrays are the same.
      ids = [self.read_turn(method.name, index, turn) for index in indices]
      self._display.begin(method.name, [(index, self._prompts[index]) for index in indices], turn)
      if isinstance(method, PeerMethod):
        answers, batch_facts = self._decode_with_peer(method, ids)
      else:
        answers, batch_facts = self._decode(method, indices, ids)
      batch_facts["batch_index"] = batch[0] // self._settings.batch_size
      rows = [
        self._row(method, index, turn, answer) | batch_facts
        for index, answer in zip(indices, answers, strict=True)
      ]
      self._results.append(rows)
      self._display.end(rows)

  # --- prompts -----------------------------------------------------------------------------

  def read_turn(self, method: str, index: int, turn: int) -> list[int]:
    """The tokens that a method reads: a conversation up to the user's message `turn`.

    Args:
      method: by name; the answers before that message are its own, and finished.
      index: of the prompt.
      turn: from 0.
    """
    if turn == 0:
      return self._first_ids[index]
    messages: list[Message] = []
    for earlier, text in enumerate(self._prompts[index].turns[: turn + 1]):
      messages.append({"role": "user", "content": text})
      if earlier < turn:
        answer = self._results.rows[method, index, earlier]["text"]
        messages.append({"role": "assistant", "content": answer})
    return self._encode(messages)

  # --- decoding ----------------------------------------------------------------------------

  def _decode(
    self, method: Method, indices: Sequence[int], ids: Sequence[Sequence[int]]
  ) -> tuple[list[Answer], Row]:
    """Decodes one turn of a batch: its answers and what is recorded of the batch."""
    room = self._room(ids)
    options = self._options(method, indices, ids, room)
    compile_seconds = self._warm_up(method, options)
    started = time.perf_counter()
    session = method.generator.open(**options)
    prefill_seconds = time.perf_counter() - started
    decode_seconds = 0.0
    while session.running:
      started = time.perf_counter()
      session.decode(ROUNDS_PER_SLICE)
      decode_seconds += time.perf_counter() - started
      self._display.show(session.read()[: len(indices)])
    answers = session.answers()[: len(indices)]
    return answers, {
      "prefill_seconds": prefill_seconds,
      "decode_seconds": decode_seconds,
      "compile_seconds": compile_seconds,
      "batch_size": len(indices),
    }

  def _decode_with_peer(
    self, method: PeerMethod, ids: Sequence[Sequence[int]]
  ) -> tuple[list[Answer], Row]:
    """The same for another system, which decodes one prompt at a time."""
    (prompt,), (room,) = ids, self._room(ids)
    compile_seconds = 0.0
    if room and (method.name,) not in self._compiled:
      started = time.perf_counter()
      method.decode(prompt, min(room, 2))  # the first call of all is slower
      compile_seconds = time.perf_counter() - started
      self._compiled.add((method.name,))
    found = method.decode(prompt, room) if room else PeerAnswer.nothing()
    tokens, calls, drafted = found.token_ids, found.tokens_per_call, found.drafted_per_call
    histogram = [0] * (method.draft_length + 1)
    for length in calls:
      histogram[min(length - 1, method.draft_length)] += 1
    tokenizer = self._target.tokenizer
    ended = bool(tokens) and tokens[-1] in self._target.eos_ids
    answer = Answer(
      text=tokenizer.decode(tokens, skip_special_tokens=True) if tokenizer else "",
      token_ids=tokens,
      log_probs=[],
      finish_reason="eos" if ended else "length",
      prompt_tokens=len(prompt),
      target_calls=len(calls),
      draft_calls=sum(count > 0 for count in drafted),
      drafted_tokens=sum(drafted),
      accepted_tokens=len(tokens) - len(calls),
      accepted_histogram=histogram,
      tokens_per_call=calls,
    )
    self._display.show([answer.text])
    return [answer], {
      "prefill_seconds": found.prefill_seconds,
      "decode_seconds": found.decode_seconds,
      "compile_seconds": compile_seconds,
      "batch_size": 1,
      "decode_tokens": found.decode_tokens,
    }

  def _room(self, ids: Sequence[Sequence[int]]) -> list[int]:
    """New tokens that each row may have: fewer where a late turn nears the context's end."""
    limit, new = self._target.model.max_positions, self._settings.max_new_tokens
    return [new if limit is None else max(min(new, limit - len(row)), 0) for row in ids]

  def _options(
    self,
    method: Method,
    indices: Sequence[int],
    ids: Sequence[Sequence[int]],
    room: Sequence[int],
  ) -> dict[str, Any]:
    """The arguments of `TextGenerator.open`; the last batch is padded to the others' size."""
    padding = self._settings.batch_size - len(indices)
    limit = self._target.model.max_positions
    # A conversation that outgrew the context is not read: what is left of it decodes nothing.
    rows = [list(row if limit is None or len(row) <= limit else row[:1]) for row in ids]
    rows += [rows[0][:1]] * padding
    new = [*room, *[0] * padding]
    scheme = make_scheme(self._target.model, method.generator.drafter, method.generator.verifier)
    needed = max(map(sum, zip(map(len, rows), new, strict=True))) + scheme.block_width + 1
    width = self._width(max(map(len, rows)))
    if self._few_shapes:
      needed = max(needed, width + self._settings.max_new_tokens + scheme.block_width + 1)
    keys = np.array([*indices, *[0] * padding], np.uint32)
    return {
      "prompt_ids": rows,
      "max_new_tokens": new,
      "row_keys": _fold_in(jax.random.key(self._settings.seed), jnp.asarray(keys)),
      "policy": self._settings.policy(),
      "capacity": max(SMALLEST_CAPACITY, buckets.capacity_bucket(needed)),
      "prompt_width": width,
      "stop": self._settings.stop,
    }

  def _width(self, length: int) -> int:
    """What a prompt of `length` tokens is padded to."""
    if self._few_shapes:
      length = next((width for width in FEW_WIDTHS if length <= width), length)
    return buckets.prompt_bucket(length)

  def _warm_up(self, method: Method, options: dict[str, Any]) -> float:
    """Compiles the programs of these shapes, once; returns the seconds that it took.

    They are run for compilation to happen, so the seconds hold the reading of the prompt too.
    """
    width = options["prompt_width"]
    shapes = (method.name, width, options["capacity"])
    if shapes in self._compiled:
      return 0.0
    if compiled_programs.free_if_many():
      self._compiled.clear()
    self._display.note(f"compiling for prompts of up to {width} tokens")
    started = time.perf_counter()
    session: TextSession = method.generator.open(**options)
    session.decode(0)
    seconds = time.perf_counter() - started
    self._compiled.add(shapes)
    return seconds

  def _row(self, method: Method | PeerMethod, index: int, turn: int, answer: Answer) -> Row:
    """A line of `results.jsonl`, but for what the batch adds."""
    prompt = self._prompts[index]
    return {
      "method": method.name,
      "prompt_index": index,
      "turn": turn,
      "num_turns": len(prompt.turns),
      "question_id": prompt.question_id,
      "category": prompt.category,
      "prompt_tokens": answer.prompt_tokens,
      "new_tokens": answer.new_tokens,
      "token_ids": answer.token_ids,
      "text": answer.text,
      "finish_reason": answer.finish_reason,
      "target_calls": answer.target_calls,
      "draft_calls": answer.draft_calls,
      "drafted_tokens": answer.drafted_tokens,
      "accepted_tokens": answer.accepted_tokens,
      "accepted_histogram": answer.accepted_histogram,
      "tokens_per_call": answer.tokens_per_call,
      "deviations": answer.deviations,
      "log_probs": [round(value, 6) for value in answer.log_probs],
      "lossless": method.lossless,
      "verifier": self._settings.verifier,
      "drafter_file": None if method.drafter_file is None else str(method.drafter_file),
      "drafter_sha256": method.drafter_checksum,
      "seed": self._settings.seed,
      "model": self._target.name,
      "source": self._target.source,
      "dtype": str(self._target.model.dtype),
      "mesh": None if self._target.mesh is None else describe_mesh(self._target.mesh),
      "machine": self._machine,
    }
