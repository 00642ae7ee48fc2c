# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The report's pages out of rows that are made up."""

import html.parser
import json
import re

import headless
import pytest
from spec_bench_rows import row, write

from experiments.report_pages.blocks import Heading, Paragraph, TableBlock, to_html, to_markdown
from experiments.spec_bench import main

TASKS = ["writing", "translation", "summarization", "qa", "math_reasoning", "rag"]


def rows_of(speed, length=4):
  rows = []
  for index in range(12):
    category = TASKS[index % 6]
    rows.append(row("autoregressive", index, [1] * 8, category=category, seconds=4.0))
    per_call, seconds = [length] * (8 // length), {"seconds": 4 / speed, "prefill": 0.5 / speed}
    rows.append(
      row("draft_model", index, per_call, category=category, longest=length - 1, **seconds)
    )
    rows.append(row("prompt_lookup", index, [1, 3, 4], category=category, seconds=2.0))
  return rows


@pytest.fixture(scope="module")
def page(tmp_path_factory):
  """The folder of a report on runs of two draft lengths and two batch sizes."""
  root = tmp_path_factory.mktemp("report")
  folders = [
    write(root / "short", rows_of(2.0, 2), draft_length=1),
    write(root / "long", rows_of(4.0), draft_length=3),
    write(root / "batch", [r | {"batch_size": 2} for r in rows_of(1.5)], draft_length=3,
          batch_size=2),
  ]  # fmt: skip
  different = rows_of(4.0)
  different[1]["token_ids"] = [0, 1, 99, *range(3, 8)]
  (folders[1] / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in different))
  margin = {"method": "draft_model", "prompt_index": 0, "turn": 0, "margin": 2.5e-6}
  (folders[1] / "differences.jsonl").write_text(json.dumps(margin) + "\n")
  code = main(["spec_bench", "--report", *map(str, folders), f"--output={root / 'page'}"])
  assert code == 0
  return root / "page"


def test_the_tables_have_every_task_group_and_measure(page):
  text = (page / "report.md").read_text()
  for heading in (
    *("Multi-turn conversation", "Translation", "Summarisation", "Question answering"),
    *("Mathematical reasoning", "Retrieval-augmented generation", "All tasks"),
  ):
    assert text.count(f"### {heading}\n") == 3
  section = text.split("## batch_size 1, draft_length 3\n")[1].split("### Translation\n")[1]
  line = next(line for line in section.splitlines() if line.startswith("| draft_model"))
  cells = [cell.strip() for cell in line.strip("|").split("|")]
  assert cells[:5] == ["draft_model", "2", "4.00", "1.00 1.00 1.00", "8.0"]
  assert cells[5] == cells[6] == cells[7] == "4.00x [4.00, 4.00]"
  assert cells[8:] == ["2 of 2 (100.0%)", "none"]


def test_an_output_that_differs_is_shown_with_its_gap(page):
  text = (page / "report.md").read_text()
  assert "question 100 turn 0 token 2, gap 2.5e-06" in text
  assert "the two best logits are at most 2.5e-06 apart" in text


def test_the_machine_the_command_and_the_pictures_are_there(page):
  text = (page / "report.md").read_text()
  assert "made up" in text and "python -m experiments.spec_bench --report" in text
  for name in (
    *("speed_up_by_draft_length", "speed_up_by_batch_size", "speed_up_by_task-0"),
    *("acceptance_by_position-1", "accepted_lengths-2"),
  ):
    assert f"(figures/{name}.png)" in text
    assert (page / "figures" / f"{name}.png").stat().st_size > 5000
    assert (page / "figures" / f"{name}.svg").stat().st_size > 5000


def test_the_html_page_fetches_nothing_and_has_no_script(page):
  text = (page / "report.html").read_text()
  sources = re.findall(r'(?:src|href)="([^"]{0,30})', text)
  assert sources and all(source.startswith("data:") for source in sources)
  assert "<script" not in text and "@import" not in text and "url(" not in text
  assert '<meta name="viewport" content="width=device-width' in text


def test_one_folder_without_output_gets_its_own_report_and_files_for_spec_benchs_tools(tmp_path):
  folder = write(tmp_path / "run", rows_of(2.0))
  assert main(["spec_bench", "--report", f"--output={folder}"]) == 0
  assert (folder / "report.html").exists() and not (
    folder / "figures" / "speed_up_by_task-0.png"
  ).exists()
  assert len((folder / "spec_bench" / "draft_model.jsonl").read_text().splitlines()) == 12


def test_rows_without_a_baseline_have_no_speed_up(tmp_path):
  rows = [r for r in rows_of(2.0) if r["method"] != "autoregressive"]
  folder = write(tmp_path / "run", rows)
  assert main(["spec_bench", "--report", str(folder)]) == 0
  text = (folder / "report.md").read_text()
  assert "Without autoregressive rows there is no speed-up" in text


def test_sampled_outputs_are_not_compared(tmp_path):
  folder = write(tmp_path / "run", rows_of(2.0), temperature=1.0)
  assert main(["spec_bench", "--report", str(folder)]) == 0
  text = (folder / "report.md").read_text()
  assert "sampled" in text and "that differ from autoregressive" not in text


@pytest.mark.parametrize(
  ("line", "message"),
  [("{}", "line 1 is not a row of results: it has no 'method'"), ("3", "line 1 is not a row")],
)
def test_a_file_that_holds_no_rows_is_named(tmp_path, capsys, line, message):
  (tmp_path / "results.jsonl").write_text(line + "\n")
  assert main(["spec_bench", "--report", str(tmp_path)]) == 2
  assert message in capsys.readouterr().err


def test_text_is_escaped_in_both_pages():
  blocks = [Heading("<a & b>", 1), Paragraph("x < y"), TableBlock(("a|b", "c"), [("<i>", "|")])]
  page = to_html(blocks, {})
  assert "<a & b>" not in page and "<i>" not in page and "&lt;a &amp; b&gt;" in page
  html.parser.HTMLParser().feed(page)
  assert "| a\\|b |" in to_markdown(blocks)


@headless.requires_browser
def test_a_browser_opens_the_page_on_a_phone_without_an_error(page):
  with headless.open_page(page / "report.html", width=390, height=844, scale=2) as opened:
    assert opened.problems == []
    assert not opened.overflows()
    assert all(address.startswith(("file:", "data:")) for address in opened.requests)
    loaded = "Array.from(document.images).every(image => image.complete && image.naturalWidth > 0)"
    assert opened.evaluate(loaded) and opened.evaluate("document.images.length") == 11
