"""Rows that are lost for ever and whose loss an operator has accepted: lines of the chain that readers must respect."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct, json

from wakeroll.epoch_ms import EpochMs
from wakeroll_model.chain import NOWHERE, WITHOUT_ROWS
from wakeroll_model.decision_order import without_era
from wakeroll_model.events import UNREADABLE
from wakeroll_model.records import shard_of
from wakeroll_model.rows import DECISIONS, EVENTS, SNAPSHOTS, TABLES
from wakeroll_pipeline.ledger.delta_files import literal
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.stream_names import values_of

Range = tuple[int, int]
"""First and last position."""


class Loss(Struct, frozen=True, kw_only=True):
    """A line of the kind ``lost`` or ``unproven``."""

    table: str
    stream: str
    """Stream of the lost positions, as in the chain; empty if the rows differ from those of a line."""
    first: int
    last: int
    at_ms: int
    """Time at which the loss was accepted (epoch ms)."""
    reason: str

    @property
    def shard(self) -> str:
        """Shard of lost records, or the shard with its era of lost decisions and snapshots; empty if none."""
        if not self.stream:
            return ""
        values = values_of(self.stream, TABLES[self.table])
        if "shard" in values:
            return str(values["shard"])
        if "topic" not in values:
            return ""
        shard = shard_of(str(values["topic"]), int(values["partition"]))
        return f"{shard}.{values['era']}" if "era" in values else shard

    def has(self, position: int) -> bool:
        """Return whether a position is lost."""
        return bool(self.stream) and self.first <= position <= self.last

    @property
    def text(self) -> str:
        """The loss as a phrase."""
        if not self.stream:
            return f"{self.table}, {self.reason} (accepted at {EpochMs(self.at_ms)})"
        where = f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"
        name = self.shard if self.table == DECISIONS.name else self.stream
        return f"{self.table} of {name}, {where}: missing on record since {EpochMs(self.at_ms)}: {self.reason}"


def losses_of(ledger: Ledger) -> list[Loss]:
    """Return the accepted losses, in the order of their lines.

    If a table was created again, its earlier losses are left out.
    """
    rows = ledger.rows(
        "select table_name, number, kind, at_ms, rows, positions, reason from chain "
        "where kind in ('begin', 'lost', 'unproven') order by table_name, number"
    )
    found: dict[str, list[Loss]] = {}
    for row in rows:
        its = found.setdefault(row.table_name, [])
        if row.kind == "begin":
            its.clear()
        elif row.table_name in TABLES:
            its += _losses_in(row)
    return [one for its in found.values() for one in its]


def _losses_in(row: Any) -> list[Loss]:
    common = {"table": row.table_name, "at_ms": row.at_ms, "reason": row.reason}
    if row.kind == "unproven":
        return [Loss(stream="", first=0, last=0, **common)]
    try:
        positions = json.decode(row.positions, type=dict[str, int])
        return [Loss(stream=its, first=last - row["rows"] + 1, last=last, **common) for its, last in positions.items()]
    except UNREADABLE:  # it was edited, which the chain shows
        return []


def unproven_decisions(ledger: Ledger) -> dict[str, list[Range]]:
    """Return shard with era -> ranges of decisions with edited ones among them, as an operator has accepted.

    A line of the kind ``unproven`` has the positions of the line whose rows differ; its rows follow those of the lines
    before.
    """
    accepted = "kind = 'unproven' and table_name = 'decisions'"
    if not ledger.rows(f"select 1 from chain where {accepted} limit 1"):
        return {}
    ends: dict[str, set[int]] = {}
    found: dict[str, list[Range]] = {}
    for row in ledger.rows("select kind, positions from chain where table_name = 'decisions' order by number"):
        if row.kind == "begin":
            ends, found = {}, {}
        try:
            positions = json.decode(row.positions, type=dict[str, int])
        except UNREADABLE:  # it was edited, which the chain shows
            continue
        for stream, last in positions.items():
            if row.kind == "unproven":
                first = max((end for end in ends.get(stream, ()) if end < last), default=NOWHERE) + 1
                found.setdefault(str(values_of(stream, DECISIONS)["shard"]), []).append((first, last))
            elif row.kind not in WITHOUT_ROWS:
                ends.setdefault(stream, set()).add(last)
    return {shard: merged(its) for shard, its in found.items()}


def lost_decisions(losses: Iterable[Loss]) -> dict[str, list[Range]]:
    """Return shard with era -> ranges of its lost decisions, merged and ascending."""
    found: dict[str, list[Range]] = {}
    for one in losses:
        if one.table == DECISIONS.name and one.stream:
            found.setdefault(one.shard, []).append((one.first, one.last))
    return {shard: merged(its) for shard, its in found.items()}


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges sorted; merge those that touch."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return found


def is_lost(ranges: Sequence[Range], position: int) -> bool:
    """Return whether a position is in one of these ranges."""
    return any(first <= position <= last for first, last in ranges)


def lost_rows_query(losses: Iterable[Loss]) -> str:
    """Return the query of lost positions in ranges that do not touch, in the SQL of both engines.

    Its columns are table_name, topic, partition, shard, first_lost, last_lost; a column that the table lacks is null.
    """
    ranges: dict[tuple[str, str], list[Range]] = {}
    for one in losses:
        if one.stream and one.table in _NAMED:
            ranges.setdefault((one.table, one.stream), []).append((one.first, one.last))
    rows = [
        _row(table, values_of(stream, TABLES[table]), part)
        for (table, stream), its in ranges.items()
        for part in merged(its)
    ]
    return " union all ".join(rows) or f"{_row('', {}, (0, 0))} where 1 = 0"


_NAMED = (EVENTS.name, DECISIONS.name, SNAPSHOTS.name)


def _row(table: str, values: Mapping[str, str | int], part: Range) -> str:
    """Return the query of one row; the engines need the type of a null."""
    topic, shard = (literal(str(values[name])) if name in values else "null" for name in ("topic", "shard"))
    return (
        f"select {literal(table)} as table_name, cast({topic} as string) as topic, "
        f"cast({values.get('partition', 'null')} as int) as partition, cast({shard} as string) as shard, "
        f"cast({part[0]} as bigint) as first_lost, cast({part[1]} as bigint) as last_lost"
    )


def losses_of_group(ledger: Ledger, group_id: str, losses: Sequence[Loss]) -> list[Loss]:
    """Return the losses of decisions and records in the shards that have decided about a group."""
    if not losses:
        return []
    shards = {
        row.shard for row in ledger.rows("select distinct shard from decisions where group_id = $group", group=group_id)
    }
    known = {without_era(shard) for shard in shards}
    return [
        one
        for one in losses
        if one.table in (EVENTS.name, DECISIONS.name) and one.stream and one.shard.partition(".")[0] in known
    ]
