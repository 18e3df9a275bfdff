"""A process that competes for a lease: the times to claim and to renew, and until when it may act.

Safety needs one assumption about clocks: the monotonic clocks of two processes run at speeds that differ by less than
`MARGIN`. A holder may act until `lease_ms` less this margin after it sent a renewal that it has since read in the log.
Others claim only after they have read no record of the lease for the whole `lease_ms`. So a holder stops acting before
the next one begins, also if it was suspended, and whatever the brokers' clocks show.

All times are ms of a monotonic clock of this process that also runs while the machine is suspended.
"""

from typing import Any, Literal

from wakeroll_model.lease_log import AnyLeaseRecord, Claim, Lease, LogId, Release, Renewal

MARGIN = 0.1
"""Share of the lease by which a holder stops before others may claim."""
RENEWALS_PER_LEASE = 4
_LONGEST_STEP_MS = 1_000
"""Longest time between two calls that counts as silence of other processes; a longer one is a pause of this process."""

State = Literal["waiting", "held", "doubtful", "lost", "ended"]


class Contender:
    """One process that competes for one lease. It acts on a record, even its own, only after reading it in the log."""

    def __init__(self, name: str, holder: str, lease_ms: int, now_ms: int, *, first: int = 0, log: LogId = "") -> None:
        """Begin to wait.

        Args:
            name: name of the lease.
            holder: id of this process, never used before.
            lease_ms: duration of the lease.
            now_ms: the present time.
            first: offset of the first record that the log still has.
            log: id of the topic of the log; empty if it is not known.
        """
        self.lease = Lease(name, first, log)
        self._holder = holder
        self._lease_ms = lease_ms
        self._is_complete = first == 0
        """Whether the log is complete, so that a lease without records was never held."""
        self._number = 0
        self._returned = 0
        """Number of the last own record that was read in the log and was valid."""
        self._sent_ms: dict[int, int] = {}
        """Number of an own record that was not read in the log yet -> when it was sent."""
        self._term: int | None = None
        """Term of this process; None before its claim is valid."""
        self._until_ms = 0
        """Until when this process may act."""
        self._due_ms = now_ms
        """When the next claim or renewal may be sent."""
        self._silent_ms = 0
        """For how long no record of the lease was read, although the end of the log was reached."""
        self._is_disturbed = False
        """Whether a record of the lease was read, or the brokers were lost, since the last call of `next_record`."""
        self._seen_ms = now_ms
        self._is_ended = False
        self._is_cut_off = False
        """Whether this process had the lease in a log that does not exist any more."""

    def read(self, offset: int, record: AnyLeaseRecord) -> None:
        """Process the next record of the log; records of other leases have no effect."""
        if record.lease != self.lease.name or self.lease.is_foreign(record):
            return
        is_valid = self.lease.read(offset, record)
        self._is_disturbed = True
        if record.holder != self._holder:
            return
        sent_ms = self._sent_ms.pop(record.number, None)
        if not is_valid or sent_ms is None:
            return
        self._returned = max(self._returned, record.number)
        if self._term is None:
            self._term, self._due_ms = offset, sent_ms + self._lease_ms // RENEWALS_PER_LEASE
        self._until_ms = max(self._until_ms, sent_ms + round(self._lease_ms * (1 - MARGIN)))

    def begin_again(self, first: int, log: LogId) -> None:
        """Note that the log was replaced, or has lost its last records; the next one to read has the offset `first`.

        It is not known how much of the former log the other processes have read. So the holder has lost the lease, and
        all wait until they have read no record for the duration of a lease.
        """
        self._is_cut_off = self._is_cut_off or self._term is not None
        self.lease = Lease(self.lease.name, first, log)
        self._is_complete = False
        self._sent_ms.clear()
        self._silent_ms, self._is_disturbed = 0, True

    @property
    def sent(self) -> int:
        """Number of the last record that this process had to append; 0 before the first."""
        return self._number

    def has_proved(self, sent: int) -> bool:
        """Return whether a record after this one (see `sent`) was read in the log, and this process has the lease.

        Then no claim that was appended before that record has taken the lease from it. This does not depend on clocks.
        """
        return self._returned > sent and self._term is not None and not self.is_lost

    def renew_now(self) -> None:
        """Let the next record be due at once."""
        if self._term is not None:
            self._due_ms = self._seen_ms

    def disturbed(self) -> None:
        """Note that the brokers cannot be reached: the holder's silence is counted from the end of the disturbance."""
        self._is_disturbed = True

    def next_record(self, now_ms: int, read: int) -> AnyLeaseRecord | None:
        """Return the record to append now, if one is due.

        Call this at least twice a second, each time after all available records were passed to `read`.

        Args:
            now_ms: the present time.
            read: offset up to which the log was read, of all leases; -1 before the first record.
        """
        # The silence begins now, if a record was read since the last call.
        self._silent_ms = 0 if self._is_disturbed else self._silent_ms + min(now_ms - self._seen_ms, _LONGEST_STEP_MS)
        self._seen_ms, self._is_disturbed = now_ms, False
        if self._is_ended or self.is_lost or now_ms < self._due_ms:
            return None
        if self._term is not None:
            self._due_ms = now_ms + self._lease_ms // RENEWALS_PER_LEASE
            return Renewal(term=self._term, **self._fields(now_ms))
        if not self._may_claim():
            return None
        # A claim that is not read within this time was lost, or will turn out to be too late.
        self._due_ms = now_ms + self._lease_ms
        return Claim(read=read, **self._fields(now_ms))

    def end(self, now_ms: int) -> AnyLeaseRecord | None:
        """Stop acting; return the record that releases the lease, if this process has it."""
        self._is_ended = True
        if self._term is None or self.is_lost:
            return None
        return Release(term=self._term, **self._fields(now_ms))

    @property
    def is_lost(self) -> bool:
        """Whether this process had the lease, and another one has claimed it since."""
        return self._term is not None and (self._is_cut_off or self.lease.term > self._term)

    def is_held(self, now_ms: int) -> bool:
        """Return whether this process may act now."""
        return self.state(now_ms) == "held"

    def state(self, now_ms: int) -> State:
        """Return the state of this process.

        ``waiting``: it never had the lease. ``held``: it may act. ``doubtful``: its renewals did not return in time, so
        another process may have the lease; it may act again once a renewal is read. ``lost``: another process has the
        lease. ``ended``: it has called `end`.
        """
        if self._is_ended:
            return "ended"
        if self._term is None:
            return "waiting"
        if self.is_lost:
            return "lost"
        return "held" if now_ms < self._until_ms else "doubtful"

    @property
    def term(self) -> int:
        """Term of this process; -1 if it never had the lease."""
        return -1 if self._term is None else self._term

    def _may_claim(self) -> bool:
        lease = self.lease
        if lease.is_released or (self._is_complete and lease.last < 0):
            return True
        return self._silent_ms > max(self._lease_ms, lease.lease_ms)

    def _fields(self, now_ms: int) -> dict[str, Any]:
        self._number += 1
        self._sent_ms[self._number] = now_ms
        fields = {"lease": self.lease.name, "holder": self._holder, "number": self._number, "lease_ms": self._lease_ms}
        return fields | {"log": self.lease.log}
