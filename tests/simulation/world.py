"""A world made from a plan, in virtual time: clients, an observer, a broker and a coordinator, and what goes wrong."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broker import Broker
from coordinator import Coordinator
from member import Process, Reader
from model.client import Dropped
from model.decisions import AnyDecision, Assignment, Fenced, Rejected
from model.events import AnyEvent, Configure, Route, RoutedQueue, Tick
from model.queue import Queue
from plan import GROUPS, PARTITIONS, TOPICS, Fault, Plan


@dataclass(slots=True)
class Handling:
    """One message in the hands of one application: what the checkers judge."""

    group_id: str
    queue: Queue
    offset: int
    client_id: str
    life: str
    given: int
    from_ms: int
    to_ms: int = -1
    """-1: never done, for the process died or the world ended."""
    lost_ms: int = -1
    """When the process died with it."""


@dataclass
class World:
    """What is there, and what happened."""

    plan: Plan
    now_ms: int = 0
    happened: Counter[str] = field(default_factory=Counter)
    handlings: list[Handling] = field(default_factory=list)
    drops: list[tuple[int, str, str, Dropped]] = field(default_factory=list)
    """When, who, which life, how."""
    darkness: list[tuple[int, int]] = field(default_factory=list)
    """When there were no ticks, from and to."""
    junk: list[tuple[int, int]] = field(default_factory=list)
    """Partition and offset of what is no event."""

    def __post_init__(self) -> None:
        self.rng = Random(self.plan.seed + 1)
        self.broker = Broker(self.rng)
        self.coordinators = [Coordinator(self.broker, partition, self.rng) for partition in range(PARTITIONS)]
        self.routed = dict(zip(TOPICS, self.plan.queues, strict=True))
        self.ends: dict[Queue, int] = {}
        """How many messages a queue has."""
        self.processes: list[Process] = []
        self.left_well: set[str] = set()
        """Lives that ended their work, committed and unregistered, with the broker at hand."""
        self.handed_after_take: list[tuple[int, str, Queue, str]] = []
        self.killed_by_dead: list[tuple[int, str, str]] = []
        """When a living process was replaced by one that was dead before: when, which life, by which."""
        self.probes: dict[Queue, int] = {}
        """Messages that come in the calm: offset by queue."""
        self._happenings: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._behind_until_ms = 0
        self._catches_up = False
        self._late = (0, 0)
        self._no_ticks_until_ms = 0
        self._published_ms = [0] * PARTITIONS
        self._open: dict[tuple[int, Queue], Handling] = {}
        self._wanted: dict[str, tuple[str, ...]] = {}

    # --- time ---

    def after(self, later_ms: int, what: Callable[..., None], *details: Any) -> None:
        """Let something happen later."""
        self._count += 1
        heapq.heappush(self._happenings, (self.now_ms + later_ms, self._count, what, details))

    def run(self) -> "World":
        """Live from the beginning to the end."""
        for group_id in GROUPS:
            self.after(0, self._configure, group_id, self.plan.session_ms, self.plan.revoke_ms)
        self.after(0, self._route_all)
        self.after(100, self._tick)
        self.after(300, self._coordinate)
        self.after(500, self._produce)
        for name in self.plan.clients:
            self.after(self.rng.randint(0, 20_000), self._start, name)
        for fault in self.plan.faults:
            self.after(fault.at_ms, self._go_wrong, fault)
        self.after(self.plan.chaos_ms, self._calm)
        self.after(self.plan.end_ms, self._probe)
        end_ms = self.plan.end_ms + 5_000
        while self._happenings and self._happenings[0][0] <= end_ms:
            self.now_ms, _, what, details = heapq.heappop(self._happenings)
            what(*details)
        for coordinator in self.coordinators:
            while coordinator.position < len(self.broker.log[coordinator.partition]):
                coordinator.batch(all_of_it=True)
        return self

    # --- what always goes on ---

    def _tick(self) -> None:
        self.after(1_000, self._tick)
        self.after(self.rng.choice((0, 0, 1, 15, 40)), self._append_tick)

    def _append_tick(self) -> None:
        if self.now_ms >= self._no_ticks_until_ms and self.now_ms >= self.broker.dark_until_ms:
            self.broker.append(Tick(), self.now_ms)

    def _route_all(self) -> None:
        self.after(60_000, self._route_all)
        for topic in TOPICS:
            self._route(topic)

    def _route(self, topic: str) -> None:
        if self.now_ms < max(self._no_ticks_until_ms, self.broker.dark_until_ms):
            self.after(1_000, self._route, topic)
            return
        count = self.routed[topic]
        queues = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(count)]
        self.broker.append(Route(topic=topic, queues=queues, version=str(count)), self.now_ms)

    def _produce(self) -> None:
        self.after(self.rng.choice((200, 400, 900)), self._produce)
        if self.now_ms < self.plan.chaos_ms:
            topic = self.rng.choice(TOPICS)
            self._add_message(Queue(topic, "", self.rng.randrange(self.routed[topic])))

    def _add_message(self, queue: Queue) -> None:
        self.ends[queue] = self.ends.get(queue, 0) + 1
        for process in self.processes:
            if process.alive and queue in process.readers:
                self.after(self.broker.latency_ms(), process.when_awake, process.look, queue)

    def _coordinate(self) -> None:
        self.after(self.rng.choice((100, 400, 1_000)), self._coordinate)
        if self.now_ms < max(self._behind_until_ms, self.broker.dark_until_ms):
            return
        catches_up, self._catches_up = self._catches_up, False
        for coordinator in self.coordinators:
            self._publish(coordinator, coordinator.batch(all_of_it=catches_up))

    def _publish(self, coordinator: Coordinator, decisions: list[AnyDecision]) -> None:
        late_until_ms, later_ms = self._late
        later_ms = later_ms if self.now_ms < late_until_ms else self.broker.latency_ms()
        at_ms = max(self.now_ms + later_ms, self._published_ms[coordinator.partition])
        self._published_ms[coordinator.partition] = at_ms
        for decision in decisions:
            if isinstance(decision, Assignment | Fenced | Rejected) and decision.client_id:
                self.after(at_ms - self.now_ms, self._deliver, decision)

    def _deliver(self, decision: AnyDecision) -> None:
        self.broker.publish(decision)
        for process in self.living():
            if process.client_id == decision.client_id:
                self.after(self.broker.latency_ms(), process.when_awake, process.hear)

    # --- clients ---

    def living(self, name: str = "") -> Iterator[Process]:
        """Yield the processes that live, those of one client or all."""
        return (process for process in list(self.processes) if process.alive and name in ("", process.name))

    def wanted(self, name: str) -> tuple[str, ...]:
        """Return the topics that a client subscribes; the first of each group wants all of them."""
        number = int(name[-1])
        return self._wanted.get(name, TOPICS if number % 2 else TOPICS[:1])

    def _start(self, name: str) -> None:
        if not any(self.living(name)):
            self._start_another(name)

    def _start_another(self, name: str) -> None:
        process = Process(self, name, len(self.processes))
        self.processes.append(process)
        process.start()

    def arrive(self, event: AnyEvent) -> None:
        """Append what a dead process had sent."""
        if self.now_ms >= self.broker.dark_until_ms:
            self.broker.append(event, self.now_ms)

    def note_handed(self, process: Process, reader: Reader) -> None:
        """A message is in an application's hands."""
        give = reader.give
        if reader.taken:
            self.handed_after_take.append((self.now_ms, process.group_id, give.queue, give.instance_id))
        who = (process.client_id, give.instance_id, give.given)
        handling = Handling(process.group_id, give.queue, reader.next_offset, *who, self.now_ms)
        self.handlings.append(handling)
        self._open[process.number, give.queue] = handling

    def note_done(self, process: Process, reader: Reader) -> None:
        """A message is handled."""
        self._open.pop((process.number, reader.give.queue)).to_ms = self.now_ms

    def note_lost(self, process: Process, queue: Queue) -> None:
        """A process died with a message in its hands."""
        self._open.pop((process.number, queue)).lost_ms = self.now_ms

    def note_dropped(self, process: Process, dropped: Dropped) -> None:
        """A life ended."""
        life = f"{process.client_id}.{process.number}.{process._lives}"
        by = dropped.by.split(".")[1:2]
        older = [other for other in self.processes if not other.alive and by == [str(other.number)]]
        if older and older[0].number < process.number:
            self.killed_by_dead.append((self.now_ms, life, dropped.by))
        self.drops.append((self.now_ms, process.name, life, dropped))

    # --- what goes wrong ---

    def _go_wrong(self, fault: Fault) -> None:
        until_ms = self.now_ms + fault.length_ms
        self.happened[fault.kind] += 1
        match fault.kind:
            case "crash" | "restart" | "leave" | "abort":
                self._end_process(fault)
            case "behind":
                self._behind_until_ms, self._catches_up = max(self._behind_until_ms, until_ms), True
            case "kill":
                for coordinator in self.coordinators:
                    coordinator.kill_in_next_batch(fault.amount)
            case "late":
                self._late = (until_ms, fault.amount)
            case "dark":
                self.broker.dark_until_ms = max(self.broker.dark_until_ms, until_ms)
                self.darkness.append((self.now_ms, until_ms))
            case "no ticks":
                self._no_ticks_until_ms = max(self._no_ticks_until_ms, until_ms)
                self.darkness.append((self.now_ms, until_ms))
            case "step":
                self.broker.skew_ms += fault.amount
            case "route":
                self.routed[fault.who] = fault.amount
                self._route(fault.who)
            case "configure":
                self._configure(fault.who, fault.length_ms, fault.amount)
            case "junk":
                self._write_junk(fault.who)
            case _:
                self._harm(fault, until_ms)

    def _end_process(self, fault: Fault) -> None:
        """Let a client end, well or not, and come back."""
        for process in self.living(fault.who):
            match fault.kind:
                case "crash":
                    process.die()
                case "restart":
                    process.beat_late(fault.amount)
                    process.die()
                case "leave":
                    process.finish()
                case "abort":
                    process.beat_late(200)
                    process.abort()
        self.after(fault.length_ms, self._start, fault.who)

    def _harm(self, fault: Fault, until_ms: int) -> None:
        """Let something go wrong with a client, if it lives."""
        if fault.kind == "wish":
            self._wanted[fault.who] = [TOPICS, TOPICS[:1], TOPICS[1:]][fault.amount - 1]
        for process in self.living(fault.who):
            match fault.kind:
                case "twin":
                    self.after(0, self._start_another, fault.who)
                case "zombie" | "pause":
                    process.still_until_ms = max(process.still_until_ms, until_ms)
                case "cut":
                    process.cut_until_ms = max(process.cut_until_ms, until_ms)
                case "deaf":
                    process.deaf_until_ms = max(process.deaf_until_ms, until_ms)
                case "slow":
                    process.slow_ms = fault.length_ms
                case "wish":
                    process.when_awake(process.wish, self._wanted[fault.who])

    def _configure(self, group_id: str, session_ms: int, revoke_ms: int) -> None:
        if self.now_ms < self.broker.dark_until_ms:
            self.after(1_000, self._configure, group_id, session_ms, revoke_ms)
            return
        event = Configure(
            group_id=group_id,
            session_timeout_ms=session_ms,
            heartbeat_ms=session_ms // 4,
            revoke_timeout_ms=revoke_ms,
            settle_ms=self.plan.settle_ms,
            handover="eager" if self.plan.eager else "cooperative",
        )
        self.broker.append(event, self.now_ms)

    def _write_junk(self, who: str) -> None:
        if self.now_ms < self.broker.dark_until_ms:
            self.after(1_000, self._write_junk, who)
            return
        texts = (b"", b"{", b'{"type":"nonsense"}', b'{"type":"heartbeat","group_id":"billing","client_id":"c1"}')
        for partition in range(PARTITIONS):
            self.junk.append((partition, len(self.broker.log[partition])))
            self.broker.write(partition, who.encode() or None, self.rng.choice(texts), None, self.now_ms)

    # --- the end ---

    def _calm(self) -> None:
        """Nothing goes wrong from now on, and everybody is there."""
        for process in self.living():
            process.slow_ms = 0
        for name in self.plan.clients:
            self._start(name)

    def _probe(self) -> None:
        """One more message for each queue: is there anybody to handle it?"""
        for topic in TOPICS:
            for number in range(self.routed[topic]):
                queue = Queue(topic, "", number)
                self.probes[queue] = self.ends.get(queue, 0)
                self._add_message(queue)
