"""Rows of `events` and `decisions` that occur more than once: equal rows, or different rows with one position."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct

from wakeroll_model.chain import NOWHERE, hash_of_rows
from wakeroll_model.rows import DECISIONS, EVENTS, Table
from wakeroll_pipeline.jobs.repair_plan import Change, RepairPlan, findings_of
from wakeroll_pipeline.ledger.chains import sorted_rows
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.proven_rows import MOST_AT_ONCE, Span, chain_of, covered_by
from wakeroll_pipeline.ledger.repair_findings import Finding
from wakeroll_pipeline.ledger.row_hashes import parts_of, stream_of, streams_of

_Place = tuple[str, int]
"""Stream, as in the chain, and position."""
_MOST_TRIES = 1_000
"""Maximum number of combinations of rows that are compared with the hash of a line."""


def plan_doubled(ledger: DuckLedger) -> RepairPlan:
    """Return the plan for rows that have the same position: one of each is kept.

    If they differ, the kept row is the one with which the hash of their line in the chain is right.

    Args:
        ledger: the open ledger, which no process writes meanwhile.
    """
    findings: list[Finding] = []
    changes: list[Change] = []
    for table in (EVENTS, DECISIONS):
        rows = _doubled(ledger, table)
        kept = {place: its[0] for place, its in rows.items() if all(one == its[0] for one in its)}
        differing = {place: its for place, its in rows.items() if place not in kept}
        proven = _proven(ledger, table, differing) if differing else {}
        left = sorted(differing.keys() - proven.keys())
        findings += [
            *_findings(table, sorted(kept), "a row that equals them"),
            *_findings(table, sorted(proven), "the row that the chain proves"),
            *_findings(table, left, "", "They differ, and the chain does not prove one of them"),
        ]
        chosen = [row for _, row in sorted((kept | proven).items())]
        if chosen:
            changes.append(Change(table, chosen, chosen))
    return RepairPlan(findings, changes)


def _findings(table: Table, places: Sequence[_Place], source: str, detail: str = "") -> list[Finding]:
    rows = [(stream.partition("@")[0], position, "doubled") for stream, position in places]
    return findings_of(table, rows, source, detail)  # type: ignore[arg-type]


def _doubled(ledger: DuckLedger, table: Table) -> dict[_Place, list[Struct]]:
    """Return the rows of each position that has more than one."""
    columns = ", ".join(f"{table.name}.{column}" for column in (*table.stream, table.position))
    places: set[_Place] = set()
    ranges: dict[str, tuple[int, int]] = {}
    for values in ledger.stream(f"select {columns} from {table.name} group by all having count(*) > 1"):
        row = dict(zip((*table.stream, table.position), values, strict=True))
        stream, position = stream_of(table, row), int(row[table.position])
        places.add((stream, position))
        first, last = ranges.get(stream, (position - 1, position))
        ranges[stream] = min(first, position - 1), max(last, position)
    found: dict[_Place, list[Struct]] = {}
    for batch in sorted_rows(ledger.table_connection, table.name, table, ranges):
        for index, place in enumerate(_places_in(batch, table)):
            if place in places:
                [row] = batch.slice(index, 1).to_pylist()
                found.setdefault(place, []).append(_row(table, row))
    return found


def _proven(ledger: DuckLedger, table: Table, differing: Mapping[_Place, Sequence[Struct]]) -> dict[_Place, Struct]:
    """Return the rows with which the hash of their line is right."""
    found: dict[_Place, Struct] = {}
    for span in covered_by(chain_of(ledger, table).lines).spans:
        ends = span.line.positions
        inside = [
            (stream, position)
            for stream, position in differing
            if span.after.get(stream, NOWHERE) < position <= ends.get(stream, NOWHERE)
        ]
        if inside and span.line.rows <= MOST_AT_ONCE:
            found |= _right_rows(ledger, table, span, inside)
    return found


def _right_rows(ledger: DuckLedger, table: Table, span: Span, inside: Sequence[_Place]) -> dict[_Place, Struct]:
    ranges = {stream: (span.after.get(stream, NOWHERE), last) for stream, last in span.line.positions.items()}
    batches = list(sorted_rows(ledger.table_connection, table.name, table, ranges))
    rows = pa.concat_tables(batches)
    indices: dict[_Place, list[int]] = {}
    for index, place in enumerate(_places_in(rows, table)):
        indices.setdefault(place, []).append(index)
    choices = [indices[place] for place in inside]
    sure = [its[0] for place, its in indices.items() if place not in inside]
    for choice in islice(product(*choices), _MOST_TRIES):
        whole = rows.take(sorted([*sure, *choice]))
        if hash_of_rows(parts_of(whole, table)) == span.line.rows_hash:
            return {
                place: _row(table, rows.slice(index, 1).to_pylist()[0])
                for place, index in zip(inside, choice, strict=True)
            }
    return {}


def _places_in(rows: pa.Table, table: Table) -> Iterator[_Place]:
    return zip(streams_of(rows, table).to_pylist(), rows[table.position].to_pylist(), strict=True)


def _row(table: Table, values: Mapping[str, Any]) -> Struct:
    row: Struct = msgspec.convert(values, table.row, builtin_types=(bytes,))
    return row
