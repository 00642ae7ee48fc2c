# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Reproductions of published tables, one module a study; `experiments.reproduce` runs them."""
