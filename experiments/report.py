# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""The tables at the end of a run: each prompt, and all of them together, by method."""

import dataclasses
from collections.abc import Iterable, Sequence

from experiments.results import Row

BASELINE = "autoregressive"
_HEADER = (
  "method",
  "new tokens",
  "target calls",
  "tokens/call",
  "acceptance",
  "prefill s",
  "decode s",
  "tokens/s",
  "speed-up",
  "lossless",
  "same tokens",
)


@dataclasses.dataclass(frozen=True)
class Summary:
  """Sums over rows of one method.

  Attributes:
    new_tokens: tokens decoded.
    target_calls: target calls for them, a drafter's own calls of the target included, counted
      row by row.
    drafted_tokens: proposed tokens.
    accepted_tokens: new tokens that had been drafted.
    prefill_seconds: reading prompts, each batch counted once.
    decode_seconds: decoding, each batch counted once.
    compile_seconds: compilation, in neither of the two.
    lossless: whether the output has the law of autoregressive decoding.
    deviations: new tokens that are not the target's own choice.
    decode_tokens: the new tokens that `decode_seconds` took; None is all of them. Another system
      than specjax may give its first ones with the reading of the prompt.
  """

  new_tokens: int
  target_calls: int
  drafted_tokens: int
  accepted_tokens: int
  prefill_seconds: float
  decode_seconds: float
  compile_seconds: float
  lossless: bool
  deviations: int = 0
  decode_tokens: int | None = None

  @property
  def block_efficiency(self) -> float | None:
    """Tokens a target call, the target's own included."""
    return self.new_tokens / self.target_calls if self.target_calls else None

  @property
  def acceptance_rate(self) -> float | None:
    """Accepted over drafted tokens; None where nothing was drafted."""
    return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

  @property
  def tokens_per_second(self) -> float | None:
    """Of decoding alone; None where nothing was decoded."""
    tokens = self.new_tokens if self.decode_tokens is None else self.decode_tokens
    return tokens / self.decode_seconds if tokens and self.decode_seconds > 0 else None


# Below this many tokens a target call, after this many drafted tokens, a drafter is of no use.
_LOWEST_EFFICIENCY, _ENOUGH_DRAFTED = 1.05, 50


def summarize(rows: Iterable[Row]) -> Summary:
  """Sums rows of one method. The seconds of a batch are on each of its rows."""
  rows = list(rows)
  batches = {(row["batch_index"], row["turn"]): row for row in rows}

  def total(name: str) -> int:
    return sum(row[name] for row in rows)

  def seconds(name: str) -> float:
    return sum(row[name] for row in batches.values())

  return Summary(
    new_tokens=total("new_tokens"),
    target_calls=total("target_calls"),
    drafted_tokens=total("drafted_tokens"),
    accepted_tokens=total("accepted_tokens"),
    prefill_seconds=seconds("prefill_seconds"),
    decode_seconds=seconds("decode_seconds"),
    compile_seconds=seconds("compile_seconds"),
    lossless=all(row["lossless"] for row in rows),
    deviations=sum(row.get("deviations", 0) for row in rows),
    decode_tokens=sum(
      row["decode_tokens"] if "decode_tokens" in row else row["new_tokens"] for row in rows
    ),
  )


def first_difference(rows: Sequence[Row], baseline: Sequence[Row]) -> str:
  """Whether tokens equal the baseline's, and if not, where they part first."""
  ours = {(row["prompt_index"], row["turn"]): row["token_ids"] for row in rows}
  theirs = {(row["prompt_index"], row["turn"]): row["token_ids"] for row in baseline}
  differing = [key for key in sorted(ours) if ours[key] != theirs.get(key, ours[key])]
  if not differing:
    return "yes"
  if len(ours) > 1:
    return f"no ({len(differing)} of {len(ours)} differ)"
  a, b = ours[differing[0]], theirs[differing[0]]
  equal = [x == y for x, y in zip(a, b, strict=False)]
  return f"no (from token {equal.index(False) if False in equal else len(equal)})"


def report(rows: Sequence[Row], methods: Sequence[str], *, greedy: bool) -> str:
  """All tables as text.

  Args:
    rows: of all methods.
    methods: in the order to show them.
    greedy: whether equal tokens are to be expected.
  """
  parts = []
  indices = sorted({row["prompt_index"] for row in rows})
  for index in indices:
    chosen = [row for row in rows if row["prompt_index"] == index]
    category = f" ({chosen[0]['category']})" if chosen[0]["category"] else ""
    parts.append(f"Prompt {index}{category}\n{_table(chosen, methods, greedy)}")
  parts.append(f"All prompts\n{_table(rows, methods, greedy)}")
  parts += [warning for name in methods if (warning := _warn(rows, name))]
  compile_seconds = sum(
    summarize(row for row in rows if row["method"] == name).compile_seconds for name in methods
  )
  parts.append(
    f"Seconds do not contain compilation, which took {compile_seconds:.1f} s. tokens/call is the "
    "block efficiency: new\ntokens a target call, the target's own included; a drafter's calls of "
    "the target count too. acceptance is\naccepted over drafted tokens."
  )
  return "\n\n".join(parts)


def _warn(rows: Sequence[Row], name: str) -> str | None:
  """A line about a drafter whose drafts are hardly ever accepted.

  A lossless verifier hides a broken or mismatched drafter: the text is right, only slow.
  """
  summary = summarize(row for row in rows if row["method"] == name)
  efficiency = summary.block_efficiency
  if efficiency is None or efficiency >= _LOWEST_EFFICIENCY:
    return None
  if summary.drafted_tokens < _ENOUGH_DRAFTED:
    return None
  return (
    f"warning: {name} commits {efficiency:.2f} tokens a target call: its drafts are hardly ever "
    "accepted.\nIs it the right drafter for this target?"
  )


def _table(rows: Sequence[Row], methods: Sequence[str], greedy: bool) -> str:
  by_method = {name: [row for row in rows if row["method"] == name] for name in methods}
  baseline = by_method.get(BASELINE, [])
  base_rate = summarize(baseline).tokens_per_second if baseline else None
  lines = []
  for name, chosen in by_method.items():
    if not chosen:
      continue
    summary = summarize(chosen)
    rate = summary.tokens_per_second
    if not baseline:
      same = "-"
    else:
      same = first_difference(chosen, baseline) if greedy or name == BASELINE else "sampled"
    lines.append(
      (
        name,
        str(summary.new_tokens),
        str(summary.target_calls),
        _number(summary.block_efficiency, "{:.2f}"),
        _number(summary.acceptance_rate, "{:.1%}"),
        _number(summary.prefill_seconds, "{:.2f}"),
        _number(summary.decode_seconds, "{:.2f}"),
        _number(rate, "{:.1f}"),
        _number(rate / base_rate if rate and base_rate else None, "{:.2f}x"),
        _lossless(summary),
        same,
      )
    )
  return format_table(_HEADER, lines)


def _lossless(summary: Summary) -> str:
  """Yes or no, and how many tokens are not the target's own choice."""
  if summary.lossless:
    return "yes"
  return f"no ({summary.deviations} deviate)" if summary.deviations else "no"


def format_table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
  """Columns under their names: the first is aligned left, the others right."""
  widths = [max(len(cell) for cell in column) for column in zip(header, *lines, strict=True)]

  def line(cells: Sequence[str]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    aligned = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    return "  ".join(aligned).rstrip()

  return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, lines)])


def _number(value: float | None, pattern: str) -> str:
  return "-" if value is None else pattern.format(value)
