"""The control topic `wakeroll.groups` as its producers fill it: keys, partitions, offsets, JSON bytes."""

import msgspec

from model.events import ON_EVERY_PARTITION, AnyEvent
from model.partitioner import partition_of
from model.records import Record

TOPIC = "wakeroll.groups"
START_MS = 1_700_000_000_000
"""Log time zero of every test."""

encode_event = msgspec.json.Encoder().encode


class ControlLog:
    """Appends events where they belong and counts the offsets of each partition."""

    def __init__(self, partitions: int = 4) -> None:
        self.partitions = partitions
        self._next_offsets = [0] * partitions

    def append(self, event: AnyEvent, at_ms: int) -> list[Record]:
        """Return the event's record; of a tick or a route one for each partition.

        Args:
            event: what is to be told.
            at_ms: since `START_MS`.
        """
        value = encode_event(event)
        if isinstance(event, ON_EVERY_PARTITION):
            return [self.write(value, at_ms, partition) for partition in range(self.partitions)]
        key = event.group_id.encode()
        return [self.write(value, at_ms, partition_of(key, self.partitions), key)]

    def write(self, value: bytes | None, at_ms: int, partition: int, key: bytes | None = None) -> Record:
        """Return a record of any bytes, in any partition."""
        offset = self._next_offsets[partition]
        self._next_offsets[partition] += 1
        return Record(TOPIC, partition, offset, START_MS + at_ms, key, value)
