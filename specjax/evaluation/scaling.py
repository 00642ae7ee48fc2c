# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Scaling on paper: how long drafting, verifying and communicating take on hardware not at hand.

A target call is counted: operations, bytes of memory and collectives of one device, under the
sharding rules of `specjax.sharding`. It takes the roofline's time (Williams et al. 2009), the
larger of its arithmetic and its memory traffic, and then its collectives, which are taken not to
overlap with either:

  seconds = max(flops / peak, bytes / bandwidth) + sum over collectives of (latency + bytes / link)

Two such times and an acceptance rate give the speed-up of speculation over autoregressive decoding
by batch size. A small batch leaves arithmetic idle, which a block of gamma + 1 tokens uses; a large
one does not, and there is a batch at which speculation stops to pay (Su, Giannoula, Pekhimenko
2023, arXiv 2310.18813). Long contexts move it: the cache of a row is read once for its whole block.

The counts are compared with compiled programs in `tests/evaluation/test_scaling.py`. Prefill and
the drafter's own bookkeeping are left out. Where the `model` axis divides query heads but not
key/value heads, attention is cut into as many parts as both can be, after gathering its inputs,
as GSPMD does it; every device still holds the whole cache. Under `fsdp` every weight is taken to
be gathered before it is used; the compiler may find something cheaper for small batches.
"""

import dataclasses
import math
from collections.abc import Sequence

from specjax.evaluation.hardware import Hardware
from specjax.evaluation.theory_chains import (
  Acceptance,
  DraftLengthChoice,
  best_draft_length,
  check_integer,
  check_not_negative,
  expected_tokens,
)
from specjax.models.config import TransformerConfig
from specjax.sharding.mesh import parse_axes

ALL_REDUCE, ALL_GATHER = "all-reduce", "all-gather"
# Bytes that are moved over the link for each byte of a result, in a ring of n: times (n - 1) / n.
_TRIPS = {ALL_REDUCE: 2, ALL_GATHER: 1}
_FLOAT32 = 4


@dataclasses.dataclass(frozen=True)
class MeshShape:
  """Sizes of the axes of a mesh, see `specjax.sharding`. There need not be such devices.

  Attributes:
    data: copies of the model, each with its share of the rows.
    fsdp: rows too; parameters are parted among these devices.
    model: heads, feed-forward layer and vocabulary.
  """

  data: int = 1
  fsdp: int = 1
  model: int = 1

  def __post_init__(self):
    for field in dataclasses.fields(self):
      check_integer(f"mesh axis {field.name!r}", getattr(self, field.name), 1)

  @classmethod
  def parse(cls, text: str) -> "MeshShape":
    """From text such as "data:2,model:4"; raises ValueError for any other."""
    sizes = parse_axes(text)
    if -1 in sizes.values():
      raise ValueError(
        f"mesh must have a size for each axis here, not -1 for the rest, got {text!r}"
      )
    return cls(**sizes)

  @property
  def num_devices(self) -> int:
    """All devices."""
    return self.data * self.fsdp * self.model

  @property
  def row_shards(self) -> int:
    """Into how many parts the rows of a batch are cut."""
    return self.data * self.fsdp


@dataclasses.dataclass(frozen=True)
class Collective:
  """`count` like collectives of one call.

  Attributes:
    kind: `ALL_REDUCE` or `ALL_GATHER`.
    axis: the mesh axis that they run over.
    count: how many.
    num_bytes: of the result of one of them on one device.
    what: what is reduced or gathered.
  """

  kind: str
  axis: str
  count: int
  num_bytes: float
  what: str


@dataclasses.dataclass(frozen=True)
class CallCost:
  """What one device does in a target call.

  Attributes:
    flops: operations of its matrix products, two for each multiply-and-add.
    weight_bytes: weights that it reads.
    cache_bytes: keys and values that it reads and writes.
    activation_bytes: what its matrix products and its softmax read and write beside those.
    collectives: what it does together with others.
  """

  flops: float
  weight_bytes: float
  cache_bytes: float
  activation_bytes: float
  collectives: tuple[Collective, ...]

  @property
  def num_bytes(self) -> float:
    """All memory traffic."""
    return self.weight_bytes + self.cache_bytes + self.activation_bytes

  def count(self, kind: str) -> int:
    """How many collectives of a kind there are."""
    return sum(item.count for item in self.collectives if item.kind == kind)


@dataclasses.dataclass(frozen=True)
class CallTime:
  """Seconds of one call on one device.

  Attributes:
    compute: of arithmetic alone.
    memory: of memory traffic alone.
    collectives: of communication, after them.
  """

  compute: float
  memory: float
  collectives: float

  @property
  def seconds(self) -> float:
    """The roofline, and then communication."""
    return max(self.compute, self.memory) + self.collectives

  @property
  def bound(self) -> str:
    """What takes longest: "memory", "compute" or "collectives"."""
    if self.collectives > max(self.compute, self.memory):
      return "collectives"
    return "compute" if self.compute > self.memory else "memory"


@dataclasses.dataclass(frozen=True)
class _Matrix:
  """A weight `[inputs, outputs]` of which a device has one of `parts` along `cut`."""

  inputs: int
  outputs: int
  parts: int
  cut: str  # "outputs" or "inputs"

  @property
  def weights(self) -> float:
    return self.inputs * self.outputs / self.parts

  @property
  def activations(self) -> float:
    """Numbers that a token's product reads and writes."""
    inputs, outputs = self.inputs, self.outputs
    return inputs / self.parts + outputs if self.cut == "inputs" else inputs + outputs / self.parts


