# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The same work through `transformers`: the same weights, the same prompts, greedily.

Its assisted generation (Gante 2023; prompt lookup of Saxena 2023, an assistant model as of
Leviathan, Kalman, Matias 2023, arXiv 2211.17192) drafts as many tokens a round as ours does. It
decodes one prompt at a time: its assisted generation takes no more.
"""

import dataclasses
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.machine import PEER_PACKAGES
from experiments.methods import Method
from specjax.drafters import DraftModel, PromptLookup
from specjax.models.checkpoint import Checkpoint
from specjax.models.huggingface import save_huggingface
from specjax.models.transformer import Transformer
from specjax.models.vocabulary_subset import VocabularySubset
from specjax.types import Params

# What --peers takes.
PEERS = ("transformers",)
# Of the rows' methods.
PREFIX = "transformers_"


@dataclasses.dataclass(frozen=True)
class PeerAnswer:
  """What another system decoded for one prompt, and how.

  Attributes:
    token_ids: the new tokens.
    tokens_per_call: new tokens of each call of the target, the first of which reads the prompt.
    drafted_per_call: tokens that were proposed for each of them.
    prefill_seconds: until the tokens of the first call were there.
    decode_seconds: from then on.
  """

  token_ids: list[int]
  tokens_per_call: list[int]
  drafted_per_call: list[int]
  prefill_seconds: float
  decode_seconds: float

  @classmethod
  def nothing(cls) -> "PeerAnswer":
    """The answer for which there is no room."""
    return cls([], [], [], 0.0, 0.0)

  @property
  def decode_tokens(self) -> int:
    """The tokens that `decode_seconds` took."""
    return len(self.token_ids) - sum(self.tokens_per_call[:1])


def check_peer_packages() -> None:
  """Raises ImportError where torch or transformers is missing, saying how to get them."""
  missing = [name for name in PEER_PACKAGES if importlib.util.find_spec(name) is None]
  if missing:
    raise ImportError(f"--peers needs {', '.join(missing)}: pip install 'specjax[peers]'")


class Transformers:
  """A target, and perhaps a draft model, written to a folder and read back by `transformers`."""

  def __init__(
    self, target: Checkpoint, folder: Path, draft: tuple[Transformer, Params] | None = None
  ):
    """Loads the models.

    Args:
      target: whose weights it gets.
      folder: for the weights; no longer needed afterwards.
      draft: the model that assists, with its parameters.
    """
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    self._torch = torch
    self._dtype = {
      "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16
    }[str(target.model.dtype)]  # fmt: skip
    self._model = self._load(folder / "target", target.model, target.params)
    self._draft = None if draft is None else self._load(folder / "draft", *draft)
    self._eos = list(target.eos_ids) or None
    self._widths: list[int] = []
    self._model.register_forward_pre_hook(self._note_width, with_kwargs=True)

  def generate(
    self,
    ids: Sequence[int],
    max_new_tokens: int,
    *,
    prompt_lookup: int | None = None,
    max_ngram: int | None = None,
    assistant: int | None = None,
  ) -> PeerAnswer:
    """Decodes greedily.

    Args:
      ids: the prompt.
      max_new_tokens: at least one.
      prompt_lookup: drafts this many tokens a round by prompt lookup,
      max_ngram: with n-grams of at most this length; None is its own default.
      assistant: drafts this many tokens a round with the draft model.
    """
    options: dict[str, Any] = {}
    if prompt_lookup is not None:
      options["prompt_lookup_num_tokens"] = prompt_lookup
      if max_ngram is not None:
        options["max_matching_ngram_size"] = max_ngram
    if assistant is not None:
      if self._draft is None:
        raise ValueError("assistant needs a draft model, and none was given")
      # As ours: always the same length, whatever the draft model's confidence.
      config = self._draft.generation_config
      config.num_assistant_tokens = assistant
      config.num_assistant_tokens_schedule = "constant"
      config.assistant_confidence_threshold = 0.0
      options["assistant_model"] = self._draft
    inputs = self._torch.tensor([list(ids)])
    pieces = _Pieces()
    self._widths.clear()
    began = time.perf_counter()
    with self._torch.no_grad():
      output = self._model.generate(
        inputs,
        attention_mask=self._torch.ones_like(inputs),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=self._eos,
        pad_token_id=0,
        streamer=pieces,
        **options,
      )
    ended = time.perf_counter()
    tokens = output[0, len(ids) :].tolist()
    prefill_seconds = pieces.first - began
    # Each call reads what it proposes after the newest token; the first one after the prompt.
    newest = [len(ids), *[1] * (len(self._widths) - 1)]
    return PeerAnswer(
      token_ids=tokens,
      tokens_per_call=_trim(pieces.lengths, len(tokens)),
      drafted_per_call=[width - old for width, old in zip(self._widths, newest, strict=True)],
      prefill_seconds=prefill_seconds,
      decode_seconds=ended - began - prefill_seconds,
    )

  def _load(self, folder: Path, model: Transformer, params: Params) -> Any:
    import transformers

    save_huggingface(folder, model, params)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=self._dtype).eval()

  def _note_width(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
    del module
    self._widths.append((args[0] if args else kwargs["input_ids"]).shape[1])


class _Pieces:
  """A streamer: how many tokens each call of the target added, and when the first ones came."""

  def __init__(self) -> None:
    self.lengths: list[int] = []
    self.first = 0.0
    self._prompt_seen = False

  def put(self, tokens: Any) -> None:
    if not self._prompt_seen:
      self._prompt_seen = True
      return
    if not self.lengths:
      self.first = time.perf_counter()
    self.lengths.append(int(tokens.numel()))

  def end(self) -> None:
    pass


def _trim(lengths: Sequence[int], total: int) -> list[int]:
  """Cuts what was streamed beyond the tokens that were returned."""
  trimmed = []
  for length in lengths:
    trimmed.append(min(length, total))
    total -= trimmed[-1]
  return trimmed


@dataclasses.dataclass(frozen=True)
class PeerMethod:
  """One way to decode with `transformers`, for `experiments.runner`.

  Attributes:
    name: of its rows' method.
    system: who decodes.
    options: of `Transformers.generate`.
  """

  name: str
  system: Transformers
  options: dict[str, int]
  lossless: bool = True
  drafter_file: None = None
  drafter_checksum: None = None

  @property
  def draft_length(self) -> int:
    """Tokens drafted a round, at most."""
    return self.options.get("prompt_lookup") or self.options.get("assistant") or 0

  def decode(self, ids: Sequence[int], max_new_tokens: int) -> PeerAnswer:
    """Decodes one prompt."""
    return self.system.generate(ids, max_new_tokens, **self.options)


def build_peers(target: Checkpoint, methods: Sequence[Method], folder: Path) -> list[PeerMethod]:
  """What `transformers` has in common with our methods: plain, prompt lookup, an assistant model.

  Args:
    target: whose weights it gets.
    methods: ours. Prompt lookup and assistant are there if ours are, with their draft lengths.
    folder: for the weights; no longer needed afterwards.
  """
  drafters = {method.name: method.generator for method in methods}
  draft, assistant = None, None
  if "draft_model" in drafters:
    generator = drafters["draft_model"]
    assert isinstance(generator.drafter, DraftModel)
    draft = _whole_vocabulary(generator.drafter.model, generator.drafter_params, target)
    assistant = generator.drafter.draft_length
  system = Transformers(target, folder, draft)
  found = [PeerMethod(f"{PREFIX}autoregressive", system, {})]
  if "prompt_lookup" in drafters:
    lookup = drafters["prompt_lookup"].drafter
    assert isinstance(lookup, PromptLookup)
    options = {"prompt_lookup": lookup.draft_length, "max_ngram": lookup.max_ngram}
    found.append(PeerMethod(f"{PREFIX}prompt_lookup", system, options))
  if draft is not None and assistant is not None:
    found.append(PeerMethod(f"{PREFIX}assistant", system, {"assistant": assistant}))
  return found


def _whole_vocabulary(
  model: Any, params: Params, target: Checkpoint
) -> tuple[Transformer, Params] | None:
  """A draft model as `transformers` can run it; None where it cannot.

  A restricted output head is not among what it knows: such a model gets the target's head back,
  of which its own is a part.
  """
  if isinstance(model, VocabularySubset):
    model, params = model.model, {**params["model"], "head": target.params["head"]}
  fits = isinstance(model, Transformer) and model.vocab_size == target.model.vocab_size
  return (model, params) if fits else None
