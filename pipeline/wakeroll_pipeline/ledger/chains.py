"""The hash chains of the ledger's tables: the places of their lines, and the next line of an append.

A line is first in the metadata of the Delta commits whose rows it covers, so it costs no further commit. Each append
extends the newest line of its table, under the same number, until the line is appended to the table `chain`: within a
minute, because Delta deletes the metadata of old commits.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import takewhile
from threading import Lock
from typing import Any, Literal, NamedTuple

import duckdb
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable

from wakeroll.epoch_ms import now_ms
from wakeroll_model.chain import (
    NOWHERE,
    WITHOUT_ROWS,
    Head,
    Line,
    LineKind,
    Part,
    floor_of,
    hash_of_rows,
    linked,
    text_of_heads,
)
from wakeroll_model.events import UNREADABLE
from wakeroll_model.rows import CHAIN, CHAINED, DECISIONS, EVENTS, ChainRow, Table
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.ledger.delta_files import (
    Commit,
    commits_with,
    connected,
    is_delta,
    literal,
    open_delta,
    quoted,
    reading,
)
from wakeroll_pipeline.ledger.row_hashes import (
    OfStream,
    hashed_columns,
    parts_by_line,
    parts_of,
    stream_columns,
    streams_of,
)
from wakeroll_pipeline.ledger.stream_names import values_of
from wakeroll_pipeline.storage.place import Folder, Place

METADATA = "wakeroll.lines"
"""Key of the lines in the metadata of a commit: a JSON list, usually of one line."""
GATHER_MS = 60_000
"""Minimum time between two appends to the table `chain` (ms)."""

FIRST_POSITIONS = {EVENTS.name: 0, DECISIONS.name: 1}
"""Table whose positions have no gaps -> first position of a stream."""
_MOST_ROWS = 100_000
"""Number of rows from which on a line is not extended."""
_RECENT = 2_000
"""Number of the newest lines of a table that are read at a start."""

log = logging.getLogger("wakeroll.run")

Append = Callable[[pa.Table, Place], None]
"""Appends rows to the table in a folder."""

_decode = msgspec.json.Decoder(list[Line]).decode


def line_of(row: ChainRow) -> Line:
    """Return a line as its row stores it."""
    values = msgspec.structs.asdict(row)
    positions = msgspec.json.decode(values.pop("positions"), type=dict[str, int])
    return Line(table=values.pop("table_name"), positions=positions, **values)


def row_of(line: Line) -> ChainRow:
    """Return the row of a line."""
    values = msgspec.structs.asdict(line)
    positions = msgspec.json.encode(values.pop("positions")).decode()
    return ChainRow(table_name=values.pop("table"), positions=positions, **values)


def lines_in_commits(folder: Place, version: int, above: int) -> list[Line]:
    """Return the lines in the metadata of a table's newest commits, sorted; a later append may extend the newest one.

    Args:
        folder: of the table.
        version: newest version of the table to use.
        above: number of the newest known line; only later lines are returned.
    """
    found: dict[int, Line] = {}
    for commit in commits_with(folder, version, METADATA):
        lines = _lines_of(commit)
        for line in lines:
            if line.number > above:  # an older commit has the line before it was extended
                found.setdefault(line.number, line)
        if any(line.number <= above + 1 for line in lines):
            break
    return [line for _, line in sorted(found.items())]


def lines_between(folder: Place, after: int, last: int) -> Iterator[Line]:
    """Yield the lines in the metadata of a table's commits after one version, up to another one."""
    for commit in takewhile(lambda one: one.version > after, commits_with(folder, last, METADATA)):
        yield from _lines_of(commit)


def _lines_of(commit: Commit) -> list[Line]:
    """Return the lines in the metadata of a commit; none if they are damaged."""
    try:
        return _decode(str(commit.info[METADATA]))
    except UNREADABLE:
        return []


