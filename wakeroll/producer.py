"""The producer that an application imports: it sends messages with tags and properties, and reports arrivals."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message

from wakeroll.argument_checks import addresses_of, checked
from wakeroll.broker_check import look
from wakeroll.client_settings import KafkaConfig
from wakeroll.connection import Connection, Topics, close_producer, is_legal
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage, WakerollError, in_words
from wakeroll.headers import Headers, Property, described, headers_of, texts_for
from wakeroll.own_process import OwnProcess
from wakeroll.repeated_errors import repeated
from wakeroll_model.arrival_merging import Arrivals
from wakeroll_model.queue import Queue, QueueId

log = logging.getLogger("wakeroll")

OnDelivery = Callable[[KafkaError | None, Message], object]

TELL_EVERY_S = 0.01
"""Minimum time between two reports of arrivals (s); the first message after a pause is reported at once."""
IDLE_S = 0.1
"""How long the thread waits for a delivery report before it checks whether to stop (s)."""
FULL_S = 60.0
"""How long `send` waits for space in the queue of Kafka's client (s); `max.block.ms` of Kafka's Java producer."""

_encode = msgspec.json.Encoder().encode


class Producer:
    """Sends messages to Kafka and reports their arrival to the coordinator, with the tags and properties for filters.

    wakeroll also works with any other producer: then the observer reports that a queue has grown, and all pulls of the
    queue wake, whatever their filters. The tag and the properties are headers of the message, so every consumer can
    read them. Keys go to the same partitions as with Kafka's Java clients. A lost report of an arrival only costs time:
    the observer reports the arrival some seconds later.

    Any thread may use it. Delivery reports run in a thread of the producer.

    >>> with Producer("localhost:9092") as producer:  # doctest: +SKIP
    ...     producer.send("orders", b"...", key=b"customer-7", tags="paid", properties={"region": "EU"})
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        kafka_config: KafkaConfig | None = None,
        prefix: str = "wakeroll",
        connect_timeout: float = 10.0,
    ) -> None:
        """Connect.

        Args:
            bootstrap: ``host:port[,host:port]`` of the brokers, or a list of such addresses.
            kafka_config: more librdkafka settings, for example for the login or for compression.
            prefix: prefix of the control plane's topic names.
            connect_timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: an argument is not valid.
            NotReachable: no broker answered in time, or it has no control plane.
        """
        connection = Connection(addresses_of(bootstrap), kafka_config or {}, Topics(prefix))
        self._process = OwnProcess("Producer")
        self._producer = connection.message_producer()
        look(connection, (), connect_timeout, rights=("Describe", "Describe"))
        self._topic = connection.topics.queues
        self._arrivals = Arrivals()
        self._changed = threading.Condition()
        """Condition that guards the fields below; notified of every delivery report."""
        self._under_way = 0
        """Number of messages and arrivals that Kafka has not acknowledged yet."""
        self._lost = 0
        """Number of messages that were lost since the last flush."""
        self._failure: BaseException | None = None
        """Exception of a callback, until a call of the application has raised it."""
        self._closed = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wakeroll-producer", daemon=True)
        self._thread.start()

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        tags: str = "",
        properties: Mapping[str, Property] | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Send a message; return before Kafka acknowledges it.

        Args:
            topic: topic of the message.
            value: value of the message.
            key: key of the message; messages with the same key stay in order, in one queue.
            partition: partition of the topic; if omitted, chosen by the key, or by Kafka's client.
            tags: tag of the message, for subscriptions like ``paid || refunded``; at most 4,096 characters.
            properties: properties for SQL92 conditions, text, numbers or flags; at most 256, names of at most 255 and
                values of at most 4,096 characters. A header is text, which a condition converts to the type of the
                other operand, by Java's rules: ``amount > 10`` for whole numbers, ``price > 10.0`` for floats, and
                ``paid = TRUE`` for flags.
            headers: other headers, bytes or None. Headers in UTF-8 are properties for a condition too.
            timestamp: time of the message, epoch milliseconds or a datetime with a zone; None: now. Brokers may replace
                it (``message.timestamp.type``).
            on_delivery: called with an error or None, and the message, when Kafka has stored it or it is lost. The
                callback blocks the producer's thread. An exception of the callback is raised by the next call of this
                producer.

        Raises:
            InvalidUsage: an argument is not valid, the producer is closed, or this process is a fork.
            WakerollError: Kafka's client rejects the message: it is too large, the client's queue has been full for a
                minute, or the client has failed permanently.
        """
        record = _record(topic, value, key, partition, tags, properties, headers, timestamp)
        self._refuse_if_unusable()
        deadline = time.monotonic() + FULL_S
        while not self._is_taken(record, on_delivery):
            if time.monotonic() > deadline or threading.current_thread() is self._thread:
                raise _full()
            with self._changed:
                self._changed.wait(IDLE_S)

    async def send_and_wait(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        partition: int | None = None,
        tags: str = "",
        properties: Mapping[str, Property] | None = None,
        headers: Headers = (),
        timestamp: int | datetime | None = None,
    ) -> Message:
        """Send a message, and return it when Kafka has stored it, with its partition and offset; for asyncio.

        Several calls may be at work at once: messages of one key keep the order in which the calls began, unless the
        queue of Kafka's client was full. If the task is cancelled, the message may be stored nevertheless. The
        arguments are those of `send`.

        Raises:
            InvalidUsage: as for `send`.
            WakerollError: the message is lost, or as for `send`.
        """
        record = _record(topic, value, key, partition, tags, properties, headers, timestamp)
        self._refuse_if_unusable()
        loop = asyncio.get_running_loop()
        delivered: asyncio.Future[Message] = loop.create_future()

        def tell(error: KafkaError | None, message: Message) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_settle, delivered, error, message)

        deadline = time.monotonic() + FULL_S
        while not self._is_taken(record, tell):
            if time.monotonic() > deadline:
                raise _full()
            await asyncio.sleep(TELL_EVERY_S)
            self._refuse_if_unusable()
        return await delivered

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait at most `timeout` seconds for acknowledgements; return whether all messages were acknowledged.

        The result covers the messages since the last flush.

        Raises:
            InvalidUsage: the producer is closed, `on_delivery` calls this method, or this process is a fork.
            WakerollError: `on_delivery` raised an exception.
        """
        self._refuse_if_unusable()
        self._refuse_own_thread("flush")
        answered = self._is_answered(timeout)
        with self._changed:
            lost, self._lost = self._lost, 0
        self._raise_failure()
        return answered and not lost

    def close(self, timeout: float = 10.0) -> None:
        """Wait at most `timeout` seconds for acknowledgements, then stop.

        A second call, or a call in a forked process, does nothing.

        Raises:
            InvalidUsage: it is called by `on_delivery`.
            WakerollError: `on_delivery` raised an exception.
        """
        self._refuse_own_thread("close")
        if self._closed or not self._process.is_current:
            return
        self._closed = True
        if not self._is_answered(timeout):
            log.warning("the producer was closed while %d records were not acknowledged by Kafka", self._under_way)
        self._stopping.set()
        self._thread.join()
        close_producer(self._producer, 0)
        self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_taken(self, record: "_Record", on_delivery: OnDelivery | None) -> bool:
        """Pass a message to Kafka's client; return whether its queue had space."""
        with self._changed:
            self._under_way += 1
        is_taken = False
        try:
            self._producer.produce(**record.arguments, on_delivery=partial(self._received, record, on_delivery))
            is_taken = True
        except BufferError:
            pass
        except KafkaException as problem:
            raise WakerollError(f"Kafka's client rejects this message: {problem.args[0].str()}") from None
        finally:
            if not is_taken:
                self._answered()
        return is_taken

    def _run(self) -> None:
        """Process delivery reports, and report arrivals, until `close`."""
        told_at = 0.0
        while not self._stopping.is_set():
            wait = max(told_at + TELL_EVERY_S - time.monotonic(), 0.0) if self._arrivals else IDLE_S
            self._producer.poll(wait)
            if self._arrivals and time.monotonic() >= told_at + TELL_EVERY_S:
                self._tell()
                told_at = time.monotonic()

    def _tell(self) -> None:
        with self._changed:
            arrivals = self._arrivals.take()
            self._under_way += len(arrivals)
        for arrival in arrivals:
            try:
                self._producer.produce(
                    self._topic,
                    value=_encode(arrival),
                    key=arrival.queue.key.encode(),
                    on_delivery=lambda *_: self._answered(),
                )
            except (BufferError, KafkaException) as problem:  # the observer reports the arrival too
                log.debug("an arrival was not reported: %s", problem)
                self._answered()

    def _received(
        self, record: "_Record", on_delivery: OnDelivery | None, error: KafkaError | None, message: Message
    ) -> None:
        """Process the delivery report of a message."""
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        with self._changed:
            if error is not None:
                self._lost += 1
            # Kafka returns no offset for a retried message that it had stored already.
            elif topic and partition is not None and offset is not None and offset >= 0:
                kind, stored_ms = message.timestamp()
                is_known = kind == TIMESTAMP_LOG_APPEND_TIME or (kind == TIMESTAMP_CREATE_TIME and not record.is_dated)
                stored_at = stored_ms if is_known else None
                self._arrivals.note(Queue(topic, "", partition), offset, stored_at, record.tags, record.properties)
        if error is not None and on_delivery is None:
            line = f"a message for {topic} was lost: {error.str()}"
            if (others := repeated.words(line)) is not None:
                log.warning("%s%s", line, others)
        try:
            if on_delivery is not None:
                on_delivery(error, message)
        except BaseException as problem:  # also SystemExit: this thread serves the other messages, and must go on
            self._failure = problem
        finally:
            self._answered()

    def _answered(self) -> None:
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def _is_answered(self, timeout: float) -> bool:
        """Wait for all acknowledgements, including those of arrivals that are still to be reported."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way and not self._arrivals, timeout)

    def _refuse_if_unusable(self) -> None:
        self._process.require()
        if self._closed:
            raise InvalidUsage("this Producer is closed; create a new one")
        self._raise_failure()

    def _raise_failure(self) -> None:
        problem, self._failure = self._failure, None
        if problem is not None:
            raise WakerollError(f"on_delivery failed: {in_words(problem)}") from problem

    def _refuse_own_thread(self, name: str) -> None:
        if threading.current_thread() is self._thread:
            raise InvalidUsage(f"on_delivery called {name}(), which waits for on_delivery; call it in another thread")


class _Record(NamedTuple):
    """A message to send."""

    arguments: dict[str, Any]
    """Arguments of `produce` of Kafka's client."""
    tags: str | None
    """Tag in the report of the arrival, like the properties; None if it exceeds the bounds of a report."""
    properties: dict[str, str] | None
    is_dated: bool
    """Whether the application has set the timestamp, which may differ from the time of the storage."""


