"""A control topic in memory, with records of its producers, and the shards that process them at once."""

from collections.abc import Iterator, Sequence

import msgspec

from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import ON_EVERY_PARTITION, AnyEvent
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record, entity_of
from wakeroll_model.rows import SnapshotRow
from wakeroll_model.shard import Shard
from wakeroll_model.snapshot_proof import proven

_encode = msgspec.json.Encoder().encode


class ControlTopic:
    """Puts each event where it belongs, and counts the offsets of each partition."""

    def __init__(self, name: str, partitions: int = 1) -> None:
        """Start empty, with so many partitions and a shard for each."""
        self.name = name
        self.shards = [Shard(name, partition, partitions, raises=True) for partition in range(partitions)]
        self._next_offsets = [0] * partitions

    def append(self, event: AnyEvent, at_ms: int) -> Iterator[tuple[Record, list[AnyDecision]]]:
        """Append an event; yield its record, and what was decided of it, for each partition that it stands in."""
        for record in self.records(event, at_ms):
            yield record, self.shards[record.partition].apply(record)

    def records(self, event: AnyEvent, at_ms: int) -> list[Record]:
        """Return the event's record, the next of its partition; of a tick or a route, one for each."""
        value, partitions = _encode(event), len(self.shards)
        if isinstance(event, ON_EVERY_PARTITION):
            return [self._record(partition, at_ms, None, value) for partition in range(partitions)]
        key = entity_of(event).encode()
        return [self._record(partition_of(key, partitions), at_ms, key, value)]

    def _record(self, partition: int, at_ms: int, key: bytes | None, value: bytes) -> Record:
        offset = self._next_offsets[partition]
        self._next_offsets[partition] += 1
        return Record(self.name, partition, offset, at_ms, key, value)


def snapshots_of(topics: Sequence[ControlTopic]) -> list[SnapshotRow]:
    """Return the states of all shards, as rows of their table."""
    return [
        proven(
            SnapshotRow(
                topic=topic.name,
                partition=shard.partition,
                offset=shard.offset,
                era=shard.era,
                version=shard.version,
                at_ms=shard.now_ms,
                body=shard.body(),
            )
        )
        for topic in topics
        for shard in topic.shards
    ]
