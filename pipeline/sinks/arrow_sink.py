"""The sink of the ledger: it appends Arrow tables to Delta tables without Spark."""

import threading
from collections.abc import Mapping

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake

from pipeline.storage.place import Folder, Place

# `pipeline.ledger.maintenance` cleans the log.
_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)

# Of a store that does not answer. By default ten requests fail, within a few seconds.
_RETRIES = {"max_retries": "1000", "retry_timeout": "60s"}


class ArrowSink:
    """Appends rows to Delta tables, which must exist. For any thread, one append to a table at a time.

    It keeps the state of each table's log, so an append reads only the log entries that are new.
    """

    def __init__(self) -> None:
        """Begin; each table is opened by its first append."""
        self._lock = threading.Lock()
        self._tables: dict[Place, DeltaTable] = {}

    def append(self, rows: pa.Table, path: Folder, options: Mapping[str, str] | None = None) -> None:
        """Append rows to a table, as one file and one commit; NOT NULL and CHECK constraints are enforced.

        The caller must prevent duplicate rows; it knows the highest position in the table.

        Args:
            rows: the rows; their columns are matched by name.
            path: folder of the table.
            options: those of `pipeline.sinks.table_fence`, if the table has a fence. If another process has raised its
                fence since, nothing is appended, as with Spark's writer.

        Raises:
            deltalake.exceptions.DeltaError: a row breaks a constraint, or another process has raised its fence at the
                same time.
        """
        table = self._newest(Place.of(path))
        commit = None
        if options:
            application, number = options["txnAppId"], int(options["txnVersion"])
            last = table.transaction_version(application)
            if last is not None and last >= number:
                return
            commit = CommitProperties(app_transactions=[Transaction(application, number)])
        write_deltalake(table, rows, mode="append", commit_properties=commit, post_commithook_properties=_HOOKS)

    def _newest(self, path: Place) -> DeltaTable:
        """Return a table in its newest version."""
        with self._lock:
            known = self._tables.get(path)
        if known is not None:
            known.update_incremental()
            return known
        location, options = path.for_deltalake()
        table = DeltaTable(location, storage_options=None if options is None else options | _RETRIES)
        with self._lock:
            self._tables[path] = table
        return table
