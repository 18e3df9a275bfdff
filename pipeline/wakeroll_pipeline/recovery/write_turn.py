"""The turn of a process to write the tables: its lease, its fence and its checkpoint.

A process can lose its turn while it is suspended, and wake up in the middle of a batch. Three mechanisms prevent
damage:

- before and after each batch, the process confirms its lease, so Spark never commits a batch that was not written;
- its appends carry the number of its turn, and fail when a later process has raised its fence;
- its checkpoint belongs to its turn, so it cannot mark batches of the next process as done.

On the disk of one machine, a locked file takes the place of the lease, and a suspended process keeps it. The fence is
used in the same way.
"""

from contextlib import ExitStack

from wakeroll_model.lease_log import generation_of, turn_number
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.recovery.checkpoint_state import (
    latest_recording,
    number_of_recording,
    recordings,
    set_aside_recordings,
)
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.lease_keeper import ProcessLease
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.table_fence import Fenced, Fences
from wakeroll_pipeline.storage import small_files

_KEPT = 2
"""Number of checkpoints of earlier turns that are kept."""


class WriteTurn:
    """The right of this process to write the tables. With a locked file instead of a lease, it does not expire."""

    def __init__(self, settings: Settings, lease: ProcessLease | None = None) -> None:
        """Take the turn: exclude all earlier processes from the tables that exist.

        A later read of the tables includes all appends of earlier processes.

        Args:
            settings: settings of the deployment.
            lease: the lease, which this process has; None if a locked file excludes all other processes.

        Raises:
            LeaseLost: another process has the lease.
            Fenced: another process has taken the turn at the same time, with the same lock.
            StorageFailed: a store did not answer.
        """
        self._settings = settings
        self._lease = lease
        places = [path_of(settings.warehouse, table) for table in TABLES.values()]
        tables = [place for place in places if is_delta(place)]
        self._fences = Fences(tables)
        self.number = self._leased(lease) if lease is not None and tables else self._locked()
        """Number of this turn, which its appends carry; those of later turns are higher."""
        self.before = latest_recording(settings)
        """Name of the checkpoint of the turn before; without a lease, of this turn."""
        self.checkpoint = self.before if lease is None else f"{RECORD}.{self.number}"
        """Name of the checkpoint of this turn."""

    def confirm(self) -> None:
        """Return if this process still has the turn.

        Raises:
            LeaseLost: another process has the turn.
        """
        if self._lease is not None:
            self._lease.confirm()

    def is_confirmed(self) -> bool:
        """Return whether this process has the turn; False while the brokers cannot confirm that.

        Raises:
            LeaseLost: another process has the turn.
        """
        return self._lease is None or self._lease.is_confirmed()

    def forget_earlier(self) -> None:
        """Delete the checkpoints of earlier turns, except the last ones."""
        if self._lease is None:
            return
        earlier = [name for name in recordings(self._settings)[1:] if number_of_recording(name) < self.number]
        for name in earlier[:-_KEPT]:
            small_files.delete_folder(self._settings.checkpoint(name))

    def _locked(self) -> int:
        """Raise the fence to the next generation; return the number. The lock orders the turns."""
        number = turn_number(self._next_generation(), 0)
        self._fences.raise_to(number)
        return number

    def _leased(self, lease: ProcessLease) -> int:
        """Raise the fence to the term of the lease, in the generation of its log; return the number.

        If the number is not above all earlier ones, another process has the lease, or terms have begun again because
        the topic of the leases was created again, or has lost records. The present log shows which case applies. In the
        second case, the generation grows.
        """
        while True:
            generation = self._fences.generation(lease.log)
            if generation is not None and (number := turn_number(generation, lease.term)) > self._highest():
                try:
                    self._fences.raise_to(number)
                except Fenced:
                    pass  # another process has raised its own meanwhile
                else:
                    return number
            above = self._next_generation() - 1
            lease.prove()
            self._fences.register(lease.log, above)

    def _highest(self) -> int:
        """Return the highest number of an earlier turn, in the tables and in the names of checkpoints; -1 if none."""
        return max(self._fences.highest(), *map(number_of_recording, recordings(self._settings)))

    def _next_generation(self) -> int:
        return max(self._fences.next_generation(), generation_of(self._highest()) + 1)


def begin_recording_again(settings: Settings, stack: ExitStack) -> None:
    """Let `record` begin again with the first records that Kafka has, while `stack` excludes others from the tables.

    A process that was suspended cannot append afterwards, because the records that it has read may be gone from the
    log.

    Raises:
        InvalidUsage: a process still writes the tables. LeaseLost, Fenced: another process has begun to write them.
        NotReachable, StorageFailed: no broker answered, or a store did not.
    """
    WriteTurn(settings, stack.enter_context(process_locks(settings, [RECORD])).turn_lease)
    set_aside_recordings(settings)
