# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""A traced decode as one HTML file that needs no network: `trace_page.html` with the data in it."""

import json
from pathlib import Path

from experiments.trace_record import Json

_TEMPLATE = Path(__file__).with_suffix(".html")
_PLACE = "{{TRACE}}"


def trace_page(trace: Json) -> str:
  """The page of a trace, as `experiments.trace_record.TraceRecord.to_json` gives it."""
  # "</script>" in a decoded text would end the element that holds the data.
  data = json.dumps(trace, ensure_ascii=False).replace("<", "\\u003c")
  return _TEMPLATE.read_text(encoding="utf-8").replace(_PLACE, data)
