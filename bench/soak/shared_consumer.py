"""A consumer that shares Kafka connections with the other consumers of its process."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import ClusterMetadata

from bench.soak.shared_reading import Place, Reading, SharedReading

_Result = TypeVar("_Result")


class SharedQueries:
    """A consumer of Kafka for queries alone, one at a time."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Connect with librdkafka's settings."""
        self._consumer = Consumer(dict(config))
        self._lock = threading.Lock()

    def ask(self, timeout: float, query: Callable[[Consumer, float], _Result]) -> _Result:
        """Return the result of a query, which receives the consumer and its timeout (s; negative: no limit).

        Raises:
            KafkaException: no broker answers in time, or other queries have not ended by then.
        """
        deadline = time.monotonic() + timeout
        if not self._lock.acquire(timeout=-1 if timeout < 0 else timeout):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "other queries of this process have not ended"))
        try:
            return query(self._consumer, timeout if timeout < 0 else max(deadline - time.monotonic(), 0.001))
        finally:
            self._lock.release()

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._consumer.close()


class ConsumerShare:
    """The part of `confluent_kafka.Consumer` that the SDK uses, on shared connections.

    It keeps all messages that it has received and not returned: it is for handlers that keep up.
    """

    def __init__(self, shared: SharedReading, queries: SharedQueries, shortest_wait_s: float = 0.0) -> None:
        """Read nothing yet; a wait for messages takes at least `shortest_wait_s` seconds if none comes."""
        self._shortest_wait_s = shortest_wait_s
        self._shared = shared
        self._queries = queries
        self._changed = threading.Condition()
        self._received: deque[tuple[Reading, Message]] = deque()
        """In order of arrival, also of readings that have ended meanwhile."""
        self._readings: dict[Place, Reading] = {}
        self._paused: set[Place] = set()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions instead of the former ones."""
        self.unassign()
        self.incremental_assign(partitions)

    def unassign(self) -> None:
        """Read nothing."""
        with self._changed:
            self._end(list(self._readings))

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions too; the offset is a number, or `OFFSET_BEGINNING`."""
        with self._changed:
            self._begin([((at.topic, at.partition), at.offset) for at in partitions])

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Stop reading these partitions."""
        with self._changed:
            self._end(_places(partitions))

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`."""
        with self._changed:
            for place in _places(partitions):
                if place not in self._paused:
                    before = self._readings[place]
                    self._shared.end([before])
                    self._readings[place] = Reading(place, before.position, self._receive)
                    self._paused.add(place)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Return messages of these partitions again."""
        with self._changed:
            places = self._paused.intersection(_places(partitions))
            self._paused -= places
            self._shared.begin([self._readings[place] for place in places])

    def seek(self, partition: TopicPartition) -> None:
        """Read a partition from this offset on."""
        with self._changed:
            place = (partition.topic, partition.partition)
            is_paused = place in self._paused
            self._end([place])
            if is_paused:
                self._readings[place] = Reading(place, partition.offset, self._receive)
                self._paused.add(place)
            else:
                self._begin([(place, partition.offset)])

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the offset of the next message of each partition."""
        with self._changed:
            return [
                TopicPartition(at.topic, at.partition, self._readings[at.topic, at.partition].position)
                for at in partitions
            ]

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message or error; wait at most `timeout` seconds, or shorter if a reading has ended."""
        messages = self.consume(1, timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return the next messages and errors; wait for the first at most `timeout` seconds (negative: no limit)."""
        found: list[Message] = []
        with self._changed:
            if timeout and not self._received:
                self._changed.wait(None if timeout < 0 else max(timeout, self._shortest_wait_s))
            if self._shared.failure is not None:
                raise RuntimeError("the shared consumer has failed") from self._shared.failure
            while self._received and len(found) < num_messages:
                reading, message = self._received.popleft()
                if self._readings.get(reading.place) is reading:
                    if message.error() is None:
                        reading.position = (message.offset() or 0) + 1
                    found.append(message)
        return found

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return the metadata of one topic or of all; the shared consumer learns of the topic's new partitions too."""
        if topic is not None:
            self._shared.learn(topic)
        found: ClusterMetadata = self._queries.ask(timeout, lambda real, left_s: real.list_topics(topic, left_s))
        return found

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1) -> tuple[int, int]:
        """Return the first offset and the end offset of a partition."""
        return self._queries.ask(timeout, lambda real, left_s: real.get_watermark_offsets(partition, left_s))

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the first offset at or after a time (epoch ms), or the first or the end offset."""
        return self._queries.ask(timeout, lambda real, left_s: real.offsets_for_times(partitions, timeout=left_s))

    def close(self) -> None:
        """Stop reading; the connections stay, because others use them."""
        self.unassign()

    def _begin(self, places: Iterable[tuple[Place, int]]) -> None:
        new = {place: Reading(place, offset, self._receive) for place, offset in places}
        self._readings |= new
        self._shared.begin(list(new.values()))

    def _end(self, places: Iterable[Place]) -> None:
        ended = [self._readings.pop(place) for place in places]
        self._paused.difference_update(reading.place for reading in ended)
        self._shared.end(ended)

    def _receive(self, reading: Reading, message: Message) -> None:
        with self._changed:
            self._received.append((reading, message))
            self._changed.notify()


def _places(partitions: Iterable[TopicPartition]) -> list[Place]:
    return [(at.topic, at.partition) for at in partitions]
