# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The notebooks of colab/ run from top to bottom, and open in Colab as they were reviewed."""

import ast
import pathlib
import re
import runpy

import pytest

from experiments.notebook_html import color_tokens, side_by_side

nbformat = pytest.importorskip("nbformat", reason="pip install 'specjax[notebooks]'")
pytest.importorskip("jupytext", reason="pip install 'specjax[notebooks]'")
pytest.importorskip("nbclient", reason="pip install 'specjax[notebooks]'")

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "colab"
BUILD = runpy.run_path(str(FOLDER / "build.py"))
NAMES = BUILD["NAMES"]
# Executed last is what takes longest; SmolLM2 is fetched where it is not there yet.
MARKS = {"quick_start": pytest.mark.real_model}
EXECUTED = [
  pytest.param(name, marks=[pytest.mark.slow, *filter(None, [MARKS.get(name)])]) for name in NAMES
]
# Without most optimisations tiny programs compile sooner.
FAST = {"SPECJAX_FAST": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "TOKENIZERS_PARALLELISM": "0"}


def committed(name):
  return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def sources(notebook):
  return [(cell.cell_type, cell.source) for cell in notebook.cells]


def html_of(notebook):
  outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
  return "".join(output.get("data", {}).get("text/html", "") for output in outputs)


@pytest.mark.parametrize("name", EXECUTED)
def test_a_notebook_executes_from_top_to_bottom(name, tmp_path):
  notebook = BUILD["read_source"](name)
  BUILD["execute"](notebook, tmp_path, FAST, timeout=300)
  code = [cell for cell in notebook.cells if cell.cell_type == "code"]
  assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
  assert "</mark>" in html_of(notebook)


@pytest.mark.slow
def test_an_error_in_a_cell_is_raised_with_its_text(tmp_path):
  notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")])
  with pytest.raises(Exception, match="ZeroDivisionError"):
    BUILD["execute"](notebook, tmp_path)


def test_every_notebook_of_the_folder_is_built():
  assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NAMES)
  assert {path.stem for path in FOLDER.glob("*.py")} == {*NAMES, "build"}


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_notebook_has_the_cells_of_its_reviewed_text(name):
  assert sources(committed(name)) == sources(BUILD["read_source"](name)), (
    f"python colab/build.py {name}"
  )


@pytest.mark.parametrize("name", NAMES)
def test_a_committed_notebook_holds_the_outputs_of_one_run_from_top_to_bottom(name):
  notebook = committed(name)
  nbformat.validate(notebook)
  code = [cell for cell in notebook.cells if cell.cell_type == "code"]
  assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
  outputs = [output for cell in code for output in cell.outputs]
  assert not [output for output in outputs if output.output_type == "error"]
  assert not [output for output in outputs if output.get("name") == "stderr"]
  assert any("image/png" in output.get("data", {}) for output in outputs)
  assert "</mark>" in html_of(notebook)


def test_all_notebooks_together_stay_small():
  assert sum(path.stat().st_size for path in FOLDER.glob("*.ipynb")) < 1.5e6


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_begins_with_its_badge_and_a_cell_that_installs_and_detects(name):
  (_, title), (kind, install) = sources(BUILD["read_source"](name))[:2]
  address = f"https://colab.research.google.com/github/specjax/specjax/blob/main/colab/{name}.ipynb"
  assert f"]({address})" in title and "colab-badge.svg" in title
  assert kind == "code"
  # JAX is imported after what might replace it.
  assert install.index('"pip", "install"') < install.index("import jax")
  for word in ("find_spec(", "/dev/accel", "nvidia-smi", ".platform"):
    assert word in install


def test_a_drafter_and_a_verifier_of_ones_own_take_at_most_40_lines():
  cells = [source for _, source in sources(BUILD["read_source"]("your_own_drafter"))]
  (cell,) = [
    source for source in cells if "(ChainDrafter)" in source and "(RuleVerifier)" in source
  ]
  assert len(cell.splitlines()) <= 40
  names = {node.name for node in ast.parse(cell).body}
  assert {"TableDrafter", "MyVerifier"} <= names


def test_the_command_answers_an_unknown_name_in_one_line(capsys):
  assert BUILD["main"](["build.py", "quick_stort"]) == 2
  error = capsys.readouterr().err
  assert error.count("\n") == 1 and "quick_stort" in error and "quick_start" in error


def test_tokens_are_coloured_by_where_they_came_from_and_never_read_as_html():
  text = color_tokens(["<b>", "&", "\n"], [True, False, True])
  marks = re.findall(r'<mark style="([^"]*)">(.*?)</mark>', text, re.DOTALL)
  assert [inner for _, inner in marks] == ["&lt;b&gt;", "&amp;", "\u21b5\n"]
  assert marks[0][0] == marks[2][0] != marks[1][0]
  assert "animation" not in text
  assert "&lt;i&gt;" in side_by_side({"<i>": text})


def test_tokens_with_times_appear_when_they_were_decoded():
  text = color_tokens(["a", "b"], [True, False], [0.5, 1.25])
  assert re.findall(r"specjax-appear 1ms ([\d.]+)s backwards", text) == ["0.50", "1.25"]
  with pytest.raises(ValueError, match="got 1, 2 and 1"):
    color_tokens(["a"], [True, False])
