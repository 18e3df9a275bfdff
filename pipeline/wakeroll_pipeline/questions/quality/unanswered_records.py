"""Records that must have a decision as their answer: invalid events, and pulls whose deadline has passed."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct

from wakeroll_model.coordinator_log.kafka_events import KIND
from wakeroll_model.decisions import Rejected
from wakeroll_model.events import Pull, Tick
from wakeroll_model.records import Record, kind_of_topic, read_event
from wakeroll_model.shard_clock import ShardClock
from wakeroll_model.signing import OnRecord, Role, Signers, admit, new_signers


class Awaited(Struct, frozen=True):
    """A record that must have an answer once the log is decided up to `until_offset`."""

    topic: str
    partition: int
    offset: int
    answer: str
    """Kind of the decision: ``rejected`` or ``wake``."""
    until_offset: int
    """Offset at which a coordinator that has applied the partition's log must have answered."""
    client_id: str
    request_id: str
    why: str


def answers_due(rows: Iterable[Any]) -> Iterator[Awaited]:
    """Yield the answers that records must have; the rows are in the order of topic, partition and offset.

    Records about Kafka's own groups need no answer.
    """
    for (topic, _), its_rows in groupby(rows, attrgetter("topic", "partition")):
        if kind_of_topic(topic) != KIND:
            yield from _awaited_in(its_rows)


def _awaited_in(rows: Iterable[Any]) -> Iterator[Awaited]:
    """Yield the answers that the records of one partition must have; the rows are in order."""
    clock = ShardClock()
    signers: dict[Role, Signers] = {}
    newest: dict[tuple[str, str, str, str], int] = {}
    held: list[tuple[int, int, Pull]] = []
    for row in rows:
        record = _record(row)
        event = read_event(record, partitions=1)
        signers = signers or new_signers(record.offset)
        # A copied tick does not advance the clock.
        tick = admit(record, event, OnRecord(), signers) if isinstance(event, Tick) else None
        now_ms = clock.read(record.timestamp_ms, tick if isinstance(tick, Tick) else None).now_ms
        where = record.topic, int(row.partition)
        if isinstance(event, Pull):
            number = int(event.request_id.rpartition(":")[2])
            life = event.queue.key, event.group_id, event.client_id, event.instance_id
            # A pull after a newer one was overtaken or repeated, and gets no answer.
            if number > newest.get(life, -1):
                newest[life] = number
                heapq.heappush(held, (now_ms + event.timeout_ms, record.offset, event))
        elif isinstance(tick, Tick):
            while held and held[0][0] <= now_ms:
                _, offset, pull = heapq.heappop(held)
                why = f"pull {pull.request_id} of {pull.client_id}, due at offset {record.offset}"
                yield Awaited(*where, offset, "wake", record.offset, pull.client_id, pull.request_id, why)
        elif isinstance(event, Rejected):
            why = f"{event.rule}: {event.detail}"
            yield Awaited(*where, record.offset, "rejected", record.offset, "", "", why)


def _record(row: Any) -> Record:
    """Return a row's record with partition 0: rows do not hold the number of partitions, so keys cannot be checked."""
    key, value = (None if one is None else bytes(one) for one in (row.key, row.value))
    return Record(row.topic, 0, int(row.offset), int(row.at_ms), key, value)
