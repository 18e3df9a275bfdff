"""The observer's producers: what they append is signed, and worth nothing when it comes late."""

from collections.abc import Callable, Mapping
from functools import partial

from confluent_kafka import KafkaError, Message, Producer

from model.config import MAX_RECORD_BYTES
from model.signing import Keys
from wakeroll.connection import Connection
from wakeroll.keys import key_to_sign, new_signer

ENDS_MS = 60_000
"""How often to ask where the control partitions end: a signature is void a million records above that."""

Ends = Mapping[tuple[str, int], int]
"""(topic, partition) -> offset of its next record."""

OnDelivery = Callable[[KafkaError | None, Message], object]


class SignedProducer:
    """Appends signed records to control partitions.  For one thread, which keeps them in order."""

    def __init__(self, connection: Connection, keys: Keys, timeout_ms: int) -> None:
        """Make the client, and a signer of its own.

        Args:
            connection: the brokers.
            keys: those of an observer sign, the last one of them.
            timeout_ms: what no broker took by then is dropped.

        Raises:
            InvalidUsage: Kafka's client does not take the settings, or there is no key of an observer.
        """
        self._signer = new_signer(key_to_sign(keys, "observer"))
        self._producer = perishable(connection, timeout_ms)
        self._ends: dict[tuple[str, int], int] = {}

    def learn(self, ends: Ends) -> None:
        """Take where partitions end, as brokers said; records that are acknowledged say it too."""
        self._ends.update(ends)

    def knows(self, topic: str, partition: int) -> bool:
        """Whether the end of a partition is known."""
        return (topic, partition) in self._ends

    def produce(
        self, topic: str, value: bytes, partition: int, *, key: bytes | None = None, on_delivery: OnDelivery
    ) -> None:
        """Sign a record, and hand it to Kafka's client.

        For a partition that nobody has told the end of, it is signed as for an empty one.  A shard that is far beyond
        refuses that, but the receipt tells the end.

        Raises:
            BufferError: the client has no room.
            KafkaException: the client does not take it.
        """
        value = self._signer.sign(topic, partition, key, value, self._ends.get((topic, partition), 0))
        self._producer.produce(topic, value, key, partition, on_delivery=partial(self._delivered, on_delivery))

    def poll(self, timeout_s: float = 0) -> None:
        """Take receipts."""
        self._producer.poll(timeout_s)

    def flush(self, timeout_s: float) -> None:
        """Send what is under way, for at most so long."""
        self._producer.flush(timeout_s)

    def _delivered(self, on_delivery: OnDelivery, error: KafkaError | None, message: Message) -> None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if error is None and topic is not None and partition is not None and offset is not None and offset >= 0:
            self._ends[topic, partition] = offset + 1
        on_delivery(error, message)


def perishable(connection: Connection, timeout_ms: int) -> Producer:
    """Make a producer of what is true now and worth nothing later.

    What a broker did not take within `timeout_ms` is dropped, so that its return is not greeted with all that it
    missed.  An idempotent producer numbers its records and must recover from each one that it drops; ticks and routes
    may come twice, so this one does not number them.  It has one request in flight: that keeps routes in order, and a
    broker that hangs, and goes on, does not find a heap of ticks.
    """
    return connection.producer(
        **{
            "enable.idempotence": False,
            "message.timeout.ms": timeout_ms,
            "max.in.flight.requests.per.connection": 1,
            "message.max.bytes": MAX_RECORD_BYTES,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 0,  # the troubles are told where they are met, once
            "error_cb": lambda _: None,
        }
    )
