"""One consumer of Kafka that reads for all consumers of a process: its thread passes each message to those that ask."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import take

Place = tuple[str | None, int | None]
"""Topic and partition."""

SLICE_S = 0.05
"""How long the thread waits for messages before it checks for requests of consumers again (s)."""
_AT_ONCE = 500
_LEARN_S = 1.0
"""Shortest time between two queries of the partitions of a topic, and the timeout of a query (s)."""


class Reading:
    """A partition as one consumer reads it, from one offset on. A new offset is a new object."""

    def __init__(self, place: Place, offset: int, receive: Callable[["Reading", Message], object]) -> None:
        """Prepare; `receive` is called in the thread of `SharedReading`, with messages and errors."""
        self.place = place
        self.position = offset
        """Offset of the next message that the consumer returns; changed by the consumer."""
        self.next_offset = offset
        """Offset of the next message that it receives; changed by the thread of `SharedReading`."""
        self.receive = receive


class SharedReading(threading.Thread):
    """Owns a consumer of Kafka; no other thread calls it, because with confluent-kafka 2.16 that blocks both threads.

    Several consumers may read one partition, such as that of an inbox. Kafka's client then reads from the lowest
    offset, and each consumer receives the messages from its own offset on.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Connect with librdkafka's settings, and start to read."""
        super().__init__(name="shared-reading", daemon=True)
        self.failure: Exception | None = None
        """Exception that ended the thread; None while it runs."""
        self._consumer = Consumer(dict(config))
        self._asked: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._readings: dict[Place, list[Reading]] = {}
        self._next: dict[Place, int] = {}
        """Offset of the next message that Kafka's client returns, or a special offset of Kafka."""
        self._learned_s: dict[str, float] = {}
        self._ended = threading.Event()
        self.start()

    def begin(self, readings: list[Reading]) -> None:
        """Read these partitions too; the offsets must be known, or that of the first message."""
        for reading in readings:
            self._asked.put(lambda reading=reading: self._begin(reading))  # type: ignore[misc]

    def end(self, readings: list[Reading]) -> None:
        """Stop these readings; a partition that nobody reads any more is unassigned."""
        for reading in readings:
            self._asked.put(lambda reading=reading: self._end(reading))  # type: ignore[misc]

    def learn(self, topic: str) -> None:
        """Query the partitions of a topic: Kafka's client itself learns of new ones only every five minutes."""
        self._asked.put(lambda: self._learn(topic))

    def close(self) -> None:
        """Stop reading, and wait for the thread."""
        self._ended.set()
        self.join()

    def run(self) -> None:
        """Read until `close`."""
        try:
            while not self._ended.is_set():
                self._do_what_is_asked()
                for message in take(self._consumer, _AT_ONCE, SLICE_S):
                    self._pass_on(message)
        except Exception as problem:  # the next poll of each consumer raises it
            self.failure = problem
            raise
        finally:
            self._consumer.close()

    def _do_what_is_asked(self) -> None:
        while True:
            try:
                call = self._asked.get_nowait()
            except Empty:
                return
            call()

    def _begin(self, reading: Reading) -> None:
        readings = self._readings.setdefault(reading.place, [])
        readings.append(reading)
        if len(readings) == 1:
            self._assign(reading)
        elif reading.next_offset < self._next[reading.place]:
            self._assign_again(reading)

    def _end(self, reading: Reading) -> None:
        readings = self._readings.get(reading.place, [])
        if reading in readings:
            readings.remove(reading)
            if not readings:
                del self._readings[reading.place], self._next[reading.place]
                self._consumer.incremental_unassign([_partition(reading.place)])

    def _assign(self, reading: Reading) -> None:
        self._next[reading.place] = reading.next_offset
        self._consumer.incremental_assign([_partition(reading.place, reading.next_offset)])

    def _assign_again(self, reading: Reading) -> None:
        self._consumer.incremental_unassign([_partition(reading.place)])
        self._assign(reading)

    def _learn(self, topic: str) -> None:
        if time.monotonic() - self._learned_s.get(topic, -math.inf) > _LEARN_S:
            try:
                self._consumer.list_topics(topic, timeout=_LEARN_S)
                self._learned_s[topic] = time.monotonic()
            except KafkaException:
                pass  # no broker answers; Kafka's client learns of the partitions later by itself

    def _pass_on(self, message: Message) -> None:
        """Pass a message to the consumers that read its partition; errors that name no partition have no reader."""
        place, error, offset = (message.topic(), message.partition()), message.error(), message.offset()
        readings = self._readings.get(place, [])
        if error is None:
            assert offset is not None, "a message without an error has an offset"
            if readings:
                self._next[place] = offset + 1
            for reading in readings:
                if offset >= reading.next_offset:
                    reading.next_offset = offset + 1
                    reading.receive(reading, message)
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._report_missing(message, readings)
        else:
            for reading in readings:
                reading.receive(reading, message)

    def _report_missing(self, message: Message, readings: list[Reading]) -> None:
        """Report an offset that does not exist to the consumers that asked for it, and read on for the others.

        If nobody asked for exactly this offset (it is behind a transaction's marker, say), those at the lowest offset
        did.
        """
        if not readings:
            return
        lowest = min(one.next_offset for one in readings)
        asked = [one for one in readings if one.next_offset == message.offset()]
        for reading in asked or [one for one in readings if one.next_offset == lowest]:
            self._end(reading)
            reading.receive(reading, message)
        if readings:
            self._assign_again(min(readings, key=lambda one: one.next_offset))


def _partition(place: Place, offset: int = 0) -> TopicPartition:
    topic, number = place
    assert topic is not None, "a partition that is read has a topic"
    assert number is not None, "a partition that is read has a number"
    return TopicPartition(topic, number, offset)
