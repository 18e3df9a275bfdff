"""The rows that `wakeroll repair` cannot restore, and the lines of the chain that record an accepted loss."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, structs

from wakeroll.epoch_ms import EpochMs
from wakeroll_model.chain import NOWHERE, PROVING, Line
from wakeroll_model.records import shard_of
from wakeroll_model.rows import CHAINED, DECISIONS, EVENTS, SNAPSHOTS, SnapshotRow, Table
from wakeroll_model.shard_state import VERSION
from wakeroll_pipeline.jobs.repair_plan import Change, findings_of
from wakeroll_pipeline.ledger.archived_log import gaps_of
from wakeroll_pipeline.ledger.chains import FIRST_POSITIONS, Accepted, highest_positions
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.losses import Loss, losses_of
from wakeroll_pipeline.ledger.proven_rows import BrokenSpan, Chain, Covered, broken_spans, chain_of, covered_by
from wakeroll_pipeline.ledger.repair_findings import Finding, Problem
from wakeroll_pipeline.ledger.row_hashes import stream_of
from wakeroll_pipeline.ledger.stored_snapshots import snapshot_keys
from wakeroll_pipeline.ledger.stream_names import values_of

_Name = str
"""Stream of a finding: a control partition, or a shard with its era."""


LOSABLE: Sequence[Problem] = ("missing", "damaged")
"""Problems of rows that can be accepted as lost."""


class TableLosses(NamedTuple):
    """The losses of one table that are not recorded yet."""

    table: Table
    findings: Sequence[Finding]
    lines: Sequence[Accepted]
    """Lines of the chain that record the losses."""
    ends: Mapping[str, int]
    """Stream -> position up to which the table is proven again."""
    has_unproven: bool
    """Whether rows differ from those that were written, without an explanation by a change or a lost position."""


class LossPlan(NamedTuple):
    """The rows that cannot be restored."""

    tables: Sequence[TableLosses]
    """The tables that have lost something, sorted by name."""
    on_record: Sequence[Loss]
    """Losses that an operator has accepted before."""

    @property
    def findings(self) -> list[Finding]:
        """The losses that are not recorded yet."""
        return [one for its in self.tables for one in its.findings]


def plan_losses(ledger: DuckLedger, findings: Iterable[Finding], changes: Sequence[Change], detail: str) -> LossPlan:
    """Return the losses of a ledger, which no process writes meanwhile.

    Args:
        ledger: the ledger, after all changes whose rows the chain proves.
        findings: findings of the repair; rows with a source are not lost.
        changes: the changes that will be made next.
        detail: sentence why rows that only the chain proves cannot be restored.
    """
    open_ones = [one for one in findings if not one.source and one.problem in LOSABLE]
    tables, on_record = [], losses_of(ledger)
    for table in sorted(CHAINED, key=lambda one: one.name):
        change = next((one for one in changes if one.table is table), None)
        known = [one for one in on_record if one.table == table.name and one.stream]
        found = [one for one in open_ones if one.table == table.name]
        its = _TablePlan(ledger, table, found, known, change, detail).losses()
        if its.findings or its.ends:
            tables.append(its)
    return LossPlan(tables, on_record)


def lost_snapshots(ledger: DuckLedger) -> list[SnapshotRow]:
    """Return the snapshots that are in the chain and not in the table, without their states.

    If a line covers several snapshots of a shard, the chain has only the position of the last one.
    """
    covered = covered_by(chain_of(ledger, SNAPSHOTS).lines)
    there = {(key.topic, key.partition, key.era, key.offset) for key in snapshot_keys(ledger)}
    known = [one for one in losses_of(ledger) if one.table == SNAPSHOTS.name]
    found = []
    for broken in broken_spans(ledger, SNAPSHOTS, SNAPSHOTS.name, covered):
        line = broken.span.line
        for stream, offset in line.positions.items() if line.kind in PROVING else ():
            values = values_of(stream, SNAPSHOTS)
            topic, partition, era = str(values["topic"]), int(values["partition"]), int(values["era"])
            is_known = any(one.stream == stream and one.has(offset) for one in known)
            if (topic, partition, era, offset) not in there and not is_known:
                found.append(
                    SnapshotRow(
                        topic=topic,
                        partition=partition,
                        offset=offset,
                        era=era,
                        version=VERSION,
                        at_ms=line.at_ms,
                        body=b"",
                    )
                )
    return found


class _TablePlan:
    """The losses of one table."""

    def __init__(
        self,
        ledger: DuckLedger,
        table: Table,
        findings: Sequence[Finding],
        on_record: Sequence[Loss],
        change: Change | None,
        detail: str,
    ) -> None:
        self._ledger = ledger
        self._table = table
        self._detail = detail
        self._chain: Chain = chain_of(ledger, table)
        self._covered: Covered = covered_by(self._chain.lines)
        self._spans = list(broken_spans(ledger, table, table.name, self._covered))
        self._streams: dict[_Name, list[str]] = {}
        there = highest_positions(ledger.table_connection, table.name, table)
        for stream in {**self._covered.last, **there}:
            self._streams.setdefault(self._name(stream), []).append(stream)
        self._known: dict[_Name, set[int]] = {}
        """Positions that are recorded as lost."""
        for loss in on_record:
            self._known.setdefault(self._name(loss.stream), set()).update(range(loss.first, loss.last + 1))
        self._gaps: dict[_Name, set[int]] = {}
        """Positions within a line that never had rows, because the recorder did not find them."""
        for line in self._chain.lines:
            for stream, last in line.positions.items() if line.kind == "gap" else ():
                # The decisions of a shard may be in several partitions: then no row is missing in its numbers.
                if len(self._streams[name := self._name(stream)]) == 1:
                    self._gaps.setdefault(name, set()).update(range(last - line.rows + 1, last + 1))
        self._changed: set[tuple[_Name, int]] = set()
        self._appended: set[tuple[_Name, int]] = set()
        if change is not None:
            deleted = {self._place(row) for row in change.deleted}
            appended = {self._place(row) for row in change.appended}
            self._changed, self._appended = deleted | appended, appended - deleted
        self._open = [left for one in findings for left in self._not_on_record(one)]

    def losses(self) -> TableLosses:
        """Return the losses that are not recorded."""
        self._open += self._absent()
        lost = {(one.stream, at) for one in self._open if one.problem == "missing" for at in _range(one)}
        lines = [self._lost_line(one) for one in self._open]
        findings, ends = list(self._open), dict[str, int]()
        has_unproven = False
        for broken in self._spans:
            mended = self._inside(broken, self._changed)
            gone = self._inside(broken, lost | {(name, at) for name, its in self._known.items() for at in its})
            gone = {(name, at) for name, at in gone if at not in self._gaps.get(name, ())}
            back = self._inside(broken, self._appended)
            is_whole = broken.rows + len(gone | back) == broken.span.line.rows
            if not (is_whole and (gone or mended)):
                has_unproven = True
                findings.append(self._unproven(broken))
                lines.append(self._unproven_line(broken))
            elif not gone:
                continue  # the change proves it again
            for stream, last in broken.span.line.positions.items():
                ends[stream] = max(last, ends.get(stream, last))
        return TableLosses(self._table, findings, lines, ends, has_unproven)

    def _name(self, stream: str) -> _Name:
        """Return the name that findings use for a stream of the chain."""
        values = values_of(stream, self._table)
        if self._table is SNAPSHOTS:
            return f"{shard_of(str(values['topic']), int(values['partition']))}.{values['era']}"
        return str(values.get("shard", stream))

    def _place(self, row: Struct) -> tuple[_Name, int]:
        values = structs.asdict(row)
        return self._name(stream_of(self._table, values)), int(values[self._table.position])

    def _not_on_record(self, finding: Finding) -> list[Finding]:
        known = self._known.get(finding.stream, set())
        positions = [at for at in _range(finding) if at not in known]
        if len(positions) == finding.last - finding.first + 1:
            return [finding]
        rows = [(finding.stream, at, finding.problem) for at in positions]
        return findings_of(self._table, rows, "", finding.detail)

    def _absent(self) -> list[Finding]:
        """Return positions that must exist by the chain or by neighbouring rows, and that no row or finding has."""
        if self._table not in (EVENTS, DECISIONS):
            return []
        expected: dict[_Name, set[int]] = {}
        first = FIRST_POSITIONS[self._table.name]
        for broken in self._spans:
            if broken.span.line.kind in PROVING:
                for stream, last in broken.span.line.positions.items():
                    begin = broken.span.after.get(stream, first - 1) + 1
                    expected.setdefault(self._name(stream), set()).update(range(begin, last + 1))
        if self._table is EVENTS:
            for name, before, after in self._jumps():
                expected.setdefault(name, set()).update(range(before + 1, after))
        else:
            for name, its in expected.items():
                its -= self._gaps.get(name, set())
        for one in self._open:
            expected.get(one.stream, set()).difference_update(_range(one))
        for name, its in expected.items():
            its -= self._known.get(name, set())
            its -= {at for other, at in self._changed if other == name}
            its -= set(self._present(name, its))
        rows: list[tuple[str, int, Problem]] = [
            (name, at, "missing") for name, its in sorted(expected.items()) for at in sorted(its)
        ]
        return findings_of(self._table, rows, "", self._detail)

    def _jumps(self) -> Iterator[tuple[_Name, int, int]]:
        """Yield the neighbours of each gap: control partition, offset before it, offset after it."""
        for (topic, partition), before, after in gaps_of(self._ledger):
            yield f"{topic}-{partition}", before, after

    def _present(self, name: _Name, positions: Iterable[int]) -> Iterator[int]:
        asked = sorted(positions)
        if not asked:
            return
        values = values_of(self._streams[name][0], self._table)
        wanted = {column: value for column, value in values.items() if column != "partition" or "topic" in values}
        condition = " and ".join(f"{self._table.name}.{column} = ${column}" for column in wanted)
        position = f"{self._table.name}.{self._table.position}"
        yield from (
            at
            for (at,) in self._ledger.stream(
                f"select {position} from {self._table.name} where {condition} and {position} between $low and $high",
                **wanted,
                low=asked[0],
                high=asked[-1],
            )
        )

    def _inside(self, broken: BrokenSpan, places: Iterable[tuple[_Name, int]]) -> set[tuple[_Name, int]]:
        ranges: dict[_Name, list[tuple[int, int]]] = {}
        for stream, last in broken.span.line.positions.items():
            ranges.setdefault(self._name(stream), []).append((broken.span.after.get(stream, NOWHERE), last))
        return {(name, at) for name, at in places if any(after < at <= last for after, last in ranges.get(name, ()))}

    def _lost_line(self, one: Finding) -> Accepted:
        return Accepted("lost", {self._stream(one.stream): one.last}, one.last - one.first + 1, one.detail or one.text)

    def _stream(self, name: _Name) -> str:
        if name in self._streams:
            return self._streams[name][0]
        shard, _, number = name.partition(".")[0].rpartition("-")
        return f"{name}@{number}" if self._table is DECISIONS and shard else name

    def _unproven(self, broken: BrokenSpan) -> Finding:
        line = broken.span.line
        stream, last = next(iter(line.positions.items()))
        more = len(line.positions) - 1
        return Finding(
            table=self._table.name,
            stream=self._name(stream) + (f" and {more} more" if more else ""),
            first=broken.span.after.get(stream, NOWHERE) + 1,
            last=last,
            rows=max(1, line.rows - broken.rows),
            problem="wrong",
            source="",
            detail=_differs(line, broken.rows),
            is_on_record=False,
        )

    def _unproven_line(self, broken: BrokenSpan) -> Accepted:
        line = broken.span.line
        return Accepted("unproven", line.positions, max(0, line.rows - broken.rows), _differs(line, broken.rows))


def _differs(line: Line, rows: int) -> str:
    found = f"{rows} rows" if rows != line.rows else "rows of which one or more were edited"
    return f"Line {line.number} of {EpochMs(line.at_ms)} has {line.rows} rows, the table has {found}"


def _range(one: Finding) -> range:
    return range(one.first, one.last + 1)