def _parts(size: int, axis: int) -> int:
  """The rule of `specjax.sharding.rules`: what an axis does not divide is replicated."""
  return axis if size % axis == 0 else 1


def _layer_matrices(
  config: TransformerConfig, mesh: MeshShape, *, stored: bool = False
) -> list[_Matrix]:
  """As a device computes with them, or as it stores them: see `_attention_parts`."""
  heads = _parts(config.num_heads, mesh.model)
  stored_heads = _parts(config.num_kv_heads, mesh.model)
  kv_heads = stored_heads if stored else _attention_parts(config, mesh)
  mlp = _parts(config.intermediate_size, mesh.model)
  width, inner = config.hidden_size, config.intermediate_size
  return [
    _Matrix(width, config.query_size, heads, "outputs"),
    _Matrix(width, config.kv_size, kv_heads, "outputs"),
    _Matrix(width, config.kv_size, kv_heads, "outputs"),
    _Matrix(config.query_size, width, heads, "inputs"),
    _Matrix(width, inner, mlp, "outputs"),
    _Matrix(width, inner, mlp, "outputs"),
    _Matrix(inner, width, mlp, "inputs"),
  ]


def _head_matrix(config: TransformerConfig, mesh: MeshShape) -> _Matrix:
  parts = _parts(config.vocab_size, mesh.model)
  return _Matrix(config.hidden_size, config.vocab_size, parts, "outputs")


