"""The control plane of a world: the real shards, which decide in batches, and an observer."""

import re
from collections.abc import Callable
from random import Random

import msgspec

from tests.support.simulation.ring.ring_kafka import RingLog
from tests.support.simulation.ring.virtual_threads import NEVER_S, Scheduler, VirtualThread
from wakeroll.connection import Topics
from wakeroll.testing.memory_log import Stored
from wakeroll.topic_patterns import may_match
from wakeroll_model import feature_levels
from wakeroll_model.decisions import AnyDecision, Wake, recipient_of
from wakeroll_model.events import Arrival, Event, Heartbeat, Level, Matches, Route, RoutedQueue, Tick
from wakeroll_model.group import Group
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.resharding import split
from wakeroll_model.shard import Shard

Place = tuple[str, int]
"""Control topic and partition."""
METADATA_MS = 60_000
"""How long clients may take to learn of new partitions (ms)."""

MATCHES_S = 30.0
"""How often the observer repeats which topics match (s)."""

_encode = msgspec.json.Encoder().encode
_decode_beat = msgspec.json.Decoder(Heartbeat).decode


class RingCoordinator:
    """All shards. It decides in batches, may be away, and repeats its last batch after a crash."""

    def __init__(self, log: RingLog, scheduler: Scheduler, now_ms: Callable[[], int], partitions: int) -> None:
        """Create the control topics; `start` begins to decide."""
        self.topics = Topics()
        self.partitions = partitions
        self.away_until_s = 0.0
        self.most = 1_000
        """Most records of a partition in a batch."""
        self.pace_s = 0.1
        """How long a batch takes (s)."""
        self.listeners: list[Callable[[AnyDecision], object]] = []
        """Called with each decision, once."""
        self.shards: dict[Place, Shard] = {}
        self._log = log
        self._scheduler = scheduler
        self._now_ms = now_ms
        self._next: dict[Place, int] = {}
        self._saved: dict[Place, tuple[bytes, int]] = {}
        """Place -> its state before the last batch that decided something, and the next record then."""
        self._reshard_to = 0
        self.resharded_s = 0.0
        """When the shards were divided last."""
        self._is_waiting = False
        self._thread = VirtualThread(scheduler, self._run, "coordinator", process="coordinator")
        for topic in self.topics.all:
            log.create(topic, partitions)
        for topic in self.topics.control:
            for number in range(partitions):
                place = topic, number
                self.shards[place] = Shard(topic, number, partitions, raises=True)
                self._next[place] = 0
                self._append(place, Level(level=feature_levels.NEWEST))
        log.listeners.append(self._appended)

    def start(self) -> None:
        """Decide from now on."""
        self._thread.start()

    def group(self, group_id: str) -> Group | None:
        """Return the state of a group."""
        number = partition_of(group_id.encode(), self.partitions)
        return self.shards[self.topics.groups, number].group(group_id)

    def repeat_the_last_batch(self) -> None:
        """Crash, and continue from the checkpoint: the last decisions are published twice."""
        for place, (body, offset) in self._saved.items():
            self.shards[place] = Shard(*place, self.partitions, body, raises=True)
            self._next[place] = offset
        self._saved.clear()

    def reshard(self, partitions: int) -> None:
        """Divide each shard after its next batch, as `wakeroll reshard` does between a stop and a start of `run`."""
        self._reshard_to = partitions

    @property
    def is_current(self) -> bool:
        """Whether everything in the log is decided."""
        return all(offset == self._end(place) for place, offset in self._next.items())

    def ends(self) -> dict[Place, int]:
        """Return where the logs end."""
        return {place: self._end(place) for place in self._next}

    def has_decided(self, ends: dict[Place, int]) -> bool:
        """Return whether everything before these ends is decided."""
        return all(self._next[place] >= end for place, end in ends.items())

    def append(self, topic: str, key: bytes, event: Event) -> None:
        """Append an event of an entity."""
        self._append((topic, partition_of(key, self.partitions)), event, key)

    def append_to_all(self, event: Event, topics: tuple[str, ...] | None = None) -> None:
        """Append an event without an entity to all shards of these topics."""
        for place in list(self.shards):
            if topics is None or place[0] in topics:
                self._append(place, event)

    # --- inside ---

    def _append(self, place: Place, event: Event, key: bytes | None = None) -> None:
        self._log.append(*place, key, _encode(event), [], self._now_ms())

    def _end(self, place: Place) -> int:
        return self._log.topics[place[0]][place[1]].end

    def _appended(self, topic: str, _number: int, _record: Stored) -> None:
        if self._is_waiting and topic in self.topics.control:
            self._thread.wake_s = min(self._thread.wake_s, self._scheduler.now_s + self.pace_s)

    def _run(self) -> None:
        scheduler = self._scheduler
        while True:
            if (back_s := max(self.away_until_s, self._log.down_until_s)) > scheduler.now_s:
                scheduler.wait_until(min(back_s, scheduler.now_s + 1.0))
                continue
            worked = [self._batch(place) for place in list(self.shards)]
            if self._reshard_to > self.partitions:
                self._divide()
                continue
            if any(worked):
                scheduler.sleep(self.pace_s)
                continue
            self._is_waiting = True
            try:
                scheduler.wait_until(NEVER_S if self.is_current else scheduler.now_s + self.pace_s)
            finally:
                self._is_waiting = False

    def _batch(self, place: Place) -> bool:
        shard, begin = self.shards[place], self._next[place]
        records = self._log.topics[place[0]][place[1]].records[begin : begin + self.most]
        if not records:
            return False
        body = shard.body()
        decisions: list[AnyDecision] = []
        for record in records:
            decisions += shard.apply(Record(*place, record.offset, record.at_ms, record.key, record.value))
        self._next[place] = begin + len(records)
        if decisions:
            self._saved[place] = body, begin
        for decision in decisions:
            for listener in self.listeners:
                listener(decision)
        for decision in decisions:
            self._publish(decision)
        return True

    def _publish(self, decision: AnyDecision) -> None:
        value = encode_decision(decision)
        key = decision.queue.key if isinstance(decision, Wake) else decision.group_id or decision.shard
        self._send(self.topics.decisions, key.encode(), value)
        if client_id := recipient_of(decision):
            self._send(self.topics.inbox, client_id.encode(), value)

    def _send(self, topic: str, key: bytes, value: bytes) -> None:
        number = partition_of(key, len(self._log.topics[topic]))
        self._log.append(topic, number, key, value, [], self._now_ms())

    def _divide(self) -> None:
        """Decide all that is there, give each control topic more partitions, and divide the states."""
        self.resharded_s = self._scheduler.now_s
        for place in self.shards:
            while self._batch(place):
                pass
        partitions, self._reshard_to = self._reshard_to, 0
        for topic in (*self.topics.control, self.topics.decisions):
            self._log.grow(topic, partitions)
        parts = {
            (topic, number): body
            for (topic, old), shard in self.shards.items()
            for number, body in split(
                topic, old, shard.body(), partitions, offset=self._next[topic, old], metadata_ms=METADATA_MS
            ).items()
        }
        self.partitions = partitions
        self.shards = {place: Shard(*place, partitions, body, raises=True) for place, body in sorted(parts.items())}
        self._next = {place: self._next.get(place, 0) for place in self.shards}
        self._saved.clear()


