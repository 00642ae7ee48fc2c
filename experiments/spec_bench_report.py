# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The report of `experiments.spec_bench`: tables by task group, plots, where outputs differ.

  python -m experiments.spec_bench --report runs/a runs/b --output=runs/report

It reads any folders of results, those of `experiments.decode` too. Folders of equal settings are
pooled, others stand one after another.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.differences import Difference, find_differences
from experiments.report import BASELINE, format_table
from experiments.report_pages import measures, plots
from experiments.report_pages.blocks import (
  Block,
  Code,
  Figure,
  Heading,
  Paragraph,
  TableBlock,
  write_pages,
)
from experiments.report_pages.measures import Ratio, speed_up
from experiments.report_pages.runs import Pool, Run, machines, pool_runs, read_run
from experiments.results import Row
from experiments.spec_bench_files import write_spec_bench_files
from experiments.spec_bench_questions import task_of, tasks_of
from experiments.studies.measures import number, percent

NAME = "report"
ALL = "all tasks"
# A table cell shows this many draft positions; the table of all positions is below.
_POSITIONS = 4
# Rows of the table of differences.
_MOST_DIFFERENCES = 100
_HEADER = (
  *("method", "questions", "tokens/call", "acceptance by position", "tokens/s", "speed-up"),
  *("decode speed-up", "Spec-Bench speed-up", "equal outputs", "first difference"),
)
_LEGEND = (
  "tokens/call is the block efficiency: new tokens a target call, the target's own (bonus) token "
  "and the calls that a drafter makes of the target included. Acceptance by position is the share "
  f"of drafts accepted up to position 1, 2, ... {_POSITIONS}. tokens/s are of decoding, without "
  "reading the prompt. Speed-ups are over autoregressive decoding of the same questions, with "
  "bootstrap 95 % intervals over questions: of all tokens over all seconds with the reading of "
  "prompts (speed-up) and without (decode speed-up), and of the means over questions "
  "(Spec-Bench's). Compilation is in none of them. Outputs are compared token by token; at the "
  "first difference stands the gap between the two best logits there."
)


def write_report(folders: Sequence[Path], output: Path, command: str) -> str:
  """Writes report.md, report.html and figures, and each folder's files for Spec-Bench's tools.

  Args:
    folders: of results.
    output: folder of the pages.
    command: the command line, for the page.

  Returns:
    The path of the HTML page.

  Raises:
    ValueError: for a folder that holds no results.
    ImportError: where matplotlib is missing.
  """
  from experiments.studies.study_files import check_plots

  check_plots()
  runs = [read_run(folder) for folder in dict.fromkeys(folders)]
  if not any(run.rows for run in runs):
    raise ValueError(f"there are no rows yet in {', '.join(str(run.folder) for run in runs)}")
  for run in runs:
    if os.access(run.folder, os.W_OK):  # else those of the run itself have to do
      write_spec_bench_files(run.folder, run.rows)
  pools = pool_runs([run for run in runs if run.rows])
  methods = list(dict.fromkeys(name for pool in pools for name in pool.rows))
  blocks: list[Block] = [Heading("Speculative decoding by task (Spec-Bench)", 1)]
  blocks.append(Paragraph(_introduction(pools)))
  blocks += _against(pools, methods)
  for index, pool in enumerate(pools):
    blocks += _pool_blocks(pool, methods, "" if len(pools) == 1 else f"-{index}")
  blocks.append(Heading("How it was measured"))
  blocks.append(Paragraph(_LEGEND))
  for stamp in machines(runs):
    blocks.append(TableBlock(("machine and versions", ""), list(stamp.items())))
  blocks += _commands(runs, command)
  _, page = write_pages(output, NAME, blocks)
  return str(page)


def summary_text(folder: Path) -> str:
  """The tables of a run for the terminal: tokens a target call and speed-up by task."""
  pools = pool_runs([read_run(folder)])
  return "\n\n".join(
    f"{title}\n{format_table(table.header, table.lines)}"
    for pool in pools
    for title, table in _overviews(pool)
  )


