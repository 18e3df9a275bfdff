"""Kafka clients of the soak's consumers: the SDK runs unchanged, and the clients of a process share their connections.

With connections of its own, each SDK client has about nine threads of librdkafka. Measured with 100 clients on two
cores: after a kill, the broker did not come back in time beside 888 threads.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import ClusterMetadata

from bench.soak.shared_consumer import ConsumerShare, SharedQueries
from bench.soak.shared_reading import SharedReading
from wakeroll.connection import close_producer
from wakeroll.kafka_clients import KafkaClients, register, unregister

SLICE_S = 0.5
"""How long the thread waits for receipts before it checks whether it must end (s); a receipt ends the wait."""

OnDelivery = Callable[[KafkaError | None, Message], None]
_Key = frozenset[tuple[str, str]]


class SharedProducer(threading.Thread):
    """Owns a producer of Kafka, and receives the receipts of all who produce with it."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Connect with librdkafka's settings."""
        super().__init__(name="shared-producer", daemon=True)
        self.real = Producer(dict(config))
        self.is_broken = False
        """Whether a fatal error has occurred: an idempotent producer cannot recover from it."""
        self._ended = threading.Event()
        self.start()

    def produce(self, topic: str, on_delivery: OnDelivery, record: Mapping[str, Any]) -> None:
        """Send a record; `on_delivery` is called in this object's thread.

        Raises:
            BufferError: the queue of Kafka's client is full.
            KafkaException: the record is not valid, or a fatal error has occurred.
        """
        try:
            self.real.produce(topic, on_delivery=on_delivery, **record)
        except KafkaException as problem:
            self.note(problem.args[0])
            raise

    def note(self, error: KafkaError | None) -> None:
        """Note an error if it is fatal."""
        self.is_broken |= error is not None and (error.fatal() or error.code() == KafkaError._FATAL)

    def run(self) -> None:
        """Wait for receipts until `close`."""
        while not self._ended.is_set():
            try:
                self.real.poll(SLICE_S)
            except KafkaException as problem:  # fatal: those who produce learn it from `produce`
                self.note(problem.args[0])
                self._ended.wait(SLICE_S)

    def close(self) -> None:
        """Forget what was not delivered, and wait for the thread."""
        self._ended.set()
        self.join()
        close_producer(self.real, 0)


