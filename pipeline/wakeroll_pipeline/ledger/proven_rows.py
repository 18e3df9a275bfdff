"""The rows that the hash chain of a table proves, and the lines whose rows differ from the written ones."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from wakeroll_model.chain import NOWHERE, PROVING, WITHOUT_ROWS, Head, Line, Part, hash_of_rows
from wakeroll_model.rows import ChainRow, Table
from wakeroll_pipeline.ledger.chains import lines_between, lines_in_commits, lines_of, sorted_rows
from wakeroll_pipeline.ledger.column_types import columns_of
from wakeroll_pipeline.ledger.delta_files import literal, open_delta, quoted
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.row_hashes import parts_by_line

MOST_AT_ONCE = 250_000
"""Maximum number of rows that are read at once; a line with more is read alone."""


class Chain(NamedTuple):
    """The lines of a table."""

    table: Table
    lines: Sequence[Line]
    """All lines from `first` on, sorted by number."""
    first: int = 1
    """Number of the first line."""
    begins: Mapping[str, int] = {}
    """Stream -> last position that a line before `first` covers."""
    may_grow: bool = False
    """Whether a later append may extend the newest line: it is in a commit only."""

    @property
    def head(self) -> Head | None:
        """The newest line that no append extends; None if there is none."""
        final = self.lines[:-1] if self.may_grow else self.lines
        return Head(self.table.name, final[-1].number, final[-1].line_hash) if final else None


class Needed(NamedTuple):
    """The positions of earlier lines that a reader needs if it has only the newest rows of a table."""

    streams: Set[str]
    """The streams of the newest rows."""
    rows: int
    """Number of the newest rows. A stream that is missing in lines with this many rows begins after them."""


def chain_of(ledger: DuckLedger, table: Table, first: int = 1, *, begins: bool = True) -> Chain:
    """Return the chain of a table, in the version that the ledger has of it.

    Args:
        ledger: the ledger.
        table: the table.
        first: number of the first line to return.
        begins: whether to return the positions of all earlier lines too; otherwise `Chain.begins` has only those of
            lines that are not in the table `chain` yet.
    """
    first = max(first, 1)
    names = ", ".join(quoted(column.name) for column in columns_of(ChainRow))
    rows = ledger.rows(
        f"select {names} from chain where table_name = $table and number >= $first", table=table.name, first=first
    )
    lines = sorted(lines_of(rows), key=lambda line: line.number)
    before = begins_before(ledger, table, first) if begins else {}
    version = ledger.versions.get(table.name)
    if version is None:
        return Chain(table, lines, first, before)
    folder = ledger.warehouse / table.name
    newest = open_delta(folder).version()
    if newest > version:
        # The ledger leaves out the newest batch, which not all tables have yet: its lines may be gathered already.
        later = {line.number for line in lines_between(folder, version, newest)}
        lines = [line for line in lines if line.number not in later]
    above = lines[-1].number if lines else _last_before(ledger, table, first)
    tail = lines_in_commits(folder, version, above)
    for line in tail:
        if line.number >= first:
            lines.append(line)
        elif line.kind not in WITHOUT_ROWS:
            before |= line.positions
    return Chain(table, lines, first, before, may_grow=bool(tail) and tail[-1].kind == "rows")


def _last_before(ledger: DuckLedger, table: Table, first: int) -> int:
    """Return the number of the last gathered line before another one; 0 if there is none."""
    [gathered] = ledger.rows(
        "select max(number) as newest from chain where table_name = $table and number < $first",
        table=table.name,
        first=first,
    )
    return gathered.newest or 0


def begins_before(ledger: DuckLedger, table: Table, first: int, needed: Needed | None = None) -> dict[str, int]:
    """Return stream -> last position that the gathered lines before a number cover.

    The lines are read backwards from this number until they have the needed positions, so the work does not grow with
    the number of older lines.

    Args:
        ledger: the ledger.
        table: the table.
        first: the number.
        needed: the needed positions; None: all.
    """
    low, width = first, _WALKED
    while low > 1:
        low, width = max(1, low - width) if needed is not None else 1, 4 * width
        found = {row.stream: row.last for row in ledger.rows(_BEGINS, table=table.name, first=first, low=low)}
        if low == 1 or needed is None or needed.streams <= found.keys():
            return found
        [lines] = ledger.rows(_ROWS_FROM, table=table.name, low=low)
        if lines.begins or (lines.covered or 0) >= needed.rows:
            return found
    return {}


_WALKED = 100
"""Number of lines that are read first; most streams are in each of them."""
_ROWS_FROM = f"""
select
    count(case when kind = 'begin' then 1 end) as begins,
    sum(case when kind in ({", ".join(map(literal, PROVING))}) then rows end) as covered
