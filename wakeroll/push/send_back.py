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

from wakeroll.connection import Connection, close_producer
from wakeroll.failure_topics import MAX_MESSAGE_BYTES
from wakeroll.held_locks import free
from wakeroll.origin import Origin, headers_with
from wakeroll.push.refused_letters import TOO_LARGE, RefusedLetters, is_refusal
from wakeroll_model.retry_topics import dead_letter_topic_of, retry_topic_of

log = logging.getLogger("wakeroll")

SLICE_S = 0.02
"""How long the thread waits for acknowledgements before it checks for new messages (s)."""
AGAIN_S = 1.0
"""Pause before a message that Kafka did not acknowledge is sent again (s)."""
HELD_AGAIN_S = 30.0
"""Pause before a message that its topic refused is sent again (s)."""
HOLD_AFTER_S = 60.0
"""Time without an acknowledgement after which a message is held as if its topic refused it (s)."""
TIMEOUT_MS = 30_000
"""Time for which Kafka's client tries before it reports a message as not acknowledged (ms)."""
LOG_EVERY_S = 30.0
"""Minimum time between two warnings that messages cannot be stored (s)."""


class Letter(NamedTuple):
    """A failed message on its way to a topic."""

    message: Message
    origin: Origin
    """Headers of the message: the attempt is the next one, or the last one of a dead letter."""
    level: int
    """Delay level of the queue of the retry topic; 0: it is a dead letter."""
    wait_s: int = 0
    """Time that the message waits after the delay of its level (s)."""


class SendsBack(Protocol):
    """Stores failed messages."""

    def send(
        self,
        letters: Sequence[Letter],
        on_stored: Callable[[], None],
        on_held: Callable[[Sequence[Message]], bool],
    ) -> None:
        """Store these messages. Any thread may call it, and it does not wait.

        Args:
            letters: of one call of the handler.
            on_stored: called when all are stored.
            on_held: called with those that are not stored yet, when the topic refuses one of them, and again when
                fewer are left; returns whether they are still to be stored.
        """
        ...

    def close(self) -> None:
        """Drop messages that are not stored yet."""
        ...