class ProducerShare:
    """The part of `confluent_kafka.Producer` that the SDK uses, on a shared connection.

    Callbacks run in its own `poll` and `flush`.
    """

    def __init__(self, shared: SharedProducer) -> None:
        """Produce nothing yet."""
        self._shared = shared
        self._changed = threading.Condition()
        self._open = 0
        """Records without a receipt."""
        self._receipts: deque[tuple[OnDelivery | None, KafkaError | None, Message]] = deque()
        self._purges = 0

    def produce(self, topic: str, value: Any = None, *, on_delivery: OnDelivery | None = None, **record: Any) -> None:
        """Send a record; `poll` or `flush` calls `on_delivery`. See `SharedProducer.produce` for the errors."""
        with self._changed:
            self._open += 1
            purges = self._purges
        try:
            self._shared.produce(topic, partial(self._receive, purges, on_delivery), {"value": value, **record})
        except (BufferError, KafkaException):
            with self._changed:
                self._open -= purges == self._purges
            raise

    def poll(self, timeout: float = -1) -> int:
        """Call the callbacks of receipts; wait for the first at most `timeout` seconds (negative: no limit)."""
        with self._changed:
            if timeout:
                self._changed.wait_for(lambda: self._receipts, None if timeout < 0 else timeout)
            receipts, self._receipts = self._receipts, deque()
        for on_delivery, error, message in receipts:
            if on_delivery is not None:
                on_delivery(error, message)
        return len(receipts)

    def flush(self, timeout: float = -1) -> int:
        """Call the callbacks of receipts; return how many are missing after `timeout` seconds (negative: no limit)."""
        deadline = time.monotonic() + timeout
        self.poll(0)
        while len(self) and (timeout < 0 or time.monotonic() < deadline):
            self.poll(-1 if timeout < 0 else max(deadline - time.monotonic(), 0.0))
        return len(self)

    def purge(self) -> None:
        """Forget the records of this producer; unlike those of a producer of its own, they may still be stored."""
        with self._changed:
            self._purges += 1
            self._open = 0
            self._receipts.clear()

    def close(self) -> None:
        """Forget the records of this producer; the connection stays, because others use it."""
        self.purge()

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return the metadata of one topic or of all; the partitioner learns of new partitions by it."""
        found: ClusterMetadata = self._shared.real.list_topics(topic, timeout)
        return found

    def __len__(self) -> int:
        with self._changed:
            return self._open + len(self._receipts)

    def _receive(self, purges: int, on_delivery: OnDelivery | None, error: KafkaError | None, message: Message) -> None:
        self._shared.note(error)
        with self._changed:
            if purges == self._purges:
                self._open -= 1
                self._receipts.append((on_delivery, error, message))
                self._changed.notify_all()


_Shared = TypeVar("_Shared", SharedProducer, SharedReading)


class SharedClients:
    """The connections of one process to one address, used by all SDK clients that are created in a `with` block.

    There is one producer and one reading consumer per set of settings, and one consumer for queries. Callbacks of
    Kafka's client, such as `error_cb`, are not called.
    """

    def __init__(self, bootstrap: str, shortest_wait_s: float = 0.0) -> None:
        """Prepare; nothing is connected before a client is created.

        Args:
            bootstrap: the address.
            shortest_wait_s: how long a consumer waits for messages at least, also if the SDK asks for less (seconds).
                The SDK looks for revocations and acknowledgements between two waits, and hundreds of clients that do
                so 40 times per second occupy a core.
        """
        self._shortest_wait_s = shortest_wait_s
        self._bootstrap = bootstrap
        self._lock = threading.Lock()
        self._producers: dict[_Key, SharedProducer] = {}
        self._readings: dict[_Key, SharedReading] = {}
        self._queries: SharedQueries | None = None
        self._broken: list[SharedProducer] = []

    def __enter__(self) -> Self:
        register(self._bootstrap, KafkaClients(cast("Any", self.producer), cast("Any", self.consumer)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unregister(self._bootstrap)
        for reading in self._readings.values():
            reading.close()
        for producer in (*self._producers.values(), *self._broken):
            producer.close()
        if self._queries is not None:
            self._queries.close()

    def producer(self, config: Mapping[str, Any]) -> ProducerShare:
        """Return a new share of the producer with these settings; after a fatal error, of a new one."""
        with self._lock:
            shared = self._producers.get(_key_of(config))
            if shared is not None and shared.is_broken:
                self._broken.append(self._producers.pop(_key_of(config)))
            return ProducerShare(_shared_by(self._producers, config, SharedProducer))

    def consumer(self, config: Mapping[str, Any]) -> ConsumerShare:
        """Return a new share of the consumers.

        Consumers that share partitions do not report their ends: a committed offset stays before records that are never
        delivered, such as a transaction's marker, until the next message.
        """
        config = {**config, "enable.partition.eof": False}
        with self._lock:
            self._queries = self._queries or SharedQueries(_without_callbacks(config))
            return ConsumerShare(
                _shared_by(self._readings, config, SharedReading), self._queries, self._shortest_wait_s
            )


def _shared_by(
    known: dict[_Key, _Shared], config: Mapping[str, Any], make: Callable[[Mapping[str, Any]], _Shared]
) -> _Shared:
    key = _key_of(config)
    if key not in known:
        known[key] = make(_without_callbacks(config))
    return known[key]


def _without_callbacks(config: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if not callable(value)}


def _key_of(config: Mapping[str, Any]) -> _Key:
    return frozenset((name, str(value)) for name, value in _without_callbacks(config).items())
