"""Kafka's clients in a simulated world: a consumer that reads topics in memory, and a producer whose sends may fail."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from tests.support.simulation.push.scheduled_threads import Scheduler
from wakeroll_model.queue import Queue

Store = Callable[..., None]


class SimulatedConsumer:
    """Reads as librdkafka's consumer does, as far as `Reader` notices."""

    def __init__(self, scheduler: Scheduler, messages: dict[Queue, list[Message]], rng: Random) -> None:
        self._scheduler = scheduler
        self._messages = messages
        self._rng = rng
        self._next: dict[tuple[str, int], int] = {}
        self._paused: set[tuple[str, int]] = set()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            assert (one.topic, one.partition) not in self._next, "assigned twice"
            self._next[one.topic, one.partition] = max(one.offset, 0)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            del self._next[one.topic, one.partition]  # it stays paused, as with librdkafka

    def pause(self, partitions: list[TopicPartition]) -> None:
        self._paused.update((one.topic, one.partition) for one in partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        self._paused.difference_update((one.topic, one.partition) for one in partitions)

    def seek(self, partition: TopicPartition) -> None:
        """The reader only seeks where it is, after it has resumed a partition."""
        assert self._next[partition.topic, partition.partition] == partition.offset

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout > 0
        assert all(one.offset == OFFSET_BEGINNING for one in partitions)
        return [TopicPartition(one.topic, one.partition, 0) for one in partitions]

    def list_topics(self, topic: str, timeout: float) -> None:
        assert topic
        assert timeout > 0

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> None:
        assert partition.topic
        assert timeout > 0

    def close(self) -> None:
        self._next.clear()

    def poll(self, timeout: float) -> Message | None:
        if not (found := self._take(1)):
            self._scheduler.sleep(timeout)
            found = self._take(1)
        return found[0] if found else None

    def consume(self, most: int, timeout: float) -> list[Message]:
        assert timeout == 0
        return self._take(min(most, self._rng.choice([0, 3, 40, 1_000])))

    def _take(self, most: int) -> list[Message]:
        found: list[Message] = []
        for (topic, number), at in self._next.items():
            if (topic, number) not in self._paused and len(found) < most:
                some = self._messages[Queue(topic, "", number)][at : at + most - len(found)]
                self._next[topic, number] += len(some)
                found += some
        return found


class SimulatedProducer:
    """Sends as librdkafka's producer does, as far as `SendBack` notices; it knows which client it belongs to."""

    def __init__(self, scheduler: Scheduler, store: Store, rng: Random, faults: "SendFaults") -> None:
        self._scheduler = scheduler
        self._store = store
        self._rng = rng
        self._faults = faults
        self._on_its_way: deque[tuple[float, KafkaError | None, dict[str, Any]]] = deque()
        """Time of the report, its error, and the record, which is stored then unless it was stored at once."""

    def produce(self, **record: Any) -> None:
        faults, rng = self._faults, self._rng
        if rng.random() < faults.full:
            raise BufferError
        if rng.random() < faults.fatal:
            raise KafkaException(KafkaError(KafkaError._FATAL, "fenced", fatal=True))
        error = None
        if self._scheduler.now_s < faults.refused_until_s:
            error = KafkaError(faults.refusal, "refused")
        elif rng.random() < faults.times_out:
            error = KafkaError(KafkaError._MSG_TIMED_OUT, "timed out")
        is_early = rng.random() < 0.3
        if is_early and (error is None or error.code() == KafkaError._MSG_TIMED_OUT):
            self._store(**record)
            record["is_stored"] = True
        last_s = self._on_its_way[-1][0] if self._on_its_way else 0.0
        at_s = max(self._scheduler.now_s + rng.random() * faults.longest_s, last_s)
        self._on_its_way.append((at_s, error, record))

    def poll(self, timeout: float) -> int:
        if timeout and not (self._on_its_way and self._on_its_way[0][0] <= self._scheduler.now_s):
            first_s = self._on_its_way[0][0] if self._on_its_way else float("inf")
            self._scheduler.wait_until(min(first_s, self._scheduler.now_s + timeout))
        count = 0
        while self._on_its_way and self._on_its_way[0][0] <= self._scheduler.now_s:
            _, error, record = self._on_its_way.popleft()
            if error is None and not record.pop("is_stored", False):
                self._store(**record)
            record["on_delivery"](error, None)
            count += 1
        return count

    def purge(self) -> None:
        error = KafkaError(KafkaError._PURGE_QUEUE, "purged")
        self._on_its_way = deque((0.0, error, record) for _, _, record in self._on_its_way)

    def close(self) -> None:
        self.poll(0)

    def flush(self, timeout: float) -> int:
        assert timeout == 0
        self.poll(0)
        return len(self)

    def __len__(self) -> int:
        return len(self._on_its_way)

    def __bool__(self) -> bool:
        return True


class SendFaults:
    """How often sends fail; the world changes it."""

    def __init__(self) -> None:
        self.full = 0.0
        self.fatal = 0.0
        self.times_out = 0.0
        self.longest_s = 0.05
        self.refusal = KafkaError.UNKNOWN_TOPIC_OR_PART
        self.refused_until_s = 0.0