def _introduction(pools: Sequence[Pool]) -> str:
  settings = pools[0].settings
  rows = [row for pool in pools for method in pool.rows.values() for row in method]
  questions = {row["question"] for row in rows}
  parts = [f"{len(questions)} questions of {len({row.get('category') for row in rows})} categories"]
  for name in ("model", "temperature", "max_new_tokens", "batch_size"):
    values = list(dict.fromkeys(str(pool.settings.get(name)) for pool in pools))
    if name in settings:
      parts.append(f"{name} {' and '.join(values)}")
  return "; ".join(parts) + "."


def _commands(runs: Sequence[Run], command: str) -> list[Block]:
  found = [
    path.read_text(encoding="utf-8").strip()
    for run in runs
    if (path := run.folder / "command.txt").is_file()
  ]
  lines = list(dict.fromkeys([*found, command]))
  return [Paragraph("Made by"), Code("\n".join(lines))]


# --- one pool ------------------------------------------------------------------------------


def _pool_blocks(pool: Pool, methods: Sequence[str], suffix: str) -> list[Block]:
  """Everything about one pool; `suffix` tells the files of its pictures apart."""
  blocks: list[Block] = []
  if pool.differing:
    blocks.append(Heading(pool.label()))
  for title, table in _overviews(pool):
    blocks += [Heading(title, 3), table]
  if not pool.baseline:
    blocks.append(Paragraph("Without autoregressive rows there is no speed-up and no comparison."))
  drafting = {name: rows for name, rows in pool.rows.items() if measures.acceptance(rows)}
  tasks = _tasks(pool)
  speeds = {
    name: by_task
    for name in pool.rows
    if name != BASELINE and any((by_task := _speed_ups(pool, name)).values())
  }
  if speeds:
    draw = functools.partial(
      plots.draw_speed_up_by_task, speed_ups=speeds, tasks=[*tasks, ALL], methods=methods
    )
    blocks.append(
      Figure(f"speed_up_by_task{suffix}", "Wall-clock speed-up by task", draw, (8.0, 4.4))
    )
  blocks += _peer_blocks(pool)
  for task in [*tasks, ALL]:
    lines = [_line(pool, name, task) for name in pool.rows]
    blocks += [Heading(task[0].upper() + task[1:], 3), TableBlock(_HEADER, [*filter(None, lines)])]
  if drafting:
    blocks += _acceptance_blocks(drafting, methods, suffix)
  blocks += _difference_blocks(pool)
  return blocks


def _tasks(pool: Pool) -> list[str]:
  return tasks_of([row.get("category") or "" for rows in pool.rows.values() for row in rows])


def _of_task(rows: Sequence[Row], task: str) -> list[Row]:
  if task == ALL:
    return list(rows)
  return [row for row in rows if task_of(row.get("category") or "") == task]


def _speed_ups(pool: Pool, name: str) -> dict[str, Ratio | None]:
  """Wall-clock speed-up by task, and over all."""
  found = {}
  for task in [*_tasks(pool), ALL]:
    speed = speed_up(_of_task(pool.rows[name], task), pool.baseline)
    found[task] = speed.wall_clock if speed else None
  return found


def _overviews(pool: Pool) -> list[tuple[str, TableBlock]]:
  """Two tables of methods by tasks."""
  tasks = [*_tasks(pool), ALL]
  header = ("method", *tasks)
  efficiency, speed = [], []
  for name, rows in pool.rows.items():
    by_task = _speed_ups(pool, name)
    efficiency.append(
      (name, *(number(measures.block_efficiency(_of_task(rows, task))) for task in tasks))
    )
    speed.append((name, *(number(r.value, "{:.2f}x") if (r := by_task[t]) else "-" for t in tasks)))
  return [
    ("Tokens a target call", TableBlock(header, efficiency)),
    ("Wall-clock speed-up over autoregressive decoding", TableBlock(header, speed)),
  ]