class RingObserver:
    """Appends ticks, routes of topics, and arrivals."""

    def __init__(
        self, log: RingLog, scheduler: Scheduler, coordinator: RingCoordinator, rng: Random, pace_s: float = 1.0
    ) -> None:
        self.away_until_s = 0.0
        self._log = log
        self._scheduler = scheduler
        self._coordinator = coordinator
        self._rng = rng
        self._pace_s = pace_s
        self._routes: dict[Place, int] = {}
        """Topic, and number of partitions of the control topics -> number of its queues in its last route."""
        self._ends: dict[Queue, int] = {}
        self._is_away = False
        self._patterns: dict[tuple[str, str], tuple[object, float]] = {}
        """Group and pattern -> what it was last told, and when (s)."""
        log.listeners.append(self._hear)
        VirtualThread(scheduler, self._run, "observer", process="observer").start()

    def _run(self) -> None:
        scheduler = self._scheduler
        number = 0
        while True:
            if (back_s := max(self.away_until_s, self._log.down_until_s)) > scheduler.now_s:
                scheduler.wait_until(min(back_s, scheduler.now_s + 1.0))
                number += not self._is_away
                self._is_away = True
                continue
            self._is_away = False
            coordinator = self._coordinator
            coordinator.append_to_all(Tick(observer=f"o{number}", uptime_ms=int(scheduler.now_s * 1_000)))
            self._look()
            scheduler.sleep(self._pace_s)

    def _look(self) -> None:
        coordinator, names = self._coordinator, self._coordinator.topics
        for topic, partitions in list(self._log.topics.items()):
            if topic in names.all:
                continue
            place, size = (topic, coordinator.partitions), 0 if topic in self._log.deleted else len(partitions)
            if self._routes.get(place) != size:
                self._routes[place] = size
                queues = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(size)]
                route = Route(topic=topic, queues=queues, version=str(len(queues)), topic_id=f"id-{topic}")
                coordinator.append_to_all(route, (names.groups,))
            for number, partition in enumerate(partitions):
                queue = Queue(topic, "", number)
                if self._ends.get(queue) != partition.end:
                    self._ends[queue] = partition.end
                    arrival = Arrival(queue=queue, next_offset=partition.end)
                    coordinator.append(names.queues, queue.key.encode(), arrival)
        self._match()

    def _hear(self, topic: str, _number: int, record: Stored) -> None:
        """Note the patterns of members."""
        value = record.value or b""
        if topic == self._coordinator.topics.groups and b'"type":"heartbeat"' in value and b'"pattern":"' in value:
            beat = _decode_beat(value)
            if beat.pattern:
                self._patterns.setdefault((beat.group_id, beat.pattern), (None, 0.0))

    def _match(self) -> None:
        """Tell each group the topics that match a pattern: when they change, and once in a while."""
        coordinator, now_s = self._coordinator, self._scheduler.now_s
        there = [topic for topic in self._log.topics if topic not in self._log.deleted]
        for (group_id, pattern), (before, told_s) in list(self._patterns.items()):
            topics = sorted(one for one in there if may_match(one, coordinator.topics) and re.fullmatch(pattern, one))
            told = topics, coordinator.partitions
            if told != before or now_s - told_s > MATCHES_S:
                self._patterns[group_id, pattern] = told, now_s
                matches = Matches(group_id=group_id, pattern=pattern, topics=topics)
                coordinator.append(coordinator.topics.groups, group_id.encode(), matches)
