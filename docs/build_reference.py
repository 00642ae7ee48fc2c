# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Builds the API reference from the docstrings, with pdoc (`pip install 'specjax[docs]'`).

python docs/build_reference.py  # to build/reference/index.html
python docs/build_reference.py FOLDER
"""

import pkgutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pdoc

import specjax

_HERE = Path(__file__).resolve().parent
DEFAULT_FOLDER = _HERE.parent / "build" / "reference"


def module_names() -> list[str]:
  """Every module of the package. Their `__all__` lists what users call, not which files exist."""
  found = pkgutil.walk_packages(specjax.__path__, "specjax.")
  names = (module.name for module in found)
  return ["specjax", *(name for name in names if not name.split(".")[-1].startswith("_"))]


def build(folder: Path, names: Sequence[str] | None = None) -> None:
  """Writes the pages of these modules; None is all of them."""
  pdoc.render.configure(
    docformat="google", show_source=False, template_directory=_HERE / "reference_template"
  )
  with warnings.catch_warnings():
    # The package brings the modules of its own `__all__`: they are named twice, and written once.
    warnings.filterwarnings("ignore", "The module specification")
    pdoc.pdoc(*(names or module_names()), output_directory=folder)


if __name__ == "__main__":
  target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
  build(target)
  print(target / "index.html")
