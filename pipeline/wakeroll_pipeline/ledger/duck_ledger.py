"""A ledger that is queried by DuckDB, in this process and without Java.

`deltalake` reads the Delta log: it finds the Parquet files of a version of a table.  DuckDB reads these files.
"""

import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from wakeroll.errors import InvalidUsage
from wakeroll_model.decision_order import ERA_SQL
from wakeroll_model.rows import DECIDED, EVENTS, READ, SNAPSHOTS, TABLES, Table
from wakeroll_pipeline.ledger.batches import moment_of
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.ledger.delta_files import (
    Part,
    Period,
    Ranges,
    add_comments,
    bounds_of,
    failing_query,
    is_delta,
    literal,
    number_of_rows,
    open_delta,
    quoted,
    reading,
    release,
    size_of,
    sizes_of,
)
from wakeroll_pipeline.ledger.ledger import Row, UnreadableTable, Value, row_of
from wakeroll_pipeline.ledger.needed_files import ranges_of
from wakeroll_pipeline.ledger.stored_marts import open_marts
from wakeroll_pipeline.ledger.table_damage import (
    damage_behind,
    damage_in,
    denied,
    is_of_files,
    missing_table,
    of_log,
    problem_in,
)
from wakeroll_pipeline.ledger.view_queries import ERA, VIEWS, Engine, declared_views, first_line, views
from wakeroll_pipeline.storage.place import Folder, Place
from wakeroll_pipeline.storage.small_files import StorageFailed

Answer = TypeVar("Answer")

_FETCHED = 10_000
"""Number of rows that `stream` fetches at once."""

_BOUND_MIB = 320
"""Memory of DuckDB for queries of all rows (MiB). Sorts of a window of rows sometimes fail with 128."""

_PERIODS_MS = tuple(hours * 3_600_000 for hours in (2, 8, 32, 128))
"""Lengths of periods (ms). The first period has a snapshot of each shard, unless the coordinator was busy or did not
run, and the decisions that a page shows."""

_MANY_FILES = 64
"""Number of files of all tables from which on a query is planned first, to find the files that it needs: opening this
many takes 16 ms, like a plan."""

_WORDS = re.compile(r"\w+")

_FUNCTIONS = {
    "timestamp_millis": "(ms) as make_timestamptz(ms * 1000)",
    "unix_millis": "(at_time) as epoch_ms(at_time)",
}
"""Functions of Spark's SQL that the queries of the documentation use, as macros of DuckDB."""


