"""A ledger that DuckDB answers for, in this process and without Java.

`deltalake` reads the Delta log: it finds the Parquet files of a version of a table.  DuckDB reads these files.
"""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from wakeroll.errors import InvalidUsage
from wakeroll_model.decision_order import ERA_SQL
from wakeroll_model.rows import DECIDED, TABLES, Table
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.ledger.delta_files import REMOTE, is_delta, literal, open_delta, quoted, reading, size_of
from wakeroll_pipeline.ledger.ledger import Row, Value, row_of
from wakeroll_pipeline.ledger.stored_marts import open_marts
from wakeroll_pipeline.ledger.view_queries import Engine, views
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Folder, Place
from wakeroll_pipeline.storage.small_files import StorageFailed

LARGEST_BYTES = 8 * 2**30
"""Largest size of the tables' files (bytes).  Measured with 94 MB, the files of 1,000,000 events: `groups` takes 1.8 s
of CPU and 210 MB of memory, `lag` 3.1 s and 320 MB.  So 8 GiB take one to three minutes on two cores."""

_FETCHED = 10_000
"""Rows that `stream` fetches at once."""

_FUNCTIONS = {
    "timestamp_millis": "(ms) as make_timestamptz(ms * 1000)",
    "unix_millis": "(at_time) as epoch_ms(at_time)",
}
"""Functions of Spark's SQL that the queries of the documentation use, as macros of DuckDB."""


