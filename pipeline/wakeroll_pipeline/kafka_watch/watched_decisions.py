"""The decisions about watched groups, and the share of the groups that this process watches.

Processes with the same settings share the groups: the partitions of the decisions topic are distributed among them as
in any consumer group of Kafka, and a process watches the groups whose decisions are in its partitions.
"""

import hashlib
import logging
from collections.abc import Callable, Collection

import msgspec
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection, take
from wakeroll.decision_log import Said
from wakeroll.errors import NotReachable
from wakeroll.partition_offsets import ends_of
from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import UNREADABLE
from wakeroll_pipeline.failure_log import Trouble

log = logging.getLogger(__name__)

_AT_ONCE = 1_000
_decoder: msgspec.json.Decoder[Said] = msgspec.json.Decoder(Said)


class WatchedDecisions:
    """Reads new decisions about groups from the partitions that Kafka assigns to this process. For one thread."""

    def __init__(self, connection: Connection, expression: str, timeout: float) -> None:
        """Join the processes that share the groups.

        Args:
            connection: the brokers.
            expression: what the processes that share the groups have in common.
            timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self.kafka_group = kafka_group_of(connection.topics.prefix, expression)
        self.lost: Callable[[], None] = lambda: None
        """Called when this process no longer watches some groups; `has` says which."""
        self._connection = connection
        self._topic = connection.topics.decisions
        self._timeout = timeout
        self._partitions: set[int] = set()
        self._number = 0
        """Number of partitions of the topic; 0 until it is known."""
        self._seen: dict[tuple[int, str], tuple[int, int]] = {}
        """Partition and shard without its era -> place of the newest decision; see `wakeroll_model.decision_order`."""
        self._silence = Trouble(log, "decisions can be read again")
        self._consumer = connection.consumer(
            **{
                "group.id": self.kafka_group,
                "partition.assignment.strategy": "cooperative-sticky",
                "auto.offset.reset": "latest",
                # A topic that does not exist yet is found within this time.
                "topic.metadata.refresh.interval.ms": 10_000,
                "message.max.bytes": MAX_RECORD_BYTES,
                "queued.max.messages.kbytes": 16 * 1024,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 0,
                "error_cb": lambda _: None,
            }
        )
        self._consumer.subscribe([self._topic], on_assign=self._take, on_revoke=self._give_back, on_lost=self._lose)

    def has(self, group_id: str) -> bool:
        """Return whether this process watches a group."""
        return bool(self._number) and partition_of(group_id.encode(), self._number) in self._partitions

    def read(self, groups: Collection[str], timeout: float) -> list[Said]:
        """Return the next decisions about some groups, in order; wait at most `timeout` seconds for a record."""
        keys = {group_id.encode() for group_id in groups}
        messages = take(self._consumer, _AT_ONCE, timeout)
        return [decision for message in messages if (decision := self._decoded(message, keys)) is not None]

    def close(self) -> None:
        """Leave the processes that share the groups: another one continues at once."""
        self._consumer.close()

    def _decoded(self, message: Message, keys: set[bytes]) -> Said | None:
        if (error := message.error()) is not None:
            if error.code() != KafkaError._PARTITION_EOF:
                self._silence.began(f"decisions cannot be read: {error.str()}; retrying")
            return None
        self._silence.ended()
        key = message.key()
        if not isinstance(key, bytes) or key not in keys:
            return None
        try:
            decision = _decoder.decode(message.value() or b"")
        except UNREADABLE:
            return None
        shard = message.partition() or 0, without_era(decision.shard)
        place = order_of(decision.shard, decision.seq)
        if place <= self._seen.get(shard, (0, 0)):
            return None
        self._seen[shard] = place
        return decision

    def _take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Begin at the ends as of now, so that no answer to a later request is missed."""
        try:
            number = len(consumer.list_topics(self._topic, self._timeout).topics[self._topic].partitions)
            if self._number not in (0, number):
                self.lost()  # some groups have moved to other partitions
            self._number = number
            for at in partitions:
                at.offset = ends_of(consumer, at, self._timeout)[1]
        except (KafkaException, NotReachable) as problem:
            log.debug("the ends of %s are not known: %s", self._topic, problem)
            for at in partitions:
                at.offset = OFFSET_END
        consumer.incremental_assign(partitions)
        self._partitions.update(at.partition for at in partitions)

    def _give_back(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._lose(consumer, partitions)
        consumer.incremental_unassign(partitions)

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._partitions.difference_update(at.partition for at in partitions)
        self.lost()


def kafka_group_of(prefix: str, expression: str) -> str:
    """Return the name of the Kafka group in which watching processes share the groups."""
    return f"{prefix}.watch-kafka.{hashlib.blake2b(expression.encode(), digest_size=4).hexdigest()}"
