"""Fences on Delta tables: the writer with the highest number may append, and no other.

A process may be suspended between the check of its lease and its append. When it wakes up and appends, another process
has the lease already. So the storage itself must refuse the append. Delta keeps one number per application (`txnAppId`)
in a table's log. A fence is such a number: the number of a turn (`wakeroll_model.lease_log`). Every append carries the
number of its writer. `wakeroll_pipeline.sinks.arrow_sink` appends only to a table whose number is its own, and if two
commits with a number conflict, Delta refuses the second one.

The log of the table that is named first also stores the generation of each log of leases.

This holds where a commit of Delta is atomic: on object storage with conditional writes, on HDFS, and on a local disk.
On NFS two commits at the same instant can both succeed.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from wakeroll.errors import WakerollError
from wakeroll_model.lease_log import generation_of
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.parquet_files import HOOKS
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.small_files import StorageFailed

_Found = TypeVar("_Found")

APPLICATION = "wakeroll.record"
"""Application whose number is the fence. Earlier releases counted it up in steps of 2**32."""
_GENERATIONS = "wakeroll.leases"
"""Application whose number is the newest generation of all logs of leases; with the id of a log appended, the
generation of that log."""
_ATTEMPTS = 50
"""Maximum number of attempts to raise a fence, each of which may lose against a commit of another process; an earlier
writer makes one commit per batch."""

# Of a store that does not answer. By default ten requests fail, within a few seconds.
_RETRIES = {"max_retries": "1000", "retry_timeout": "60s"}


class Fenced(WakerollError):
    """A later writer has raised its fence on a table, so nothing was appended; the message names the table."""


def opened(place: Place) -> DeltaTable:
    """Open a table in its newest version.

    Raises:
        deltalake.exceptions.TableNotFoundError: there is none.
    """
    location, options = place.for_deltalake()
    return DeltaTable(location, storage_options=None if options is None else options | _RETRIES)


def refuse_other(table: DeltaTable, place: Place, number: int) -> None:
    """Reject an append to a table whose fence is not that of the writer.

    Raises:
        Fenced: the fence is higher, or the table was replaced since this writer raised its own.
    """
    found = number_in(table)
    if found > number:
        raise Fenced(
            f"another process writes {place}: its fence is {found}, that of this process {number}; this process was "
            "suspended, or did not reach the brokers, for longer than lease_ms; start it again, and it waits"
        )
    if found < number:
        raise Fenced(
            f"{place} has the fence {found}, but this process has raised it to {number}: the table was replaced, or "
            "lost its newest versions; start this process again"
        )


def number_in(table: DeltaTable) -> int:
    """Return the fence of a table; -1 if it has none."""
    found = table.transaction_version(APPLICATION)
    return -1 if found is None else found


class Fences:
    """The fences on the tables of a deployment."""

    def __init__(self, tables: Sequence[Place]) -> None:
        """Prepare; nothing is read yet.

        Args:
            tables: existing tables, in the same order in every process.
        """
        self._tables = tuple(tables)

    def highest(self) -> int:
        """Return the highest fence of all tables; -1 if there is none."""
        return max(self._each(lambda place: number_in(opened(place))), default=-1)

    def generation(self, log: str) -> int | None:
        """Return the generation of a log of leases; None if it is not known yet."""
        return opened(self._tables[0]).transaction_version(_of(log)) if self._tables else None

    def register(self, log: str, above: int) -> bool:
        """Store a new generation of a log of leases, above this one and all stored ones.

        Returns:
            Whether it was stored; False if another process has stored one at the same time.
        """
        table = opened(self._tables[0])
        newest = table.transaction_version(_GENERATIONS)
        generation = max(above, -1 if newest is None else newest) + 1
        return _commit(table, {_GENERATIONS: generation, _of(log): generation})

    def next_generation(self) -> int:
        """Return a generation above those of all fences and all logs."""
        stored = opened(self._tables[0]).transaction_version(_GENERATIONS) if self._tables else None
        return max(generation_of(self.highest()), -1 if stored is None else stored) + 1

    def raise_to(self, number: int) -> None:
        """Raise the fence on each table: after this call, no writer with a lower number can append.

        A later read of the tables includes all appends of such writers.

        Raises:
            Fenced: a table has this fence or a higher one already.
            StorageFailed: the store did not answer.
        """
        self._each(partial(_raise, number=number))

    def _each(self, do: Callable[[Place], _Found]) -> list[_Found]:
        if not self._tables:
            return []
        with ThreadPoolExecutor(len(self._tables)) as threads:
            return list(threads.map(do, self._tables))


def _raise(place: Place, number: int) -> None:
    """Raise the fence on one table.

    After the commit, the fence is read again. If another process has cleaned the log meanwhile, a commit of a suspended
    process can succeed with the number of an old version, and then has no effect.
    """
    is_ours = False
    for _ in range(_ATTEMPTS):
        table = opened(place)
        found = number_in(table)
        if is_ours and found == number:
            return
        if found >= number:
            raise Fenced(f"another process writes {place}: its fence is {found}, that of this process {number}")
        is_ours = _commit(table, {APPLICATION: number})
    raise StorageFailed(
        f"cannot raise the fence on {place}: other processes have committed {_ATTEMPTS} times meanwhile"
    )


def _commit(table: DeltaTable, numbers: Mapping[str, int]) -> bool:
    """Commit numbers of applications, without rows; return False if another commit of such a number came first."""
    numbered = [Transaction(application, number) for application, number in numbers.items()]
    try:
        table.create_write_transaction(
            [],
            "append",
            table.schema(),
            commit_properties=CommitProperties(app_transactions=numbered),
            post_commithook_properties=HOOKS,
        )
    except CommitFailedError:
        return False
    except (DeltaError, OSError) as error:
        raise StorageFailed(f"cannot write to {table.table_uri}: {in_one_line(error)}") from error
    return True


def _of(log: str) -> str:
    return f"{_GENERATIONS}.{log}"
