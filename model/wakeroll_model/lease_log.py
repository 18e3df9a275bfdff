"""A lease: the right of one process at a time, decided by the order of records in one Kafka partition.

A process that wants the lease appends a claim. The claim names the offset up to which its process has read the log. It
is valid if no other record of this lease lies between that offset and the claim. Then the offset of the claim is the
new term of the lease. The holder appends renewals with its term. A record of an older term has no effect.

So all readers agree, wherever they began to read, and the result does not depend on clocks. Clocks decide only when a
process may claim, and until when a holder may act: see `wakeroll_model.lease_contender`.

If the topic is deleted and created again, offsets begin again. So a record contains the topic's id, and readers ignore
the records of processes that have read the former topic. `turn_number` orders the terms of both topics.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

LeaseName = Annotated[str, Meta(min_length=1, max_length=255, description="name of the lease; the key of the record")]
Holder = Annotated[
    str, Meta(min_length=1, max_length=255, description="process that appended the record: host, process id, random id")
]
DurationMs = Annotated[int, Meta(ge=1, description="duration of the lease after its last record (ms)")]
Term = Annotated[int, Meta(ge=0, description="offset of the claim by which the holder has the lease")]
LogId = Annotated[
    str,
    Meta(
        max_length=255,
        description="id of the topic in which the process has read the log; empty if it does not know one",
    ),
]
Number = Annotated[int, Meta(ge=0, description="number of the record among those of its process")]


class LeaseRecord(Struct, kw_only=True, frozen=True, omit_defaults=True, tag_field="type"):
    """The fields of every record of a lease."""

    lease: LeaseName
    holder: Holder
    number: Number
    lease_ms: DurationMs
    log: LogId = ""


class Claim(LeaseRecord, kw_only=True, frozen=True, tag="claim"):
    """A process claims the lease, because its holder has been silent for longer than the lease, or has released it."""

    read: Annotated[int, Meta(ge=-1, description="offset of the last record that the process has read; -1 if none")]


class Renewal(LeaseRecord, kw_only=True, frozen=True, tag="renewal"):
    """The holder renews its lease."""

    term: Term


class Release(LeaseRecord, kw_only=True, frozen=True, tag="release"):
    """The holder has ended its work: others may claim at once."""

    term: Term


AnyLeaseRecord = Claim | Renewal | Release

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(AnyLeaseRecord).decode


class Lease:
    """The state of one lease after some records of the log."""

    def __init__(self, name: str, first: int = 0, log: LogId = "") -> None:
        """Begin before the first record; `first` is its offset, `log` the id of its topic."""
        self.name = name
        self.log = log
        self._first = first
        self.term = -1
        """Offset of the newest valid claim; -1 if none is known."""
        self.holder = ""
        """Process that made this claim; empty if none is known."""
        self.is_released = False
        """Whether the holder has ended its work."""
        self.lease_ms = 0
        """Duration of the lease, as its latest holder states it (ms); 0 if none is known."""
        self.last = -1
        """Offset of the last record of this lease, valid or not; -1 before the first."""

    def is_foreign(self, record: AnyLeaseRecord) -> bool:
        """Return whether the process that appended a record has read another log, whose topic was deleted."""
        return bool(self.log and record.log) and record.log != self.log

    def read(self, offset: int, record: AnyLeaseRecord) -> bool:
        """Apply the next record of the log; return whether it is valid. Ignore records of other leases and logs."""
        if record.lease != self.name or self.is_foreign(record):
            return False
        before, self.last = self.last, offset
        match record:
            case Claim(read=read):
                # If the log began behind `read`, a record in between may have been deleted: this reader cannot know
                # whether the claim is valid, and the first renewal shows it.
                is_valid = before <= read < offset and read >= self._first - 1
                if is_valid:
                    self._take(record, offset)
            case Renewal(term=term) | Release(term=term):
                is_valid = term >= self.term
                if term > self.term:
                    # Its claim was deleted from the log: only the process whose claim was valid appends such a record.
                    self._take(record, term)
                elif is_valid:
                    self.lease_ms = record.lease_ms
                if is_valid and isinstance(record, Release):
                    self.is_released = True
        return is_valid

    def skip(self, first: int) -> None:
        """Note that the log was deleted up to this offset before it was read."""
        self._first = first

    def _take(self, record: AnyLeaseRecord, term: int) -> None:
        self.term, self.holder, self.is_released = term, record.holder, False
        self.lease_ms = record.lease_ms


TERM_BITS = 40
"""Bits of a term in the number of a turn: with ten records of leases per second, they last for 3,000 years."""
_HIGHEST = 2**63 - 1
"""Largest number of a turn, because Delta stores it as a signed integer of 64 bits."""


def turn_number(generation: int, term: int) -> int:
    """Return the number of a turn to write the tables; numbers are compared as (generation, term).

    A later turn has a higher number, also if the log of the leases was replaced. The term of a lease orders the turns
    of one log. When the topic of the leases is deleted and created again, or loses records, terms begin again; then the
    generation grows. Numbers of earlier releases, which only counted, need no conversion: the next generation is above
    theirs.

    >>> turn_number(generation=1, term=0) > turn_number(generation=0, term=4200)
    True

    Raises:
        OverflowError: the term or the generation is too large.
    """
    number = (generation << TERM_BITS) + term
    if not (0 <= term < 1 << TERM_BITS and 0 <= number <= _HIGHEST):
        raise OverflowError(f"no turn has generation {generation} and term {term}")
    return number


def generation_of(number: int) -> int:
    """Return the generation of a turn's number.

    >>> generation_of(turn_number(generation=7, term=4200))
    7
    """
    return number >> TERM_BITS
