"""Consumers with handlers: real ones that wait in `fetch`, and for comparison one that polls Kafka."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from bench.decision_reader import Listener
from wakeroll import Consumer
from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms

GROUP = "handlers"
WAIT_S = 20.0
_POLL_S = 0.2


class Handled(NamedTuple):
    """A message that has reached a handler."""

    at_ms: int
    """When it was produced, epoch ms, by this machine's clock."""
    latency_ms: int


class Handlers:
    """So many threads, each with a consumer that fetches from the end of a queue on, while the `with` lasts."""

    def __init__(self, connection: Connection, topic: str, queues: int, consumers: int) -> None:
        self._connection = connection
        self._topic = topic
        self._queues = queues
        self._consumers = consumers
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(consumers + 1)
        self._fetched: list[Future[list[Handled]]] = []
        self._polled: Future[list[Handled]] | None = None

    def __enter__(self) -> "Handlers":
        """Begin to wait."""
        self._fetched = [self._threads.submit(self._fetch, number) for number in range(self._consumers)]
        self._polled = self._threads.submit(self._poll)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop waiting."""
        self._ended.set()
        self._threads.shutdown()

    @property
    def fetched(self) -> list[Handled]:
        """What the consumers' handlers got; once the `with` has ended."""
        return [handled for one in self._fetched for handled in one.result()]

    @property
    def polled(self) -> list[Handled]:
        """What polling Kafka got; once the `with` has ended."""
        assert self._polled is not None, "it was entered"
        return self._polled.result()

    def _fetch(self, number: int) -> list[Handled]:
        names = self._connection.topics
        handled: list[Handled] = []
        bootstrap, login = self._connection.bootstrap, self._connection.config
        with Consumer(GROUP, [self._topic], bootstrap, prefix=names.prefix, kafka_config=login) as consumer:
            offset = 0
            while not self._ended.is_set():
                messages, offset = consumer.fetch((self._topic, number), offset, WAIT_S)
                now = now_ms()
                handled += [Handled(at_ms, now - at_ms) for at_ms in (message.timestamp()[1] for message in messages)]
        return handled

    def _poll(self) -> list[Handled]:
        listener = Listener(self._connection, self._topic, self._queues)
        handled: list[Handled] = []
        try:
            while not self._ended.is_set():
                read = listener.read(_POLL_S)
                now = now_ms()
                handled += [Handled(at_ms, now - at_ms) for _, _, at_ms in read]
        finally:
            listener.close()
        return handled
