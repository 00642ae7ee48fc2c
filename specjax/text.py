# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""From text to text: prompts in a chat template, streamed answers, stop strings.

    from specjax.models import checkpoint
    from specjax.text import TextGenerator

    generator = TextGenerator(
      checkpoint.load("smollm2-135m-instruct"), drafter=specjax.drafters.PromptLookup()
    )
    for (piece,) in generator.stream(["Name three rivers."], max_new_tokens=64):
      print(piece, end="", flush=True)

Stop strings are looked for on the host, between slices of the loop. Where one is found, text,
tokens, log-probabilities and statistics are all cut at the same token.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from specjax.decoding import Session, open_session
from specjax.generation import RUNNING, Generation
from specjax.models.stream_decoder import StreamDecoder
from specjax.models.tokenizer import Tokenizer, tokens_covering
from specjax.sharding.processes import fetch
from specjax.sharding.rules import Rules
from specjax.types import Array, Drafter, Params, Verifier

# A prompt is a text (one user message) or a conversation, as chat templates take it.
Message = Mapping[str, str]
TextPrompt = str | Sequence[Message]

# Target calls between two looks at the text: few enough to stream, and to notice a stop string
# soon; enough that the host costs nothing.
ROUNDS_PER_SLICE = 8


@dataclasses.dataclass(frozen=True)
class Answer:
  """What was decoded for one prompt. Everything is cut at the same token.

  Attributes:
    text: the new text, without special tokens, ending before a stop string.
    token_ids: the new tokens, the one that ended the row included.
    log_probs: of those tokens, under the target's own softmax.
    finish_reason: "eos", "length" or "stop" ("running" while it goes on).
    prompt_tokens: tokens of the prompt, as the model read it.
    target_calls: target calls for those tokens, a drafter's own calls of the target included.
    draft_calls: calls for which the drafter proposed something.
    drafted_tokens: proposed tokens.
    accepted_tokens: those of `token_ids` that were drafted.
    accepted_histogram: scoring calls by how many drafted tokens they committed, from 0.
    deviations: new tokens that are not the target's own choice: none under a lossless verifier.
    tokens_per_call: new tokens of each of the `target_calls`, in order.
  """

  text: str
  token_ids: list[int]
  log_probs: list[float]
  finish_reason: str
  prompt_tokens: int
  target_calls: int
  draft_calls: int
  drafted_tokens: int
  accepted_tokens: int
  accepted_histogram: list[int]
  deviations: int = 0
  tokens_per_call: list[int] = dataclasses.field(default_factory=list)

  @property
  def new_tokens(self) -> int:
    """How many tokens were decoded."""
    return len(self.token_ids)


