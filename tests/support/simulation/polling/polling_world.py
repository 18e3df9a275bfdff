"""A world of long polling, made from a plan and in virtual time: clients, producers, an observer, coordinators."""

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from model.decisions import AnyDecision, Wake
from model.events import AnyEvent, Arrival, Tick
from model.queue import Queue
from model.records import Record
from tests.support.control_log import QUEUES, START_MS, ControlLog
from tests.support.simulation.frame.simulated_coordinator import Coordinator
from tests.support.simulation.polling.bounds import BOUNDS, LIMITS, small_bounds
from tests.support.simulation.polling.message_queues import CODES, Message, MessageQueue
from tests.support.simulation.polling.poller import Poller
from tests.support.simulation.polling.polling_fault_effects import go_wrong
from tests.support.simulation.polling.polling_observer import NOTICE_MS, Observer
from tests.support.simulation.polling.polling_plan import LOOK_MS, PARTITIONS, TIMEOUTS_MS, TOLD, Plan

LAST_TICKS = (max(TIMEOUTS_MS) + BOUNDS["REMEMBER_MS"]) // 1_000 + 2
"""After so many, all pulls have ended and all lives are forgotten."""
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

    told: list[Arrival] = field(default_factory=list)
    """All arrivals of the log."""
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
        self.dark_until_ms = self.no_observer_until_ms = self.second_until_ms = self.behind_until_ms = 0
        self.rough_until_ms = dict.fromkeys(self.plan.topics, 0)
        self.catches_up = False
        """Whether the coordinators' next batches have all there is."""
        self._happenings: list[tuple[int, int, Callable[[], None]]] = []
        self._count = self._numbers = 0
        self._observers: list[Observer] = []
        self._observations = 0

    def _poller(self, name: str) -> Poller:
        count = min(self.rng.choice([1, 1, 2]), len(self.plan.queues))
        return Poller(self, name, self.rng.sample(self.plan.queues, count), self.rng)

    # --- time ---

    @property
    def log_ms(self) -> int:
        """What a broker would say is the time now."""
        return START_MS + self.now_ms + self.skew_ms

    def after(self, later_ms: int, what: Callable[[], None]) -> None:
        """Let something happen later."""
        self._count += 1
        heapq.heappush(self._happenings, (self.now_ms + later_ms, self._count, what))

    def run(self) -> "World":
        """Live from the beginning to the end."""
        self.after(100, self._tick)
        self.after(300, self._coordinate)
        self.after(500, self._produce)
        self.after(50, self._observe)
        for poller in self.pollers.values():
            self.after(self.rng.randint(0, 3_000), poller.start)
        for fault in self.plan.faults:
            self.after(fault.at_ms, lambda fault=fault: go_wrong(self, fault))
        self.after(self.plan.probe_ms, self._probe)
        with small_bounds():
            while self._happenings[0][0] <= self.plan.end_ms:
                self.now_ms, _, what = heapq.heappop(self._happenings)
                what()
            self._end()
        return self

    def observe_anew(self) -> None:
        """Let another process be the observer."""
        self._observers.clear()

    # --- the log ---

    def send(self, event: AnyEvent, *, is_rough: bool = False, missed: Callable[[], None] | None = None) -> None:
        """Append an event after some latency; on a rough way it may be lost, come twice, or come late.

        `missed` is called for one that is lost.
        """
        latency_ms = self.rng.choice((1, 2, 5, 40))
        late_ms = self.rng.choice((50, 300, 1_500, 4_000))
        ways = [(), (latency_ms,), (latency_ms, late_ms), (late_ms,)] if is_rough else [(latency_ms,)]
        way = self.rng.choice(ways)
        for later_ms in way:
            self.after(later_ms, lambda: self.append(event))
        if missed is not None and not way:
            self.after(NOTICE_MS, missed)

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
        if isinstance(event, Arrival):
            self.told.append(event)
        for observer in self._observers:
            self.after(self.rng.choice((1, 40)), lambda observer=observer: observer.hear(record))
        if event is None:
            self.refused.append((record.partition, record.offset))

    # --- what always goes on ---

    def _tick(self) -> None:
        self.after(1_000, self._tick)
        if self.now_ms >= self.no_observer_until_ms:
            self.after(self.rng.choice((0, 1, 15, 40)), lambda: self.append(Tick(limits=LIMITS)))

    def _observe(self) -> None:
        """Let the observers that there are now look."""
        self.after(LOOK_MS, self._observe)
        if self.now_ms < max(self.no_observer_until_ms, self.dark_until_ms):
            self._observers.clear()
            return
        wanted = 2 if self.now_ms < self.second_until_ms else 1
        del self._observers[wanted:]
        while len(self._observers) < wanted:
            self._observations += 1
            self._observers.append(Observer(self, f"o{self._observations}"))
        for observer in self._observers:
            for arrival in observer.look():
                # Of some that are lost it never hears, though Kafka has acknowledged them.
                knows = self.rng.random() < 0.5
                missed = partial(observer.miss, arrival.queue) if knows else None
                self._tell(arrival, missed)

    def _tell(self, arrival: Arrival, missed: Callable[[], None] | None = None) -> None:
        self.send(arrival, is_rough=self.now_ms < self.rough_until_ms[arrival.queue.topic], missed=missed)

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
            poller = self.pollers[name]
            self.after(self.rng.choice((1, 5, 40)), lambda: poller.hear(decision))
            if self.now_ms < poller.echo_until_ms:
                self.after(self.rng.choice((50, 3_000)), lambda: poller.hear(decision))

    # --- the end ---

    def _probe(self) -> None:
        """Add a last message of each kind to each queue: does everybody read it?"""
        self.last_before_probe = self._numbers
        for queue in self.plan.queues:
            for tag in CODES:
                self._add(queue, tag, is_readable=True)

    def _end(self) -> None:
        """Let everybody be gone, and time pass until nothing of them should be left."""
        for _ in range(LAST_TICKS):
            self.now_ms += 1_000
            self.append(Tick(limits=LIMITS))
        for coordinator in self.coordinators:
            while not coordinator.is_done:
                coordinator.batch(all_of_it=True)
