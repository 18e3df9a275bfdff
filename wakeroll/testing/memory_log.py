"""Topics in memory: messages by topic and partition, and the condition that their readers wait for."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from model.partitioner import partition_of

Headers = list[tuple[str, bytes | None]]


class Stored(NamedTuple):
    """A stored record."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    at_ms: int


class Partition:
    """The records of one partition."""

    def __init__(self) -> None:
        """Begin without records."""
        self.first = 0
        """Offset of the first record that is not deleted."""
        self.records: list[Stored] = []

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return len(self.records)


class MemoryLog:
    """All topics. Readers and writers hold `lock`."""

    def __init__(self) -> None:
        """Begin without topics."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Notified when readers may find something new."""
        self.version = 0
        """Number of changes that can give a consumer something to do."""
        self.is_hurried = False
        """Whether a test waits until nothing is left to do, so that readers should not wait for long."""
        self.topics: dict[str, list[Partition]] = {}
        self.cut_off: set[str] = set()
        """Addresses whose clients can neither read nor write any more."""
        self.on_created: Callable[[str, int], object] = lambda _topic, _partitions: None
        """Called with the name and the number of partitions of a new topic."""
        self.on_appended: Callable[[str, int, Stored], object] = lambda _topic, _partition, _record: None
        """Called with topic, partition and record, when a record is stored."""
        self.on_poll: Callable[[str], object] = lambda _topic: None
        """Called with a topic whose reader is about to wait."""
        self.receipt_delay_s: Callable[[str], float] = lambda _topic: 0.0
        """Returns how long a producer waits for the receipt of a message of this topic (s)."""
        self._next_partition: dict[str, int] = {}

    def create(self, topic: str, partitions: int) -> bool:
        """Create a topic; return whether it is new."""
        with self.lock:
            if topic in self.topics:
                return False
            self.topics[topic] = [Partition() for _ in range(partitions)]
            self.on_created(topic, partitions)
            return True

    def choose(self, topic: str, key: bytes | None) -> int:
        """Return the partition for a new record: by its key, or one after the other."""
        with self.lock:
            partitions = len(self.topics[topic])
            if key is not None:
                return partition_of(key, partitions)
            number = self._next_partition.get(topic, 0)
            self._next_partition[topic] = (number + 1) % partitions
            return number

    def append(
        self, topic: str, number: int, key: bytes | None, value: bytes | None, headers: Headers, at_ms: int
    ) -> Stored:
        """Store a record."""
        with self.lock:
            partition = self.topics[topic][number]
            record = Stored(partition.end, key, value, headers, at_ms)
            partition.records.append(record)
            self.on_appended(topic, number, record)
            return record

    def note_change(self) -> None:
        """Let all readers look again."""
        with self.lock:
            self.version += 1
            self.changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Wait for a change, at most this long (s); the caller holds the lock."""
        self.changed.wait(min(timeout, 0.003) if self.is_hurried else timeout)


def message_of(topic: str, number: int, record: Stored) -> Message:
    """Return a record as Kafka's client returns it."""
    return Message(
        topic=topic,
        partition=number,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers) or None,
        timestamp=(TIMESTAMP_CREATE_TIME, record.at_ms),
    )
