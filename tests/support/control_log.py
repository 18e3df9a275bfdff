"""The control topics as their producers fill them: keys, partitions, offsets, JSON bytes."""

import msgspec

from wakeroll_model.events import ABOUT_A_QUEUE, ON_EVERY_PARTITION, AnyEvent, KeyChange, Level, Tick
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record, entity_of

TOPIC = "wakeroll.groups"
QUEUES = "wakeroll.queues"
START_MS = 1_700_000_000_000
"""Log time zero of every test."""

encode_event = msgspec.json.Encoder().encode


class ControlLog:
    """Appends events where they belong and counts the offsets of each partition."""

    def __init__(self, partitions: int = 4, *, queues: bool = False) -> None:
        """Start empty.

        Args:
            partitions: of each topic.
            queues: have the ticks and levels in the topic of the queues, too.
        """
        self.partitions = partitions
        self._ticking = (TOPIC, QUEUES) if queues else (TOPIC,)
        self._next_offsets = {topic: [0] * partitions for topic in (TOPIC, QUEUES)}

    def grow(self, partitions: int) -> dict[tuple[str, int], int]:
        """Add partitions; return the end of each old one."""
        ends = {(topic, number): end for topic, its in self._next_offsets.items() for number, end in enumerate(its)}
        for its in self._next_offsets.values():
            its += [0] * (partitions - self.partitions)
        self.partitions = partitions
        return ends

    def append(self, event: AnyEvent, at_ms: int) -> list[Record]:
        """Return the event's record; of a tick, a route or a level one for each partition.

        Args:
            event: what is to be told.
            at_ms: since `START_MS`.
        """
        value = encode_event(event)
        if isinstance(event, ON_EVERY_PARTITION):
            topics = self._ticking if isinstance(event, Tick | Level | KeyChange) else (TOPIC,)
            return [
                self.write(value, at_ms, partition, topic=topic)
                for topic in topics
                for partition in range(self.partitions)
            ]
        key = entity_of(event).encode()
        topic = QUEUES if isinstance(event, ABOUT_A_QUEUE) else TOPIC
        return [self.write(value, at_ms, partition_of(key, self.partitions), key, topic)]

    def again(self, record: Record, at_ms: int) -> Record:
        """Return a copy of a record, appended to the same partition now."""
        return self.write(record.value, at_ms, record.partition, record.key, record.topic)

    def write(
        self, value: bytes | None, at_ms: int, partition: int, key: bytes | None = None, topic: str = TOPIC
    ) -> Record:
        """Return a record of any bytes, in any partition."""
        offset = self._next_offsets[topic][partition]
        self._next_offsets[topic][partition] += 1
        return Record(topic, partition, offset, START_MS + at_ms, key, value)
