"""A ledger in memory, for rows that are not in the tables yet."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

import duckdb
import msgspec
from msgspec import Struct

from wakeroll_model.rows import TABLES, Table
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb, json_in_duckdb
from wakeroll_pipeline.ledger.delta_files import literal, quoted
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, Opened, configure, shown_columns
from wakeroll_pipeline.storage.place import Place


class MemoryLedger(DuckLedger):
    """The tables and views of a ledger, first without rows. For one thread."""

    def __init__(self) -> None:
        """Create the tables."""
        super().__init__(duckdb.connect(), Place.of(""), Opened({}, {}))
        configure(self.table_connection, None)
        for table in TABLES.values():
            typed = ", ".join(f"{quoted(column.name)} {in_duckdb(column.type)}" for column in columns_of(table.row))
            self.table_connection.execute(f"create table {_rows_of(table)} ({typed})")
            shown = ", ".join(shown_columns(table))
            self.table_connection.execute(f"create view {table.name} as select {shown} from {_rows_of(table)}")

    def append(self, table: Table, rows: Iterable[Struct]) -> None:
        """Append rows of a table whose columns can be converted to JSON; bytes cannot."""
        columns = columns_of(table.row)
        names = ", ".join(quoted(column.name) for column in columns)
        structure = literal(f"[{json_in_duckdb(columns)}]")
        self.table_connection.execute(
            f"insert into {_rows_of(table)} select {names} from (select unnest(from_json($rows, {structure}), "
            "max_depth := 2))",
            {"rows": msgspec.json.encode(list(rows)).decode()},
        )

    def forget(self, table: Table, before_ms: int) -> None:
        """Delete the rows of a table that are older than a log time (epoch ms)."""
        self.table_connection.execute(
            f"delete from {_rows_of(table)} where {table.at} < $before_ms", {"before_ms": before_ms}
        )

    @contextmanager
    def within(
        self,
        from_ms: int | None = None,  # noqa: ARG002 - there are no files to leave out
        to_ms: int | None = None,  # noqa: ARG002
    ) -> Iterator[Self]:
        """Provide this ledger, with all of its rows."""
        yield self


def _rows_of(table: Table) -> str:
    return f"{table.name}_rows"
