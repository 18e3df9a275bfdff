"""The tables that a check or a replay read: their versions, rows and positions, as evidence beside a verdict."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from wakeroll_model.rows import SNAPSHOTS, TABLES, Table
from wakeroll_pipeline.ledger.ledger import Ledger, UnreadableTable

if TYPE_CHECKING:
    from wakeroll_pipeline.ledger.period import Period


class StreamSpan(Struct, frozen=True, kw_only=True):
    """A sequence of rows of a table: one partition of a control topic, or the decisions of one shard."""

    stream: str
    """Values of the columns that identify the sequence, joined by ``/``: ``wakeroll.groups/3``, or ``3/groups-3.1``."""
    rows: int
    first: int
    """Lowest position: an offset, or the number of a decision."""
    last: int


class TableLookedAt(Struct, frozen=True, kw_only=True):
    """A table in the version that was read."""

    table: str
    version: int | None
    """Delta version; None if the table does not exist yet, or its log cannot be read."""
    rows: int
    streams: list[StreamSpan] = []
    problem: str = ""
    """Sentence why the table cannot be read; empty if it can."""


def tables_looked_at(ledger: Ledger, period: "Period | None" = None) -> list[TableLookedAt]:
    """Return the tables of an open ledger, in the order of their declarations.

    Args:
        ledger: the open ledger.
        period: period of log time, whose rows are counted; None: all. For `snapshots`, all rows are counted.
    """
    return [_looked_at(ledger, table, ledger.versions.get(name), period) for name, table in TABLES.items()]


def _looked_at(ledger: Ledger, table: Table, version: int | None, period: "Period | None") -> TableLookedAt:
    condition = "true" if period is None or table is SNAPSHOTS else period.has_column(table.at)
    try:
        spans = list(_spans(ledger, table, condition))
    except UnreadableTable as error:
        return TableLookedAt(table=table.name, version=version, rows=0, problem=str(error))
    return TableLookedAt(table=table.name, version=version, rows=sum(span.rows for span in spans), streams=spans)


def _spans(ledger: Ledger, table: Table, condition: str) -> Iterator[StreamSpan]:
    stream, position = ", ".join(table.stream), f"{table.name}.{table.position}"
    rows = ledger.rows(
        f"select {stream}, count(*) as total, min({position}) as lowest, max({position}) as highest "
        f"from {table.name} where {condition} group by {stream} order by {stream}"
    )
    for row in rows:
        name = "/".join(str(row[column]) for column in table.stream)
        yield StreamSpan(stream=name, rows=row.total, first=row.lowest, last=row.highest)
