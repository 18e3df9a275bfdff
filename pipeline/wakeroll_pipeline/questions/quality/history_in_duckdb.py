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

from wakeroll_pipeline.ledger.delta_files import failing_query
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.losses import Loss, lost_decisions, lost_rows_query
from wakeroll_pipeline.questions.quality.accepted_losses import left_out
from wakeroll_pipeline.questions.quality.comparison_rules import (
    LOOKS,
    Look,
    decided_views,
    events_to_answer,
    queries,
    text_of,
)
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED
from wakeroll_pipeline.questions.quality.row_windows import rows_in_order, stream_rows
from wakeroll_pipeline.questions.quality.rule import SHOWN, Rule
from wakeroll_pipeline.questions.quality.unanswered_records import answers_due

_INSERTED = 10_000
"""Number of records that are inserted into the table `awaited` at once."""
KEPT = 100
"""Maximum number of violations of a rule that are kept; all are counted."""


class Violations:
    """The violations of a ledger: all are counted, and the first ones of each rule are kept."""

    def __init__(self) -> None:
        """Begin without violations."""
        self.counts: Counter[str] = Counter()
        """Rule -> number of rows that break it."""
        self.not_checked: dict[str, UnreadableTable] = {}
        """Rule -> the unreadable table that it needs."""
        self.rows: list[tuple[str, str, str | None, str | None]] = []
        """The kept violations: rule, key of the row, value found, value expected."""
        self.left_out: list[tuple[str, str]] = []
        """Rule, and sentence about the rows that it has left out."""

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
        damage_behind: returns the unreadable table that made DuckDB fail; its rules are not checked.
        losses: rows that are recorded as lost, which the rules leave out.
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
    for look in LOOKS:
        names = {rule.name for rule in look.rules}
        if names & wanted:
            with reading(*names):
                rows = _rows(connection, look)
                found.add(
                    msgspec.structs.astuple(one)
                    for one in look.violations(lost)(rows)
                    if one.rule.removesuffix(SKIPPED) in wanted
                )
    for name, query in queries("duckdb").items():
        if name in wanted:
            text = f"select '{name}' as rule, cast(columns(*) as varchar) from ({query}) as broken order by \"at\""
            with reading(name):
                found.add(tuple(row) for row in stream_rows(connection, text))
    return found


def _rows(connection: DuckDBPyConnection, look: Look) -> Iterator[Any]:
    query = look.query("duckdb")
    if look.is_in_order:
        return rows_in_order(connection, query, ("shard",), "seq")
    return stream_rows(connection, query, fetched=look.fetched)


def _create_views(
    connection: DuckDBPyConnection, damage_behind: Callable[[duckdb.Error], UnreadableTable | None]
) -> None:
    views = {view: text_of(f"{view}.sql") for view in ("reach", "told")}
    for view, query in {**decided_views("duckdb"), **views}.items():
        connection.execute(f"create or replace view {view} as {query}")
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
    due = answers_due(rows_in_order(connection, events_to_answer("duckdb"), ("topic", "partition"), "offset"))
    while some := [msgspec.structs.asdict(one) for one in islice(due, _INSERTED)]:
        connection.register("due", pa.Table.from_pylist(some))
        connection.execute("insert into awaited by name select * from due")
        connection.unregister("due")


_AWAITED = {
    "topic": "varchar", "partition": "integer", "offset": "bigint", "answer": "varchar", "until_offset": "bigint",
    "client_id": "varchar", "request_id": "varchar", "why": "varchar",
}  # fmt: skip
"""Column -> type of the table of records that must have an answer."""
