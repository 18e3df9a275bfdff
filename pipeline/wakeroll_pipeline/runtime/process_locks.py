"""The locks of processes: one decides from a checkpoint, one writes the tables; others wait or are refused."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from wakeroll_pipeline.kafka.control_topics import ensure_lease_topic
from wakeroll_pipeline.runtime.deciding_queries import COORDINATE, RECORD, lease_of, lock_of, machines_of, record_lock
from wakeroll_pipeline.runtime.lease_keeper import LeaseKeeper, ProcessLease
from wakeroll_pipeline.runtime.process_lock import Locked, only_one
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll.run")

_DECIDES = "decides from this checkpoint"
_WRITES = "writes these tables"
_EXTRA_S = 5.0
"""Longest time in which a claim reaches the log and returns (s)."""


class ProcessLocks:
    """The locks that this process has, and its turn to write the tables."""

    def __init__(self, settings: Settings, stack: ExitStack, leases: Sequence[ProcessLease]) -> None:
        """Do not call it: `process_locks` creates this object."""
        self._settings = settings
        self._stack = stack
        self._leases = leases
        self._record = next((lease for lease in leases if lease.name == RECORD), None)
        self._waits_for: str | None = None
        self._is_locked = False

    @property
    def held(self) -> dict[str, bool]:
        """Lease that this process has or waits for -> whether it has it now; empty if locked files are used."""
        return {lease.name: lease.state == "held" for lease in self._leases}

    @property
    def turn_lease(self) -> ProcessLease | None:
        """The lease that excludes others from the tables; None if a locked file excludes them."""
        return None if self._settings.locks_files else self._record

    def has_turn(self) -> bool:
        """Return whether a standby may begin to write the tables; log each new process that it waits for."""
        if self._record is not None and self._record.state != "held":
            self._wait_for(self._record.holder)
            return False
        if self._settings.locks_files and not self._is_locked:
            try:
                self._stack.enter_context(only_one(record_lock(self._settings), _WRITES))
            except Locked as refusal:
                self._wait_for(refusal.holder)
                return False
            self._is_locked = True
        return True

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if another process has a lease that this one had."""
        for lease in self._leases:
            lease.raise_if_lost()

    def confirm(self) -> None:
        """Return if this process has all its leases; while their renewals do not return, wait for them.

        Raises:
            LeaseLost: another process has one of them.
        """
        for lease in self._leases:
            lease.confirm()

    def _wait_for(self, holder: str) -> None:
        if holder != self._waits_for:
            self._waits_for = holder
            log.info("standing by: %s writes the tables", holder or "no process that is known")


@contextmanager
def process_locks(settings: Settings, jobs: Sequence[str], *, stands_by: bool = False) -> Iterator[ProcessLocks]:
    """Hold the locks of these jobs during a `with` block.

    Args:
        settings: settings of the deployment.
        jobs: ``coordinate`` for its checkpoint, ``record`` for the tables.
        stands_by: whether `record` waits for its turn later: see `ProcessLocks.has_turn`.

    Raises:
        Locked: another process has a lock; the message names it.
        InvalidTopics: the topic of the leases cannot be created.
        NotReachable: no broker answered.
    """
    decides, writes = COORDINATE in jobs, RECORD in jobs
    machines = machines_of(settings) if decides else ()
    wanted = [] if settings.locks_files else [lease_of(settings, machine) for machine in machines]
    if writes and (stands_by or not settings.locks_files):
        wanted.append(RECORD)
    # Where files are not enough, they still refuse a second process of the same machine at once.
    also_files = settings.locks_files or settings.locks == "auto"
    with ExitStack() as stack:
        if also_files:
            for machine in machines:
                stack.enter_context(only_one(lock_of(settings, machine), _DECIDES))
        if also_files and writes and not stands_by:
            stack.enter_context(only_one(record_lock(settings), _WRITES))
        leases: list[ProcessLease] = []
        if wanted:
            ensure_lease_topic(settings.connection, replication=settings.replication)
            name = process_name(settings.replica)
            keeper = stack.enter_context(LeaseKeeper(settings.connection, name, settings.lease_ms, wanted))
            leases += [keeper[name] for name in wanted]
        for lease in leases:
            if lease.name != RECORD:
                _take(lease, settings.lease_ms, _DECIDES)
            elif not stands_by:
                _take(lease, settings.lease_ms, _WRITES)
        yield ProcessLocks(settings, stack, leases)


def process_name(replica: str = "") -> str:
    """Return the name of this process, for people: ``replica@host:pid``, or ``host:pid`` without a replica."""
    host = f"{socket.gethostname()}:{os.getpid()}"
    return f"{replica}@{host}" if replica else host


def _take(lease: ProcessLease, lease_ms: int, what: str) -> None:
    """Wait for a lease until its holder must have renewed it.

    Raises:
        Locked: its holder is active; the message names it.
    """
    if not lease.wait(0.5):
        log.info("waiting for the lease %r, which expires %g s after its holder ended", lease.name, lease_ms / 1_000)
    if not lease.wait(2 * lease_ms / 1_000 + _EXTRA_S):
        raise Locked(lease.holder or "unknown", what)
