"""Tables of text without a frame that fit a width: names are never cut."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from wakeroll_pipeline.cli.styled_text import plain, plain_text
from wakeroll_pipeline.live.view_text import UNKNOWN

_LEAST_REASON = 30
"""Minimum width (characters) of a sentence beside the other columns; with less, each row has several lines."""
_INDENT = "    "
_GAP = "  "
_MOST_STYLED = 1_000
"""Maximum number of rows of a table with colours: Rich needs 60 us per cell."""

Cell = str | Text
Line = str | Text


class Column(Struct, frozen=True):
    """A column of a table."""

    head: str
    cells: Sequence[Cell]
    is_number: bool = False
    """Whether the cells are aligned at their right end."""
    rank: int = 0
    """With too little room, the columns with the highest rank are left out first; those of rank 0 never are."""
    is_sentence: bool = False
    """Whether the cells may be cut, or wrapped below the others; only the last column may have this."""


class Lines(NamedTuple):
    """The lines of a table."""

    head: Sequence[Line]
    rows: Sequence[Sequence[Line]]
    """Row -> its lines."""
    foot: Sequence[Line]
    """The names of the columns for which there is no room."""

    def all(self) -> Iterator[Line]:
        """Yield all lines."""
        yield from self.head
        for row in self.rows:
            yield from row
        yield from self.foot


def table_lines(columns: Sequence[Column], width: int) -> Lines:
    """Return the lines of a table that fit a width (characters).

    A sentence is cut first, then columns are left out. If even the columns of rank 0 do not fit beside each other, or
    the sentence has too little room, each row has several lines.
    """
    shown = [one for one in columns if one.cells]
    if not shown:
        return Lines((), (), ())
    widths = {one.head: max(cell_len(one.head), *map(_length, one.cells)) for one in shown}
    sentence = next((one for one in shown if one.is_sentence), None)
    names = [one for one in shown if one is not sentence]
    least = 0 if sentence is None else min(_LEAST_REASON, widths[sentence.head]) + len(_GAP)
    left_out: list[str] = []
    while _width(names, widths) + least > width:
        last = max(names, key=lambda one: one.rank)
        if last.rank == 0:
            return Lines((), _blocks(names, sentence, width), _foot(left_out, width))
        names.remove(last)
        left_out.insert(0, last.head)
    free = width - _width(names, widths) - len(_GAP)
    head = _line(names, widths, [one.head for one in names], "" if sentence is None else sentence.head)
    rows = []
    for number in range(len(shown[0].cells)):
        cells = [one.cells[number] for one in names]
        rows.append([_line(names, widths, cells, "" if sentence is None else _cut(sentence.cells[number], free))])
    return Lines([Text(str(head), "dim")], rows, _foot(left_out, width))


def write_lines(out: Console, lines: Iterable[Line]) -> None:
    """Print lines without wrapping, with colours in a terminal unless there are too many."""
    known = list(lines)
    if not out.is_terminal or len(known) > _MOST_STYLED:
        out.file.write("".join(f"{line}\n" for line in known))
        return
    for line in known:
        out.print(line, soft_wrap=True, markup=False, highlight=False)


def _foot(left_out: Sequence[str], width: int) -> list[Line]:
    text = f"wider terminals also show: {', '.join(left_out)}"
    return [Text(one, "dim") for one in textwrap.wrap(text, width)] if left_out else []


def _length(cell: Cell) -> int:
    return cell.cell_len if isinstance(cell, Text) else cell_len(cell)


def _width(columns: Sequence[Column], widths: dict[str, int]) -> int:
    return sum(widths[one.head] for one in columns) + len(_GAP) * max(len(columns) - 1, 0)


def _line(columns: Sequence[Column], widths: dict[str, int], cells: Sequence[Cell], rest: Cell) -> Line:
    """Return the cells beside each other, as text if none has a style."""
    parts: list[Cell] = []
    for column, cell in zip(columns, cells, strict=True):
        blanks = " " * (widths[column.head] - _length(cell))
        parts += [blanks, cell, _GAP] if column.is_number else [cell, blanks, _GAP]
    parts = [*parts, rest] if _length(rest) else parts[:-1]
    if not any(isinstance(one, Text) for one in parts):
        return "".join(map(str, parts)).rstrip()
    line = Text.assemble(*parts)
    line.rstrip()
    return line


def _cut(cell: Cell, width: int) -> Cell:
    if _length(cell) <= width:
        return cell
    text = plain_text(str(cell))
    text.truncate(width, overflow="ellipsis")
    return text


def _blocks(names: Sequence[Column], sentence: Column | None, width: int) -> list[list[Line]]:
    """Return rows of several lines: the first two cells, the sentence, and the other cells with their names."""
    rows: list[list[Line]] = []
    for number in range(len(names[0].cells)):
        cells = [(one.head, one.cells[number]) for one in names]
        lines: list[Line] = [Text.assemble(cells[0][1], _GAP, cells[1][1])] if len(cells) > 1 else [cells[0][1]]
        facts = ", ".join(f"{head} {cell}" for head, cell in cells[2:] if str(cell) not in ("", UNKNOWN))
        for text, style in (("" if sentence is None else str(sentence.cells[number]), ""), (facts, "dim")):
            wrapped = textwrap.wrap(plain(text), max(width - len(_INDENT), _LEAST_REASON), break_long_words=False)
            lines += [Text(f"{_INDENT}{part}", style) for part in wrapped]
        rows.append(lines)
    return rows
