"""Kafka in a world: the clients of `wakeroll.testing`, with a network that delays, loses and is cut.

Records are stored a moment after `produce`, in order; acknowledgements come later still. While a process cannot reach
its brokers, its records wait and may time out, its reads return nothing, and its queries fail after their timeouts. A
process that is suspended sends nothing, because Kafka's client is part of it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace, TracebackType
from typing import Any, Self, cast

from confluent_kafka import (
    OFFSET_END,
    OFFSET_INVALID,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from tests.support.simulation.ring.virtual_threads import NEVER_S, Scheduler, VirtualFuture, VirtualThread
from wakeroll.testing.memory_clients import MemoryAdmin, MemoryConsumer, MemoryProducer
from wakeroll.testing.memory_log import MemoryLog, Stored, message_of
from wakeroll_model.partitioner import partition_of

MESSAGE_TIMEOUT_MS = 300_000
"""Default of librdkafka's `message.timeout.ms`."""
SHORT_READS = 0.2
"""Part of the reads that return fewer messages than there are."""
LOOK_S = 1.0
"""How often Kafka's client looks for a broker (s)."""


class _NoLock:
    """A lock that need not be one: only one thread runs at a time, and none is interrupted in these classes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class _Changed(_NoLock):
    """The condition of the log."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def wait(self, timeout: float) -> None:
        self._scheduler.sleep(timeout)

    def notify_all(self) -> None:
        pass


@dataclass
class Network:
    """How well a process reaches its brokers."""

    process: str
    cut_until_s: float = 0.0
    """Until when no broker can be reached."""
    longest_s: float = 0.05
    """Longest time of a record to its broker, and of the acknowledgement (s)."""
    loses_acknowledgements: float = 0.0
    """Part of the records that are stored although their producer reports a timeout."""
    full: float = 0.0
    """Part of the calls of `produce` that find the queue of Kafka's client full."""
    fatal: float = 0.0
    """Part of the calls of `produce` after which an idempotent producer is of no use any more."""
    calmed_s: float = field(default=0.0, compare=False)
    """Since when no record is lost or late."""

    @property
    def is_calm(self) -> bool:
        """Whether no record is lost or late while brokers can be reached."""
        return self == Network(self.process, cut_until_s=self.cut_until_s)

    def calm_down(self, now_s: float) -> None:
        """Reach all brokers, and lose nothing."""
        if not self.is_calm:
            self.calmed_s = now_s
        self.cut_until_s = min(self.cut_until_s, now_s)
        self.longest_s, self.loses_acknowledgements, self.full, self.fatal = 0.05, 0.0, 0.0, 0.0


class RingLog(MemoryLog):
    """The topics of a world."""

    def __init__(self, scheduler: Scheduler, rng: Random, now_ms: Callable[[], int]) -> None:
        super().__init__()
        self.lock = _NoLock()  # type: ignore[assignment]
        self.changed = _Changed(scheduler)  # type: ignore[assignment]
        self.scheduler = scheduler
        self.rng = rng
        self.now_ms = now_ms
        self.down_until_s = 0.0
        """Until when no client of any process reaches a broker."""
        self.networks: dict[str, Network] = {}
        """Address -> how its process reaches the brokers."""
        self.readers: dict[VirtualThread, RingConsumer] = {}
        """Consumers that wait for messages."""
        self.kafka_groups: dict[str, dict[tuple[str, int], int]] = {}
        """Kafka's own groups: their committed offsets."""
        self.kafka_texts: dict[str, dict[tuple[str, int], str]] = {}
        """The metadata of these offsets, of those that have some."""
        self.listeners: list[Callable[[str, int, Stored], object]] = []
        """Called with each record that is stored."""
        self.deleted: set[str] = set()
        """Topics that are deleted, of which only the observer knows: their messages could still be read."""
        self.on_appended = self._appended

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic."""
        there = self.topics[topic]
        there += [type(there[0])() for _ in range(partitions - len(there))]

    def _appended(self, topic: str, number: int, record: Stored) -> None:
        for thread, reader in self.readers.items():
            if reader.reads(topic, number):
                thread.wake_s = min(thread.wake_s, self.scheduler.now_s)
        for listener in self.listeners:
            listener(topic, number, record)


class _RingClient:
    """A client of a process; the other base class is that of `wakeroll.testing`."""

    _log: RingLog
    _config: Mapping[str, Any]

    @property
    def _network(self) -> Network:
        return self._log.networks[self._config["bootstrap.servers"]]

    @property
    def _is_cut_off(self) -> bool:
        return self._back_s() > self._log.scheduler.now_s

    def _back_s(self) -> float:
        """Return when the process reaches its brokers again."""
        log, network = self._log, self._network
        return max(log.down_until_s, network.cut_until_s, log.scheduler.frozen_until_s(network.process))

    def _ask(self, timeout: float) -> None:
        """Wait for the answer to a query.

        Raises:
            KafkaException: no broker answers in time.
        """
        scheduler = self._log.scheduler
        timeout = 60.0 if timeout < 0 else timeout
        if self._back_s() <= scheduler.now_s:
            scheduler.maybe_switch()
            return
        ends_s = scheduler.now_s + timeout
        while self._is_cut_off:
            if scheduler.now_s >= ends_s:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker"))
            scheduler.wait_until(min(self._back_s(), ends_s, scheduler.now_s + LOOK_S))

    def _metadata(self, topic: str) -> SimpleNamespace:
        partitions = self._log.topics.get(topic)
        if partitions is None:
            return SimpleNamespace(topic=topic, partitions={}, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        found = {number: SimpleNamespace(id=number, leader=1, error=None) for number in range(len(partitions))}
        return SimpleNamespace(topic=topic, partitions=found, error=None)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> SimpleNamespace:
        self._ask(timeout)
        names = list(self._log.topics) if topic is None else [topic]
        self._learn(names)
        return SimpleNamespace(topics={name: self._metadata(name) for name in names})

    def _learn(self, topics: Iterable[str]) -> None:
        """Note that the partitions of these topics are known now."""


@dataclass
class _UnderWay:
    """A record that Kafka's client has, until its receipt."""

    record: tuple[str, bytes | None, bytes | None, int, Any]
    on_delivery: Callable[[KafkaError | None, Message], object] | None
    expires_s: float