@dataclasses.dataclass(frozen=True)
class TextGenerator:
  """A checkpoint, and who drafts and decides for it, on text.

  Attributes:
    checkpoint: what `specjax.models.checkpoint.load` returned, with its tokenizer.
    drafter: None decodes autoregressively.
    drafter_params: the drafter's parameters.
    verifier: `RejectionSampling()` if None.
    raw: whether prompts are plain text even if the checkpoint has a chat template.
    drafter_rules: how the drafter lies on the checkpoint's mesh, as `specjax.generate` takes it.
  """

  checkpoint: Any
  drafter: Drafter | None = None
  drafter_params: Params = None
  verifier: Verifier | None = None
  raw: bool = False
  drafter_rules: Rules | str | None = None

  @property
  def tokenizer(self) -> Tokenizer:
    """The checkpoint's tokenizer.

    Raises:
      ValueError: if it was loaded without one.
    """
    if self.checkpoint.tokenizer is None:
      raise ValueError("checkpoint must have a tokenizer to decode text; it was loaded without")
    return self.checkpoint.tokenizer

  def encode(self, prompt: TextPrompt) -> list[int]:
    """The token ids that the model reads for a prompt.

    A text is one user message in the checkpoint's chat template, if there is one and `raw` is
    off; else it is plain text, and a conversation's messages are its lines.

    Raises:
      ValueError: for a prompt that has no token, or that the chat template refuses.
    """
    tokenizer = self.tokenizer
    if self.raw or tokenizer.chat_template is None:
      text = prompt if isinstance(prompt, str) else "\n".join(m["content"] for m in prompt)
      ids = tokenizer.encode(text)
    else:
      messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
      ids = tokenizer.encode_chat(messages)
    if not ids:
      raise ValueError(f"prompt must hold at least one token, got {prompt!r}")
    return ids

  def open(
    self,
    prompts: Sequence[TextPrompt] | None = None,
    *,
    prompt_ids: Sequence[Sequence[int]] | None = None,
    stop: Sequence[str] = (),
    **options: Any,
  ) -> "TextSession":
    """Reads a batch of prompts and returns a session that decodes in slices.

    Args:
      prompts: texts or conversations, one a row.
      prompt_ids: in place of `prompts`, what `encode` returned for them.
      stop: strings that end a row; the text ends before the one that is complete first.
      **options: what `specjax.generate` takes (policy, max_new_tokens, key, row_keys, ...).

    Raises:
      ValueError: naming the argument, what it got and what it takes.
    """
    if (prompts is None) == (prompt_ids is None):
      raise ValueError("give either prompts or prompt_ids, got both or neither")
    if isinstance(prompts, str):
      raise ValueError(f"prompts must be a list of prompts, got the single text {prompts!r}")
    if prompt_ids is None:
      prompt_ids = [self.encode(prompt) for prompt in prompts or ()]
    stop = check_stop(stop)
    session = open_session(
      self.checkpoint.model,
      self.checkpoint.params,
      prompt_ids,
      **{
        "drafter": self.drafter,
        "drafter_params": self.drafter_params,
        "verifier": self.verifier,
        "eos_ids": self.checkpoint.eos_ids,
        "drafter_rules": self.drafter_rules,
        **self.checkpoint.placement,
        **options,
      },
    )
    return TextSession(session, self.tokenizer, [len(ids) for ids in prompt_ids], stop)

  def generate(self, prompts: Sequence[TextPrompt], **options: Any) -> list[Answer]:
    """Decodes a batch of prompts to the end; takes what `open` takes."""
    session = self.open(prompts, **options)
    while session.running:
      session.advance()
    return session.answers()

  def stream(
    self,
    prompts: Sequence[TextPrompt],
    *,
    rounds_per_slice: int = 1,
    **options: Any,
  ) -> Iterator[list[str]]:
    """Yields the new piece of text of each row, "" where there is none; see `open`.

    A piece never ends inside a character or inside what may become a stop string, so the
    pieces of a row join to its `Answer.text`.
    """
    session = self.open(prompts, **options)
    while session.running:
      yield session.advance(rounds_per_slice)


class TextSession:
  """A batch that is decoded in slices, with its text."""

  def __init__(
    self,
    session: Session,
    tokenizer: Tokenizer,
    prompt_tokens: Sequence[int],
    stop: tuple[str, ...],
  ):
    self._session = session
    self._tokenizer = tokenizer
    self._prompt_tokens = np.asarray(prompt_tokens)
    self._rows = [_RowText(tokenizer, stop) for _ in prompt_tokens]
    _, self._seen, finish = session.snapshot()  # also waits until the prompts are read
    for row, reason in zip(self._rows, finish, strict=True):
      row.ended = reason != RUNNING

  @property
  def running(self) -> bool:
    """Whether any row goes on."""
    return not all(row.ended for row in self._rows)

  def advance(self, rounds: int = ROUNDS_PER_SLICE) -> list[str]:
    """Decodes up to `rounds` target calls; returns the new piece of text of each row.

    Raises:
      ValueError: for rounds < 1.
    """
    if rounds < 1:
      raise ValueError(f"rounds must be >= 1, got {rounds}")
    self.decode(rounds)
    return self.read()

  def decode(self, rounds: int) -> None:
    """The device's part of `advance`: ends when the tokens are there. 0 rounds are allowed."""
    self._session.advance(rounds)

  def read(self) -> list[str]:
    """The host's part of `advance`: turns new tokens into text and ends rows at stop strings."""
    tokens, length, finish = self._session.snapshot()
    pieces, stops = [], {}
    for index, row in enumerate(self._rows):
      if row.ended:
        pieces.append("")
        continue
      piece = row.push(tokens[index, self._seen[index] : length[index]].tolist())
      if not row.ended and finish[index] != RUNNING:
        piece += row.finish()
      if row.stopped:
        start = self._prompt_tokens[index]
        ids = tokens[index, start : length[index]].tolist()
        stops[index] = int(start) + tokens_covering(
          self._tokenizer, ids, row.length, skip_special_tokens=True
        )
      pieces.append(piece)
    self._seen = length
    if stops:
      self._session.stop(stops)
    return pieces

  def answers(self) -> list[Answer]:
    """What has been decoded so far, one a row."""
    generation = self._session.device_generation()
    statistics, generation = fetch((_statistics(generation), generation))
    reasons, per_call = generation.finish_reasons, generation.tokens_per_call()
    return [
      Answer(
        text=row.text,
        token_ids=ids,
        log_probs=log_probs,
        finish_reason=reasons[index],
        prompt_tokens=int(self._prompt_tokens[index]),
        tokens_per_call=per_call[index],
        **{name: values[index].tolist() for name, values in statistics.items()},
      )
      for index, (row, ids, log_probs) in enumerate(
        zip(self._rows, generation.new_tokens(), generation.new_log_probs(), strict=True)
      )
    ]