class DuckLedger:
    """The tables and views of a warehouse, in the versions that they had when it was opened.

    Each thread uses its own `cursor`.
    """

    engine: Engine = "duckdb"

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        warehouse: Place,
        opened: "Opened",
        views: "LazyViews | None" = None,
    ) -> None:
        """Use a connection that has the tables; call `open_ledger` instead."""
        self.table_connection = connection
        """Connection to DuckDB, with all tables, and with the views that queries have named."""
        self.warehouse = warehouse
        self.opened = opened
        self._views = LazyViews() if views is None else views

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection to DuckDB, with all tables and views."""
        self._views.create(self.table_connection)
        return self.table_connection

    @property
    def versions(self) -> Mapping[str, int]:
        """Table -> the Delta version that is read."""
        return self.opened.versions

    @property
    def unreadable(self) -> Mapping[str, UnreadableTable]:
        """Table -> the reason why it cannot be read, as far as this is known."""
        return self.opened.unreadable

    def rows(self, sql: str, /, **values: Value) -> list[Row]:
        """Return the rows of a query: see `wakeroll_pipeline.ledger.ledger.Ledger`."""
        with self._readable():
            self._views.create(self.table_connection, sql)
            found = self.table_connection.execute(sql, values)
            names = [column[0] for column in found.description or ()]
            return [Row(names, tuple(map(row_of, row))) for row in found.fetchall()]

    def stream(self, sql: str, /, **values: Value) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one: see `wakeroll_pipeline.ledger.ledger.Ledger`."""
        with self._readable():
            self._views.create(self.table_connection, sql)
            found = self.table_connection.cursor().execute(sql, values)
            rows = found.fetchmany(_FETCHED)
        while rows:
            yield from rows
            with self._readable():
                rows = found.fetchmany(_FETCHED)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            if (damage := self.damage_behind(error)) is not None:
                raise damage from error
            raise

    def add_comments(self) -> None:
        """Add the comments of the tables, the views and their columns, for people; this takes 40 ms."""
        self._views.create(self.table_connection)
        for table in TABLES.values():
            columns = (*columns_of(table.row), ERA) if has_era(table) else columns_of(table.row)
            comments = {column.name: column.comment for column in columns}
            add_comments(self.table_connection, table.name, first_line(table.row), comments)
        for view in declared_views():
            comments = {column.name: column.comment for column in view.columns}
            add_comments(self.table_connection, view.name, view.comment, comments)

    def open_marts(self) -> list[str]:
        """Add the newest versions of the marts that `wakeroll marts` has built; return their names."""
        return open_marts(self.table_connection, self.warehouse)

    @contextmanager
    def within(self, from_ms: int | None = None, to_ms: int | None = None) -> Iterator["DuckLedger"]:
        """Provide `again` for a block, and close it at the end."""
        ledger = self.again(from_ms, to_ms)
        try:
            yield ledger
        finally:
            ledger.close()

    def periods(self, until_ms: int | None = None) -> Iterator[int]:
        """Yield earlier and earlier begins of periods for `within` (epoch ms), for a caller without a known begin.

        Args:
            until_ms: end of the periods (epoch ms); None: the end of the archived log.

        Yields:
            Begins after the start of the archived log; none if the times of its rows are not known.
        """
        events = self.opened.deltas.get(EVENTS.name)
        bounds = None if events is None else bounds_of(events, EVENTS.at)
        if bounds is not None:
            first_ms, last_ms = bounds
            end_ms = last_ms if until_ms is None else min(until_ms, last_ms)
            yield from (end_ms - length_ms for length_ms in _PERIODS_MS if end_ms - length_ms > first_ms)

    def again(self, from_ms: int | None = None, to_ms: int | None = None) -> "DuckLedger":
        """Return the same versions of the tables, without the files whose rows are all outside of a period.

        All rows of the period are there, and some others, so the work does not grow with the age of the ledger. The
        table `snapshots` is whole.

        Args:
            from_ms: begin of the period, by the times of the rows (epoch ms), inclusive; None: all tables are whole.
            to_ms: end of the period, inclusive; None: no end.
        """
        connection = duckdb.connect()
        configure(connection, self.warehouse)
        for table in TABLES.values():
            period = None if from_ms is None or table is SNAPSHOTS else Period(table.at, from_ms, to_ms)
            _create_table(connection, self.warehouse, self.opened, table, period)
        return DuckLedger(connection, self.warehouse, self.opened)

    def begin_behind(self, table: Table, is_old: str, part: Part | None = None) -> None:
        """Let the view of a table begin after its old rows; the whole table stays in the view `whole_name`.

        Args:
            table: the table.
            is_old: the old rows, as a condition of SQL.
            part: leaves out files, as in `wakeroll_pipeline.ledger.delta_files.files_of`; None: none.
        """
        whole = whole_name(table)
        rows = f"from {whole}" if part is None else self.reading(table, part)
        self.table_connection.execute(f"alter view {table.name} rename to {whole}")
        self.table_connection.execute(
            f"create view {table.name} as select * from ({rows}) as rows where not ({is_old})"
        )

    def narrow(self, query: str) -> None:
        """Leave out the files of tables that a query does not need, by the statistics in the Delta log.

        The answer to this query is the same; other queries may lack rows. If there are few files, nothing is left out,
        because opening them takes less time than planning the query once more.

        Args:
            query: one query of DuckDB's SQL, on the tables, the views and the marts of this ledger.
        """
        if sum(len(sizes_of(delta)) for delta in self.opened.deltas.values()) < _MANY_FILES:
            return
        for name, ranges in (self._needed_by(query) or {}).items():
            if name not in self.unreadable and all(ranges.any_of):
                rows = self.reading(TABLES[name], ranges)
                self.table_connection.execute(f"create or replace view {name} as {rows}")

    def bytes_for(self, query: str) -> int:
        """Return the size of the tables' files that a query needs (bytes): of all files, if it cannot be planned.

        Args:
            query: as for `narrow`; marts are not counted.
        """
        needed = self._needed_by(query)
        if needed is None:
            return self.opened.size
        return sum(size_of(delta, needed[name]) for name, delta in self.opened.deltas.items() if name in needed)

    def _needed_by(self, query: str) -> Mapping[str, Ranges] | None:
        """Return the rows that a query needs of each table that it reads; None if DuckDB cannot plan it."""
        columns: dict[str, dict[str, str]] = {}
        known = "select table_name, column_name, data_type from duckdb_columns() where not internal"
        for view, column, type_ in self.table_connection.execute(known).fetchall():
            if view not in VIEWS:
                columns.setdefault(view, {})[column] = type_
        with duckdb.connect() as plan:
            configure(plan, None)
            for name, its in columns.items():
                defined = ", ".join(f"{quoted(column)} {type_}" for column, type_ in its.items())
                plan.execute(f"create table {quoted(name)} ({defined})")
            LazyViews().create(plan, query)
            return ranges_of(plan, query, TABLES)

    def reading(self, table: Table, part: Part) -> str:
        """Return the query of a part of a table's rows, with the columns of its view."""
        return _reading(table, self.opened.deltas.get(table.name), self.warehouse / table.name, part)

    def in_bounded_memory(self, question: Callable[[], Answer]) -> Answer:
        """Return the answer to a query of all rows, for which DuckDB uses temporary files instead of more memory.

        By default, it uses four fifths of the machine's memory. Some of its operators need memory beside the files: if
        it is too small for one of them, the query is repeated with the default.

        Args:
            question: function that reads this ledger; it may be called twice.
        """
        self.table_connection.execute(f"set global memory_limit = {literal(f'{_BOUND_MIB}MiB')}")
        try:
            return question()
        except duckdb.OutOfMemoryException:
            pass
        finally:
            self.table_connection.execute("reset global memory_limit")
        return question()

    def cursor(self) -> "DuckLedger":
        """Return a ledger with the same tables for another thread."""
        return DuckLedger(self.table_connection.cursor(), self.warehouse, self.opened, self._views)

    def damage_behind(self, error: duckdb.Error) -> UnreadableTable | None:
        """Return the damage of the tables that made DuckDB fail; None if the error has another reason.

        From then on, each query that reads such a table fails at once, with the same message.
        """
        for known in self.unreadable.values():
            if str(known) in str(error):
                return known
        damage = damage_behind(error, self.warehouse, self.versions) if is_of_files(error) else None
        if damage is not None and damage.table in TABLES:
            self.opened.unreadable[damage.table] = damage
            with suppress(duckdb.Error):  # an internal error of DuckDB ends the connection
                failing = _failing(TABLES[damage.table], damage)
                self.table_connection.execute(f"create or replace view {damage.table} as {failing}")
        return damage

    def close(self) -> None:
        """Free the memory."""
        release(self.table_connection)
        self.table_connection.close()