class _Chain:
    """The chain of one table, while this process appends to it."""

    def __init__(self, head: Line | None) -> None:
        self.head = head
        self.parts: Mapping[str, OfStream] = {}
        """Stream -> its rows in `head`, if a further append may extend it; otherwise empty."""
        self.before = ""
        """Hash of the line before `head`, if that may be extended."""
        self.next: Mapping[str, OfStream] | None = None
        """`parts` after the append that is being committed; None: there is no such append."""
        self.gathered: Line | None = None
        """The newest line in the table `chain`. It is published: the loss of its own table does not remove it, and
        nothing extends it."""
        self.last: dict[str, int] = {}
        """Stream -> last position in the table."""
        self.found: list[Line] = []
        """The line about rows that the recorder found at its start and that no other line covers; usually there is
        none."""


class Accepted(NamedTuple):
    """A loss that an operator has accepted."""

    kind: Literal["lost", "unproven"]
    positions: Mapping[str, int]
    """For lost rows: their stream, and the last of consecutive positions."""
    rows: int
    """For lost rows: the number of positions. Otherwise: the number of missing rows, 0 if rows were edited."""
    reason: str


class Chains:
    """The chains of all tables of a warehouse, for the only process that appends to them.

    Threads may append to different tables at once.
    """

    def __init__(self, warehouse: Folder, publish: Callable[[Sequence[Head]], None] | None = None) -> None:
        """Prepare; nothing is read before the first append.

        Args:
            warehouse: folder of the tables.
            publish: receives the newest line of each table, after lines were appended to the table `chain`. The
                function must neither wait nor fail.
        """
        self.warehouse = Place.of(warehouse)
        self._lock = Lock()
        self._chains: dict[str, _Chain] = {}
        self._waiting: list[Line] = []
        """Lines that are in commits, and not in the table `chain` yet."""
        self._gathered_ms = now_ms()
        self._publish = publish

    def begin(self) -> dict[str, int]:
        """Read the newest lines of all tables, before upkeep deletes the commits that have them.

        Returns:
            Table -> its newest version.
        """
        deltas = {table: open_delta(folder) for table in CHAINED if is_delta(folder := self.warehouse / table.name)}
        for table, delta in deltas.items():
            self._chain_of(table, delta)
        return {table.name: delta.version() for table, delta in deltas.items()}

    def highest(self, table: Table) -> dict[tuple[object, ...], int]:
        """Return the values of `Table.stream` -> highest position that the table has of this stream."""
        found: dict[tuple[object, ...], int] = {}
        for name, last in self._chain_of(table, open_delta(self.warehouse / table.name)).last.items():
            values = values_of(name, table)
            stream = tuple(values[column] for column in table.stream)
            found[stream] = max(last, found.get(stream, last))
        return found

    @property
    def is_due(self) -> bool:
        """Whether lines must be appended to the table `chain` now."""
        return bool(self._waiting) and now_ms() - self._gathered_ms >= GATHER_MS

    def lines(self, table: Table, delta: DeltaTable, rows: pa.Table) -> list[Line]:
        """Return the lines of an append; `note` or `forget` must follow.

        Usually it is one line, which may be the newest line with further rows. Before the first line of a table there
        are also a line for the beginning, and lines for gaps.

        Args:
            table: the table.
            delta: the table, in its newest version.
            rows: the rows.
        """
        chain = self._chain_of(table, delta)
        with self._lock:
            before = chain.parts
            chain.next = {}  # until it is committed, or not, the line is not gathered
        parts = list(parts_of(rows, table, before))
        gaps = list(self._gaps(table, chain, parts))
        is_behind = all(part.positions[0] > chain.last[part.stream] for part in parts if part.stream in before)
        if gaps or not is_behind:
            before, parts = {}, list(parts_of(rows, table))
        chain.next = {**before, **{part.stream: part for part in parts}}
        ends = {part.stream: part.positions[-1] for part in parts}
        rows_hash = hash_of_rows(chain.next.values())
        if before:
            assert chain.head is not None, "a line is extended"
            return [_extended(chain.head, ends, rows.num_rows, rows_hash, chain.before)]
        lines = [*chain.found]

        def add(kind: LineKind, positions: Mapping[str, int], count: int, rows_hash: str, reason: str = "") -> None:
            lines.append(_line(table, kind, positions, count, rows_hash, reason, lines[-1] if lines else chain.head))

        if chain.head is None:
            add("begin", chain.last, 0, "")
        for stream, last, count, reason in gaps:
            add("gap", {stream: last}, count, "", reason)
        add("rows", ends, rows.num_rows, rows_hash)
        return lines

    def note(self, table: Table, lines: Sequence[Line]) -> None:
        """Note that an append with these lines was committed."""
        with self._lock:
            chain, newest = self._chains[table.name], lines[-1]
            if chain.head is not None and chain.head.number == newest.number:
                self._waiting.remove(chain.head)
            else:
                before = lines[-2] if len(lines) > 1 else chain.head
                chain.before = "" if before is None else before.line_hash
            chain.parts = chain.next if chain.next and newest.rows < _MOST_ROWS else {}
            chain.head, chain.next, chain.found = newest, None, []
            for line in lines:
                chain.last |= line.positions
            self._waiting += lines

    def forget(self, table: Table) -> None:
        """Let the chain of a table be read again before its next append: the last one may or may not be committed."""
        with self._lock:
            self._chains.pop(table.name, None)
            self._waiting = [line for line in self._waiting if line.table != table.name]

    @contextmanager
    def rewriting(self, table: Table, ends: Mapping[str, int] | None, reason: str, append: Append) -> Iterator[None]:
        """Record that the block deletes or replaces rows of a table: a cut before it, and the kept rows after it.

        After a crash in between, the rows up to the cut are not proven until `finish` is called.

        Args:
            table: the table.
            ends: stream -> highest position of the rows that the block changes; None: any row.
            reason: the reason, for users.
            append: appends rows to the table in a folder.
        """
        folder = self.warehouse / table.name
        chain = self._chain_of(table, open_delta(folder))
        if chain.head is None:  # the chain will begin with what is left
            yield
            return
        self.gather(append)
        lines = gathered_lines(self.warehouse, f"table_name = {literal(table.name)} order by number")
        floor = floor_of(lines, ends)
        self._add(table, "cut", floor, 0, "", reason, append)
        yield
        self._keep(table, floor, append)

    def accept(
        self, table: Table, ends: Mapping[str, int], losses: Iterable[Accepted], reason: str, append: Append
    ) -> None:
        """Record that rows are lost, or differ from those that were written, and prove what is left of the table.

        After a crash in between, the rows up to the cut are not proven until `finish` is called.

        Args:
            table: the table.
            ends: stream -> highest position whose line is replaced; later lines are kept.
            losses: the accepted losses.
            reason: reason of the cut, for users.
            append: appends rows to the table in a folder.
        """
        chain = self._chain_of(table, open_delta(self.warehouse / table.name))
        if chain.head is None:
            begin = _line(table, "begin", chain.last, 0, "", "", None)
            with self._lock:
                chain.head = begin
                self._waiting.append(begin)
        with self.rewriting(table, ends, reason, append) if ends else nullcontext():
            for one in losses:
                self._add(table, one.kind, one.positions, one.rows, "", one.reason, append)

    def begin_again(self, table: Table, reason: str, append: Append, *, is_proven: bool) -> None:
        """Let the chain of a table begin again with its present rows, which the lines so far do not describe any more.

        Args:
            table: the table.
            reason: the reason, for users.
            append: appends rows to the table in a folder.
            is_proven: whether the lines so far prove the present rows; otherwise these rows are not proven any more.
        """
        last = self._chain_of(table, open_delta(self.warehouse / table.name)).last
        self._add(table, "begin", {} if is_proven else last, 0, "", reason, append)
        if is_proven:
            parts = self._parts(table, {stream: (NOWHERE, end) for stream, end in last.items()})
            self._add(table, "found", last, _rows(parts), hash_of_rows(parts), "left of the rows before", append)

    def finish(self, table: Table, append: Append) -> None:
        """Record the kept rows of a table, if a deletion was interrupted."""
        folder = self.warehouse / table.name
        if table not in CHAINED or not is_delta(folder) or self._chain_of(table, open_delta(folder)).head is None:
            return
        self.gather(append)
        bases = gathered_lines(
            self.warehouse,
            f"table_name = {literal(table.name)} and kind in ('begin', 'cut', 'kept') order by number desc limit 1",
        )
        if bases and bases[0].kind == "cut":
            self._keep(table, bases[0].positions, append)

    def _keep(self, table: Table, floor: Mapping[str, int], append: Append) -> None:
        parts = self._parts(table, {stream: (NOWHERE, last) for stream, last in floor.items()})
        self._add(table, "kept", floor, _rows(parts), hash_of_rows(parts), "", append)

    def _add(
        self,
        table: Table,
        kind: LineKind,
        positions: Mapping[str, int],
        rows: int,
        rows_hash: str,
        reason: str,
        append: Append,
    ) -> None:
        """Append a line that covers no append to the table `chain`."""
        with self._lock:
            head = self._chains[table.name].head
            assert head is not None, "the chain has begun"
            line = _line(table, kind, positions, rows, rows_hash, reason, head)
            self._chains[table.name].head, self._chains[table.name].parts = line, {}
            self._waiting.append(line)
        self.gather(append)

    def gather(self, append: Append) -> None:
        """Append the lines that wait to the table `chain`, and log the newest line of each table.

        Lines of a table to which another thread appends at this moment are left for the next call.

        Args:
            append: appends rows to the table in a folder.
        """
        with self._lock:
            busy = {name for name, chain in self._chains.items() if chain.next is not None}
            waiting = [line for line in self._waiting if line.table not in busy]
            self._waiting = [line for line in self._waiting if line.table in busy]
            for line in waiting:
                self._chains[line.table].parts = {}
        if not waiting:
            return
        try:
            append(arrow_table(ChainRow, [row_of(line) for line in waiting]), self.warehouse / CHAIN.name)
        except BaseException:
            with self._lock:
                self._waiting = waiting + self._waiting
            raise
        with self._lock:
            for line in waiting:
                chain = self._chains.get(line.table)
                if chain is not None:
                    chain.gathered = line
            gathered = [chain.gathered for chain in self._chains.values() if chain.gathered is not None]
        self._gathered_ms = now_ms()
        heads = [Head(line.table, line.number, line.line_hash) for line in gathered]
        log.info("chain of the tables: %s", text_of_heads(heads))
        if self._publish is not None:
            self._publish(heads)

    def heads(self) -> list[Head]:
        """Return the newest gathered line of each table that this process has read."""
        with self._lock:
            gathered = [chain.gathered for chain in self._chains.values() if chain.gathered is not None]
        return [Head(line.table, line.number, line.line_hash) for line in gathered]

    def _chain_of(self, table: Table, delta: DeltaTable) -> _Chain:
        with self._lock:
            chain = self._chains.get(table.name)
        if chain is None:
            gathered = newest_line(self.warehouse, table.name)
            known = 0 if gathered is None else gathered.number
            tail = lines_in_commits(self.warehouse / table.name, delta.version(), known)
            chain = _Chain(tail[-1] if tail else gathered)
            chain.gathered = gathered
            with connected(self.warehouse) as connection:
                source = source_of(delta, self.warehouse / table.name, table)
                chain.last = highest_positions(connection, source, table)
            if chain.head is not None and not chain.last and chain.head.kind != "begin":
                log.error("table %s has lost all its rows; its chain begins again", table.name)
                chain.found = [_line(table, "begin", {}, 0, "", "the table was created again, or emptied", chain.head)]
            elif chain.head is not None:
                chain.found = self._found(table, chain.head, chain.last, tail)
            with self._lock:
                self._chains[table.name] = chain
                self._waiting += tail
        return chain

    def _found(self, table: Table, head: Line, last: Mapping[str, int], tail: Sequence[Line]) -> list[Line]:
        """Return the line about the rows after the positions of all lines; None if there are no such rows.

        Only the newest lines are read: an older stream that is not in them has no new rows.
        """
        recent = gathered_lines(
            self.warehouse, f"table_name = {literal(table.name)} order by number desc limit {_RECENT}"
        )
        covered: dict[str, int] = {}
        for line in (*reversed(recent), *tail):
            if line.kind not in WITHOUT_ROWS:
                covered |= {its: max(end, covered.get(its, end)) for its, end in line.positions.items()}
        is_whole = len(recent) < _RECENT
        ranges = {
            stream: (covered.get(stream, NOWHERE), end)
            for stream, end in last.items()
            if (stream in covered or is_whole) and end > covered.get(stream, NOWHERE)
        }
        if not ranges:
            return []
        parts = self._parts(table, ranges)
        ends = {stream: end for stream, (_, end) in ranges.items()}
        log.warning("%d rows of table %s have no line: an earlier release has written them", _rows(parts), table.name)
        return [_line(table, "found", ends, _rows(parts), hash_of_rows(parts), "written without lines", head)]

    def _parts(self, table: Table, ranges: Mapping[str, tuple[int, int]]) -> list[Part]:
        """Return the rows of a table between positions of its streams: after the first, up to the second."""
        folder = self.warehouse / table.name
        one = {stream: ([last], [1]) for stream, (_, last) in ranges.items()}
        with connected(folder) as connection:
            rows = sorted_rows(connection, source_of(open_delta(folder), folder, table), table, ranges)
            return [part for _, part in parts_by_line(rows, table, one)]

    @staticmethod
    def _gaps(table: Table, chain: _Chain, parts: Iterable[OfStream]) -> Iterator[tuple[str, int, int, str]]:
        """Yield the gaps before and within the rows: stream, last missing position, number of positions, reason.

        The decisions of a shard have one sequence of numbers, but a decision without a group may be in another
        partition than the others. The first number of a new shard depends on that of the shard from which it was split.
        """
        first = FIRST_POSITIONS.get(table.name)
        if first is None:
            return
        numbered: dict[str, list[OfStream]] = {}
        for part in parts:
            numbered.setdefault(_numbering(part.stream, table), []).append(part)
        ends: dict[str, int] = {}
        for stream, last in chain.last.items():
            name = _numbering(stream, table)
            ends[name] = max(last, ends.get(name, last))
        for name, its in numbered.items():
            lowest, highest = min(one.positions[0] for one in its), max(one.positions[-1] for one in its)
            expected = ends[name] + 1 if name in ends else lowest if table is DECISIONS else first
            if lowest == expected and highest - expected == sum(len(one.positions) for one in its) - 1:
                continue
            for position, stream in sorted((position, part.stream) for part in its for position in part.positions):
                if position > expected:
                    yield stream, position - 1, position - expected, "not in Kafka's log when it was recorded"
                expected = max(expected, position + 1)


