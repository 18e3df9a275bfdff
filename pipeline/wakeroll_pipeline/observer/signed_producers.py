"""The observer's producers: their records are signed, and are dropped when they cannot be sent soon."""

import time
from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from wakeroll.connection import Connection
from wakeroll.keys import key_to_sign, new_signer
from wakeroll.topic_partitions import learn_partitions
from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_model.signing import Keys

ENDS_MS = 60_000
"""Interval of the queries for the ends of the control partitions (ms): a signature is valid for a million offsets above
them."""
_LEARN_S = 0.5
"""Minimum time between two queries for partitions without metadata in the client (s)."""

Ends = Mapping[tuple[str, int], int]
"""(topic, partition) -> end offset."""

OnDelivery = Callable[[KafkaError | None, Message], object]


class SignedProducer:
    """Appends signed records to control partitions. For one thread, which keeps them in order."""

    def __init__(self, connection: Connection, keys: Keys, timeout_ms: int) -> None:
        """Create the client and a new signer.

        Args:
            connection: the brokers.
            keys: the last observer key among them signs.
            timeout_ms: records that no broker has accepted after this time are dropped.

        Raises:
            InvalidUsage: Kafka's client rejects the settings, or there is no observer key.
        """
        self._signer = new_signer(key_to_sign(keys, "observer"))
        self._producer = perishable(connection, timeout_ms)
        self._ends: dict[tuple[str, int], int] = {}
        self._learn_s = 0.0
        """When the partitions of a topic may be queried again, by the monotonic clock (s)."""

    def learn(self, ends: Ends) -> None:
        """Record the ends of partitions, as returned by brokers; acknowledged records update them too."""
        self._ends.update(ends)

    def knows(self, topic: str, partition: int) -> bool:
        """Return whether the end of a partition is known."""
        return (topic, partition) in self._ends

    def produce(
        self, topic: str, value: bytes, partition: int, *, key: bytes | None = None, on_delivery: OnDelivery
    ) -> None:
        """Sign a record, and pass it to Kafka's client.

        If the end of the partition is unknown, the record is signed as for an empty one. A shard whose log is much
        longer rejects it, but the acknowledgement contains the end.

        Raises:
            BufferError: the client's queue is full.
            KafkaException: the client rejects the record.
        """
        value = self._signer.sign(topic, partition, key, value, self._ends.get((topic, partition), 0))
        send = partial(
            self._producer.produce, topic, value, key, partition, on_delivery=partial(self._delivered, on_delivery)
        )
        try:
            send()
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() < self._learn_s:
                raise
            self._learn_s = time.monotonic() + _LEARN_S
            learn_partitions(self._producer, topic)
            send()

    def poll(self, timeout_s: float = 0) -> None:
        """Process delivery reports."""
        self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Wait at most this long until pending records are sent."""
        self._producer.flush(timeout_s)

    def _delivered(self, on_delivery: OnDelivery, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is None and topic is not None and partition is not None and offset is not None and offset >= 0:
            self._ends[topic, partition] = offset + 1
        on_delivery(error, message)


def perishable(connection: Connection, timeout_ms: int) -> Producer:
    """Create a producer for records that are useless when they arrive late.

    Records that no broker has accepted within `timeout_ms` are dropped, so that a returning broker does not receive all
    missed ones. An idempotent producer numbers its records and must recover from each dropped one. Ticks and routes may
    be repeated, so this producer is not idempotent. Only one request is in flight. This keeps routes in order, and a
    broker that hangs for a while does not receive many ticks at once.
    """
    return connection.producer(
        **{
            "enable.idempotence": False,
            "message.timeout.ms": timeout_ms,
            "message.max.bytes": MAX_RECORD_BYTES,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 0,  # the callers log each failure once
            "error_cb": lambda _: None,
        }
    )
