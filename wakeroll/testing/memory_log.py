"""Topics in memory: messages by topic and partition, and the condition variable that readers wait for."""

import threading
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from wakeroll_model.partitioner import partition_of

Headers = list[tuple[str, bytes | None]]


class Stored(NamedTuple):
    """A stored record."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    at_ms: int
    leader_epoch: int = 0
    """Leader epoch in which the record was stored."""
    is_marker: bool = False
    """Whether it is never delivered, like the marker of a transaction."""


class Partition:
    """The records of one partition."""

    def __init__(self) -> None:
        """Begin without records, in leader epoch 0."""
        self.first = 0
        """Offset of the first record that is not deleted."""
        self.records: list[Stored] = []
        self.leader_epoch = 0
        self._epochs = [(0, 0)]
        """Leader epochs of the log, each with the offset at which it began."""

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return len(self.records)

    def begin_epoch(self, end: int) -> None:
        """Begin a new leader epoch, and drop the records from `end` on."""
        del self.records[end:]
        self.leader_epoch += 1
        self._epochs = [(epoch, begin) for epoch, begin in self._epochs if begin < end]
        self._epochs.append((self.leader_epoch, end))

    def end_of_epoch(self, leader_epoch: int) -> int:
        """Return the end of the largest leader epoch that is not above this one, like Kafka's OffsetForLeaderEpoch."""
        return next((begin for epoch, begin in self._epochs if epoch > leader_epoch), self.end)


class MemoryLog:
    """All topics. Readers and writers hold `lock`."""

    def __init__(self) -> None:
        """Begin without topics."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        """Notified when readers may have something new to read."""
        self.version = 0
        """Number of changes so far that may concern a consumer."""
        self.is_hurried = False
        """Whether a test waits until all members are idle, so that readers must not wait for long."""
        self.topics: dict[str, list[Partition]] = {}
        self.has_leader_epochs = True
        """Whether clients receive the leader epoch of a record."""
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
        self,
        topic: str,
        number: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        at_ms: int,
        *,
        is_marker: bool = False,
    ) -> Stored:
        """Store a record."""
        with self.lock:
            partition = self.topics[topic][number]
            record = Stored(partition.end, key, value, headers, at_ms, partition.leader_epoch, is_marker)
            partition.records.append(record)
            self.on_appended(topic, number, record)
            return record

    def note_change(self) -> None:
        """Wake all waiting readers."""
        with self.lock:
            self.version += 1
            self.changed.notify_all()

    def wait(self, timeout: float) -> None:
        """Wait for a change, at most this long (s); the caller holds the lock."""
        self.changed.wait(min(timeout, 0.003) if self.is_hurried else timeout)


def message_of(topic: str, number: int, record: Stored, *, with_epoch: bool = True) -> Message:
    """Return a record as Kafka's client returns it; `with_epoch`: with its leader epoch."""
    return Message(
        topic=topic,
        partition=number,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers) or None,
        timestamp=(TIMESTAMP_CREATE_TIME, record.at_ms),
        leader_epoch=record.leader_epoch if with_epoch else -1,
    )
