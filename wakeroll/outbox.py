"""What a client says to the coordinator: events about its group, in order and without repetition."""

import logging
from collections.abc import Callable

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from model import config
from model.events import Event
from wakeroll.connection import Connection

log = logging.getLogger("wakeroll")

_encode = msgspec.json.Encoder().encode


class Outbox:
    """A producer of one group's events."""

    def __init__(self, connection: Connection, group_id: str) -> None:
        self._connection = connection
        self._key = group_id.encode()
        self._broken = False
        self._producer = self._make()

    def send(self, event: Event, on_delivered: Callable[[], None] | None = None) -> None:
        """Append an event; never waits.

        Args:
            event: about the outbox's group.
            on_delivered: called from `serve` or `flush` when Kafka has it, never when it is lost: what was lost shows
                in the silence, and the next heartbeat says everything again.
        """
        if self._broken:
            # A fatal error of an idempotent producer is for ever.  Nothing is under way in it any more, so that what
            # the next one sends comes after all that this one sent.
            self._producer = self._make()
            self._broken = False

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._note(error)
            elif on_delivered is not None:
                on_delivered()

        try:
            self._producer.produce(
                self._connection.topics.groups, value=_encode(event), key=self._key, on_delivery=delivered
            )
        except BufferError:
            log.debug("a record for the group was not sent: the producer's queue is full")
        except KafkaException as problem:
            self._note(problem.args[0])

    def serve(self) -> None:
        """Call what waits for deliveries that have happened; never waits."""
        self._producer.poll(0)

    def flush(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds until Kafka has everything; return whether it has."""
        return self._producer.flush(timeout) == 0

    def close(self) -> None:
        """Give up what Kafka has not got; or the client of a lost broker would look for it for ever."""
        self._producer.purge()
        self._producer.poll(0)  # lets go of what was to be told, and with it of us

    def _make(self) -> Producer:
        return self._connection.producer(
            **{
                # Older news is worth nothing, and a hung connection must be noticed within a session.
                "message.timeout.ms": config.SESSION_TIMEOUT_MS,
                "request.timeout.ms": config.HEARTBEAT_MS,
                "message.max.bytes": config.MAX_RECORD_BYTES,
            }
        )

    def _note(self, error: KafkaError) -> None:
        self._broken |= error.fatal() or error.code() == KafkaError._FATAL
        log.debug("a record for the group was lost: %s", error)