def _numbering(stream: str, table: Table) -> str:
    """Return the name of the sequence in which the positions of a stream are counted."""
    return stream.rpartition("@")[0] if table is DECISIONS else stream


def _rows(parts: Iterable[Part]) -> int:
    return sum(part.rows for part in parts)


def _line(
    table: Table,
    kind: LineKind,
    positions: Mapping[str, int],
    rows: int,
    rows_hash: str,
    reason: str,
    before: Line | None,
) -> Line:
    line = Line(
        table=table.name,
        number=1 if before is None else before.number + 1,
        kind=kind,
        at_ms=now_ms(),
        rows=rows,
        positions=dict(sorted(positions.items())),
        rows_hash=rows_hash,
        reason=reason,
    )
    return linked(line, "" if before is None else before.line_hash)


def _extended(line: Line, ends: Mapping[str, int], rows: int, rows_hash: str, before: str) -> Line:
    """Return a line that covers further rows too.

    Args:
        line: the line.
        ends: stream with further rows -> their last position.
        rows: number of the further rows.
        rows_hash: hash of all rows.
        before: hash of the line before.
    """
    positions = dict(sorted({**line.positions, **ends}.items()))
    longer = msgspec.structs.replace(
        line, at_ms=now_ms(), rows=line.rows + rows, positions=positions, rows_hash=rows_hash
    )
    return linked(longer, before)


