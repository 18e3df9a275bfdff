"""The result of a query, and its output formats: a table for the terminal, CSV, or JSON lines."""

import csv
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Struct, structs
from rich.console import Console, ConsoleDimensions
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from wakeroll.epoch_ms import EpochMs, now_ms
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.ledger.ledger import Row

_UNLIMITED = 10_000
"""Line width (characters) of a pipe or a file."""
_NAMED = 20
"""Maximum number of groups that the error about an unknown one names."""


class Output(Console):
    """A console that fits lines to the width of a terminal only: in a pipe or a file, no name is cut or wrapped.

    The environment variable `COLUMNS` sets a width for pipes too.  Rich obeys `NO_COLOR`.
    """

    @property
    def size(self) -> ConsoleDimensions:
        """Width and height, in characters."""
        found = super().size
        is_limited = self.is_terminal or "COLUMNS" in os.environ
        return found if is_limited else ConsoleDimensions(_UNLIMITED, found.height)

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self.width, self.height = new_size


out = Output(highlight=False)


def first_of(names: Sequence[str]) -> str:
    """Return the first names of groups as text, and the number of the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED]) or 'none yet'}{more}"


@contextmanager
def quiet_if_closed() -> Iterator[None]:
    """End without an error if the reader of a pipe has ended."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is buffered would fail at the exit


class Answer(NamedTuple):
    """The result of a query."""

    names: list[str]
    """Names of the columns; a name may occur twice."""
    rows: list[tuple[Any, ...]]
    """Rows of values: text, numbers, bool, None, and lists and dicts of these, as `plain` returns them."""
    has_more: bool
    """Whether the query has more rows than the limit."""


def plain(value: Any) -> Any:
    """Return a value in its JSON form: times as ISO 8601 (in UTC, unless they have no zone), bytes as text."""
    match value:
        case datetime():
            exact = "milliseconds" if value.microsecond % 1_000 == 0 else "microseconds"
            at = value if value.tzinfo is None else value.astimezone(UTC)
            return at.isoformat(timespec=exact).replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case bytes():
            return value.decode("utf-8", errors="backslashreplace")
        case float() if not math.isfinite(value):
            return str(value)
        case Row():
            return plain(value.as_dict())
        case Struct():
            return {name: plain(one) for name, one in structs.asdict(value).items() if one is not UNSET}
        case dict():
            return {str(name): plain(one) for name, one in value.items()}
        case list():
            return [plain(one) for one in value]
        case _:
            return value


def write_document(value: Any) -> None:
    """Write a value as one JSON document: the answer to ``--json``."""
    print(_encode(plain(value)).decode())


def clock_text(at_ms: int | None) -> str:
    """Return a time (epoch ms) in UTC as text, without the date if that is today; ``-`` for None."""
    if at_ms is None:
        return "-"
    date, _, time = str(EpochMs(at_ms)).partition("T")
    today, _, _ = str(EpochMs(now_ms())).partition("T")
    return time if date == today else f"{date} {time}"


def seconds_text(duration_ms: float) -> str:
    """Return a duration as text: ``1.5 s``."""
    return f"{duration_ms / 1_000:.1f} s"


def write_table(answer: Answer) -> None:
    """Write a table with one line per row; if it is wider than the terminal, write one small table per row."""
    table = Table()
    for number, name in enumerate(answer.names):
        are_numbers = all(isinstance(row[number], int | float | Decimal | None) for row in answer.rows)
        table.add_column(Text(name), justify="right" if are_numbers else "left")
    for row in answer.rows:
        table.add_row(*map(_cell, row))
    unbounded = out.options.update(max_width=_WIDEST)
    if not answer.rows or Measurement.get(out, unbounded, table).maximum <= out.width:
        out.print(table)
        return
    for number, row in enumerate(answer.rows, start=1):
        downwards = Table(title=f"row {number}", title_justify="left", show_header=False)
        downwards.add_column(no_wrap=True)
        downwards.add_column(overflow="fold")
        for name, value in zip(answer.names, row, strict=True):
            downwards.add_row(Text(name), _cell(value))
        out.print(downwards)


def _cell(value: Any) -> Text:
    return Text("null", style="dim") if value is None else Text(_text(value))


def write_csv(answer: Answer) -> None:
    """Write rows as CSV; the first line holds the column names, and null is an empty field."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(answer.names)
    writer.writerows(["" if value is None else _text(value) for value in row] for row in answer.rows)


def write_json(answer: Answer) -> None:
    """Write rows as JSON lines, one object per row.

    Raises:
        InvalidUsage: two columns have the same name, so that an object could hold only one of them.
    """
    twice = sorted({name for name in answer.names if answer.names.count(name) > 1})
    if twice:
        raise InvalidUsage(f"two columns are named {twice[0]!r}; give one of them another name with AS")
    for row in answer.rows:
        print(_encode(dict(zip(answer.names, row, strict=True))).decode())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


_WIDEST = 1_000_000
"""Line width (characters) that is used to measure a table without the terminal's limit."""
_encode = msgspec.json.Encoder(decimal_format="number").encode
