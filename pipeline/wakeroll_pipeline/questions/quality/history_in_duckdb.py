"""Rows that break a rule of the suite `HISTORY`, found by DuckDB and by the model: see `comparison_rules`."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import duckdb
import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from duckdb import DuckDBPyConnection

from wakeroll_model.decisions import Decision, Handover, Offset
from wakeroll_model.rows import ASSIGNMENTS, EVENTS, OFFSETS, SNAPSHOTS, Table
from wakeroll_pipeline.ledger.column_types import columns_of, json_in_duckdb
from wakeroll_pipeline.ledger.delta_files import failing_query, quoted
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.losses import Loss, lost_decisions, lost_rows_query
from wakeroll_pipeline.questions.quality.accepted_losses import left_out
from wakeroll_pipeline.questions.quality.comparison_rules import queries, text_of
from wakeroll_pipeline.questions.quality.model_rules import (
    RULES_OF_ASSIGNMENTS,
    RULES_OF_DECISIONS,
    RULES_OF_OFFSETS,
    Lost,
    violations_in_assignments,
    violations_in_decisions,
    violations_in_offsets,
)
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED, Broken, never_null
from wakeroll_pipeline.questions.quality.record_types import RULES_OF_EVENTS, violations_in_types
from wakeroll_pipeline.questions.quality.row_windows import rows_in_order, stream_rows
from wakeroll_pipeline.questions.quality.rule import SHOWN, Rule
from wakeroll_pipeline.questions.quality.snapshot_rules import (
    RULES_OF_SNAPSHOTS,
    SNAPSHOTS_TO_CHECK,
    violations_in_snapshots,
)
from wakeroll_pipeline.questions.quality.unanswered_records import answers_due

_INSERTED = 10_000
"""Records that are inserted into the table `awaited` at once."""
KEPT = 100
"""Violations of a rule that are kept; all are counted."""

_COLUMNS = {
    ASSIGNMENTS.name: {
        "client_id": "said.to",
        "epoch": "said.epoch",
        "from_ms": "coalesce(said.assigned_ms, said.released_ms, said.at_ms)",
        "previous_client_id": 'said."from"',
        "how": "said.how",
    },
    OFFSETS.name: {
        "client_id": "said.client_id",
        "committed_offset": 'said."offset"',
        "epoch": "said.epoch",
        "at_ms": "said.at_ms",
        "reset_by": "said.reset_by",
        "mode": "coalesce(said.mode, 'clustering')",
        "deleted": "said.deleted",
    },
}
"""Table -> its columns behind those of all tables, as expressions of a decision."""

_DECISIONS = """
    select shard, seq, kind, group_id, client_id, at_ms, told.cause.topic as cause_topic,
        told.cause.partition as cause_partition, told.cause.offset as cause_offset, json, is_archived
    from told
"""
_ROWS = """
    select *, null::varchar as change from {table} where {is_complete}
    union all by name
    select shard, seq, group_id, epoch, change from memberships where change = 'forgotten'
"""
_SUSPECT_TYPES = """
    select topic, partition, events.offset, value, type from events
    where type is distinct from try(json_extract_string(decode(value, 'replace'), '$.type'))
"""
"""Records whose type seems not to be that of their value."""
_EVENTS = """
    select events.topic, events.partition, events.offset, events.at_ms, events.key, events.value
    from events anti join (
        select decisions.cause.topic as topic, decisions.cause.partition as partition, decisions.cause.offset as record
        from decisions
        where kind = 'rejected' and try(json_extract_string(json, '$.rule')) = 'signature'
    ) as refused
        on events.topic = refused.topic and events.partition = refused.partition and events.offset = refused.record
    where {is_complete}