def newest_line(warehouse: Place, table: str) -> Line | None:
    """Return the newest gathered line of a table; None if there is none."""
    lines = gathered_lines(warehouse, f"table_name = {literal(table)} order by number desc limit 1")
    return lines[0] if lines else None


def gathered_lines(warehouse: Folder, condition: str, version: int | None = None) -> list[Line]:
    """Return the rows of the table `chain` that meet an SQL condition, as lines; none if the table does not exist."""
    folder = Place.of(warehouse) / CHAIN.name
    if not is_delta(folder):
        return []
    names = [column.name for column in columns_of(ChainRow)]
    with connected(folder) as connection:
        source = source_of(open_delta(folder, version), folder, CHAIN)
        rows = connection.execute(f"select {', '.join(map(quoted, names))} from {source} where {condition}").fetchall()
    return lines_of(rows)


def lines_of(rows: Iterable[Iterable[Any]]) -> list[Line]:
    """Return the lines in rows of the table `chain`; a row that is not a line is left out.

    Args:
        rows: the columns have the declared order.
    """
    lines, names = [], ChainRow.__struct_fields__
    for row in rows:
        try:
            lines.append(line_of(msgspec.convert(dict(zip(names, row, strict=True)), ChainRow)))
        except UNREADABLE:  # it was edited, and is missing in its chain
            continue
    return lines


