"""The sink of the ledger: it appends Arrow tables to Delta tables without Spark."""

import threading
from collections.abc import Mapping

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from wakeroll_model.rows import CHAINED
from wakeroll_pipeline.ledger.chains import METADATA, Chains
from wakeroll_pipeline.sinks.table_fence import APPLICATION, opened, refuse_other
from wakeroll_pipeline.storage.parquet_files import HOOKS, SMALL_VALUES
from wakeroll_pipeline.storage.place import Folder, Place

_CHAINED = {table.name: table for table in CHAINED}


class ArrowSink:
    """Appends rows to Delta tables, which must exist. For any thread, one append to a table at a time.

    It keeps the state of each table's log, so an append reads only the log entries that are new.
    """

    def __init__(
        self, number: int | None = None, properties: WriterProperties = SMALL_VALUES, chains: Chains | None = None
    ) -> None:
        """Begin; each table is opened by its first append.

        Args:
            number: number of the turn of this process, which has raised its fence on the tables; None: there are no
                fences.
            properties: properties of the Parquet files.
            chains: the hash chains of the tables, which get a line per append; None: the tables have no chains.
        """
        self._chains = chains
        self._number = number
        self._properties = properties
        self._lock = threading.Lock()
        self._tables: dict[Place, DeltaTable] = {}

    def append(self, rows: pa.Table, path: Folder, metadata: Mapping[str, str] | None = None) -> None:
        """Append rows to a table, as one file and one commit; NOT NULL and CHECK constraints are enforced.

        The caller must prevent duplicate rows, by the highest position in the table.

        Args:
            rows: the rows; their columns are matched by name.
            path: folder of the table.
            metadata: metadata of the commit, in the log of the table.

        Raises:
            Fenced: the table has the fence of another writer. Either the rows were not appended; or they were, and
                another writer has raised its fence since. deltalake.exceptions.DeltaError: a row breaks a constraint,
                or the store did not accept the commit.
        """
        place = Place.of(path)
        table = self._newest(place)
        if self._number is not None:
            refuse_other(table, place, self._number)
        declared = None if self._chains is None else _CHAINED.get(place.name)
        if self._chains is None or declared is None:
            self._commit(table, place, rows, metadata or {})
            return
        try:
            lines = self._chains.lines(declared, table, rows)
            self._commit(table, place, rows, {**(metadata or {}), METADATA: msgspec.json.encode(lines).decode()})
        except BaseException:
            self._chains.forget(declared)
            raise
        self._chains.note(declared, lines)

    def _commit(self, table: DeltaTable, place: Place, rows: pa.Table, metadata: Mapping[str, str]) -> None:
        """Commit an append, with metadata for the log of the table; the errors are those of `append`."""
        fence = None if self._number is None else [Transaction(APPLICATION, self._number)]
        commit = CommitProperties(custom_metadata=dict(metadata), app_transactions=fence)
        try:
            write_deltalake(
                table,
                rows,
                mode="append",
                writer_properties=self._properties,
                commit_properties=commit,
                post_commithook_properties=HOOKS,
            )
        except DeltaError:
            if self._number is not None:
                refuse_other(opened(place), place, self._number)
            raise
        if self._number is None:
            return
        # If this process was suspended before its commit, the versions after the one that it had read may have been
        # deleted from the log meanwhile. Then its commit succeeds as an old version, and no reader ever sees its rows.
        table.update_incremental()
        refuse_other(table, place, self._number)

    def _newest(self, path: Place) -> DeltaTable:
        """Return a table in its newest version."""
        with self._lock:
            known = self._tables.get(path)
        if known is not None:
            known.update_incremental()
            return known
        table = opened(path)
        with self._lock:
            self._tables[path] = table
        return table
