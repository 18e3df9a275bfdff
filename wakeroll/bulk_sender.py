"""Sends many messages: in the end, all of them are stored, or an error is raised."""

from types import TracebackType
from typing import Any, Self

from confluent_kafka import KafkaError, Message

from wakeroll.connection import Connection
from wakeroll.errors import WakerollError
from wakeroll.failure_topics import MAX_MESSAGE_BYTES

FULL_S = 0.5
"""How long to wait for space in the queue of Kafka's client before the next attempt (s)."""


class BulkSender:
    """A producer for the messages of one `with` block; all of them are stored when it ends without an error."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Prepare; Kafka's client tries to send each message for `timeout` seconds."""
        self._timeout = timeout
        self._failure: KafkaError | None = None
        self._producer = connection.producer(
            **{"message.timeout.ms": round(timeout * 1_000), "message.max.bytes": MAX_MESSAGE_BYTES}
        )

    def send(self, **record: Any) -> None:
        """Send a message; see `confluent_kafka.Producer.produce`.

        Raises:
            WakerollError: Kafka did not store an earlier message.
        """
        while True:
            self._refuse_failure()
            try:
                self._producer.produce(on_delivery=self._delivered, **record)
            except BufferError:
                self._producer.poll(FULL_S)
            else:
                self._producer.poll(0)
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = self._producer.flush(self._timeout + FULL_S)
        if kind is None:
            self._refuse_failure()
            if left:
                raise WakerollError(f"Kafka did not acknowledge {left} messages")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._failure = self._failure or error

    def _refuse_failure(self) -> None:
        if self._failure is not None:
            raise WakerollError(f"Kafka did not store a message: {self._failure.str()}")