from chain
where table_name = $table and number >= $low
"""
_BEGINS = f"""
with lines as (
    select number, kind, positions from chain where table_name = $table and number >= $low and number < $first
),

known as (
    select unnest(map_entries(positions::json::map(varchar, bigint))) as entry
    from lines
    where
        kind not in ({", ".join(map(literal, WITHOUT_ROWS))})
        and number >= coalesce((select max(number) from lines where kind = 'begin'), 0)
)

select
    entry.key as stream,
    max(entry.value) as last
from known
group by 1
"""


class Span(NamedTuple):
    """A line that proves rows, and the positions of these rows."""

    line: Line
    after: Mapping[str, int]
    """Stream -> position after which the rows of the line begin; a missing stream begins with its first row."""
    is_known: bool = True
    """Whether `after` is known: it is not if the line before is missing."""


class Covered(NamedTuple):
    """The rows that a chain proves."""

    spans: Sequence[Span]
    last: Mapping[str, int]
    """Stream -> last position that a line covers."""

    def windows(self, since: int = 0) -> Iterator[list[Span]]:
        """Yield the spans of the lines after a number, in groups of at most `MOST_AT_ONCE` rows.

        In a group, the rows of each stream are consecutive.
        """
        window: list[Span] = []
        rows = 0
        for span in (one for one in self.spans if one.line.number > since):
            if span.line.kind == "kept":  # lines up to `since` may lie between its rows and those of the next line
                yield [span]
                continue
            if window and rows + span.line.rows > MOST_AT_ONCE:
                yield window
                window, rows = [], 0
            window.append(span)
            rows += span.line.rows
        if window:
            yield window


def covered_by(lines: Sequence[Line], begins: Mapping[str, int] = {}) -> Covered:
    """Return the rows that the lines of a table prove.

    Args:
        lines: sorted by number.
        begins: stream -> last position that lines before them cover.
    """
    base = base_of(lines)
    floor: Mapping[str, int] = {} if base is None else base.positions
    last = {**floor, **{stream: max(end, floor.get(stream, end)) for stream, end in begins.items()}}
    if base is not None and base.kind == "begin":
        lines = [line for line in lines if line.number >= base.number]
        last = dict(floor)
    spans = [Span(base, {})] if base is not None and base.kind == "kept" else []
    numbers = {line.number for line in lines}
    for line in lines:
        if line.kind in PROVING and any(end > floor.get(its, NOWHERE) for its, end in line.positions.items()):
            after = {its: last[its] for its in line.positions if its in last}
            spans.append(Span(line, after, is_known=line.number - 1 in numbers))
            last |= line.positions
    return Covered(spans, last)


def base_of(lines: Sequence[Line]) -> Line | None:
    """Return the newest line that replaces the lines before it; None if there is none."""
    return next((line for line in reversed(lines) if line.kind in ("begin", "cut", "kept")), None)


class BrokenSpan(NamedTuple):
    """A line whose rows differ from the written ones."""

    span: Span
    rows: int
    """Number of rows that the table has for this line."""


def broken_spans(
    ledger: DuckLedger, table: Table, source: str, covered: Covered, since: int = 0
) -> Iterator[BrokenSpan]:
    """Yield the lines whose rows differ from the written ones, in the order of their numbers.

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
    for number, part in parts_by_line(sorted_rows(ledger.table_connection, source, table, ranges), table, ends):
        found[number].append(part)
    for span in spans:
        parts = found[span.line.number]
        if span.is_known and hash_of_rows(parts) != span.line.rows_hash:
            yield BrokenSpan(span, sum(part.rows for part in parts))