@jax.jit
def _statistics(generation: Generation) -> dict[str, Array]:
  """The statistics of `Answer`, in one program rather than one for each."""
  names = (
    "target_calls",
    "draft_calls",
    "drafted_tokens",
    "accepted_tokens",
    "accepted_histogram",
    "deviations",
  )
  return {name: getattr(generation, name) for name in names}


def check_stop(stop: Sequence[str]) -> tuple[str, ...]:
  """The stop strings as a tuple.

  Raises:
    ValueError: for an empty string, or something that is not a string.
  """
  if isinstance(stop, str):
    raise ValueError(f"stop must be a list of strings, got the single string {stop!r}")
  for string in stop:
    if not isinstance(string, str) or not string:
      raise ValueError(f"stop must hold strings that are not empty, got {string!r}")
  return tuple(stop)


class _RowText:
  """The text of one row as its tokens come, and where a stop string ends it.

  Text that may be the beginning of a stop string is held back, so what was handed out is never
  taken back. The work for a slice does not grow with the text before it.
  """

  def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...]):
    self._decoder = StreamDecoder(tokenizer, skip_special_tokens=True)
    self._stop = stop
    self._pieces: list[str] = []
    self._held = ""
    self.length = 0  # characters of the text so far
    self.ended = False
    self.stopped = False

  @property
  def text(self) -> str:
    """All text handed out so far."""
    return "".join(self._pieces)

  def push(self, token_ids: Sequence[int]) -> str:
    """The text that these tokens add."""
    return self._take(self._decoder.extend(token_ids), last=False)

  def finish(self) -> str:
    """The text still held back, when no token follows."""
    return self._take(self._decoder.flush(), last=True)

  def _take(self, text: str, *, last: bool) -> str:
    # A match that ends in the new text began, at the earliest, with the text held back.
    window = self._held + text
    cut = _find_first(window, self._stop)
    if cut is not None:
      self.stopped = True
      piece, self._held = window[:cut], ""
    elif last:
      piece, self._held = window, ""
    else:
      keep = len(window) - _partial_match(window, self._stop)
      piece, self._held = window[:keep], window[keep:]
    self.ended = self.stopped or last
    self._pieces.append(piece)
    self.length += len(piece)
    return piece


def _find_first(text: str, stop: tuple[str, ...]) -> int | None:
  """Where the stop string begins that is complete first (the longest of several).

  "Complete first" does not depend on how the text was cut into slices; "begins first" would.
  """
  found = [(at + len(string), at) for string in stop if (at := text.find(string)) >= 0]
  return min(found)[1] if found else None


def _partial_match(text: str, stop: tuple[str, ...]) -> int:
  """The length of the longest suffix of `text` that begins a stop string."""
  longest = min(max(map(len, stop), default=0) - 1, len(text))
  for size in range(longest, 0, -1):
    suffix = text[len(text) - size :]
    if any(string.startswith(suffix) for string in stop):
      return size
  return 0
