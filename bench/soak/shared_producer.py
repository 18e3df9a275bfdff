"""A producer that shares its Kafka connection with the other producers of its process."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import ClusterMetadata

from wakeroll.connection import close_producer

SLICE_S = 0.5
"""How long the thread waits for receipts before it checks whether it must end (s); a receipt ends the wait."""

OnDelivery = Callable[[KafkaError | None, Message], None]


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
