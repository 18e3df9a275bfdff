"""An SVG drawing of assignments, with panels side by side."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from wakeroll_model.assignment_chart import HAS_NOT, HAS_NOW

_LINE, _LETTER, _GAP, _MARGIN = 18, 7, 12, 16
"""Sizes in pixels: height of a line, width of a letter, gap between topics, margin of a panel."""
_CELL = 14
_WIDEST = 720
"""Maximum width (pixels) of the queues of a panel, if that leaves at least 2 pixels per queue."""

_STYLE = (
    "text{font:12px ui-monospace,Menlo,Consolas,monospace;fill:#24292f}"
    ".title{font-weight:bold}.none{fill:#eaeef2}.has{fill:#57606a}.new{fill:#d4670f}"
)


@dataclass(frozen=True)
class Panel:
    """One panel of the drawing."""

    title: str
    words: Sequence[str]
    """Lines of text below the title."""
    rows: Mapping[str, Sequence[tuple[str, str]]]
    """Client -> pairs of topic and marks, as `rows_of` returns them."""


def svg_of(panels: Sequence[Panel]) -> str:
    """Return an SVG with the panels side by side; queues that are new for a client have another colour."""
    top = _MARGIN + _LINE * (1 + max(len(panel.words) for panel in panels))
    left, parts = 0, []
    for panel in panels:
        drawn, width = _panel(panel, top)
        parts.append(f'<g transform="translate({left + _MARGIN} 0)">{"".join(drawn)}</g>')
        left += width + 2 * _MARGIN
    height = top + _LINE * (1 + max(len(panel.rows) for panel in panels)) + _MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left}" height="{height}" viewBox="0 0 {left} {height}">'
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _panel(panel: Panel, top: int) -> tuple[list[str], int]:
    """Return the SVG elements of a panel, and its width in pixels."""
    lines = [_text(0, _MARGIN + _LINE * number, word) for number, word in enumerate(panel.words, 1)]
    parts = [_text(0, _MARGIN, panel.title, "title"), *lines]
    places = [(place, len(marks)) for place, marks in next(iter(panel.rows.values()), ())]
    cell = min(_CELL, max(2, _WIDEST // max(1, sum(count for _, count in places))))
    begin = _GAP + _LETTER * max((len(client) for client in panel.rows), default=0)
    lefts: dict[str, int] = {}
    for place, count in places:
        lefts[place] = begin
        parts.append(_text(begin, top, place))
        begin += max(count * cell, len(place) * _LETTER) + _GAP
    for line, (client, row) in enumerate(panel.rows.items(), 1):
        y = top + _LINE * line
        parts.append(_text(0, y, client))
        for place, marks in row:
            parts += _marks(lefts[place], y - _LINE + 6, cell, marks)
    return parts, max([begin, *(_LETTER * len(text) for text in (panel.title, *panel.words))])


def _marks(left: int, y: int, cell: int, marks: str) -> Iterator[str]:
    """Yield the queues of a topic: a background for all, and one box per queue that the client owns."""
    height, width = _LINE - 4, max(1, cell - 2)
    yield f'<rect class="none" x="{left}" y="{y}" width="{len(marks) * cell}" height="{height}"/>'
    for number, mark in enumerate(marks):
        if mark != HAS_NOT:
            kind = "new" if mark == HAS_NOW else "has"
            yield f'<rect class="{kind}" x="{left + number * cell}" y="{y}" width="{width}" height="{height}"/>'


def _text(x: int, y: int, words: str, kind: str = "") -> str:
    return f'<text x="{x}" y="{y}"{f" class={kind!r}" if kind else ""}>{escape(words)}</text>'
