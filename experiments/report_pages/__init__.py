# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Pages about measured rows: reading them, measures, plots, and Markdown and HTML out of them."""