class LazyViews:
    """The views of a database, created when a query first names them: all of them take DuckDB 0.15 s."""

    def __init__(self, *, exist: bool = True) -> None:
        """Begin without views; `exist`: whether there will be any."""
        self._lock = threading.Lock()
        self._missing = dict(views("duckdb")) if exist else {}

    def create(self, connection: duckdb.DuckDBPyConnection, query: str | None = None) -> None:
        """Create the views that a query names, and the views that these read; None: all. Any thread may call it."""
        if not self._missing:
            return
        with self._lock:
            for name in _named_in(query):
                if name in self._missing:
                    connection.execute(f"create view {name} as {self._missing[name]}")
                    del self._missing[name]


def _named_in(query: str | None) -> list[str]:
    """Return the views that a query names, and the views that these read, in the order of `VIEWS`; None: all."""
    if query is None:
        return list(VIEWS)
    words = set(_WORDS.findall(query.lower()))
    named = []
    for name, sql in reversed(views("duckdb")):
        if name in words:  # each reads only views before it
            named.append(name)
            words.update(_WORDS.findall(sql.lower()))
    return named[::-1]


def whole_name(table: Table) -> str:
    """Return the name of the view with all rows of a table from which `begin_behind` has left out some."""
    return f"{table.name}_whole"


@contextmanager
def duck_ledger(
    warehouse: Folder,
    versions: Mapping[str, int] | None = None,
    *,
    at_one_moment: bool = False,
    only: Table | None = None,
) -> Iterator[DuckLedger]:
    """Open the ledger of a warehouse, and close it at the end: see `open_ledger`.

    Raises:
        UnreadableTable: a table that is read during the block cannot be read.
        StorageFailed: the store of a remote warehouse failed during the block.
    """
    ledger = open_ledger(warehouse, versions, at_one_moment=at_one_moment, only=only)
    try:
        yield ledger
    except duckdb.Error as error:
        if found := re.search(r"StorageFailed: (.*)", str(error)):
            raise StorageFailed(found[1]) from None
        if (damage := ledger.damage_behind(error)) is not None:
            raise damage from error
        raise
    finally:
        ledger.close()