def _record(
    topic: str,
    value: bytes | str | None,
    key: bytes | str | None,
    partition: int | None,
    tags: str,
    properties: Mapping[str, Property] | None,
    headers: Headers,
    timestamp: int | datetime | None,
) -> _Record:
    """Check the arguments of `send`."""
    if not isinstance(topic, str) or not is_legal(topic):
        raise InvalidUsage(f"topic is {topic!r}; it must be 1 to 249 letters, digits, dots, underscores or hyphens")
    for name, given in (("value", value), ("key", key)):
        if not isinstance(given, bytes | str | None):
            raise InvalidUsage(f"{name} is {given!r:.80}; it must be bytes or text")
    texts = {} if properties is None else properties
    pairs = headers_of(tags, texts, headers)
    has_others = len(pairs) > len(texts) + bool(tags)
    about = described(pairs) if has_others else (tags, texts_for(texts))
    arguments: dict[str, Any] = {"topic": topic, "value": value, "key": key, "headers": pairs}
    if partition is not None:
        arguments["partition"] = checked("partition", partition, QueueId)
    if timestamp is not None:
        arguments["timestamp"] = _time_of(timestamp)
    return _Record(arguments, *about, is_dated=timestamp is not None)


def _time_of(timestamp: object) -> int:
    """Return the time of a message (epoch ms).

    Raises:
        InvalidUsage: the argument is not a time, or is 0, which Kafka's client reads as the present time.
    """
    if isinstance(timestamp, datetime):
        return int(EpochMs.of(timestamp))
    if not isinstance(timestamp, int) or isinstance(timestamp, bool) or timestamp < 1:
        raise InvalidUsage(f"timestamp is {timestamp!r}; it must be epoch ms from 1 on, or a datetime with a zone")
    return int(EpochMs(timestamp))


def _settle(delivered: "asyncio.Future[Message]", error: KafkaError | None, message: Message) -> None:
    """In the event loop: end the wait of the task that has sent a message."""
    if delivered.done():  # it was cancelled
        return
    if error is None:
        delivered.set_result(message)
    else:
        delivered.set_exception(WakerollError(f"a message for {message.topic()} was lost: {error.str()}"))


def _full() -> WakerollError:
    return WakerollError("the queue of Kafka's client is full: Kafka accepts messages too slowly")