class DuckLedger:
    """The tables and views of a warehouse, in the versions that they had when it was opened.

    A thread that shares it with others uses a `cursor` of its own.
    """

    engine: Engine = "duckdb"

    def __init__(self, connection: duckdb.DuckDBPyConnection, warehouse: Place, versions: Mapping[str, int]) -> None:
        """Answer from a connection that has the views; use `open_ledger`."""
        self.connection = connection
        self.warehouse = warehouse
        self.versions = versions
        """Table -> the Delta version that is read."""

    def rows(self, sql: str, /, **values: Value) -> list[Row]:
        """Return the rows of a query: see `wakeroll_pipeline.ledger.ledger.Ledger`."""
        found = self.connection.execute(sql, values)
        names = [column[0] for column in found.description or ()]
        return [Row(names, tuple(map(row_of, row))) for row in found.fetchall()]

    def stream(self, sql: str, /, **values: Value) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one: see `wakeroll_pipeline.ledger.ledger.Ledger`."""
        found = self.connection.cursor().execute(sql, values)
        while rows := found.fetchmany(_FETCHED):
            yield from rows

    def open_marts(self) -> list[str]:
        """Add the newest versions of the marts that `wakeroll marts` has built; return their names."""
        return open_marts(self.connection, self.warehouse)

    def cursor(self) -> "DuckLedger":
        """Return a ledger with the same tables for another thread."""
        return DuckLedger(self.connection.cursor(), self.warehouse, self.versions)

    def close(self) -> None:
        """Free the memory."""
        if self.connection.filesystem_is_registered(REMOTE):
            # Otherwise the connection and its file system would keep each other alive.
            self.connection.unregister_filesystem(REMOTE)
        self.connection.close()


@contextmanager
def duck_ledger(
    warehouse: Folder, versions: Mapping[str, int] | None = None, *, refuse_large: bool = True
) -> Iterator[DuckLedger]:
    """Open the ledger of a warehouse, and close it at the end: see `open_ledger`.

    Raises:
        StorageFailed: the store of a remote warehouse failed during the block.
    """
    ledger = open_ledger(warehouse, versions, refuse_large=refuse_large)
    try:
        yield ledger
    except duckdb.Error as error:
        if found := re.search(r"StorageFailed: (.*)", str(error)):
            raise StorageFailed(found[1]) from None
        raise
    finally:
        ledger.close()


def open_ledger(
    warehouse: Folder, versions: Mapping[str, int] | None = None, *, refuse_large: bool = True
) -> DuckLedger:
    """Open the ledger of a warehouse.

    Args:
        warehouse: folder of the tables.
        versions: table -> Delta version to read; None: the newest of each.
        refuse_large: whether to refuse files larger than `LARGEST_BYTES`; False if the queries read a small part of
            them.

    Raises:
        InvalidUsage: the warehouse lacks a table, or its files are too large.
    """
    connection, place = duckdb.connect(), Place.of(warehouse)
    return DuckLedger(connection, place, open_tables(connection, place, versions, refuse_large=refuse_large))


def open_tables(
    connection: duckdb.DuckDBPyConnection,
    warehouse: Folder,
    versions: Mapping[str, int] | None = None,
    *,
    refuse_large: bool = True,
) -> dict[str, int]:
    """Configure a connection, and create the tables and views of a ledger in its current schema.

    Args:
        connection: to DuckDB.
        warehouse: folder of the tables.
        versions: table -> Delta version to read; None: the newest of each.
        refuse_large: as for `open_ledger`.

    Returns:
        Table -> the Delta version that is read.

    Raises:
        InvalidUsage: the warehouse lacks a table, or its files are too large.
    """
    place = Place.of(warehouse)
    deltas = {
        table.name: delta
        for table in TABLES.values()
        if (delta := find_table(warehouse, table, None if versions is None else versions.get(table.name))) is not None
    }
    if refuse_large:
        _refuse_large(warehouse, sum(map(size_of, deltas.values())))
    _configure(connection)
    if not place.is_local:
        from wakeroll_pipeline.ledger.remote_files import register

        register(connection, place)
    for table in TABLES.values():
        delta = deltas.get(table.name)
        connection.execute(f"create view {table.name} as {_reading(table, delta, place / table.name)}")
        for column in columns_of(table.row):
            connection.execute(f'comment on column {table.name}."{column.name}" is {literal(column.comment)}')
    for name, sql in views("duckdb"):
        connection.execute(f"create view {name} as {sql}")
    return {name: delta.version() for name, delta in deltas.items()}


def delta_table(warehouse: Folder, table: Table, version: int | None = None) -> DeltaTable:
    """Return a table of the ledger at a version; None: the newest.

    Raises:
        InvalidUsage: there is no such table or version, or its log is damaged; the message names it.
        StorageFailed: the store of a remote table did not answer.
    """
    try:
        return open_delta(Place.of(warehouse) / table.name, version)
    except TableNotFoundError:
        raise InvalidUsage(f"no table {table.name!r} in {warehouse}; has `wakeroll run` been started here?") from None
    except DeltaError as error:
        raise InvalidUsage(f"cannot read table {table.name!r} in {warehouse}: {in_one_line(error)}") from error


def find_table(warehouse: Folder, table: Table, version: int | None = None) -> DeltaTable | None:
    """Return a table as `delta_table` does; None if it is optional and missing.

    Raises:
        InvalidUsage: as `delta_table`.
    """
    if table.is_optional and not is_delta(Place.of(warehouse) / table.name):
        return None
    return delta_table(warehouse, table, version)


def commits_of(warehouse: Folder, table: str) -> dict[int, int]:
    """Return version -> time of its commit (epoch ms), for the versions that the log of a table still has.

    Raises:
        InvalidUsage: as `delta_table`.
    """
    found = find_table(warehouse, TABLES[table])
    return {} if found is None else {commit["version"]: commit["timestamp"] for commit in found.history()}


def _refuse_large(warehouse: Folder, size: int) -> None:
    if size > LARGEST_BYTES:
        raise InvalidUsage(
            f"the tables in {warehouse} have {size / 2**30:.1f} GiB of files, above the {LARGEST_BYTES / 2**30:.1f} "
            "GiB that one process reads in minutes; use --engine spark"
        )


def _configure(connection: duckdb.DuckDBPyConnection) -> None:
    settings = {
        # As in Spark: null comes first, and last in descending order.
        "default_null_order": "nulls_first_on_asc_last_on_desc",
        "TimeZone": "UTC",
        # By default DuckDB creates a folder in the working folder for what does not fit into memory.
        "temp_directory": str(Path(tempfile.gettempdir()) / f"wakeroll-duckdb-{os.getpid()}"),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
    }
    for name, value in settings.items():
        # A cursor has the global settings only.
        connection.execute(f"set global {name} = {literal(value)}")
    for name, definition in _FUNCTIONS.items():
        connection.execute(f"create macro {name}{definition}")


def _reading(table: Table, delta: DeltaTable | None, folder: Place) -> str:
    """Return the query of a table's rows, with the column `era` in a table that has one row per decision.

    Without a Delta table, there are no rows.
    """
    columns = columns_of(table.row)
    names = []
    for column in columns:
        names.append(quoted(column.name))
        if column.name == "shard" and table.key == DECIDED:
            names.append(f"{ERA_SQL} as era")
    rows = reading(delta, folder, [(column.name, in_duckdb(column.type)) for column in columns])
    return f"select {', '.join(names)} from ({rows}) as files"