class RingProducer(_RingClient, MemoryProducer):
    """A producer whose records take time."""

    def __init__(self, log: RingLog, now_ms: Callable[[], int], config: Mapping[str, Any]) -> None:
        super().__init__(log, now_ms, config)
        self._timeout_s = float(config.get("message.timeout.ms", MESSAGE_TIMEOUT_MS)) / 1_000
        self._under_way: deque[_UnderWay] = deque()
        self._is_sending = False
        self._reports: deque[tuple[Any, KafkaError | None, Message]] = deque()
        self._waiting: list[VirtualThread] = []
        self._is_fatal = False
        self._known: dict[str, int] = {}
        """Topic -> number of its partitions, as this client knows it."""

    def produce(
        self,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        partition: int = -1,
        on_delivery: Callable[[KafkaError | None, Message], object] | None = None,
        headers: Any = None,
        **_: Any,
    ) -> None:
        network, rng = self._network, self._log.rng
        if network.full and rng.random() < network.full:
            raise BufferError
        if self._is_fatal or (network.fatal and rng.random() < network.fatal):
            self._is_fatal = True
            raise KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True))
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        encoded = [(name, _bytes_of(content)) for name, content in pairs]
        self._under_way.append(
            _UnderWay(
                (topic, _bytes_of(value), _bytes_of(key), partition, encoded),
                on_delivery,
                self._log.scheduler.now_s + self._timeout_s,
            )
        )
        self._send_later()

    def poll(self, timeout: float = -1) -> int:
        scheduler = self._log.scheduler
        until_s = NEVER_S if timeout is None or timeout < 0 else scheduler.now_s + timeout
        me = scheduler.me()
        while not self._reports and scheduler.now_s < until_s:
            self._waiting.append(me)
            try:
                scheduler.wait_until(until_s)
            finally:
                self._waiting.remove(me)
        count = 0
        while self._reports:
            on_delivery, error, message = self._reports.popleft()
            on_delivery(error, message)
            count += 1
        return count

    def flush(self, timeout: float = -1) -> int:
        scheduler = self._log.scheduler
        until_s = NEVER_S if timeout < 0 else scheduler.now_s + timeout
        self.poll(0)
        while len(self) and scheduler.now_s < until_s:
            self.poll(until_s - scheduler.now_s)
        return len(self)

    def purge(self, *_: Any, **__: Any) -> None:
        while self._under_way:
            self._report(self._under_way.popleft(), KafkaError(KafkaError._PURGE_QUEUE, "purged"), None)

    def close(self) -> None:
        self.poll(0)

    def __len__(self) -> int:
        return len(self._under_way) + len(self._reports)

    def __bool__(self) -> bool:
        return True

    def _learn(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._known[topic] = len(self._log.topics.get(topic, ()))

    def _send_later(self) -> None:
        if not self._is_sending and self._under_way:
            self._is_sending = True
            log = self._log
            log.scheduler.at(log.scheduler.now_s + log.rng.random() * self._network.longest_s, self._send)

    def _send(self) -> None:
        """Store the oldest record, or wait until a broker is there."""
        self._is_sending = False
        if not self._under_way:
            return
        scheduler, network, first = self._log.scheduler, self._network, self._under_way[0]
        frozen_s = scheduler.frozen_until_s(network.process)
        if frozen_s > scheduler.now_s:
            self._try_again(frozen_s)
        elif scheduler.now_s >= first.expires_s:
            self._report(self._under_way.popleft(), KafkaError(KafkaError._MSG_TIMED_OUT, "timed out"), None)
            self._send_later()
        elif (back_s := self._back_s()) > scheduler.now_s:
            self._try_again(min(back_s, first.expires_s))
        else:
            self._under_way.popleft()
            topic, value, key, partition, headers = first.record
            error, message = self._stored(topic, value, key, partition, headers)
            if error is None and network.loses_acknowledgements > self._log.rng.random():
                error = KafkaError(KafkaError._MSG_TIMED_OUT, "timed out")
            later_s = scheduler.now_s + self._log.rng.random() * network.longest_s
            scheduler.at(later_s, lambda: self._report(first, error, message))
            self._send_later()

    def _try_again(self, at_s: float) -> None:
        self._is_sending = True
        self._log.scheduler.at(min(at_s, self._log.scheduler.now_s + LOOK_S), self._send)

    def _stored(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Any
    ) -> tuple[KafkaError | None, Message]:
        there = self._log.topics.get(topic)
        known = self._known.setdefault(topic, len(there or ()))
        if not there or partition >= len(there):
            error = KafkaError(KafkaError._UNKNOWN_PARTITION if there else KafkaError._UNKNOWN_TOPIC)
            return error, Message(topic=topic, partition=partition, key=key, value=value, error=error)
        if partition < 0 and key is not None and known and known < len(there):
            partition = partition_of(key, known)  # it learns of new partitions later
        number = partition if partition >= 0 else self._log.choose(topic, key)
        return None, message_of(topic, number, self._log.append(topic, number, key, value, headers, self._now_ms()))

    def _report(self, one: _UnderWay, error: KafkaError | None, message: Message | None) -> None:
        if one.on_delivery is not None:
            topic, value, key, partition, _ = one.record
            if message is None:
                message = Message(topic=topic, partition=max(partition, 0), key=key, value=value, error=error)
            self._reports.append((one.on_delivery, error, message))
        for thread in self._waiting:
            thread.wake_s = min(thread.wake_s, self._log.scheduler.now_s)


class RingConsumer(_RingClient, MemoryConsumer):
    """A consumer that reads what its process can reach."""

    def reads(self, topic: str, number: int) -> bool:
        """Return whether a message of this partition is waited for."""
        return (topic, number) in self._positions and (topic, number) not in self._paused

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        log, scheduler = self._log, self._log.scheduler
        until_s = NEVER_S if timeout < 0 else scheduler.now_s + timeout
        if log.rng.random() < SHORT_READS:
            num_messages = min(num_messages, log.rng.choice([1, 3, 40]))
        messages = self._taken(num_messages)
        me = scheduler.me()
        while not messages and scheduler.now_s < until_s:
            log.readers[me] = self
            try:
                look_s = scheduler.now_s + LOOK_S if self._is_cut_off else NEVER_S
                scheduler.wait_until(min(until_s, look_s))
            finally:
                log.readers.pop(me, None)
            messages = self._taken(num_messages)
        return messages

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        if not cached:
            self._ask(timeout)
        found: tuple[int, int] = super().get_watermark_offsets(partition)
        return found

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        self._ask(timeout)
        found: list[TopicPartition] = super().offsets_for_times(partitions)
        return found

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        self._ask(timeout)
        known = self._log.kafka_groups.get(self._config["group.id"], {})
        return [
            TopicPartition(at.topic, at.partition, known.get((at.topic, at.partition), OFFSET_INVALID))
            for at in partitions
        ]

    def commit(self, offsets: list[TopicPartition] | None = None, **_: Any) -> Any:
        self._ask(10.0)
        known = self._log.kafka_groups.setdefault(self._config["group.id"], {})
        known.update({(at.topic, at.partition): at.offset for at in offsets or ()})
        return offsets


class RingAdmin(_RingClient, MemoryAdmin):
    """An admin client whose answers take time."""

    def describe_topics(self, topics: Any, request_timeout: float = 60.0, **_: Any) -> dict[str, Future[Any]]:
        answers: dict[str, Future[Any]] = {name: VirtualFuture() for name in topics.topic_names}

        def answer() -> None:
            for name, future in answers.items():
                found = self._metadata(name)
                if found.error is not None:
                    future.set_exception(KafkaException(found.error))
                    continue
                partitions = [
                    SimpleNamespace(id=number, leader=SimpleNamespace(id=1, rack=""), replicas=[1], isr=[1])
                    for number in found.partitions
                ]
                described = {"name": name, "topic_id": f"id-{name}", "partitions": partitions}
                future.set_result(SimpleNamespace(**described, authorized_operations=None))

        self._answer(answers, request_timeout, answer)
        return answers

    def list_offsets(self, asked: Mapping[TopicPartition, Any], request_timeout: float = 60.0, **_: Any) -> Any:
        answers: dict[TopicPartition, Future[Any]] = {at: VirtualFuture() for at in asked}

        def answer() -> None:
            for at, future in answers.items():
                spec = asked[at]
                try:
                    partition = self._partition(at)
                except KafkaException as problem:
                    future.set_exception(problem)
                    continue
                at_ms = getattr(spec, "_value", spec)
                where = TopicPartition(at.topic, at.partition, int(getattr(at_ms, "value", at_ms)))
                offset = {-1: partition.end, -2: partition.first}.get(where.offset)
                if offset is None:
                    offset = MemoryConsumer._resolved(cast(Any, self), where).offset
                future.set_result(SimpleNamespace(offset=-1 if offset == OFFSET_END else offset))

        self._answer(answers, request_timeout, answer)
        return answers

    def create_topics(self, topics: list[Any], request_timeout: float = 60.0, **_: Any) -> dict[str, Future[None]]:
        answers: dict[str, Future[None]] = {topic.topic: VirtualFuture() for topic in topics}

        def answer() -> None:
            for topic in topics:
                if self._log.create(topic.topic, topic.num_partitions):
                    answers[topic.topic].set_result(None)
                else:
                    error = KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)
                    answers[topic.topic].set_exception(KafkaException(error))

        self._answer(answers, request_timeout, answer)
        return answers

    def delete_records(self, places: list[TopicPartition], request_timeout: float = 60.0, **_: Any) -> Any:
        answers: dict[TopicPartition, Future[None]] = {at: VirtualFuture() for at in places}

        def answer() -> None:
            for at in places:
                partition = self._partition(at)
                partition.first = max(partition.first, min(at.offset, partition.end))
                answers[at].set_result(None)

        self._answer(answers, request_timeout, answer)
        return answers

    def describe_consumer_groups(self, names: list[str], request_timeout: float = 60.0, **_: Any) -> Any:
        answers: dict[str, Future[Any]] = {name: VirtualFuture() for name in names}

        def answer() -> None:
            for name, future in answers.items():
                there = name in self._log.kafka_groups
                state = ConsumerGroupState.EMPTY if there else ConsumerGroupState.DEAD
                future.set_result(SimpleNamespace(members=[], state=state))

        self._answer(answers, request_timeout, answer)
        return answers

    def list_consumer_group_offsets(self, asked: list[Any], request_timeout: float = 60.0, **_: Any) -> Any:
        answers: dict[str, Future[Any]] = {one.group_id: VirtualFuture() for one in asked}

        def answer() -> None:
            for name, future in answers.items():
                known = self._log.kafka_groups.get(name, {})
                texts = self._log.kafka_texts.get(name, {})
                places = [
                    TopicPartition(*place, offset, metadata=texts.get(place, ""))
                    for place, offset in sorted(known.items())
                ]
                future.set_result(ConsumerGroupTopicPartitions(name, places))

        self._answer(answers, request_timeout, answer)
        return answers

    def alter_consumer_group_offsets(self, asked: list[Any], request_timeout: float = 60.0, **_: Any) -> Any:
        answers: dict[str, Future[Any]] = {one.group_id: VirtualFuture() for one in asked}

        def answer() -> None:
            for one in asked:
                known = self._log.kafka_groups.setdefault(one.group_id, {})
                known.update({(at.topic, at.partition): at.offset for at in one.topic_partitions})
                texts = self._log.kafka_texts.setdefault(one.group_id, {})
                texts.update({(at.topic, at.partition): at.metadata or "" for at in one.topic_partitions})
                answers[one.group_id].set_result(ConsumerGroupTopicPartitions(one.group_id, one.topic_partitions))

        self._answer(answers, request_timeout, answer)
        return answers

    def _answer(self, answers: Mapping[Any, Future[Any]], timeout: float, answer: Callable[[], None]) -> None:
        """Let the answer to a request come in a moment, or its failure when its time is over."""
        scheduler = self._log.scheduler
        ends_s = scheduler.now_s + (timeout if timeout > 0 else 60.0)

        def look() -> None:
            back_s = self._back_s()
            if back_s <= scheduler.now_s:
                answer()
            elif scheduler.now_s >= ends_s:
                for future in answers.values():
                    future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT, "no broker")))
            else:
                scheduler.at(min(back_s, ends_s, scheduler.now_s + LOOK_S), look)

        scheduler.at(scheduler.now_s + self._log.rng.random() * self._network.longest_s, look)


def _bytes_of(content: bytes | str | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
