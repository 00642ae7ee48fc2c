# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""What `experiments.benchmark` measures of our own side alone: blocks, loop, bandwidth, batches."""

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial

import jax
import jax.numpy as jnp

from specjax.buckets import capacity_bucket
from specjax.decoding import Session, open_session
from specjax.drafters import Empty
from specjax.models.checkpoint import Checkpoint
from specjax.models.prefill import prefill
from specjax.types import Block, Params


@dataclasses.dataclass(frozen=True)
class Timers:
  """Measures one checkpoint.

  Attributes:
    target: what is timed, on its mesh of devices if it has one.
    repeats: how often each figure is measured; medians count.
  """

  target: Checkpoint
  repeats: int

  def block_seconds(
    self, prompts: Sequence[Sequence[int]], widths: Sequence[int]
  ) -> dict[int, float]:
    """Seconds of one round that scores a block of T tokens a row, for each T of `widths`."""
    rounds = 16
    longest = max(map(len, prompts))
    times: dict[int, list[float]] = {width: [] for width in widths}
    for repeat in range(self.repeats + 1):  # the first compiles
      for width in widths:
        session = self._open(
          prompts,
          drafter=Empty(width - 1),
          max_new_tokens=rounds + 1,
          capacity=capacity_bucket(longest + rounds + max(widths) + 2),
          narrow=False,
        )
        session.advance(1)
        began = time.perf_counter()
        session.advance(rounds)
        if repeat:
          times[width].append((time.perf_counter() - began) / rounds)
    return {width: statistics.median(seconds) for width, seconds in times.items()}

  def check_transfers(self, prompts: Sequence[Sequence[int]]) -> bool:
    """Whether decoding, once started, moves nothing between host and devices unasked.

    The whole loop runs under `jax.transfer_guard("disallow")`, which raises for any transfer that
    the program does not ask for; the host asks for the tokens afterwards.
    """
    options = {"max_new_tokens": 16, "capacity": capacity_bucket(max(map(len, prompts)) + 18)}
    self._open(prompts, **options).advance()
    session = self._open(prompts, **options).block_until_ready()
    try:
      with jax.transfer_guard("disallow"):
        session.advance_async()
        session.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
      if "Disallowed" not in str(error):
        raise
      return False
    return True

  def loop_overhead(self, ids: Sequence[int]) -> float:
    """Time of the empty drafter through our loop over that of a bare autoregressive loop."""
    model, params, rounds = self.target.model, self.target.params, 24
    capacity = len(ids) + 128

    @partial(jax.jit, donate_argnums=(1, 2))
    def bare(params, cache, tokens, length):
      def step(_, carry):
        cache, tokens, length = carry
        last = jax.lax.dynamic_slice_in_dim(tokens, length[0] - 1, 1)[None]
        output = model.apply(params, last, Block.chain(length - 1, 1), cache)
        token = jnp.argmax(model.logits(params, output.hidden[:, 0]), axis=-1)
        tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token.astype(jnp.int32), length[0], 0)
        return output.cache, tokens, length + 1

      return jax.lax.fori_loop(0, rounds, step, (cache, tokens, length))

    def time_bare():
      padded = jnp.zeros((capacity,), jnp.int32).at[: len(ids)].set(jnp.asarray(ids))
      read = jax.jit(prefill, static_argnums=0)
      length = jnp.full((1,), len(ids), jnp.int32)
      cache, _ = read(
        model, params, model.init_cache(1, capacity), padded[None, : len(ids)], length
      )
      jax.block_until_ready((cache, padded))
      began = time.perf_counter()
      jax.block_until_ready(bare(params, cache, padded, length)[1])
      return time.perf_counter() - began

    def time_ours():
      session = open_session(model, params, [list(ids)], max_new_tokens=99, capacity=capacity)
      session.block_until_ready()
      began = time.perf_counter()
      session.advance(rounds)
      return time.perf_counter() - began

    pairs = [(time_ours(), time_bare()) for _ in range(2 * self.repeats + 2)][1:]
    return statistics.median(ours / bare for ours, bare in pairs)

  def matmul_floor(self) -> tuple[float, int]:
    """Seconds and bytes of one token's weight products alone, streamed by the same matmuls."""
    kernels = _kernels(self.target.params)
    rounds = 8

    @jax.jit
    def stream(kernels, x):
      def once(_, x):
        total = jnp.zeros((), x.dtype)
        for kernel in kernels:
          # Each product depends on the one before, as in the model.
          total = jnp.tanh((jnp.full((1, kernel.shape[0]), x + total) @ kernel)[0, 0])
        return total

      return jax.lax.fori_loop(0, rounds, once, x)

    def run():
      began = time.perf_counter()
      stream(kernels, jnp.zeros((), kernels[0].dtype)).block_until_ready()
      return (time.perf_counter() - began) / rounds

    run()
    seconds = statistics.median(run() for _ in range(self.repeats + 2))
    return seconds, sum(kernel.nbytes for kernel in kernels)

  def batch_rates(
    self, prompts: Mapping[int, Sequence[int]], sizes: tuple[int, int]
  ) -> tuple[float, float]:
    """Tokens a second of two batch sizes, on prompts of different lengths."""
    rows = [list(ids) for ids in prompts.values()]
    rows = [rows[i % len(rows)] for i in range(sizes[1])]
    rows = [row[: len(row) - i % (len(row) // 2 + 1)] for i, row in enumerate(rows)]
    rates = []
    for size in sizes:
      times = []
      for _ in range(self.repeats + 1):
        session = self._open(
          rows[:size], max_new_tokens=32, capacity=capacity_bucket(max(map(len, rows)) + 33)
        ).block_until_ready()
        began = time.perf_counter()
        session.advance()
        times.append(time.perf_counter() - began)
      rates.append(32 * size / statistics.median(times[1:]))
    return rates[0], rates[1]

  def _open(self, prompts: Sequence[Sequence[int]], **options) -> Session:
    """A session on the target's devices."""
    target = self.target
    rows = [list(ids) for ids in prompts]
    return open_session(target.model, target.params, rows, **options, **target.placement)


def _kernels(params: Params) -> list[jax.Array]:
  return [
    leaf
    for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    if leaf.ndim == 2 and "kernel" in jax.tree_util.keystr(path)
  ]
