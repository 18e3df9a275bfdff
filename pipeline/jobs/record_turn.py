"""The turn of a process to write the tables, when others wait for the same: its lease, its fence and its checkpoint.

A process can lose its turn while it is suspended, and wake up in the middle of a batch. Three things keep it from harm:

- before and after each batch it confirms its lease, so Spark never commits a batch that was not written;
- its appends carry the number of its fence, and Delta drops them when a later process has raised its own;
- its checkpoint belongs to its turn, so it cannot mark batches of the next process as done.

On the disk of one machine, a locked file does all of that: a suspended process keeps it.
"""

from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from model.rows import TABLES
from pipeline.ledger.tables import path_of
from pipeline.recovery.checkpoint_state import latest_recording, recordings
from pipeline.runtime.deciding_queries import RECORD
from pipeline.runtime.lease_keeper import ProcessLease
from pipeline.settings import Settings
from pipeline.sinks.table_fence import TableFence
from pipeline.storage import small_files
from pipeline.storage.place import Folder, Place

_KEPT = 2
"""Checkpoints of earlier turns that are kept."""


class Turn:
    """The right of this process to write the tables. Without a lease, a locked file gives it for ever."""

    def __init__(self, settings: Settings, lease: ProcessLease | None = None) -> None:
        """Take the turn.

        Args:
            settings: settings of the deployment.
            lease: the lease, which this process has; None if a locked file keeps all others away.
        """
        self._settings = settings
        self._lease = lease
        self.fence: TableFence | None = None
        """The fence on the tables; None without a lease, or before `options`."""
        self.before = latest_recording(settings)
        """Name of the checkpoint of the turn before; without a lease, of this turn."""
        self.checkpoint = self.before if lease is None else f"{RECORD}.{lease.term}"
        """Name of the checkpoint of this turn."""

    def confirm(self) -> None:
        """Return if it is still the turn of this process.

        Raises:
            LeaseLost: it is the turn of another process.
        """
        if self._lease is not None:
            self._lease.confirm()

    def is_confirmed(self) -> bool:
        """Return whether it is the turn of this process; False while the brokers cannot confirm that.

        Raises:
            LeaseLost: it is the turn of another process.
        """
        return self._lease is None or self._lease.is_confirmed()

    def options(self, spark: SparkSession, warehouse: Folder) -> Callable[[Place], Mapping[str, str]] | None:
        """Exclude all earlier processes from the tables.

        A later read of the tables includes all appends of earlier processes.

        Returns:
            The function that returns the options of an append to a table; None if no options are needed.
        """
        if self._lease is None:
            return None
        self.fence = TableFence(spark, [path_of(warehouse, table) for table in TABLES.values()])
        _forget_old(self._settings, self.checkpoint)
        return self.fence.options


def _forget_old(settings: Settings, ours: str) -> None:
    """Delete the checkpoints of earlier turns, except the last ones."""
    for name in [name for name in recordings(settings)[1:] if name != ours][:-_KEPT]:
        small_files.delete_folder(settings.checkpoint(name))
