"""Storing of failed messages in the retry topic and the dead letter topic, before they count as processed."""

import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from model.retry_topics import dead_letter_topic_of, retry_topic_of
from wakeroll.connection import Connection, close_producer
from wakeroll.errors import WakerollError
from wakeroll.failure_topics import MAX_MESSAGE_BYTES
from wakeroll.held_locks import free
from wakeroll.origin import Origin, headers_with

log = logging.getLogger("wakeroll")

SLICE_S = 0.02
"""How long the thread waits for acknowledgements before it checks for new messages (s)."""
AGAIN_S = 1.0
"""Pause before a message that Kafka did not acknowledge is sent again (s)."""
TIMEOUT_MS = 30_000
"""How long Kafka's client tries before it reports a message as not acknowledged (ms)."""
LOG_EVERY_S = 30.0
"""Shortest time between two warnings that messages cannot be stored (s)."""

_PERMANENT = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._INVALID_ARG,
)
"""Errors that come again however often the message is sent."""


class Letter(NamedTuple):
    """A failed message on its way to a topic."""

    message: Message
    origin: Origin
    """Its headers: the attempt is the one to come, or the last one of a dead letter."""
    level: int
    """Delay level of the next attempt; 0: it is a dead letter."""


class SendsBack(Protocol):
    """Stores failed messages."""

    def send(self, letters: Sequence[Letter], on_stored: Callable[[], None]) -> None:
        """Store these messages; call `on_stored` when all are stored. Any thread may call it, and it does not wait."""
        ...

    def close(self) -> None:
        """Give up messages that are not stored yet."""
        ...


class SendBack:
    """Sends failed messages to the group's topics, again and again until Kafka has stored them."""

    def __init__(self, connection: Connection, group_id: str, on_problem: Callable[[BaseException], None]) -> None:
        """Prepare; the first failed message connects.

        Args:
            connection: the broker.
            group_id: the group.
            on_problem: called with an error after which a message can never be stored.
        """
        self._connection = connection
        self._retry_topic = retry_topic_of(group_id)
        self._dead_letter_topic = dead_letter_topic_of(group_id)
        self._on_problem = on_problem
        self._changed = threading.Condition()
        self._to_send: deque[tuple[Letter, _Parcel]] = deque()
        self._again: deque[tuple[float, Letter, _Parcel]] = deque()
        """Messages that Kafka did not acknowledge, with the time of the next try, in order."""
        self._in_flight = 0
        self._closed = False
        self._logged_at = -LOG_EVERY_S
        self._producer: Producer | None = None
        self._is_broken = False
        """Whether the producer has failed permanently, as an idempotent one may."""
        self._thread: threading.Thread | None = None

    def send(self, letters: Sequence[Letter], on_stored: Callable[[], None]) -> None:
        """Send these messages; call `on_stored` when Kafka has stored all of them. Any thread may call it."""
        parcel = _Parcel(len(letters), on_stored)
        with self._changed:
            if self._closed:
                return
            self._to_send += [(letter, parcel) for letter in letters]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wakeroll-send-back", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Give up messages that are not stored yet: their queue's offset is not committed beyond them."""
        free(self._changed)
        with self._changed:
            self._closed = True
            self._changed.notify()
        free(self._changed)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closed:
                self._wait()
                self._send_all()
                if self._producer is not None:
                    self._producer.poll(SLICE_S if self._in_flight else 0)
                    if self._is_broken:
                        self._replace(self._producer)
        except BaseException as problem:
            self._on_problem(problem)
        finally:
            if self._producer is not None:
                close_producer(self._producer, 0)

    def _wait(self) -> None:
        """Wait until there is something to send, or to receive."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._to_send or self._in_flight, AGAIN_S if self._again else None
            )
            while self._again and self._again[0][0] <= time.monotonic():
                self._to_send.append(self._again.popleft()[1:])

    def _send_all(self) -> None:
        while self._to_send:
            with self._changed:
                letter, parcel = self._to_send.popleft()
            try:
                self._produce(letter, parcel)
            except BufferError:
                with self._changed:
                    self._to_send.appendleft((letter, parcel))
                return
            except KafkaException as problem:
                self._failed(letter, parcel, problem.args[0])

    def _replace(self, broken: Producer) -> None:
        """Let the next message make a new producer; the messages that the old one has are sent again."""
        close_producer(broken, 0)  # runs the callbacks of the dropped messages
        self._producer, self._is_broken = None, False

    def _produce(self, letter: Letter, parcel: "_Parcel") -> None:
        if self._producer is None:
            self._producer = self._connection.producer(
                **{"message.timeout.ms": TIMEOUT_MS, "message.max.bytes": MAX_MESSAGE_BYTES, "linger.ms": 5}
            )
        message, level = letter.message, letter.level
        where: dict[str, Any] = {"topic": self._dead_letter_topic, "partition": 0}
        if level:
            where = {"topic": self._retry_topic, "partition": level - 1}
        self._producer.produce(
            value=message.value(),
            key=message.key(),
            headers=headers_with(message, letter.origin),
            on_delivery=partial(self._delivered, letter, parcel),
            **where,
        )
        self._in_flight += 1

    def _delivered(self, letter: Letter, parcel: "_Parcel", error: KafkaError | None, _: Message) -> None:
        self._in_flight -= 1
        if error is not None:
            self._failed(letter, parcel, error)
            return
        parcel.left -= 1
        if not parcel.left:
            parcel.on_stored()

    def _failed(self, letter: Letter, parcel: "_Parcel", error: KafkaError) -> None:
        """Send a message again later, unless the error is permanent."""
        if self._closed:
            return
        topic = self._retry_topic if letter.level else self._dead_letter_topic
        origin = letter.origin
        what = f"the failed message {origin.offset} of {origin.queue} in {topic}"
        if error.code() in _PERMANENT:
            self._on_problem(WakerollError(f"cannot store {what}: {error.str()}"))
            return
        if time.monotonic() > self._logged_at + LOG_EVERY_S:
            self._logged_at = time.monotonic()
            log.warning("cannot store %s now: %s; trying again", what, error.str())
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_broken = True
        self._again.append((time.monotonic() + AGAIN_S, letter, parcel))


class _Parcel:
    """Failed messages of one call."""

    def __init__(self, left: int, on_stored: Callable[[], None]) -> None:
        self.left = left
        """Messages that are not stored yet."""
        self.on_stored = on_stored


def new_trace_id() -> str:
    """Return a trace id for a message whose producer gave it none."""
    return uuid.uuid4().hex