def open_ledger(
    warehouse: Folder,
    versions: Mapping[str, int] | None = None,
    *,
    at_one_moment: bool = False,
    only: Table | None = None,
) -> DuckLedger:
    """Open the ledger of a warehouse.

    A table that cannot be read stops only the queries that read it: see `Opened.unreadable`.

    Args:
        warehouse: folder of the tables.
        versions: table -> Delta version to read; None: the newest of each.
        at_one_moment: whether to leave out batches of the recorder that are not in all of their tables yet.
        only: the only table that can be queried; others are available by `DuckLedger.within`. None: all tables and
            views.

    Raises:
        InvalidUsage: the warehouse has no tables.
    """
    connection, place = duckdb.connect(), Place.of(warehouse)
    opened = open_tables(connection, place, versions, at_one_moment=at_one_moment, only=only)
    return DuckLedger(connection, place, opened, LazyViews(exist=only is None))


class Opened(NamedTuple):
    """The open tables of a connection."""

    deltas: Mapping[str, DeltaTable]
    """Table -> its Delta log, in the version that is read; a table whose log cannot be read is left out."""
    unreadable: dict[str, UnreadableTable]
    """Table -> the reason why it cannot be read. A query that reads it fails with this message. Without the failure, a
    lost table would look like an empty one."""

    @property
    def versions(self) -> Mapping[str, int]:
        """Table -> the Delta version that is read."""
        return _versions_of(self.deltas)

    @property
    def size(self) -> int:
        """Size of the files of all tables (bytes)."""
        return sum(map(size_of, self.deltas.values()))

    @property
    def rows(self) -> int:
        """Number of the rows of all tables."""
        return sum(map(number_of_rows, self.deltas.values()))

    def rows_of(self, table: Table) -> int:
        """Return the number of rows of a table; 0 if it cannot be read."""
        return number_of_rows(self.deltas[table.name]) if table.name in self.deltas else 0


def open_tables(
    connection: duckdb.DuckDBPyConnection,
    warehouse: Folder,
    versions: Mapping[str, int] | None = None,
    *,
    at_one_moment: bool = False,
    only: Table | None = None,
) -> Opened:
    """Configure a connection, and create the tables of a ledger in its current schema.

    Args:
        connection: to DuckDB.
        warehouse: folder of the tables.
        versions: table -> Delta version to read; None: the newest of each.
        at_one_moment: as for `open_ledger`.
        only: as for `open_ledger`.

    Raises:
        InvalidUsage: the warehouse has no tables.
    """
    place = Place.of(warehouse)
    opened = Opened(*_find_tables(place, versions, at_one_moment=at_one_moment))
    configure(connection, place)
    for table in TABLES.values() if only is None else (only,):
        _create_table(connection, place, opened, table)
    return opened


def _create_table(
    connection: duckdb.DuckDBPyConnection, place: Place, opened: Opened, table: Table, period: Period | None = None
) -> None:
    """Create the view of a table's rows; if the table cannot be read, create a view that fails, and note the reason."""
    deltas, unreadable = opened
    if table.name not in unreadable:
        rows = _reading(table, deltas.get(table.name), place / table.name, period)
        try:
            connection.execute(f"create view {table.name} as {rows}")
        except duckdb.Error as error:
            damage = damage_in(place / table.name, deltas[table.name].version()) if is_of_files(error) else None
            if damage is None:
                raise
            unreadable[table.name] = damage
    if table.name in unreadable:
        connection.execute(f"create view {table.name} as {_failing(table, unreadable[table.name])}")


def has_era(table: Table) -> bool:
    """Return whether a table has one row per decision, and therefore the column `era` in SQL."""
    return table.key == DECIDED


def _find_tables(
    place: Place, versions: Mapping[str, int] | None, *, at_one_moment: bool
) -> tuple[dict[str, DeltaTable], dict[str, UnreadableTable]]:
    """Return the tables whose logs can be read, and the reasons for unreadable tables; a table may be in both.

    Raises:
        InvalidUsage: there are no tables.
    """
    deltas, unreadable = _find_logs(place, versions)
    if at_one_moment:
        with suppress(DeltaError, OSError):  # the question that reads the table reports the damage
            for name, version in moment_of(place, _versions_of(deltas)).versions.items():
                if version != deltas[name].version():
                    deltas[name].load_as_version(version)
    for name, delta in deltas.items():
        try:
            problem = problem_in(TABLES[name], delta, place / name)
        except UnreadableTable as error:
            problem = error
        except DeltaError as error:
            problem = of_log(place / name, error)
        if problem is not None:
            unreadable[name] = problem
    return deltas, unreadable


