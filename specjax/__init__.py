# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""specjax: speculative execution of language models in JAX.

A drafter proposes a token tree, the target model scores it in one call, a verifier keeps what
the target would have produced; one compiled loop for every scheme.
"""

from specjax import drafters, sampling, sharding, trees, types, verifiers
from specjax.decoding import Session, generate, open_session, stream
from specjax.generation import Generation
from specjax.sampling import SamplingPolicy

__version__ = "0.1.0"

__all__ = [
  "Generation",
  "SamplingPolicy",
  "Session",
  "drafters",
  "generate",
  "open_session",
  "sampling",
  "sharding",
  "stream",
  "trees",
  "types",
  "verifiers",
]