def _line(pool: Pool, name: str, task: str) -> tuple[str, ...] | None:
  """A method's line in the table of a task; None where it has no rows of it."""
  rows = _of_task(pool.rows[name], task)
  if not rows:
    return None
  speed = speed_up(rows, pool.baseline)
  accepted = measures.acceptance(rows)
  positions = [f"{rate:.2f}" for rate in accepted.reached[:_POSITIONS]] if accepted else []
  return (
    name,
    str(len({row["question"] for row in rows})),
    number(measures.block_efficiency(rows)),
    " ".join(positions) or "-",
    number(measures.tokens_per_second(rows), "{:.1f}"),
    str(speed.wall_clock) if speed else "-",
    str(speed.decode) if speed else "-",
    str(speed.mean_of_rates) if speed else "-",
    *_equality(pool, name, rows),
  )


# --- equality ------------------------------------------------------------------------------


def _differences(pool: Pool, name: str, rows: Sequence[Row]) -> list[Difference]:
  """Where some of a method's rows differ from the baseline's of their own folder, if it has them.

  A conversation's other turns say whether the prompts were equal.
  """
  chosen = {id(row) for row in rows}
  found: list[Difference] = []
  for folder in dict.fromkeys(row["folder"] for row in pool.rows[name]):
    of_run = [row for row in pool.rows[name] if row["folder"] == folder]
    own = [row for row in pool.baseline if row["folder"] == folder]
    found += find_differences(of_run, own or pool.baseline, key=lambda row: row["question"])
  return [difference for difference in found if id(difference.row) in chosen]


def _equality(pool: Pool, name: str, rows: Sequence[Row]) -> tuple[str, str]:
  """The share of outputs equal to autoregressive decoding, and the first that is not."""
  if name == BASELINE:
    return "-", "-"
  if not pool.greedy:
    return "sampled", "-"
  known = {(row["question"], row["turn"]) for row in pool.baseline}
  compared = [row for row in rows if (row["question"], row["turn"]) in known]
  if not compared:
    return "-", "-"
  found = _differences(pool, name, rows)
  equal = len(compared) - len(found)
  share = f"{equal} of {len(compared)} ({percent(equal / len(compared))})"
  return share, _where(found[0]) if found else "none"


def _where(difference: Difference) -> str:
  row, index = difference.row, difference.token_index
  place = f"question {_question(row)} turn {row['turn']}"
  if index is None:
    return f"{place}: an earlier answer differs"
  gap = "not measured" if row["margin"] is None else f"{row['margin']:.2g}"
  return f"{place} token {index}, gap {gap}"


def _question(row: Row) -> str:
  """A question's name for people."""
  question_id = row.get("question_id")
  return str(row["prompt_index"] if question_id is None else question_id)


def _difference_blocks(pool: Pool) -> list[Block]:
  if not pool.greedy or not pool.baseline:
    return []
  found = [
    difference
    for name, rows in pool.rows.items()
    if name != BASELINE
    for difference in _differences(pool, name, rows)
  ]
  blocks: list[Block] = [Heading("Outputs that differ from autoregressive decoding", 3)]
  if not found:
    return [*blocks, Paragraph("None: all outputs are equal, token by token.")]
  margins = [d.row["margin"] for d in found if d.row["margin"] is not None and d.row["lossless"]]
  text = f"{len(found)} outputs."
  if margins:
    text += (
      " Where lossless methods first differ, the two best logits are at most "
      f"{max(margins):.2g} apart: a block of another width rounds differently, and either token "
      "can win a near tie."
    )
  lines = [
    (
      difference.row["method"],
      _question(difference.row),
      difference.row.get("category") or "-",
      str(difference.row["turn"]),
      "an earlier answer" if difference.token_index is None else str(difference.token_index),
      number(difference.row["margin"], "{:.3g}"),
      "yes" if difference.row["lossless"] else "no",
    )
    for difference in found[:_MOST_DIFFERENCES]
  ]
  header = (
    *("method", "question", "category", "turn", "first different token"),
    *("gap of the two best logits", "lossless"),
  )
  blocks += [Paragraph(text), TableBlock(header, lines)]
  if len(found) > len(lines):
    blocks.append(Paragraph(f"The first {len(lines)} of them."))
  return blocks


# --- acceptance ----------------------------------------------------------------------------


