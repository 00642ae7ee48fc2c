# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Training of drafters: token data of the target's own answers, objectives, one loop for all."""
