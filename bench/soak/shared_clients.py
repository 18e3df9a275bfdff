"""Kafka clients of the soak's consumers: the SDK runs unchanged, and the clients of a process share their connections.

With connections of its own, each SDK client has about nine threads of librdkafka. Measured with 100 clients on two
cores: after a kill, the broker did not come back in time beside 888 threads.
"""

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from bench.soak.shared_consumer import ConsumerShare, SharedQueries
from bench.soak.shared_producer import ProducerShare, SharedProducer
from bench.soak.shared_reading import SharedReading
from wakeroll.kafka_clients import KafkaClients, register, unregister

_Key = frozenset[tuple[str, str]]
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
