# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Strict defaults for every test: no silent promotion, several CPU devices, tiny models."""

import atexit
import gc
import os
import shutil
import tempfile

# Before JAX starts: several devices, so that nothing works by accident of there being one.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time goes into compiling, often the same program again: in another test, in a command
# that a test starts, in the other worker. All share one cache, which lives as long as the run.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="specjax-tests-")
  atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

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


@pytest.fixture(scope="module")
def fast_compilation():
  """Compiles with few optimisations, for tests that compile much and run little."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)
