# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The report of a study on the disk: README.md, figure.png, numbers.json."""

import json
from pathlib import Path

from experiments.studies.study import StudyReport, markdown_table
from specjax.models import cached_files


def check_plots() -> None:
  """Raises ImportError where matplotlib is missing: before hours of work, not after them."""
  try:
    import matplotlib  # noqa: F401
  except ImportError:
    raise ImportError(
      "a report has a figure, which needs matplotlib: pip install 'specjax[plots]'"
    ) from None


def write_report(folder: Path, report: StudyReport, command: str, facts: str) -> str:
  """Writes the report; returns its tables as text.

  Args:
    folder: made if need be; an earlier report there is replaced.
    report: what was found.
    command: the command that makes it again.
    facts: a line on what it was measured with.
  """
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  folder.mkdir(parents=True, exist_ok=True)
  figure = pyplot.figure(figsize=report.figure_size, layout="constrained")
  report.draw(figure)
  # Without its version in the file, the same numbers give the same bytes.
  figure.savefig(folder / "figure.png", dpi=90, metadata={"Software": None})
  pyplot.close(figure)
  numbers = json.dumps(report.numbers, indent=1, allow_nan=False)
  cached_files.write_text(folder / "numbers.json", numbers + "\n")
  tables = "\n\n".join(
    f"## {table.title}\n\n{markdown_table(table.header, table.lines)}"
    + (f"\n\n{table.note}" if table.note else "")
    for table in report.tables
  )
  text = (
    f"# {report.title}\n\n{report.introduction}\n\n{tables}\n\n![{report.title}](figure.png)\n\n"
    f"Measured with {facts}. Made by\n\n```bash\n{command}\n```\n"
  )
  cached_files.write_text(folder / "README.md", text)
  return tables
