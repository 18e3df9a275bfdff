"""Kafka's clients on topics in memory: the parts of confluent-kafka's classes that the SDK uses."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import NewTopic

from wakeroll.testing.memory_log import Headers, MemoryLog, Partition, Stored, message_of

FETCHED = 40
"""Maximum number of messages of one partition that are returned in a row."""

FLUSH_S = 0.01
"""Interval in which `flush` checks for delivery receipts (s)."""

OnDelivery = Callable[[KafkaError | None, Message], object]


class MemoryClient:
    """A client at one address of the broker."""

    def __init__(self, log: MemoryLog, now_ms: Callable[[], int], config: Mapping[str, Any]) -> None:
        """Connect; `config` has librdkafka's settings, and `now_ms` is the time of new messages (epoch ms)."""
        self._log = log
        self._now_ms = now_ms
        self._config = config

    @property
    def _is_cut_off(self) -> bool:
        return self._config["bootstrap.servers"] in self._log.cut_off

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> SimpleNamespace:
        """Return the metadata of one topic or of all."""
        with self._log.lock:
            names = list(self._log.topics) if topic is None else [topic]
            return SimpleNamespace(topics={name: self._metadata(name) for name in names})

    def _metadata(self, topic: str) -> SimpleNamespace:
        partitions = self._log.topics.get(topic)
        if partitions is None:
            return SimpleNamespace(topic=topic, partitions={}, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        found = {number: SimpleNamespace(id=number, error=None, leader=0) for number in range(len(partitions))}
        return SimpleNamespace(topic=topic, topic_id="", partitions=found, error=None, authorized_operations=None)

    def _partition(self, at: TopicPartition) -> Partition:
        partitions = self._log.topics.get(at.topic, [])
        if not 0 <= at.partition < len(partitions):
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return partitions[at.partition]


class MemoryProducer(MemoryClient):
    """The part of `confluent_kafka.Producer` that the SDK uses."""

    def __init__(self, log: MemoryLog, now_ms: Callable[[], int], config: Mapping[str, Any]) -> None:
        """Connect."""
        super().__init__(log, now_ms, config)
        self._receipts: list[tuple[float, OnDelivery, KafkaError | None, Message]] = []
        """Delivery receipts whose callbacks are still to be called, each with the earliest time for that."""

    def __len__(self) -> int:
        """Return the number of receipts whose callbacks are still to be called."""
        return len(self._receipts)

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        headers: Iterable[tuple[str, str | bytes | None]] | Mapping[str, str | bytes | None] | None = None,
        timestamp: int = 0,
    ) -> None:
        """Store a message; `on_delivery` is called by `poll` or `flush`."""
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        encoded: Headers = [(name, _bytes_of(content)) for name, content in pairs]
        with self._log.lock:
            at_ms = timestamp or self._now_ms()
            error, message = self._store(topic, _bytes_of(value), _bytes_of(key), partition, encoded, at_ms)
            if on_delivery is not None:
                at_s = time.monotonic() + self._log.receipt_delay_s(topic)
                self._receipts.append((at_s, on_delivery, error, message))
                self._log.changed.notify_all()

    def poll(self, timeout: float = -1) -> int:
        """Call the callbacks of stored messages; wait for the first one at most `timeout` seconds."""
        with self._log.lock:
            if timeout > 0 and not self._has_receipt():
                self._log.wait(timeout)
            now_s = time.monotonic()
            receipts = [receipt for receipt in self._receipts if receipt[0] <= now_s]
            self._receipts = [receipt for receipt in self._receipts if receipt[0] > now_s]
        for _, on_delivery, error, message in receipts:
            on_delivery(error, message)
        return len(receipts)

    def flush(self, timeout: float = -1) -> int:
        """Call the callbacks of stored messages; return how many are missing after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        self.poll(0)
        while self._receipts and time.monotonic() < deadline:
            self.poll(FLUSH_S)
        return len(self._receipts)

    def purge(self) -> None:
        """Drop messages without receipts."""
        with self._log.lock:
            self._receipts.clear()

    def close(self) -> None:
        """Call the remaining callbacks."""
        self.poll(0)

    def _has_receipt(self) -> bool:
        now_s = time.monotonic()
        return any(receipt[0] <= now_s for receipt in self._receipts)

    def _store(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Headers, at_ms: int
    ) -> tuple[KafkaError | None, Message]:
        if self._is_cut_off:
            return None, Message(topic=topic, partition=max(partition, 0), offset=0, key=key, value=value)
        partitions = len(self._log.topics.get(topic, ()))
        if partition >= partitions or not partitions:
            error = KafkaError(KafkaError._UNKNOWN_PARTITION if partitions else KafkaError._UNKNOWN_TOPIC)
            return error, Message(topic=topic, partition=partition, key=key, value=value, error=error)
        number = partition if partition >= 0 else self._log.choose(topic, key)
        stored = self._log.append(topic, number, key, value, headers, at_ms)
        return None, message_of(topic, number, stored)


class MemoryConsumer(MemoryClient):
    """The part of `confluent_kafka.Consumer` that the SDK uses. Each message that it returns is a new object."""

    def __init__(self, log: MemoryLog, now_ms: Callable[[], int], config: Mapping[str, Any]) -> None:
        """Connect."""
        super().__init__(log, now_ms, config)
        self._positions: dict[tuple[str, int], int] = {}
        """Assigned partition -> offset of the next message, or a special offset of Kafka."""
        self._epochs: dict[tuple[str, int], tuple[int | None, int]] = {}
        """Assigned partition -> leader epoch of its position, None if not known; and leader epoch of its log at that
        time."""
        self._paused: set[tuple[str, int]] = set()
        self._at_end: set[tuple[str, int]] = set()
        """Partitions whose end was reported."""
        self._in_a_row = 0
        """Number of messages that were returned in a row from the first partition."""

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions instead of the former ones."""
        with self._log.lock:
            self.unassign()
            self.incremental_assign(partitions)

    def unassign(self) -> None:
        """Read nothing."""
        with self._log.lock:
            self._positions.clear()
            self._epochs.clear()
            self._paused.clear()
            self._at_end.clear()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions too."""
        with self._log.lock:
            for at in partitions:
                self._positions[at.topic, at.partition] = at.offset
                # Kafka's client does not validate where an assignment begins, unlike the target of a seek.
                self._epochs[at.topic, at.partition] = at.leader_epoch, self._leader_epoch((at.topic, at.partition))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Stop reading these partitions."""
        with self._log.lock:
            for at in partitions:
                del self._positions[at.topic, at.partition], self._epochs[at.topic, at.partition]
                self._at_end.discard((at.topic, at.partition))

    def seek(self, partition: TopicPartition) -> None:
        """Read an assigned partition from this offset on; validate the offset if it has a leader epoch.

        Raises:
            KafkaException: the partition is not assigned.
        """
        with self._log.lock:
            place = partition.topic, partition.partition
            if place not in self._positions:
                raise KafkaException(KafkaError(KafkaError._STATE))
            self._positions[place] = partition.offset
            self._epochs[place] = partition.leader_epoch, -1
            self._at_end.discard(place)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`."""
        with self._log.lock:
            self._paused.update((at.topic, at.partition) for at in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Return messages of these partitions again."""
        with self._log.lock:
            self._paused.difference_update((at.topic, at.partition) for at in partitions)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the offset of the next message of each partition."""
        with self._log.lock:
            return [TopicPartition(at.topic, at.partition, self._offset((at.topic, at.partition))) for at in partitions]

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1) -> tuple[int, int]:
        """Return the first offset and the end offset of a partition."""
        with self._log.lock:
            found = self._partition(partition)
            return found.first, found.end

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the first offset at or after a time (epoch ms), or the first or the end offset."""
        with self._log.lock:
            return [self._resolved(at) for at in partitions]

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message, or None after `timeout` seconds, or earlier if a change brought no message."""
        messages = self.consume(1, timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return the next messages, or none after `timeout` seconds, or earlier if a change brought no message."""
        log = self._log
        for topic in {topic for topic, _ in tuple(self._positions)}:
            log.on_poll(topic)
        with log.lock:
            messages = self._taken(num_messages)
            if not messages and timeout > 0:
                log.wait(timeout)
                messages = self._taken(num_messages)
            return messages

    def close(self) -> None:
        """Stop reading."""
        self.unassign()

    def _taken(self, most: int) -> list[Message]:
        if self._is_cut_off:
            return []
        found: list[Message] = []
        for place in list(self._positions):
            if len(found) == most:
                break
            if place in self._paused or place[0] not in self._log.topics:
                continue
            asked = min(most - len(found), FETCHED - self._in_a_row)
            messages = self._next(place, asked)
            found += messages
            self._in_a_row += len(messages)
            if len(messages) < asked or self._in_a_row == FETCHED:
                self._in_a_row = 0
                self._positions[place] = self._positions.pop(place)  # the others come first next time
        return found

    def _next(self, place: tuple[str, int], most: int) -> list[Message]:
        topic, number = place
        partition = self._log.topics[topic][number]
        offset = self._offset(place)
        if offset == OFFSET_INVALID:  # it reported an error, and is not read until it is assigned again
            return []
        branch = self._branch(place, offset)
        is_strict = self._config.get("auto.offset.reset") == "error"
        if is_strict and (branch < offset or not partition.first <= offset <= partition.end):
            self._positions[place] = OFFSET_INVALID
            return [self._report(place, offset, KafkaError._AUTO_OFFSET_RESET)]
        offset = min(offset, branch)
        if not partition.first <= offset <= partition.end:
            offset = partition.end if self._config.get("auto.offset.reset") == "latest" else partition.first
        found: list[Stored] = []
        while records := partition.records[offset : offset + most]:
            found = [record for record in records if not record.is_marker]
            offset += len(records)
            self._epochs[place] = records[-1].leader_epoch, partition.leader_epoch
            self._at_end.discard(place)
            if found:
                break
        self._positions[place] = offset
        if found:
            with_epoch = self._log.has_leader_epochs
            return [message_of(topic, number, record, with_epoch=with_epoch) for record in found]
        if self._config.get("enable.partition.eof") and place not in self._at_end:
            self._at_end.add(place)
            return [self._report(place, offset, KafkaError._PARTITION_EOF)]
        return []

    def _branch(self, place: tuple[str, int], offset: int) -> int:
        """Return the end of the leader epoch of a position if the log has had an election since, else the offset."""
        epoch, validated = self._epochs[place]
        current = self._leader_epoch(place)
        if epoch is None or validated == current or not self._log.has_leader_epochs:
            return offset
        self._epochs[place] = epoch, current
        return self._log.topics[place[0]][place[1]].end_of_epoch(epoch)

    def _leader_epoch(self, place: tuple[str, int]) -> int:
        topic, number = place
        return self._log.topics[topic][number].leader_epoch if topic in self._log.topics else -1

    def _report(self, place: tuple[str, int], offset: int, code: int) -> Message:
        return Message(topic=place[0], partition=place[1], offset=offset, error=KafkaError(code))

    def _offset(self, place: tuple[str, int]) -> int:
        """Return the next offset of an assigned partition."""
        offset = self._positions[place]
        partition = self._log.topics[place[0]][place[1]]
        if offset == OFFSET_BEGINNING:
            return partition.first
        return partition.end if offset == OFFSET_END else offset

    def _resolved(self, at: TopicPartition) -> TopicPartition:
        partition = self._partition(at)
        later = (record for record in partition.records[partition.first :] if record.at_ms >= at.offset)
        offset, epoch = partition.first, -1
        if at.offset == OFFSET_END:
            offset, epoch = partition.end, partition.leader_epoch
        elif at.offset != OFFSET_BEGINNING:
            offset = next((record.offset for record in later), OFFSET_END)
        return TopicPartition(at.topic, at.partition, offset, leader_epoch=epoch if self._log.has_leader_epochs else -1)


class MemoryAdmin(MemoryClient):
    """The part of `confluent_kafka.admin.AdminClient` that the SDK uses."""

    def describe_topics(self, topics: TopicCollection, **_settings: Any) -> dict[str, "Future[SimpleNamespace]"]:
        """Return the metadata of topics."""
        answers: dict[str, Future[SimpleNamespace]] = {}
        with self._log.lock:
            for topic in topics.topic_names:
                answers[topic] = Future()
                found = self._metadata(topic)
                if found.error is None:
                    answers[topic].set_result(found)
                else:
                    answers[topic].set_exception(KafkaException(found.error))
        return answers

    def describe_configs(self, resources: list[Any], **_settings: Any) -> dict[Any, "Future[dict[str, Any]]"]:
        """Return the settings of topics; those of this broker have none."""
        answers: dict[Any, Future[dict[str, Any]]] = {}
        for resource in resources:
            answers[resource] = Future()
            answers[resource].set_result({})
        return answers

    def poll(self, _timeout: float = -1) -> int:
        """Do nothing: no callbacks wait."""
        return 0

    def create_topics(self, topics: list[NewTopic], **_settings: Any) -> dict[str, "Future[None]"]:
        """Create topics."""
        answers: dict[str, Future[None]] = {}
        for topic in topics:
            answers[topic.topic] = Future()
            if self._log.create(topic.topic, topic.num_partitions):
                answers[topic.topic].set_result(None)
            else:
                answers[topic.topic].set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
        return answers

    def delete_records(self, places: list[TopicPartition], **_settings: Any) -> dict[TopicPartition, "Future[None]"]:
        """Delete the records before these offsets."""
        answers: dict[TopicPartition, Future[None]] = {}
        with self._log.lock:
            for at in places:
                self._partition(at).first = at.offset
                self._log.note_change()
                answers[at] = Future()
                answers[at].set_result(None)
        return answers


def _bytes_of(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
