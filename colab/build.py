# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks and writes them with their outputs (`pip install 'specjax[notebooks]'`).

python colab/build.py  # all of them
python colab/build.py quick_start sharded_decoding

A notebook is written and reviewed as NAME.py, in jupytext's percent format; NAME.ipynb is made from
it and is what opens in Colab. With SPECJAX_FAST=1 a notebook takes the tiny sizes that the tests
run it with; here it never does.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbclient
import nbformat

HERE = Path(__file__).resolve().parent
NAMES = ("quick_start", "your_own_drafter", "train_drafters", "sharded_decoding")
_KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def read_source(name: str) -> Any:
  """The notebook of NAME.py, without outputs: the same at every call, cell ids included.

  Raises:
    ValueError: for an unknown name.
  """
  if name not in NAMES:
    raise ValueError(f"notebook must be one of {', '.join(NAMES)}, got {name!r}")
  notebook = jupytext.read(HERE / f"{name}.py")
  for index, cell in enumerate(notebook.cells):
    cell.id = f"cell-{index}"
    cell.metadata = {}
  notebook.metadata = {"kernelspec": _KERNEL, "language_info": {"name": "python"}}
  notebook.nbformat, notebook.nbformat_minor = 4, 5
  return notebook


def execute(
  notebook: Any, folder: Path, environment: Mapping[str, str] | None = None, timeout: int = 1200
) -> None:
  """Runs all cells from top to bottom in a kernel of their own; outputs go into the notebook.

  Args:
    notebook: what `read_source` returned.
    folder: the kernel's working directory.
    environment: variables laid over those of this process.
    timeout: seconds that a cell may take.

  Raises:
    nbclient.exceptions.CellExecutionError: with the cell and its traceback.
  """
  client = nbclient.NotebookClient(
    notebook,
    timeout=timeout,
    kernel_name="python3",
    record_timing=False,
    resources={"metadata": {"path": str(folder)}},
  )
  client.execute(env={**os.environ, **(environment or {})})
  notebook.metadata = {"kernelspec": _KERNEL, "language_info": {"name": "python"}}


def build(name: str) -> Path:
  """Executes a notebook in full and writes it; what was there stays until then."""
  notebook = read_source(name)
  execute(notebook, HERE, {"SPECJAX_FAST": "0"})
  path = HERE / f"{name}.ipynb"
  aside = path.with_suffix(".ipynb.part")
  nbformat.write(notebook, aside)
  aside.replace(path)
  return path


def main(argv: Sequence[str]) -> int:
  """Runs the command; returns the exit code."""
  names = list(argv[1:]) or list(NAMES)
  for name in names:
    if name not in NAMES:
      print(f"error: notebooks are {', '.join(NAMES)}, got {name!r}", file=sys.stderr)
      return 2
  for index, name in enumerate(names, start=1):
    print(f"[{index}/{len(names)}] {name} ...", end=" ", flush=True)
    started = time.perf_counter()
    try:
      path = build(name)
    except nbclient.exceptions.CellExecutionError as error:
      print(f"failed\n{error}", file=sys.stderr)
      return 1
    except KeyboardInterrupt:
      print("interrupted; notebooks that were finished are written", file=sys.stderr)
      return 130
    print(f"{time.perf_counter() - started:.0f} s, {path.stat().st_size / 1e3:.0f} kB")
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv))
