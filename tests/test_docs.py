# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The guide pages say what is true: their code runs, their links lead somewhere."""

import html.parser
import pathlib
import re
import runpy
import urllib.parse

import pytest

pytestmark = pytest.mark.usefixtures("fast_compilation")

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(page):
  """Its ```python blocks, each with the number of the line that it begins on.

  A block with a line that begins with "!" is a notebook's cell for another machine.
  """
  text = page.read_text(encoding="utf-8")
  found = [(text.count("\n", 0, match.start()) + 2, match[1]) for match in _BLOCK.finditer(text)]
  return [(line, code) for line, code in found if not re.search(r"^!", code, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  namespace = {"__name__": f"docs_{page.stem}"}
  for line, code in blocks(page):
    # Blank lines before it: an error names the line of the page.
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def test_the_guide_has_a_page_for_each_subject():
  names = {page.stem for page in PAGES}
  for subject in (
    "adding_a_drafter",
    "adding_a_verifier",
    "bringing_your_own_model",
    "choosing_a_method",
    "reading_the_numbers",
    "what_lossless_means",
  ):
    assert subject in names
    assert blocks(ROOT / "docs" / f"{subject}.md")


@pytest.mark.parametrize(
  "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem
)
def test_relative_links_of_a_page_lead_to_files_and_headings(page):
  text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
  for link in _LINK.findall(text):
    address = urllib.parse.urlparse(link)
    if address.scheme:
      continue
    target = (page.parent / address.path).resolve() if address.path else page
    assert target.exists() and target.is_relative_to(ROOT), f"{page.name}: {link}"
    if address.fragment:
      headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
      slugs = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]
      assert address.fragment in slugs, f"{page.name}: {link}"


class _Links(html.parser.HTMLParser):
  """The addresses that a page links to, and the places in it that can be linked to."""

  def __init__(self):
    super().__init__()
    self.links, self.places = [], set()

  def handle_starttag(self, tag, attributes):
    values = dict(attributes)
    self.places.add(values.get("id"))
    if tag == "a" and values.get("href"):
      self.links.append(values["href"])


def test_the_api_reference_is_built_and_its_links_lead_somewhere(tmp_path):
  pytest.importorskip("pdoc", reason="the API reference is built with pdoc")
  script = runpy.run_path(str(ROOT / "docs" / "build_reference.py"))
  # A part of the modules, in which every kind of page is: all of them take ten times as long.
  names = ["specjax", "specjax.decoding", "specjax.generation", "specjax.types", "specjax.tracing"]
  assert set(names) < set(script["module_names"]())
  script["build"](tmp_path, names)
  pages = {}
  for path in tmp_path.rglob("*.html"):
    pages[path] = _Links()
    pages[path].feed(path.read_text(encoding="utf-8"))
  assert {tmp_path / f"{name.replace('.', '/')}.html" for name in names} <= set(pages)
  checked = 0
  for path, page in pages.items():
    for link in page.links:
      address = urllib.parse.urlparse(link)
      if not address.scheme:
        target = (path.parent / address.path).resolve() if address.path else path
        assert target in pages, f"{path.name}: {link}"
        assert not address.fragment or address.fragment in pages[target].places, link
        checked += 1
  assert checked > 100
  types = pages[tmp_path / "specjax" / "types.html"].places
  assert {"Draft", "Verifier.verify"} <= types
  assert not any(place and place.startswith("Array") for place in types)
