"""A world of long polling, made from a plan and in virtual time: clients, producers, an observer, coordinators."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from control_log import QUEUES, ControlLog
from coordinator import Coordinator
from model.decisions import AnyDecision, Wake
from model.events import AnyEvent, Arrival, Tick
from model.queue import Queue
from model.records import Record
from polling.bounds import small_bounds
from polling.messages import CODES, Message, MessageQueue
from polling.plan import LOOK_MS, OBSERVED, PARTITIONS, TOLD, Plan
from polling.poller import Poller
from polling.trouble import go_wrong

MARKERS = 0.1
"""Of all messages, so many are markers: an offset is used, and nobody finds anything there."""


@dataclass
class World:
    """What is there, and what happened."""

    plan: Plan
    now_ms: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of what must be rejected."""
    events: list[list[AnyEvent | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """What each record of the log says, by partition; None if it is no event or must be rejected."""

    last_before_probe: int = 0
    """Number of the last message that came before the calm was proved."""

    def __post_init__(self) -> None:
        self.rng = Random(self.plan.seed + 1)
        self.log = ControlLog(PARTITIONS, queues=True)
        self.coordinators = [Coordinator(QUEUES, each, PARTITIONS, [], self.rng) for each in range(PARTITIONS)]
        self.messages = {queue: MessageQueue() for queue in self.plan.queues}
        self.pollers = {name: self._poller(name) for name in self.plan.clients}
        self.skew_ms = 0
        """How far the log's clock is ahead of the world's."""
        self.dark_until_ms = self.no_observer_until_ms = self.behind_until_ms = 0
        self.rough_until_ms = dict.fromkeys(self.plan.topics, 0)
        self.catches_up = False
        """Whether the coordinators' next batches have all there is."""
        self._happenings: list[tuple[int, int, Callable[[], None]]] = []
        self._count = self._numbers = 0
        self._observed = dict.fromkeys(self.plan.queues, 0)

    def _poller(self, name: str) -> Poller:
        count = min(self.rng.choice([1, 1, 2]), len(self.plan.queues))
        return Poller(self, name, self.rng.sample(self.plan.queues, count), self.rng)

    # --- time ---

    def after(self, later_ms: int, what: Callable[[], None]) -> None:
        """Let something happen later."""
        self._count += 1
        heapq.heappush(self._happenings, (self.now_ms + later_ms, self._count, what))

    def run(self) -> "World":
        """Live from the beginning to the end."""
        self.after(100, self._tick)
        self.after(300, self._coordinate)
        self.after(500, self._produce)
        self.after(50, lambda: self._observe(OBSERVED, LOOK_MS))
        self.after(50, lambda: self._observe(TOLD, self.plan.look_ms))
        for poller in self.pollers.values():
            self.after(self.rng.randint(0, 3_000), poller.start)
        for fault in self.plan.faults:
            self.after(fault.at_ms, lambda fault=fault: go_wrong(self, fault))
        self.after(self.plan.probe_ms, self._probe)
        with small_bounds():
            while self._happenings[0][0] <= self.plan.end_ms:
                self.now_ms, _, what = heapq.heappop(self._happenings)
                what()
            for coordinator in self.coordinators:
                while not coordinator.is_done:
                    coordinator.batch(all_of_it=True)
        return self

    # --- the log ---

    def send(self, event: AnyEvent, *, is_rough: bool = False) -> None:
        """Append an event after some latency; on a rough way it may be lost, come twice, or come late."""
        latency_ms = self.rng.choice((1, 2, 5, 40))
        late_ms = self.rng.choice((50, 300, 1_500, 4_000))
        ways = [(), (latency_ms,), (latency_ms, late_ms), (late_ms,)] if is_rough else [(latency_ms,)]
        for later_ms in self.rng.choice(ways):
            self.after(later_ms, lambda: self.append(event))

    def append(self, event: AnyEvent, *, is_refused: bool = False) -> None:
        """Append an event at once, unless the log is dark; `is_refused`: it must be rejected."""
        if self.now_ms < self.dark_until_ms:
            return
        for record in self.log.append(event, self.now_ms + self.skew_ms):
            if record.topic == QUEUES:
                self.write(record, None if is_refused else event)

    def write(self, record: Record, event: AnyEvent | None) -> None:
        """Append a record; without an event it must be rejected."""
        self.coordinators[record.partition].log.append(record)
        self.events[record.partition].append(event)
        if event is None:
            self.refused.append((record.partition, record.offset))

    # --- what always goes on ---

    def _tick(self) -> None:
        self.after(1_000, self._tick)
        if self.now_ms >= self.no_observer_until_ms:
            self.after(self.rng.choice((0, 1, 15, 40)), lambda: self.append(Tick()))

    def _observe(self, topic: str, every_ms: int) -> None:
        self.after(every_ms, lambda: self._observe(topic, every_ms))
        if self.now_ms < max(self.no_observer_until_ms, self.dark_until_ms):
            return
        for queue, messages in self.messages.items():
            end, before = len(messages.log), self._observed[queue]
            if queue.topic == topic and end != before:
                self._observed[queue] = end
                self._tell(Arrival(queue=queue, next_offset=end, truncated=end < before))

    def _tell(self, arrival: Arrival) -> None:
        self.send(arrival, is_rough=self.now_ms < self.rough_until_ms[arrival.queue.topic])

    def _produce(self) -> None:
        self.after(self.rng.randint(1, 2 * self.plan.pace_ms), self._produce)
        if self.now_ms < self.plan.chaos_ms:
            self._add(self.rng.choice(self.plan.queues), self.rng.choice(list(CODES)))

    def _add(self, queue: Queue, tag: str, *, is_readable: bool = False) -> None:
        """Add a message; of one that is no marker, a producer may tell."""
        log = self.messages[queue].log
        if not is_readable and self.rng.random() < MARKERS:
            log.append(None)
            return
        self._numbers += 1
        message = Message(self._numbers, tag, self.rng.choice((7, 70)))
        log.append(message)
        if queue.topic == TOLD:
            said = message.knowledge(self.rng.choice(self.plan.knowledge))
            self._tell(Arrival(queue=queue, next_offset=len(log), **said))

    def _coordinate(self) -> None:
        self.after(self.rng.choice((100, 400, 1_000)), self._coordinate)
        if self.now_ms < max(self.behind_until_ms, self.dark_until_ms):
            return
        catches_up, self.catches_up = self.catches_up, False
        for coordinator in self.coordinators:
            for decision in coordinator.batch(all_of_it=catches_up):
                self._publish(decision)

    def _publish(self, decision: AnyDecision) -> None:
        name = f"{decision.group_id}/{decision.client_id}"
        if isinstance(decision, Wake) and name in self.pollers:
            self.after(self.rng.choice((1, 5, 40)), lambda: self.pollers[name].hear(decision))

    # --- the end ---

    def _probe(self) -> None:
        """Add a last message of each kind to each queue: does everybody read it?"""
        self.last_before_probe = self._numbers
        for queue in self.plan.queues:
            for tag in CODES:
                self._add(queue, tag, is_readable=True)