def _find_logs(
    place: Place, versions: Mapping[str, int] | None
) -> tuple[dict[str, DeltaTable], dict[str, UnreadableTable]]:
    """Return the tables whose logs can be read, and the reasons for the others.

    Raises:
        InvalidUsage: there are no tables.
    """
    deltas: dict[str, DeltaTable] = {}
    unreadable: dict[str, UnreadableTable] = {}
    for table in READ:
        try:
            delta = find_table(place, table, None if versions is None else versions.get(table.name))
        except UnreadableTable as error:
            unreadable[table.name] = error
        except DeltaError as error:
            unreadable[table.name] = of_log(place / table.name, error)
        else:
            if delta is not None:
                deltas[table.name] = delta
    return deltas, unreadable


def _versions_of(deltas: Mapping[str, DeltaTable]) -> dict[str, int]:
    return {name: delta.version() for name, delta in deltas.items()}


def delta_table(warehouse: Folder, table: Table, version: int | None = None) -> DeltaTable:
    """Return a table of the ledger at a version; None: the newest.

    Raises:
        InvalidUsage: there are no tables; the message names the first one.
        UnreadableTable: the table or its log is missing or damaged; the message names it.
        StorageFailed: the store of a remote table did not answer.
    """
    place = Place.of(warehouse)
    try:
        return open_delta(place / table.name, version)
    except TableNotFoundError:
        if (lost := missing_table(place, table.name)) is not None:
            raise lost from None
        raise InvalidUsage(f"no table {table.name!r} in {warehouse}; has `wakeroll run` been started here?") from None
    except (DeltaError, OSError) as error:
        raise of_log(place / table.name, error) from error


def find_table(warehouse: Folder, table: Table, version: int | None = None) -> DeltaTable | None:
    """Return a table as `delta_table` does; None if it is optional and missing.

    Raises:
        InvalidUsage, UnreadableTable: as `delta_table`.
    """
    try:
        if table.is_optional and not is_delta(Place.of(warehouse) / table.name):
            return None
    except PermissionError as error:
        raise denied(error) from error
    return delta_table(warehouse, table, version)


def whole_versions(warehouse: Folder, versions: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return versions of the tables at one moment: each batch of the recorder is in all of its tables, or in none.

    Args:
        warehouse: folder of the tables.
        versions: table -> highest version to use; None: the newest of each.

    Returns:
        Table -> version; a table that cannot be read is left out.
    """
    place = Place.of(warehouse)
    found = _versions_of(_find_logs(place, versions)[0])
    with suppress(DeltaError, OSError):  # the question that reads the table reports the damage
        return {**found, **moment_of(place, found).versions}
    return found


def commits_of(warehouse: Folder, table: str) -> dict[int, int]:
    """Return version -> time of its commit (epoch ms), for the versions that the log of a table still has.

    Raises:
        InvalidUsage, UnreadableTable: as `delta_table`.
    """
    found = find_table(warehouse, TABLES[table])
    return {} if found is None else {commit["version"]: commit["timestamp"] for commit in found.history()}


def bytes_of(warehouse: Folder) -> int:
    """Return the size of the files of all tables; a table that cannot be read counts as empty."""
    return Opened(*_find_logs(Place.of(warehouse), None)).size


def configure(connection: duckdb.DuckDBPyConnection, place: Place | None) -> None:
    """Configure a connection for the queries of the project, and for a remote warehouse; None: no files."""
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
    if place is not None and not place.is_local:
        from wakeroll_pipeline.ledger.remote_files import register

        register(connection, place)


def _reading(table: Table, delta: DeltaTable | None, folder: Place, part: Part | None) -> str:
    """Return the query of a table's rows, with the column `era` in a table that has one row per decision.

    Without a Delta table, there are no rows.
    """
    rows = reading(delta, folder, [(column.name, in_duckdb(column.type)) for column in columns_of(table.row)], part)
    return f"select {', '.join(shown_columns(table))} from ({rows}) as files"


def _failing(table: Table, problem: UnreadableTable) -> str:
    """Return a query with the columns of a table, which fails with the message of a problem if any row is read."""
    failing = failing_query([(column.name, in_duckdb(column.type)) for column in columns_of(table.row)], problem)
    return f"select {', '.join(shown_columns(table))} from ({failing}) as files"


def shown_columns(table: Table) -> Iterator[str]:
    """Yield the columns of a table; after `shard`, also the column `era` if the table has one row per decision."""
    for column in columns_of(table.row):
        yield quoted(column.name)
        if column.name == "shard" and has_era(table):
            yield f"{ERA_SQL} as era"
