"""The rows that the chain of a table proves, and the lines whose rows are not those that were written."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wakeroll_model.chain import NOWHERE, PROVING, Head, Line, Part, hash_of_rows
from wakeroll_model.rows import Table
from wakeroll_pipeline.ledger.chains import gathered_lines, lines_between, lines_in_commits, sorted_rows
from wakeroll_pipeline.ledger.delta_files import literal, open_delta
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.row_hashes import parts_by_line

MOST_AT_ONCE = 250_000
"""Rows that are read at once; a line with more is read alone."""


class Chain(NamedTuple):
    """The lines of a table."""

    table: Table
    lines: Sequence[Line]
    """All of them, sorted by number."""

    @property
    def head(self) -> Head | None:
        """The newest line."""
        return Head(self.table.name, self.lines[-1].number, self.lines[-1].line_hash) if self.lines else None


def chain_of(ledger: DuckLedger, table: Table) -> Chain:
    """Return the chain of a table, in the version that the ledger has of it."""
    lines = gathered_lines(ledger.warehouse, f"table_name = {literal(table.name)}", ledger.versions.get("chain"))
    lines.sort(key=lambda line: line.number)
    version = ledger.versions.get(table.name)
    if version is None:
        return Chain(table, lines)
    folder = ledger.warehouse / table.name
    newest = open_delta(folder).version()
    if newest > version:
        # The ledger leaves out the newest batch, which not all tables have yet: its lines may be gathered already.
        later = {line.number for line in lines_between(folder, version, newest)}
        lines = [line for line in lines if line.number not in later]
    return Chain(table, [*lines, *lines_in_commits(folder, version, lines[-1].number if lines else 0)])


class Span(NamedTuple):
    """A line that proves rows, and where they are."""

    line: Line
    after: Mapping[str, int]
    """Stream -> position behind which the rows of the line begin; a missing stream begins with its first row."""
    is_known: bool = True
    """Whether that is known: the line before is not missing."""


class Covered(NamedTuple):
    """The rows that a chain proves."""

    spans: Sequence[Span]
    last: Mapping[str, int]
    """Stream -> last position that a line covers."""

    def windows(self, since: int = 0) -> Iterator[list[Span]]:
        """Yield the spans of the lines after a number, in groups of at most `MOST_AT_ONCE` rows."""
        window: list[Span] = []
        rows = 0
        for span in (one for one in self.spans if one.line.number > since):
            if window and rows + span.line.rows > MOST_AT_ONCE:
                yield window
                window, rows = [], 0
            window.append(span)
            rows += span.line.rows
        if window:
            yield window


def covered_by(lines: Sequence[Line]) -> Covered:
    """Return the rows that the lines of a table prove; they are sorted by number."""
    base = next((line for line in reversed(lines) if line.kind in ("begin", "cut", "kept")), None)
    floor: Mapping[str, int] = {} if base is None else base.positions
    if base is not None and base.kind == "begin":
        lines = [line for line in lines if line.number >= base.number]
    spans = [Span(base, {})] if base is not None and base.kind == "kept" else []
    last, numbers = dict(floor), {line.number for line in lines}
    for line in lines:
        if line.kind in PROVING and any(end > floor.get(its, NOWHERE) for its, end in line.positions.items()):
            after = {its: last[its] for its in line.positions if its in last}
            spans.append(Span(line, after, is_known=line.number - 1 in numbers))
            last |= line.positions
    return Covered(spans, last)


class BrokenSpan(NamedTuple):
    """A line whose rows are not those that were written."""

    span: Span
    rows: int
    """Number of rows that the table has in its place."""


def broken_spans(
    ledger: DuckLedger, table: Table, source: str, covered: Covered, since: int = 0
) -> Iterator[BrokenSpan]:
    """Yield the lines whose rows are not those that were written, in the order of their numbers.

    Args:
        ledger: the ledger.
        table: the table.
        source: view of the whole table.
        covered: the lines of the table.
        since: number of the line up to which the table was checked before.
    """
    for window in covered.windows(since):
        yield from _broken_window(ledger, table, source, window)


def _broken_window(ledger: DuckLedger, table: Table, source: str, spans: Sequence[Span]) -> Iterator[BrokenSpan]:
    ends: dict[str, tuple[list[int], list[int]]] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for span in spans:
        for stream, last in span.line.positions.items():
            positions, numbers = ends.setdefault(stream, ([], []))
            positions.append(last)
            numbers.append(span.line.number)
            first = ranges[stream][0] if stream in ranges else span.after.get(stream, NOWHERE)
            ranges[stream] = first, last
    found: dict[int, list[Part]] = {span.line.number: [] for span in spans}
    for number, part in parts_by_line(sorted_rows(ledger.connection, source, table, ranges), table, ends):
        found[number].append(part)
    for span in spans:
        parts = found[span.line.number]
        if span.is_known and hash_of_rows(parts) != span.line.rows_hash:
            yield BrokenSpan(span, sum(part.rows for part in parts))