"""
"""Records with a rejected signature have their answer already."""


class Violations:
    """The violations of a ledger: all are counted, and the first ones of each rule are kept."""

    def __init__(self) -> None:
        """Begin without any."""
        self.counts: Counter[str] = Counter()
        """Rule -> number of rows that break it."""
        self.not_checked: dict[str, UnreadableTable] = {}
        """Rule -> the table that it reads, which cannot be read."""
        self.rows: list[tuple[str, str, str | None, str | None]] = []
        """The kept violations: rule, key of the row, value found, value expected."""
        self.left_out: list[tuple[str, str]] = []
        """Rule, and what it has left out, and why."""

    def add(self, found: Iterable[tuple[str, str, str | None, str | None]]) -> None:
        """Add violations."""
        for row in found:
            if row[0].endswith(SKIPPED):
                self.left_out.append((row[0].removesuffix(SKIPPED), row[2] or ""))
                continue
            self.counts[row[0]] += 1
            if self.counts[row[0]] <= KEPT:
                self.rows.append(row)

    def first_of(self, rule: str) -> list[dict[str, str | None]]:
        """Return the first violations of a rule, for people."""
        its = [row for row in self.rows if row[0] == rule][:SHOWN]
        return [{"at": at, "found": found, "expected": expected} for _, at, found, expected in its]


def history_in_duckdb(
    connection: DuckDBPyConnection,
    rules: Collection[Rule],
    damage_behind: Callable[[duckdb.Error], UnreadableTable | None] = lambda _: None,
    losses: Sequence[Loss] = (),
) -> Violations:
    """Return the violations of some rules of the suite `HISTORY`.

    Args:
        connection: has the tables and views of a ledger; gets further views.
        rules: the rules.
        damage_behind: returns the table that cannot be read and made DuckDB fail; its rules are not checked.
        losses: rows that are lost on record, which the rules leave out.
    """
    wanted = {rule.name for rule in rules}
    found = Violations()

    @contextmanager
    def reading(*its_rules: str) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            if (damage := damage_behind(error)) is None:
                raise
            found.not_checked |= dict.fromkeys(wanted.intersection(its_rules), damage)

    connection.execute(f"create or replace view lost_rows as {lost_rows_query(losses)}")
    _create_views(connection, damage_behind)
    found.add(
        (row.rule, row.at, row.found, None) for row in left_out(losses) if row.rule.removesuffix(SKIPPED) in wanted
    )
    lost = lost_decisions(losses)
    for its_rules, look in _LOOKS:
        names = {rule.name for rule in its_rules}
        if names & wanted:
            with reading(*names):
                found.add(row for row in look(connection, lost) if row[0].removesuffix(SKIPPED) in wanted)
    for name, query in queries("duckdb").items():
        if name in wanted:
            text = f"select '{name}' as rule, cast(columns(*) as varchar) from ({query}) as broken order by \"at\""
            with reading(name):
                found.add(tuple(row) for row in stream_rows(connection, text))
    return found


def _create_views(
    connection: DuckDBPyConnection, damage_behind: Callable[[duckdb.Error], UnreadableTable | None]
) -> None:
    for table, kind in ((ASSIGNMENTS.name, Handover), (OFFSETS.name, Offset)):
        connection.execute(f"create or replace view decided_{table} as {_decided(table, kind)}")
    for view in ("reach", "told"):
        connection.execute(f"create or replace view {view} as {text_of(f'{view}.sql')}")
    try:
        _create_awaited(connection)
    except duckdb.Error as error:
        if (damage := damage_behind(error)) is None:
            raise
        connection.execute("drop table if exists awaited")
        connection.execute(f"create view awaited as {failing_query(_AWAITED.items(), damage)}")
    connection.execute(f"create or replace view unanswered as {text_of('unanswered.sql')}")


def _create_awaited(connection: DuckDBPyConnection) -> None:
    columns = ", ".join(f'"{name}" {type_}' for name, type_ in _AWAITED.items())
    connection.execute(f"create or replace table awaited ({columns})")
    due = answers_due(
        rows_in_order(connection, _EVENTS.format(is_complete=_is_complete(EVENTS)), ("topic", "partition"), "offset")
    )
    while some := [msgspec.structs.asdict(one) for one in islice(due, _INSERTED)]:
        connection.register("due", pa.Table.from_pylist(some))
        connection.execute("insert into awaited by name select * from due")
        connection.unregister("due")


_AWAITED = {
    "topic": "varchar", "partition": "integer", "offset": "bigint", "answer": "varchar", "until_offset": "bigint",
    "client_id": "varchar", "request_id": "varchar", "why": "varchar",
}  # fmt: skip
"""Column -> type of the table of records that must have an answer."""


def _decided(table: str, kind: type[Decision]) -> str:
    """Return the query of the rows that the decisions of a kind make in a table."""
    queue = {name: f"said.queue.{name}" for name in ("topic", "broker", "queue_id")}
    columns = {
        "shard": "said.shard", "era": "era", "seq": "said.seq", "partition": "partition", "group_id": "said.group_id",
        **queue, **_COLUMNS[table],
    }  # fmt: skip
    shown = ", ".join(f"{said} as {quoted(name)}" for name, said in columns.items())
    return (
        f"select {shown} from ("
        f"select era, partition, try(from_json(json, '{json_in_duckdb(columns_of(kind))}')) as said "
        f"from decisions where kind = '{kind.__struct_config__.tag}') as parsed"
    )


def _is_complete(table: Table) -> str:
    """Return the SQL condition that a row has all values that are never null."""
    return " and ".join(f"{table.name}.{quoted(name)} is not null" for name in never_null(table))


def _rows_of(table: Table) -> str:
    return _ROWS.format(table=table.name, is_complete=_is_complete(table))


def _asked(violations: Callable[[Iterable[Any], Lost], Iterator[Broken]], query: str) -> Callable[..., Iterator[Any]]:
    def look(connection: DuckDBPyConnection, lost: Lost) -> Iterator[Any]:
        for one in violations(rows_in_order(connection, query, ("shard",), "seq"), lost):
            yield one.rule, one.at, one.found, one.expected

    return look


def _mistyped(connection: DuckDBPyConnection, _: Lost) -> Iterator[Any]:
    for one in violations_in_types(stream_rows(connection, _SUSPECT_TYPES)):
        yield one.rule, one.at, one.found, one.expected


def _broken_snapshots(connection: DuckDBPyConnection, _: Lost) -> Iterator[Any]:
    # One by one: a state has up to a hundred megabytes.
    to_check = f"from ({SNAPSHOTS_TO_CHECK}) as snapshots where {_is_complete(SNAPSHOTS)}"
    for one in violations_in_snapshots(stream_rows(connection, to_check, fetched=1)):
        yield one.rule, one.at, one.found, one.expected


_LOOKS: Sequence[tuple[Sequence[Rule], Callable[[DuckDBPyConnection, Lost], Iterator[Any]]]] = (
    (RULES_OF_DECISIONS, _asked(violations_in_decisions, _DECISIONS)),
    (RULES_OF_ASSIGNMENTS, _asked(violations_in_assignments, _rows_of(ASSIGNMENTS))),
    (RULES_OF_OFFSETS, _asked(violations_in_offsets, _rows_of(OFFSETS))),
    (RULES_OF_EVENTS, _mistyped),
    (RULES_OF_SNAPSHOTS, _broken_snapshots),
)
"""Pairs of rules and the function that yields the rows that break them."""
