# Copyright 2026 The specjax authors.
# SPDX-License-Identifier: Apache-2.0
"""Text as HTML that shows where each token came from, for the notebooks of `colab/`.

Accepted draft tokens are marked green, the target's own yellow. With the times at which tokens
came, the text writes itself anew whenever it is shown, at the speed at which it was decoded: plain
CSS, so that where a viewer drops it the whole text stands there.
"""

import html
from collections.abc import Mapping, Sequence

import numpy as np

from specjax.generation import Generation

# Fill and border. The border tells them apart where colours do not.
_STYLES = {
  True: "background:#c4f0cf;color:#10331b;border-bottom:2px solid #1a7f37",
  False: "background:#fff1b8;color:#3d2c00;border-bottom:2px dotted #8a5a00",
}
_BOX = (
  "white-space:pre-wrap;overflow-wrap:anywhere;font-family:ui-monospace,monospace;"
  "line-height:1.7;text-align:left"
)
_APPEAR = "<style>@keyframes specjax-appear{from{opacity:0}}</style>"


def color_tokens(
  pieces: Sequence[str], drafted: Sequence[bool], seconds: Sequence[float] | None = None
) -> str:
  """Tokens in the colour of where they came from.

  Args:
    pieces: the text of each token.
    drafted: of each token, whether it is an accepted draft token (else the target's own).
    seconds: when each token came, for a text that writes itself; None shows it at once.

  Raises:
    ValueError: where these are not of one length.
  """
  times = [None] * len(pieces) if seconds is None else list(seconds)
  if not len(pieces) == len(drafted) == len(times):
    raise ValueError(
      "pieces, drafted and seconds must have one entry a token, got "
      f"{len(pieces)}, {len(drafted)} and {len(times)}"
    )
  spans = [
    f'<mark style="{_STYLES[bool(own)]}{_delay(time)}">{html.escape(_visible(piece))}</mark>'
    for piece, own, time in zip(pieces, drafted, times, strict=True)
  ]
  return f'{_APPEAR if seconds is not None else ""}<div style="{_BOX}">{"".join(spans)}</div>'


def color_generation(
  generation: Generation,
  pieces: Sequence[str],
  row: int = 0,
  seconds: Sequence[float] | None = None,
) -> str:
  """The new tokens of a row of a generation; `pieces` are their texts. See `color_tokens`."""
  start, end = int(generation.prompt_lengths[row]), int(generation.lengths[row])
  drafted = np.asarray(generation.records.drafted)[row, start:end]
  return color_tokens(pieces, drafted.tolist(), seconds)


def side_by_side(columns: Mapping[str, str]) -> str:
  """Pieces of HTML next to each other (one below the other on a phone), under their titles."""
  boxes = [
    f'<div style="flex:1 1 20rem;min-width:0"><b>{html.escape(title)}</b>{body}</div>'
    for title, body in columns.items()
  ]
  return f'<div style="display:flex;flex-wrap:wrap;gap:1.5rem">{"".join(boxes)}</div>'


def legend() -> str:
  """What the colours mean."""
  return side_by_side(
    {
      "": color_tokens(["a drafted token that was accepted"], [True]),
      " ": color_tokens(["a token of the target itself"], [False]),
    }
  )


def _delay(seconds: float | None) -> str:
  """Keeps a token invisible until its time has come."""
  return "" if seconds is None else f";animation:specjax-appear 1ms {seconds:.2f}s backwards"


def _visible(piece: str) -> str:
  """A line break on its own would be a mark without any width."""
  return piece.replace("\n", "\u21b5\n")