def _acceptance_blocks(
  drafting: Mapping[str, Sequence[Row]], methods: Sequence[str], suffix: str
) -> list[Block]:
  """Acceptance by position as a table and a plot, and the histogram of accepted lengths."""
  found = {name: a for name, rows in drafting.items() if (a := measures.acceptance(rows))}
  length = max(len(accepted.reached) for accepted in found.values())
  lines = []
  for name, accepted in found.items():
    for what, rates in (("all drafts", accepted.reached), ("given before", accepted.conditional)):
      cells = [number(rate) for rate in rates]
      lines.append((name, what, *cells, *[""] * (length - len(cells))))
  histograms = {name: measures.accepted_histogram(rows) for name, rows in drafting.items()}
  return [
    Heading("Acceptance by draft position", 3),
    Paragraph(
      "Of all drafts, the share whose tokens were accepted up to each position; and of those that "
      "were accepted up to the position before, the share accepted at this one too. A draft that "
      "ended before a position counts as not accepted there."
    ),
    TableBlock(("method", "of", *map(str, range(1, length + 1))), lines),
    Figure(
      f"acceptance_by_position{suffix}",
      "Acceptance against draft position",
      functools.partial(
        plots.draw_acceptance,
        reached={name: accepted.reached for name, accepted in found.items()},
        conditional={name: accepted.conditional for name, accepted in found.items()},
        methods=methods,
      ),
    ),
    Figure(
      f"accepted_lengths{suffix}",
      "Rounds by how many drafted tokens were accepted",
      functools.partial(plots.draw_accepted_lengths, histograms=histograms, methods=methods),
    ),
  ]


# --- other systems, draft lengths, batch sizes -----------------------------------------------

_COUNTERPARTS = {
  "transformers_autoregressive": BASELINE,
  "transformers_prompt_lookup": "prompt_lookup",
  "transformers_assistant": "draft_model",
}


def _peer_blocks(pool: Pool) -> list[Block]:
  """specjax against `transformers`, method by method, where both are there."""
  lines = []
  plain = pool.rows.get("transformers_autoregressive", [])
  for theirs, ours in _COUNTERPARTS.items():
    if theirs not in pool.rows or ours not in pool.rows:
      continue
    ratio = speed_up(pool.rows[ours], pool.rows[theirs])
    own = speed_up(pool.rows[theirs], plain)
    lines.append(
      (
        f"{ours} against {theirs}",
        str(ratio.wall_clock) if ratio else "-",
        str(ratio.decode) if ratio else "-",
        number(measures.block_efficiency(pool.rows[ours])),
        number(measures.block_efficiency(pool.rows[theirs])),
        str(own.wall_clock) if own else "-",
      )
    )
  if not lines:
    return []
  header = (
    *("specjax against transformers", "times as fast", "decoding", "our tokens/call"),
    *("their tokens/call", "their speed-up over their own autoregressive"),
  )
  return [Heading("Against transformers", 3), TableBlock(header, lines)]


def _against(pools: Sequence[Pool], methods: Sequence[str]) -> list[Block]:
  """Speed-up against draft length and batch size, where the pools have several of them."""
  blocks: list[Block] = []
  by_length: dict[tuple[str, str], dict[int, Ratio]] = {}
  by_batch: dict[tuple[str, str], dict[int, Ratio]] = {}
  for pool in pools:
    batch = int(pool.settings.get("batch_size", 1))
    for name, rows in pool.rows.items():
      speed = speed_up(rows, pool.baseline)
      if name == BASELINE or speed is None:
        continue
      length = measures.draft_length(rows)
      if length:
        by_length.setdefault((name, pool.label("draft_length")), {})[length] = speed.wall_clock
        by_batch.setdefault((name, pool.label("batch_size")), {})[batch] = speed.wall_clock
  for lines, label, file_name in (
    (by_length, "draft length", "speed_up_by_draft_length"),
    (by_batch, "batch size", "speed_up_by_batch_size"),
  ):
    several = {key: points for key, points in lines.items() if len(points) > 1}
    if not several:
      continue
    draw = functools.partial(
      plots.draw_speed_up_against, lines=several, label=label, methods=methods
    )
    blocks += [
      Heading(f"Speed-up against {label}"),
      Figure(file_name, f"Wall-clock speed-up against {label}", draw),
    ]
  return blocks
