"""Whether some shards have decided anything yet: the record of decisions says so."""

import re
import time

from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

from pipeline.cluster import PATIENCE_S, Cluster
from pipeline.machines import machines_of
from pipeline.settings import Settings
from wakeroll.connection import Connection
from wakeroll.errors import NotReachable

_AT_ONCE = 1_000
_WAIT_S = 0.1


def has_decided(settings: Settings) -> bool:
    """Return whether shards of the machines that these settings run have decided anything.

    Where each machine has a query of its own, all decisions may be the other's.

    Raises:
        NotReachable: no broker answered, or the record could not be read.
    """
    connection, topic = settings.connection, settings.connection.topics.decisions
    ends = Cluster(connection).offsets((topic, partition) for partition in range(settings.partitions))
    kept = [partition for (_, partition), (first, end) in ends.items() if first < end]
    if settings.machines == "both" or not kept:
        return any(end > 0 for _, end in ends.values())
    return _is_any_of(connection, machines_of(settings), kept)


def _is_any_of(connection: Connection, machines: tuple[str, ...], partitions: list[int]) -> bool:
    """Read the record up to the first decision of these machines; all of it, where there is none."""
    topic, left = connection.topics.decisions, set(partitions)
    is_ours = re.compile(rb'"shard":"(%s)-' % "|".join(machines).encode()).search
    consumer = connection.consumer(**{"enable.partition.eof": True, "log_level": 0})
    heard_s = time.monotonic()
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        while left:
            for message in consumer.consume(_AT_ONCE, _WAIT_S):
                error = message.error()
                if error is None:
                    heard_s = time.monotonic()
                    if is_ours(message.value() or b""):
                        return True
                elif error.code() == KafkaError._PARTITION_EOF:
                    partition = message.partition()
                    assert partition is not None, "the end of a partition is one's"
                    left.discard(partition)
            if time.monotonic() - heard_s > PATIENCE_S:
                raise NotReachable(f"{topic} could not be read to its end at {connection.bootstrap}")
    finally:
        consumer.close()
    return False
