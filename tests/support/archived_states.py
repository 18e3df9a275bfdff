"""The states of all shards of a ledger, rebuilt from its archived log."""

from collections.abc import Collection

from wakeroll_model.records import kind_of_topic
from wakeroll_model.shard import Shard
from wakeroll_pipeline.ledger.archived_log import shard_at
from wakeroll_pipeline.ledger.ledger import Ledger


def shards_of(ledger: Ledger, partitions: int, kinds: Collection[str] = ("groups", "queues")) -> list[Shard]:
    """Return the shards of these kinds in their states after their last archived records, sorted by name."""
    rows = ledger.rows("select distinct topic, partition from events")
    places = [(row.topic, row.partition) for row in rows if kind_of_topic(row.topic) in kinds]
    return sorted((shard_at(ledger, place, partitions) for place in places), key=lambda shard: shard.name)
