"""Which records must have an answer among the decisions: what is no event, and pulls whose deadline is past."""

import heapq
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct
from pyspark.sql import DataFrame

from model.clock import ShardClock
from model.decisions import Rejected
from model.events import Pull, Tick
from model.records import Record, read_event
from pipeline.quality.streams import Frames, frame_of, in_order, rows_of
from pipeline.schemas import schema_of


class Awaited(Struct, frozen=True):
    """A record that must have an answer, once the log has gone on far enough."""

    topic: str
    partition: int
    offset: int
    answer: str
    """``rejected`` or ``wake``."""
    until_offset: int
    """Whoever has applied the partition's log up to here has answered."""
    client_id: str
    request_id: str
    why: str


def awaited(events: DataFrame) -> DataFrame:
    """Return what the rows of `events` must have as answers, a row each."""
    rows = events.select("topic", "partition", "offset", "at_ms", "key", "value")
    return in_order(rows, ("topic", "partition"), "offset").mapInPandas(_await, schema_of(Awaited))


def _await(frames: Frames) -> Frames:
    for _, rows in groupby(rows_of(frames), attrgetter("topic", "partition")):
        yield frame_of(_awaited_in(rows), Awaited)


def _awaited_in(rows: Iterable[Any]) -> Iterator[Awaited]:
    """Yield what the records of one partition must have as answers; they come in order."""
    clock = ShardClock()
    newest: dict[tuple[str, str, str, str], int] = {}
    held: list[tuple[int, int, Pull]] = []
    for row in rows:
        record = _record(row)
        event = read_event(record, partitions=1)
        now_ms = clock.read(record.timestamp_ms, tick=isinstance(event, Tick)).now_ms
        where = record.topic, int(row.partition)
        if isinstance(event, Pull):
            number = int(event.request_id.rpartition(":")[2])
            life = event.queue.key, event.group_id, event.client_id, event.instance_id
            # One that comes after a newer one was overtaken, or is a repetition: it is silent.
            if number > newest.get(life, -1):
                newest[life] = number
                heapq.heappush(held, (now_ms + event.timeout_ms, record.offset, event))
        elif isinstance(event, Tick):
            while held and held[0][0] <= now_ms:
                _, offset, pull = heapq.heappop(held)
                why = f"pull {pull.request_id} of {pull.client_id}, due at offset {record.offset}"
                yield Awaited(*where, offset, "wake", record.offset, pull.client_id, pull.request_id, why)
        elif isinstance(event, Rejected):
            why = f"{event.rule}: {event.detail}"
            yield Awaited(*where, record.offset, "rejected", record.offset, "", "", why)


def _record(row: Any) -> Record:
    """Return a row's record, as if its topic had one partition: rows do not say how many, so where a key belongs."""
    key, value = (None if one is None else bytes(one) for one in (row.key, row.value))
    return Record(row.topic, 0, int(row.offset), int(row.at_ms), key, value)