def highest_positions(connection: duckdb.DuckDBPyConnection, source: str, table: Table) -> dict[str, int]:
    """Return stream -> highest position in a table, sorted by the columns of the streams.

    Args:
        connection: connection to DuckDB.
        source: the table in the SQL of a query; rows without a position are left out, see `rows_without_position`.
        table: its declaration.
    """
    stream, position = ", ".join(map(quoted, stream_columns(table))), quoted(table.position)
    with connection.cursor() as cursor:
        found = cursor.sql(
            f"select {stream}, max({position}) as {position} from {source} where not ({_has_no_position(table)}) "
            f"group by {stream} order by {stream}"
        ).to_arrow_table()
    return dict(zip(streams_of(found, table).to_pylist(), found[table.position].to_pylist(), strict=True))


def rows_without_position(connection: duckdb.DuckDBPyConnection, source: str, table: Table) -> int:
    """Return the number of rows without a stream or a position, which no recorder writes."""
    with connection.cursor() as cursor:
        [(count,)] = cursor.sql(f"select count(*) from {source} where {_has_no_position(table)}").fetchall()
    return int(count)


def _has_no_position(table: Table) -> str:
    return " or ".join(f"{quoted(name)} is null" for name in (*stream_columns(table), table.position))


def source_of(delta: DeltaTable, folder: Place, table: Table) -> str:
    """Return a table in the SQL of a query."""
    columns = [(column.name, in_duckdb(column.type)) for column in columns_of(table.row)]
    return f"({reading(delta, folder, columns)}) as rows"