def _rows(mesh: MeshShape, batch_size: int) -> int:
  """Rows of the device that has the most."""
  return -(-batch_size // mesh.row_shards)


def call_cost(
  config: TransformerConfig,
  mesh: MeshShape,
  *,
  batch_size: int,
  num_tokens: int,
  context: int,
  weight_bytes: int = 2,
  fused_attention: bool = False,
) -> CallCost:
  """Counts a call of the model on a block of `num_tokens` tokens for each row.

  Args:
    config: the model.
    mesh: the devices.
    batch_size: rows of the whole batch.
    num_tokens: T; 1 in autoregressive decoding, gamma + 1 where a draft is verified.
    context: S, the slots of the cache that attention runs over.
    weight_bytes: of a number in weights, cache and activations; 2 is bfloat16.
    fused_attention: whether attention scores stay on the chip (Dao et al. 2022, arXiv 2205.14135).
      specjax writes them to memory.

  Raises:
    ValueError: for a number below 1.
  """
  given = {"batch_size": batch_size, "num_tokens": num_tokens, "context": context}
  for name, value in (given | {"weight_bytes": weight_bytes}).items():
    check_integer(name, value, 1)
  rows = _rows(mesh, batch_size)
  tokens, layers = rows * num_tokens, config.num_layers
  matrices, head = _layer_matrices(config, mesh), _head_matrix(config, mesh)
  products = [(matrix, layers) for matrix in matrices] + [(head, 1)]
  kv_parts = _attention_parts(config, mesh)
  scores = tokens * config.num_heads / kv_parts * context  # a layer
  read = rows * context * 2 * config.kv_size / kv_parts
  written = tokens * 2 * config.kv_size / kv_parts
  # Scores go out and come back in float32, then the softmax's weights in the model's dtype.
  softmax = 0 if fused_attention else layers * scores * 2 * (_FLOAT32 + weight_bytes)
  moved = sum(count * matrix.activations for matrix, count in products)
  moved += layers * _elementwise(config, mesh)
  logits = tokens * config.vocab_size / head.parts * (_FLOAT32 - weight_bytes)
  return CallCost(
    flops=2 * tokens * sum(count * matrix.weights for matrix, count in products)
    + layers * 2 * 2 * scores * config.head_dim,
    weight_bytes=weight_bytes * sum(count * matrix.weights for matrix, count in products)
    + weight_bytes * (tokens * config.hidden_size + _norm_weights(config)),
    cache_bytes=layers * weight_bytes * (read + written),
    activation_bytes=weight_bytes * tokens * moved + logits + softmax,
    collectives=_collectives(config, mesh, tokens, weight_bytes),
  )


def _attention_parts(config: TransformerConfig, mesh: MeshShape) -> int:
  """Into how many parts a layer's attention is cut: whole groups of heads."""
  if _parts(config.num_heads, mesh.model) == 1:
    return 1
  return math.gcd(config.num_kv_heads, mesh.model)


def _elementwise(config: TransformerConfig, mesh: MeshShape) -> float:
  """Numbers that a token reads and writes in a layer between its matrix products."""
  # Two residual additions, each with the norm after it: two in, two out.
  residual = 2 * 4 * config.hidden_size
  rotation = 2 * (config.query_size + config.kv_size) / _attention_parts(config, mesh)
  gate = 3 * config.intermediate_size / _parts(config.intermediate_size, mesh.model)
  return residual + rotation + gate


def _norm_weights(config: TransformerConfig) -> int:
  layer = (4 if config.post_norms else 2) * config.hidden_size
  layer += 2 * config.head_dim if config.qk_norm else 0
  return config.num_layers * layer + config.hidden_size


def _collectives(
  config: TransformerConfig, mesh: MeshShape, tokens: int, size: int
) -> tuple[Collective, ...]:
  """Of a call over `tokens` tokens on a device, with numbers of `size` bytes."""
  found: list[Collective] = []
  layers = config.num_layers
  stream = tokens * config.hidden_size * size
  if mesh.model > 1:
    query, key, _, output, _, _, down = _layer_matrices(config, mesh, stored=True)
    vocabulary = _head_matrix(config, mesh).parts
    for cut, count, what in (
      (output.parts, layers, "attention's output"),
      (down.parts, layers, "the feed-forward layer's output"),
      (vocabulary, 1, "token embeddings, of which each device has some"),
    ):
      if cut > 1:
        found.append(Collective(ALL_REDUCE, "model", count, stream, what))
    if query.parts > 1 and key.parts == 1:
      attention = _attention_parts(config, mesh)
      gathered = tokens * config.query_size * size / attention
      found.append(Collective(ALL_GATHER, "model", layers, gathered, "queries of other devices"))
      gathered = tokens * config.kv_size * size / attention
      found.append(
        Collective(ALL_GATHER, "model", 2 * layers, gathered, "keys and values of other devices")
      )
  if _parts(config.hidden_size, mesh.fsdp) > 1:
    for matrix in _layer_matrices(config, mesh, stored=True):
      found.append(Collective(ALL_GATHER, "fsdp", layers, matrix.weights * size, "a weight"))
    head = _head_matrix(config, mesh).weights * size
    found.append(Collective(ALL_GATHER, "fsdp", 1, head, "the output head"))
    found.append(Collective(ALL_GATHER, "fsdp", 1, stream, "token embeddings"))
  return tuple(found)


def choice_collectives(
  config: TransformerConfig, mesh: MeshShape, *, batch_size: int, num_tokens: int
) -> tuple[Collective, ...]:
  """Of choosing tokens from logits that are cut by vocabulary: a maximum and a sum a position."""
  if _head_matrix(config, mesh).parts == 1:
    return ()
  size = _rows(mesh, batch_size) * num_tokens * _FLOAT32
  return (Collective(ALL_REDUCE, "model", 2, size, "maxima and sums over the vocabulary"),)


def collective_seconds(collective: Collective, mesh: MeshShape, hardware: Hardware) -> float:
  """Seconds of ring collectives, one after the other."""
  size = {"model": mesh.model, "fsdp": mesh.fsdp}[collective.axis]
  if size == 1:
    return 0.0
  # The model axis is the innermost: its devices are neighbours.
  reach = mesh.model if collective.axis == "model" else mesh.model * mesh.fsdp
  link = hardware.interconnect_bandwidth
  if reach > hardware.domain_size:
    link = hardware.network_bandwidth
  sent = _TRIPS[collective.kind] * (size - 1) / size * collective.num_bytes
  return collective.count * (hardware.collective_latency + sent / link)


def call_time(
  cost: CallCost, mesh: MeshShape, hardware: Hardware, extra: Sequence[Collective] = ()
) -> CallTime:
  """Seconds of a call that was counted, with `extra` collectives after it."""
  return CallTime(
    compute=cost.flops / hardware.peak_flops,
    memory=cost.num_bytes / hardware.memory_bandwidth,
    collectives=sum(
      collective_seconds(item, mesh, hardware) for item in (*cost.collectives, *extra)
    ),
  )


# --- what a device holds ---------------------------------------------------------------------


def parameter_bytes(config: TransformerConfig, mesh: MeshShape, weight_bytes: int = 2) -> float:
  """Bytes of parameters on one device: the embedding table and the head are two arrays."""
  fsdp = _parts(config.hidden_size, mesh.fsdp)
  head = _head_matrix(config, mesh).weights
  layer = sum(matrix.weights for matrix in _layer_matrices(config, mesh, stored=True))
  weights = (config.num_layers * layer + 2 * head) / fsdp
  return weight_bytes * (weights + _norm_weights(config))


def cache_bytes(
  config: TransformerConfig,
  mesh: MeshShape,
  *,
  batch_size: int,
  context: int,
  weight_bytes: int = 2,
) -> float:
  """Bytes of keys and values on one device."""
  entries = _rows(mesh, batch_size) * context * 2 * config.num_layers * config.kv_size
  return weight_bytes * entries / _parts(config.num_kv_heads, mesh.model)


# --- speculation -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class DrafterCost:
  """What a draft step costs: a model's call, or a share of the target's.

  Attributes:
    config: of a draft model; None where `ratio` says it all.
    replicated: whether each device has the whole draft model rather than a part by `model`.
    ratio: c, seconds of a draft step over seconds of a target call on one token at the same batch;
      0 is prompt lookup. Used where there is no `config`.
  """

  config: TransformerConfig | None = None
  replicated: bool = True
  ratio: float = 0.0

  def __post_init__(self):
    check_not_negative("drafter cost ratio", self.ratio)
    if self.config is not None and self.ratio:
      raise ValueError(
        f"a drafter's cost is a draft model or a ratio, got both (ratio {self.ratio})"
      )


@dataclasses.dataclass(frozen=True)
class Setting:
  """What is predicted about.

  Attributes:
    config: the target model.
    mesh: the devices.
    hardware: of each of them.
    acceptance: alpha, or one rate a draft position; see `theory.expected_tokens`.
    drafter: what a draft step costs.
    context: slots of the cache.
    weight_bytes: of a number in weights, cache and activations.
    fused_attention: see `call_cost`.
  """

  config: TransformerConfig
  mesh: MeshShape
  hardware: Hardware
  acceptance: Acceptance
  drafter: DrafterCost = DrafterCost()
  context: int = 1024
  weight_bytes: int = 2
  fused_attention: bool = False

  def __post_init__(self):
    drafter = self.drafter.config
    if drafter is not None and drafter.vocab_size != self.config.vocab_size:
      raise ValueError(
        f"draft model must have the target's vocabulary of {self.config.vocab_size}, got "
        f"{drafter.vocab_size}"
      )


@dataclasses.dataclass(frozen=True)
class Prediction:
  """One batch size and draft length, predicted.

  Attributes:
    batch_size: rows of the whole batch.
    draft_length: gamma.
    autoregressive: time of a target call on one token a row.
    verify: time of a target call on gamma + 1.
    draft: time of one draft step.
    expected_tokens: tokens that a row gets in a round.
    memory_bytes: parameters and caches on one device, the draft model's included.
    fits: whether they fit its memory.
  """

  batch_size: int
  draft_length: int
  autoregressive: CallTime
  verify: CallTime
  draft: CallTime
  expected_tokens: float
  memory_bytes: float
  fits: bool

  @property
  def round_seconds(self) -> float:
    """gamma draft steps and a target call."""
    return self.draft_length * self.draft.seconds + self.verify.seconds

  @property
  def collective_seconds(self) -> float:
    """The part of a round that is communication."""
    return self.draft_length * self.draft.collectives + self.verify.collectives

  @property
  def tokens_per_second(self) -> float:
    """Of the whole batch."""
    return self.batch_size * self.expected_tokens / self.round_seconds

  @property
  def autoregressive_tokens_per_second(self) -> float:
    """The same without drafts."""
    return self.batch_size / self.autoregressive.seconds

  @property
  def speed_up(self) -> float:
    """Over autoregressive decoding."""
    return self.tokens_per_second / self.autoregressive_tokens_per_second


def target_time(setting: Setting, batch_size: int, num_tokens: int) -> CallTime:
  """Seconds of a target call and of the choice from its logits."""
  config, mesh = setting.config, setting.mesh
  return _time(setting, config, mesh, batch_size, num_tokens)


def draft_time(setting: Setting, batch_size: int) -> CallTime:
  """Seconds of one draft step."""
  drafter = setting.drafter
  if drafter.config is None:
    target = target_time(setting, batch_size, 1)
    parts = (target.compute, target.memory, target.collectives)
    return CallTime(*(drafter.ratio * part for part in parts))
  return _time(setting, drafter.config, _drafter_mesh(setting), batch_size, 1)


def _time(
  setting: Setting, config: TransformerConfig, mesh: MeshShape, batch_size: int, num_tokens: int
) -> CallTime:
  cost = call_cost(
    config,
    mesh,
    batch_size=batch_size,
    num_tokens=num_tokens,
    context=setting.context,
    weight_bytes=setting.weight_bytes,
    fused_attention=setting.fused_attention,
  )
  choice = choice_collectives(config, mesh, batch_size=batch_size, num_tokens=num_tokens)
  return call_time(cost, mesh, setting.hardware, choice)


def _drafter_mesh(setting: Setting) -> MeshShape:
  """The mesh that a draft model's arrays see: a replicated one has only rows to part."""
  mesh = setting.mesh
  return MeshShape(data=mesh.row_shards) if setting.drafter.replicated else mesh


def predict(setting: Setting, batch_size: int, draft_length: int) -> Prediction:
  """What a round of speculation takes and gives.

  Args:
    setting: model, devices, acceptance.
    batch_size: rows of the whole batch.
    draft_length: gamma; 0 is autoregressive decoding.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_integer("batch_size", batch_size, 1)
  check_integer("draft_length", draft_length, 0)
  memory = _memory(setting, batch_size)
  return Prediction(
    batch_size=batch_size,
    draft_length=draft_length,
    autoregressive=target_time(setting, batch_size, 1),
    verify=target_time(setting, batch_size, draft_length + 1),
    draft=draft_time(setting, batch_size),
    expected_tokens=expected_tokens(setting.acceptance, draft_length),
    memory_bytes=memory,
    fits=memory <= setting.hardware.memory_bytes,
  )


def _memory(setting: Setting, batch_size: int) -> float:
  models = [(setting.config, setting.mesh)]
  if setting.drafter.config is not None:
    models.append((setting.drafter.config, _drafter_mesh(setting)))
  size, total = setting.weight_bytes, 0.0
  for config, mesh in models:
    total += parameter_bytes(config, mesh, size)
    total += cache_bytes(
      config, mesh, batch_size=batch_size, context=setting.context, weight_bytes=size
    )
  return total


def choose_draft_length(
  setting: Setting, batch_size: int, max_draft_length: int = 16
) -> DraftLengthChoice:
  """The best draft length for a batch; it falls as the batch grows (Su et al. 2023, section 4)."""
  plain = target_time(setting, batch_size, 1).seconds
  return best_draft_length(
    setting.acceptance,
    draft_time(setting, batch_size).seconds / plain,
    block_cost=lambda length: target_time(setting, batch_size, length + 1).seconds / plain,
    max_draft_length=max_draft_length,
  )


def smallest_losing_batch(
  setting: Setting, draft_length: int, max_batch_size: int = 4096
) -> int | None:
  """The smallest batch at which the speed-up falls under 1, whether it fits the memory or not.

  Looked at are batches that the `data` and `fsdp` axes divide.

  Returns:
    None where speculation pays in all of them up to `max_batch_size`.

  Raises:
    ValueError: naming the argument, what it got and what it takes.
  """
  check_integer("max_batch_size", max_batch_size, 1)
  step = setting.mesh.row_shards
  for batch_size in range(step, max(max_batch_size, step) + 1, step):
    if predict(setting, batch_size, draft_length).speed_up < 1:
      return batch_size
  return None


def largest_fitting_batch(setting: Setting) -> int:
  """Rows that the devices have memory for; 0 where the parameters alone do not fit."""
  step = setting.mesh.row_shards
  first, second = _memory(setting, step), _memory(setting, 2 * step)
  room = setting.hardware.memory_bytes - (2 * first - second)
  return step * max(math.floor(room / (second - first)), 0)
