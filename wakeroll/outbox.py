"""The outbox of a client: its events for the coordinator, sent in order and without duplicates."""

import logging
import time
from collections.abc import Callable

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from wakeroll.connection import Connection, close_producer
from wakeroll.login_errors import denied, is_denied
from wakeroll.topic_partitions import ANSWER_S, learn_partitions
from wakeroll_model import config
from wakeroll_model.events import Event

log = logging.getLogger("wakeroll")

LEARN_S = 5.0
"""Minimum time between two queries of the partitions (s), because with a wrong partitioner every event is rejected."""

SETTINGS = {
    # An older record is useless, and a hung connection must be detected within a session.
    "message.timeout.ms": config.SESSION_TIMEOUT_MS,
    "request.timeout.ms": config.HEARTBEAT_MS,
    "message.max.bytes": config.MAX_RECORD_BYTES,
}
"""Settings of a producer of a group's events, besides those of every producer."""

_encode = msgspec.json.Encoder().encode


class Outbox:
    """A producer of one group's events."""

    def __init__(self, connection: Connection, group_id: str) -> None:
        """Create the producer for the events of a group.

        Raises:
            InvalidUsage: Kafka's client rejects the settings of the connection.
        """
        self._connection = connection
        self._key = group_id.encode()
        self._signer = connection.client_signer(group_id)
        self._broken = False
        self._is_denied = False
        self._producer = self._make()
        self._learned_s = -LEARN_S
        """When the partitions were queried last, by the monotonic clock (s)."""

    def send(self, event: Event, on_delivered: Callable[[int, int], None] | None = None) -> None:
        """Append an event without waiting.

        Args:
            event: an event of the outbox's group.
            on_delivered: called by `serve` or `flush` when Kafka has stored the event, with the event's partition and
                offset in the groups topic. It is not called if the event is lost: then the acknowledgement is missing,
                and the next heartbeat contains everything again.
        """
        if self._broken:
            # An idempotent producer cannot recover from a fatal error. It has no records in flight any more, so records
            # of the new producer come after all of its own.
            self._producer = self._make()
            self._broken = False

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._note(error)
                return
            self._is_denied = False
            if on_delivered is not None:
                on_delivered(message.partition() or 0, message.offset() or 0)

        topic, value = self._connection.topics.groups, _encode(event)
        if self._signer is not None:
            value = self._signer.sign(topic, self._key, value)
        try:
            self._producer.produce(topic, value=value, key=self._key, on_delivery=delivered)
        except BufferError:
            log.debug("a record for the group was not sent: the producer's queue is full")
        except KafkaException as problem:
            self._note(problem.args[0])

    def learn_partitions(self, timeout: float = ANSWER_S) -> None:
        """Query the partitions of the groups topic, at most every few seconds; later events go to the right partition.

        It waits at most `timeout` seconds for the answer, or `ANSWER_S` if that is shorter.
        """
        if time.monotonic() - self._learned_s >= LEARN_S:
            self._learned_s = time.monotonic()
            learn_partitions(self._producer, self._connection.topics.groups, timeout)

    def serve(self) -> None:
        """Run the callbacks of completed deliveries, without waiting."""
        try:
            self._producer.poll(0)
        except KafkaException as problem:  # a fatal error, such as that of a log that has lost records
            self._note(problem.args[0])

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for Kafka's acknowledgements; return whether all have come."""
        try:
            return self._producer.flush(timeout) == 0
        except KafkaException as problem:
            self._note(problem.args[0])
            return False

    def close(self) -> None:
        """Drop undelivered records, and close the producer. No other thread may use this object any more."""
        close_producer(self._producer, 0)

    def _make(self) -> Producer:
        return self._connection.producer(**SETTINGS)

    def _note(self, error: KafkaError) -> None:
        self._broken |= error.fatal() or error.code() == KafkaError._FATAL
        if is_denied(error) and not self._is_denied:
            self._is_denied = True
            log.warning("%s", denied(self._connection.topics.groups, "Write"))
        log.debug("a record for the group was lost: %s", error)