def sorted_rows(
    connection: duckdb.DuckDBPyConnection, source: str, table: Table, ranges: Mapping[str, tuple[int, int]]
) -> Iterator[pa.Table]:
    """Yield rows with the columns that are hashed, sorted by stream and position.

    Args:
        connection: connection to DuckDB.
        source: the table in the SQL of a query.
        table: its declaration.
        ranges: stream -> the position before the first row, and that of the last one.
    """
    if not ranges:
        return
    keys = stream_columns(table)
    names = dict.fromkeys([*keys, table.position, *(name.partition(".")[0] for name in hashed_columns(table))])
    wanted = " or ".join(range_in_sql(table, stream, after, last) for stream, (after, last) in ranges.items())
    query = (
        f"select {', '.join(map(quoted, names))} from {source} where {wanted} "
        f"order by {', '.join(map(quoted, keys))}, {quoted(table.position)}"
    )
    with connection.cursor() as cursor:
        for batch in cursor.sql(query).to_arrow_reader(_BATCH):
            yield pa.Table.from_batches([batch])


def range_in_sql(table: Table, stream: str, after: int, last: int) -> str:
    """Return the condition of the rows of a stream after a position and up to another one."""
    equal = [f"{quoted(name)} = {_literal(value)}" for name, value in values_of(stream, table).items()]
    position = quoted(table.position)
    return f"({' and '.join(equal)} and {position} > {after} and {position} <= {last})"


_BATCH = 20_000
"""Number of rows of an Arrow batch."""


def _literal(value: str | int) -> str:
    return literal(value) if isinstance(value, str) else str(value)
