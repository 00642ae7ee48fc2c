# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Strict defaults for every test: no silent promotion, several CPU devices, tiny models."""

import gc
import os

# Before JAX starts: several devices, so that nothing works by accident of there being one.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest

jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(autouse=True)
def _few_threads(monkeypatch):
  """Tokenizers forked under pytest-xdist warn about parallelism otherwise."""
  monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_programs():
  """Every compiled program holds memory maps; thousands of them reach the kernel's limit."""
  yield
  jax.clear_caches()
  gc.collect()
