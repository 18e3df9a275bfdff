"""The plan of `wakeroll repair`: rows that are missing, wrong, doubled or damaged, and their replacements."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Any, NamedTuple

from msgspec import Struct

from wakeroll_model.decision_order import era_of
from wakeroll_model.decisions import Cause, Kind
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, SNAPSHOTS, DecisionRow, SnapshotRow, Table
from wakeroll_pipeline.jobs.replayed_rows import Replayed, read_again, replay_all
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.repair_findings import Finding, Problem, WrongDay
from wakeroll_pipeline.operators.ledger_rows import PlacedRow, ReadDecision, assignment_rows, offset_rows


class Change(NamedTuple):
    """The change that a repair makes to a table."""

    table: Table
    deleted: Sequence[Struct]
    """One row for each key that is deleted, before the others are appended."""
    appended: Sequence[Struct]
    is_exact: bool = True
    """Whether the rows are the original ones, byte for byte, so that the chain of the table proves them."""


class RepairPlan(NamedTuple):
    """The findings, and the changes that repair those that can be repaired."""

    findings: Sequence[Finding]
    changes: Sequence[Change]
    """At most one per table, in their order: decisions before the rows that are derived from them."""
    days: Sequence[WrongDay] = ()
    """Days whose daily facts are computed again, after the rows were repaired."""


def plan_repair(ledger: Ledger, partitions: int, lost: Sequence[SnapshotRow] = ()) -> RepairPlan:
    """Return the plan for a ledger, which no process writes meanwhile.

    `assignments` and `offsets` are compared as a whole with `decisions`, including restored ones. A row without its
    decision is kept, because it may be the only remaining trace of the decision. For decisions and snapshots, see
    `wakeroll_pipeline.jobs.replayed_rows`.

    Args:
        ledger: the open ledger.
        partitions: number of partitions of each control topic.
        lost: snapshots that the table lacks, without their states.
    """
    replayed = replay_all(ledger, partitions, lost)
    missing = [row for one in replayed for row in one.missing]
    findings = [*_of_decisions(replayed), *_of_snapshots(replayed)]
    changes = [
        Change(DECISIONS, [], missing, is_exact=False),
        Change(
            SNAPSHOTS,
            [old for one in replayed for old, new in one.damaged if new is not None and old.body],
            [new for one in replayed for _, new in one.damaged if new is not None],
            is_exact=False,
        ),
    ]
    for its_findings, change in (
        _of_derived(ledger, ASSIGNMENTS, "handover", assignment_rows, missing),
        _of_derived(ledger, OFFSETS, "offset", offset_rows, missing),
    ):
        findings += its_findings
        changes.append(change)
    return RepairPlan(findings, [one for one in changes if one.deleted or one.appended])


def _of_decisions(replayed: Iterable[Replayed]) -> Iterator[Finding]:
    for one in replayed:
        yield from findings_of(
            DECISIONS, [(row.shard, row.seq, "missing") for row in one.missing], "a replay of events"
        )
        yield from findings_of(
            DECISIONS,
            [(one.shard, seq, "missing") for seq in one.unproven],
            "",
            "No row behind them proves a replay",
        )


def _of_snapshots(replayed: Iterable[Replayed]) -> Iterator[Finding]:
    for one in replayed:
        for old, new in one.damaged:
            where: list[_Placed] = [(one.shard, old.offset, "damaged" if old.body else "missing")]
            if new is not None:
                yield from findings_of(SNAPSHOTS, where, "a replay of events")
            elif old.body:
                yield from findings_of(SNAPSHOTS, where, "", "It stays, and is not used")
            else:
                yield from findings_of(SNAPSHOTS, where, "", "The snapshots beside it are used instead")


_Placed = tuple[str, int, Problem]
"""Stream, position and problem of a row."""


def findings_of(table: Table, rows: Iterable[_Placed], source: str, detail: str = "") -> list[Finding]:
    """Return findings for rows in order: one for each run of rows with the same stream and problem.

    Missing records and decisions form a run if their numbers are consecutive.
    """
    found = []
    is_dense = table in (EVENTS, DECISIONS)

    # Rows of other tables are not numbered without gaps: nothing sound is between them.
    def run_of(numbered: tuple[int, _Placed]) -> tuple[str, Problem, int]:
        number, (stream, position, problem) = numbered
        return stream, problem, position - number if is_dense else 0

    for (stream, problem, _), run in groupby(enumerate(rows), run_of):
        positions = [position for _, (_, position, _) in run]
        found.append(
            Finding(
                table=table.name,
                stream=stream,
                first=positions[0],
                last=positions[-1],
                rows=len(positions),
                problem=problem,
                source=source,
                detail=detail,
                is_on_record=False,
            )
        )
    return found


def _of_derived(
    ledger: Ledger,
    table: Table,
    kind: Kind,
    make: Callable[[Iterable[ReadDecision]], Iterator[PlacedRow]],
    again: Iterable[DecisionRow],
) -> tuple[list[Finding], Change]:
    """Compare a whole table with the rows that are derived from the decisions; both are read in order, side by side."""
    decided = (
        _decision(kind, *values)
        for values in ledger.stream(
            f"select shard, seq, partition, at_ms, json from decisions where kind = '{kind}' order by era, seq"
        )
    )
    more = (row for row in sorted(again, key=_order) if row.kind == kind)
    fields = ", ".join(f"{table.name}.{name}" for name in table.row.__struct_fields__)
    there = (_row(table, values) for values in ledger.stream(f"select {fields} from {table.name} order by era, seq"))
    wrong: list[_Placed] = []
    deleted: list[Struct] = []
    appended: list[Struct] = []
    expected = (one.row for one in make(read_again(row) for row in merge(decided, more, key=_order)))
    both = merge(_marked(expected, 0), _marked(there, 1), key=lambda one: _order(one[0]))
    for _, of_number in groupby(both, key=lambda one: _order(one[0])):
        for shard, (made, found) in _by_shard(of_number).items():
            if not made or found == made[:1]:
                continue
            problem: Problem = (
                "missing" if not found else "doubled" if all(one == made[0] for one in found) else "wrong"
            )
            wrong.append((shard, made[0].seq, problem))
            deleted += found[:1]
            appended.append(made[0])
    strange = [
        _row(table, values)
        for values in ledger.stream(
            f"select distinct {fields} from {table.name} join decisions using (shard, seq) "
            f"where decisions.kind <> '{kind}'"
        )
    ]
    findings = [
        *findings_of(table, sorted(wrong), "decisions"),
        *findings_of(
            table,
            sorted((row.shard, row.seq, "wrong") for row in strange),
            "decisions",
            "They are of another kind of row",
        ),
    ]
    return findings, Change(table, [*deleted, *strange], appended)


def _order(row: Any) -> tuple[int, int]:
    """Return era and seq of a row; rows of different shards may have the same."""
    return era_of(row.shard), row.seq


def _marked(rows: Iterable[Any], mark: int) -> Iterator[tuple[Any, int]]:
    return ((row, mark) for row in rows)


def _by_shard(rows: Iterable[tuple[Any, int]]) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return shard -> its rows with the mark 0, and those with the mark 1."""
    parts: dict[str, tuple[list[Any], list[Any]]] = {}
    for row, mark in rows:
        parts.setdefault(row.shard, ([], []))[mark].append(row)
    return parts


def _row(table: Table, values: Sequence[Any]) -> Any:
    return table.row(**dict(zip(table.row.__struct_fields__, values, strict=True)))


def _decision(kind: Kind, shard: str, seq: int, partition: int, at_ms: int, json: str) -> DecisionRow:
    """Return the part of a decision from which rows are derived."""
    return DecisionRow(
        shard=shard,
        seq=seq,
        kind=kind,
        group_id=None,
        client_id=None,
        at_ms=at_ms,
        cause=Cause("", 0, 0),
        published_ms=0,
        partition=partition,
        json=json,
    )
