"""The states of all shards of a ledger, rebuilt from its archived log as a replay does it."""

from collections.abc import Collection

from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import kind_of_topic
from wakeroll_model.shard import Shard
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.replay_stretches import records_in_order, stretches_of


def shards_of(ledger: Ledger, partitions: int, kinds: Collection[str] = ("groups", "queues")) -> list[Shard]:
    """Return the shards of these kinds in their states after their last archived records, sorted by name."""
    rows = ledger.rows("select distinct topic, partition from events")
    places = [(row.topic, row.partition) for row in rows if kind_of_topic(row.topic) in kinds]
    return sorted((shard_at(ledger, place, partitions) for place in places), key=lambda shard: shard.name)


def shard_at(ledger: Ledger, place: ControlPartition, partitions: int, at_ms: int | None = None) -> Shard:
    """Return a shard after its last archived record, or after the last one up to a log time (epoch ms), inclusive."""
    until = Period(None, None if at_ms is None else at_ms + 1)
    [last] = ledger.rows(
        f"select max(events.offset) as offset from events where topic = $topic and partition = $partition "
        f"and {until.condition}",
        topic=place[0],
        partition=place[1],
    )
    found = stretches_of(ledger, {place: (last.offset, last.offset)})
    assert not found.unknown
    [stretch] = found.stretches
    growing = stretch.shard(partitions)
    for record in records_in_order(ledger, stretch):
        growing.apply(record)
    return growing.shard
