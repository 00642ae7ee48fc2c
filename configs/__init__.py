# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The experiments of the papers, one config a scheme, for `experiments.decode`."""
