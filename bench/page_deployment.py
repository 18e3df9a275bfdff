"""A deployment for the measurement of the page: real topics and records; groups and coordinator run in this process."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from bench.frame import NotMeasured
from bench.population import ControlTopic, Population, Who
from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model.config import CONTROL_PARTITIONS, MAX_RECORD_BYTES
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import Route, RoutedQueue, Tick
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka.topic_admin import Cluster

TOPICS = 10
"""Topics with messages; each group reads one of them."""
QUEUES = 100
"""Of each topic."""
MEMBERS = 2
"""Of each group."""
BEAT_S = 30
COMMIT_S = 5
ROUTE_S = 60
GROWING = 20
"""Queues that get a message in each second, in turn."""
CHANGING = "changing"
"""The group that a client joins or leaves in each second."""
_SLOTS = 10
"""Parts of a second; heartbeats and commits are spread over them."""
_PAST_MS = 30_000
"""The groups are formed in the log's past, so that nobody has to wait for it."""
_FLUSH_S = 60.0


class Deployment:
    """Groups that live in real time during a `with` block.

    The machines of this process decide, at the times that the records are given (`CreateTime`). A follower of the
    topics that decides anything else is therefore wrong, and `wakeroll serve` would say so.
    """

    def __init__(self, connection: Connection, groups: int) -> None:
        """Prepare; `groups` counts the steady groups, without the one that changes."""
        self.names = [f"group-{number:04}" for number in range(groups)]
        self.changes: dict[str, float] = {}
        """Client id that has joined the changing group -> when, by the monotonic clock (s)."""
        self.records = 0
        """Appended to the control topics."""
        self.late_s = 0.0
        """Largest delay of anything that was due (s)."""
        self._connection = connection
        self._producer: Producer = connection.producer(
            **{"linger.ms": 5, "message.max.bytes": MAX_RECORD_BYTES, "log_level": 0}
        )
        self._signer = new_signer(key_to_sign(DEV_KEYS, "observer"))
        self._population = Population(CONTROL_PARTITIONS, self._publish)
        self._ticked = ControlTopic(connection.topics.queues, CONTROL_PARTITIONS)
        self._ends = {Queue(f"orders-{topic}", "", queue): 0 for topic in range(TOPICS) for queue in range(QUEUES)}
        self._visitor = ""
        """The client that comes and goes; empty while there is none."""
        self._seconds = 0
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="deployment", daemon=True)

    def __enter__(self) -> Self:
        self._make_topics()
        self._settle()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.purge()  # what is not sent yet has no reader any more
        self._producer.flush(1)

    def check(self) -> None:
        """Raise `NotMeasured` if the groups have stopped living."""
        if self._failure is not None:
            raise NotMeasured(f"the simulated deployment failed: {self._failure!r}") from self._failure

    def _make_topics(self) -> None:
        """Create the topics; the control topics have the time of their records, see the class."""
        topics = self._connection.topics
        timed = {"message.timestamp.type": "CreateTime", "max.message.bytes": str(MAX_RECORD_BYTES)}
        wanted = [NewTopic(topic, CONTROL_PARTITIONS, config=timed) for topic in (*topics.control, topics.decisions)]
        wanted += [NewTopic(f"orders-{number}", QUEUES) for number in range(TOPICS)]
        for topic, error in Cluster(self._connection).create(wanted).items():
            if error is not None:
                raise NotMeasured(f"the topic {topic} cannot be created: {error.str()}")

    def _settle(self) -> None:
        """Let all groups form."""
        population = self._population
        population.now_ms = now_ms() - _PAST_MS
        self._route()
        for number, group_id in enumerate([*self.names, CHANGING]):
            population.topics[group_id] = f"orders-{number % TOPICS}"
            for member in range(MEMBERS):
                population.join(group_id, f"{group_id}-{member}")
        population.calm_down()
        left = self._producer.flush(_FLUSH_S)
        if left:
            raise NotMeasured(f"the broker has not stored {left:,} records within {_FLUSH_S:g} s")

    def _route(self) -> None:
        for topic in dict.fromkeys(queue.topic for queue in self._ends):
            routed = [
                RoutedQueue(topic=topic, broker="", queue_id=queue.queue_id, min_offset=0, max_offset=end)
                for queue, end in self._ends.items()
                if queue.topic == topic
            ]
            self._population.append(Route(topic=topic, queues=routed, version=str(QUEUES)))

    # --- live ---

    def _run(self) -> None:
        try:
            started_s = time.monotonic()
            while not self._ended.is_set():
                for due_s, act in sorted(self._second(), key=lambda each: each[0]):
                    left_s = started_s + self._seconds + due_s - time.monotonic()
                    if self._ended.wait(max(left_s, 0)):
                        return
                    self.late_s = max(self.late_s, -left_s)
                    self._population.now_ms = max(self._population.now_ms, now_ms())
                    act()
                    self._producer.poll(0)
                self._seconds += 1
        except BaseException as failure:  # `check` raises it again, in the thread that measures
            self._failure = failure

    def _second(self) -> Iterable[tuple[float, Callable[[], object]]]:
        """Yield what happens in this second, and when (s)."""
        yield 0.0, self._tick
        everybody = self._population.everybody()
        for slot in range(_SLOTS):
            yield slot / _SLOTS, partial(self._live, everybody[slot::_SLOTS])
        # At another part of each second, because the page is updated once per second.
        yield (self._seconds * 0.37) % 1, self._change

    def _tick(self) -> None:
        population = self._population
        population.append(Tick())
        for record, decisions in self._ticked.append(Tick(), population.now_ms):
            self._publish(record, decisions)
        population.answer()
        if self._seconds % ROUTE_S == ROUTE_S - 1:
            self._route()
        queues = list(self._ends)
        for number in range(self._seconds * GROWING, (self._seconds + 1) * GROWING):
            queue = queues[number * 7 % len(queues)]  # 7: so that topics take turns
            self._produce(queue.topic, b"an order", None, queue.queue_id)
            self._ends[queue] += 1

    def _live(self, clients: Sequence[Who]) -> None:
        """Let those heartbeat and commit whose second it is."""
        for number, who in enumerate(clients):
            if not self._population.knows(*who):
                continue
            if (number + self._seconds) % BEAT_S == 0:
                self._population.append(self._population.beat(*who))
            if (number + self._seconds) % COMMIT_S == 0:
                self._population.commit_grown(who, self._ends)

    def _change(self) -> None:
        if self._visitor:
            self._population.leave(CHANGING, self._visitor)
            self._visitor = ""
            return
        self._visitor = f"visitor-{self._seconds:06}"
        self.changes[self._visitor] = time.monotonic()
        self._population.join(CHANGING, self._visitor)

    def _publish(self, record: Record, decisions: Sequence[AnyDecision]) -> None:
        """Append a record where the machines have it, signed if it is the observer's, and what was decided."""
        value = record.value
        assert value is not None, "every event has a value"
        if record.key is None:
            value = self._signer.sign(record.topic, record.partition, None, value, record.offset)
        self._produce(record.topic, value, record.key, record.partition, record.timestamp_ms)
        self.records += 1
        for decision in decisions:
            key = getattr(decision, "group_id", None) or decision.shard
            self._produce(
                self._connection.topics.decisions, encode_decision(decision), key.encode(), at_ms=record.timestamp_ms
            )

    def _produce(self, topic: str, value: bytes, key: bytes | None, partition: int = -1, at_ms: int = 0) -> None:
        while True:
            try:
                self._producer.produce(topic, value, key, partition, timestamp=at_ms)
                return
            except BufferError:
                self._producer.poll(0.1)
