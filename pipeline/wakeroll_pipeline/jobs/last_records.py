"""The last records of the log, decided without Spark: the coordinator had not applied them when it was stopped."""

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.headers import WRITER_HEADER
from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_model.decision_sizes import bounded
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.partitioner import ControlPartition, partition_of
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_pipeline.kafka.log_spans import Span, read_spans
from wakeroll_pipeline.operators.shard_operator import addressed

_SLICE_S = 0.2
_FLUSH_S = 60.0
_BY_KEY = -1
"""In place of a number of a partition: Kafka's client chooses the partition by the key."""


def decide_last(
    connection: Connection,
    shards: Mapping[ControlPartition, Shard],
    spans: Mapping[ControlPartition, Span],
    partitions: int,
    writer: str,
) -> int:
    """Apply the records after the states of shards, and publish their decisions.

    The decisions are those that the coordinator would publish. If it has published some of them already, they are
    repeated in the same partitions, and readers skip them.

    Args:
        connection: the brokers.
        shards: the shards, which are changed.
        spans: the records of each shard.
        partitions: present number of partitions of the decisions.
        writer: name of this process, for the header of the decisions.

    Returns:
        The number of published decisions.

    Raises:
        NotReachable: the records could not be read, or the decisions could not be published.
    """
    publisher = _Publisher(connection, partitions, writer)
    for record in map(_record_of, read_spans(connection, spans)):
        shard = shards[record.topic, record.partition]
        for decision in shard.apply(record):
            publisher.publish(*bounded(decision), shard.name)
    publisher.finish()
    return publisher.count


class _Publisher:
    """Publishes decisions as the sink of Spark does."""

    def __init__(self, connection: Connection, partitions: int, writer: str) -> None:
        self.count = 0
        self._topics = connection.topics
        self._bootstrap = connection.bootstrap
        self._partitions = partitions
        self._headers: list[tuple[str, str | bytes | None]] = [(WRITER_HEADER, writer.encode())]
        self._failure: KafkaError | None = None
        self._producer: Producer = connection.producer(**{"message.max.bytes": MAX_RECORD_BYTES + 4_096})

    def publish(self, decision: AnyDecision, value: bytes, shard: str) -> None:
        """Publish a decision, encoded as `value`.

        Raises:
            NotReachable: an earlier one could not be published.
        """
        for topic, key, content in addressed(decision, value, self._topics, shard):
            # Its repetition must be in the partition that had the first copy, although there are more of them now.
            partition = partition_of(key, self._partitions) if topic == self._topics.decisions else _BY_KEY
            self._produce(topic, key, content, partition)
        self.count += 1

    def finish(self) -> None:
        """Wait until all decisions are published.

        Raises:
            NotReachable: a decision could not be published.
        """
        if self._producer.flush(_FLUSH_S) or self._failure is not None:
            reason = "no answer" if self._failure is None else self._failure.str()
            raise NotReachable(f"cannot publish decisions at {self._bootstrap} ({reason})")

    def _produce(self, topic: str, key: bytes, value: bytes, partition: int) -> None:
        while True:
            try:
                self._producer.produce(
                    topic, value, key, headers=self._headers, partition=partition, on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(_SLICE_S)
            except KafkaException as problem:
                raise NotReachable(
                    f"cannot publish to {topic} at {self._bootstrap} ({problem.args[0].str()})"
                ) from None
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: KafkaError | None, _: object) -> None:
        self._failure = self._failure or error


def _record_of(message: Message) -> Record:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None, "a message without an error has a topic"
    assert partition is not None, "a message without an error has a partition"
    assert offset is not None, "a message without an error has an offset"
    return Record(topic, partition, offset, message.timestamp()[1], _bytes(message.key()), _bytes(message.value()))


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
