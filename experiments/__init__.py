# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Command-line entry points: absl flags, files and tables around the library."""