class SendBack:
    """Sends failed messages to the group's topics, again and again until Kafka has stored them."""

    def __init__(self, connection: Connection, group_id: str, on_problem: Callable[[BaseException], None]) -> None:
        """Prepare; the first failed message connects.

        Args:
            connection: the broker.
            group_id: the group.
            on_problem: called with an error that ends the thread.
        """
        self._connection = connection
        self._retry_topic = retry_topic_of(group_id)
        self._dead_letter_topic = dead_letter_topic_of(group_id)
        self._on_problem = on_problem
        self._changed = threading.Condition()
        self._to_send: deque[tuple[Letter, _Parcel]] = deque()
        self._again: deque[tuple[float, Letter, _Parcel]] = deque()
        """Messages that Kafka did not acknowledge, with the time of the next try, in order."""
        self._held: deque[tuple[float, Letter, _Parcel]] = deque()
        """Messages that are held, with the time of the next try, in order."""
        self._waiting: set[int] = set()
        """Letters that wait in place, by their `id`: the topic refuses them, or has not taken them for long."""
        self._refused = RefusedLetters(connection, group_id)
        self._in_flight = 0
        self._closed = False
        self._logged_at = -LOG_EVERY_S
        self._producer: Producer | None = None
        self._single: Producer | None = None
        """Sends each message in a batch of its own: a topic refuses a batch as a whole if it is too large."""
        self._is_broken = False
        """Whether the producer has failed permanently, as an idempotent one may."""
        self._fatal: KafkaError | None = None
        """The error by which the producer failed; the messages that it still has are dropped with another error."""
        self._thread: threading.Thread | None = None

    def send(
        self,
        letters: Sequence[Letter],
        on_stored: Callable[[], None],
        on_held: Callable[[Sequence[Message]], bool],
    ) -> None:
        """Send these messages until Kafka has stored all of them; see `SendsBack`."""
        parcel = _Parcel(letters, on_stored, on_held, time.monotonic() + HOLD_AFTER_S)
        with self._changed:
            if self._closed:
                return
            self._to_send += [(letter, parcel) for letter in letters]
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="wakeroll-send-back", daemon=True)
                self._thread.start()
            self._changed.notify()

    @property
    def waiting(self) -> int:
        """Failed messages that wait in place, because their topic does not take them; 0 after `close`."""
        return 0 if self._closed else len(self._waiting)

    def close(self) -> None:
        """Drop messages that are not stored yet: the offset of their queue is not committed beyond them."""
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
                for producer in self._producers():
                    self._receive(producer)
                if self._is_broken:
                    self._replace()
        except BaseException as problem:
            self._on_problem(problem)
        finally:
            for producer in self._producers():
                close_producer(producer, 0)

    def _receive(self, producer: Producer) -> None:
        try:
            producer.poll(SLICE_S if self._in_flight else 0)
        except KafkaException as problem:  # a fatal error, such as that of a user who may write to no topic
            self._is_broken, self._fatal = True, problem.args[0]

    def _producers(self) -> list[Producer]:
        return [producer for producer in (self._producer, self._single) if producer is not None]

    def _wait(self) -> None:
        """Wait until there is something to send, or to receive."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._to_send or self._in_flight,
                AGAIN_S if self._again or self._held else None,
            )
            for waiting in (self._again, self._held):
                while waiting and waiting[0][0] <= time.monotonic():
                    self._to_send.append(waiting.popleft()[1:])

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

    def _replace(self) -> None:
        """Drop the producers; the next message creates new ones, and the old ones' messages are sent again."""
        for broken in self._producers():
            close_producer(broken, 0)  # runs the callbacks of the dropped messages
        self._producer, self._single, self._is_broken, self._fatal = None, None, False, None

    def _producer_for(self, parcel: "_Parcel") -> Producer:
        settings = {"message.timeout.ms": TIMEOUT_MS, "message.max.bytes": MAX_MESSAGE_BYTES, "linger.ms": 5}
        if parcel.is_single:
            if self._single is None:
                self._single = self._connection.producer(**settings, **{"batch.num.messages": 1})
            return self._single
        if self._producer is None:
            self._producer = self._connection.producer(**settings)
        return self._producer

    def _produce(self, letter: Letter, parcel: "_Parcel") -> None:
        message, level = letter.message, letter.level
        where: dict[str, Any] = {"topic": self._dead_letter_topic, "partition": 0}
        if level:
            where = {"topic": self._retry_topic, "partition": level - 1}
        self._producer_for(parcel).produce(
            value=message.value(),
            key=message.key(),
            headers=headers_with(message, letter.origin, letter.wait_s),
            on_delivery=partial(self._delivered, letter, parcel),
            **where,
        )
        self._in_flight += 1

    def _delivered(self, letter: Letter, parcel: "_Parcel", error: KafkaError | None, _: Message) -> None:
        self._in_flight -= 1
        if error is not None:
            self._failed(letter, parcel, error)
            return
        self._waiting.discard(id(letter))
        parcel.left.remove(letter)
        if not parcel.left:
            parcel.on_stored()
        elif parcel.is_held:
            parcel.hold()

    def _failed(self, letter: Letter, parcel: "_Parcel", error: KafkaError) -> None:
        """Send a message again later; hold it if its topic refuses it."""
        if self._closed:
            return
        error = self._fatal or error
        if error.code() in TOO_LARGE and not parcel.is_single:
            parcel.is_single = True  # perhaps it was only together with others that it was too large
            self._again.append((time.monotonic(), letter, parcel))
            return
        topic = self._retry_topic if letter.level else self._dead_letter_topic
        is_refused = is_refusal(error)
        if is_refused:
            self._refused.report(topic, letter.message, letter.origin, error, HELD_AGAIN_S)
        elif time.monotonic() > self._logged_at + LOG_EVERY_S:
            self._logged_at = time.monotonic()
            origin, said = letter.origin, "cannot store the failed message %d of %s in %s now: %s; trying again"
            log.warning(said, origin.offset, origin.queue, topic, error.str())
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._is_broken = True
        if is_refused or time.monotonic() > parcel.hold_s:
            if not parcel.hold():
                self._waiting.discard(id(letter))
                return  # its queue was lost, or is left to others
            self._waiting.add(id(letter))
        if is_refused:
            self._held.append((time.monotonic() + HELD_AGAIN_S, letter, parcel))
        else:
            self._again.append((time.monotonic() + AGAIN_S, letter, parcel))


class _Parcel:
    """Failed messages of one call."""

    def __init__(
        self,
        letters: Sequence[Letter],
        on_stored: Callable[[], None],
        on_held: Callable[[Sequence[Message]], bool],
        hold_s: float,
    ) -> None:
        self.left = list(letters)
        """Messages that are not stored yet."""
        self.on_stored = on_stored
        self.hold_s = hold_s
        """Time at which the messages are held, whatever the errors are (s)."""
        self.is_held = False
        self.is_single = False
        """Whether each message is sent in a batch of its own."""
        self._on_held = on_held

    def hold(self) -> bool:
        """Let the messages that are not stored wait in place; return whether they are still to be stored."""
        self.is_held = True
        return self._on_held([letter.message for letter in self.left])


def new_trace_id() -> str:
    """Return a trace id for a message whose producer gave it none."""
    return uuid.uuid4().hex
