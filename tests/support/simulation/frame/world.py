"""The common part of worlds: virtual time, a schedule of steps, a broker, coordinators, and the faults of a plan."""

import heapq
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any, Generic, Self, TypeVar

from tests.support.simulation.frame.fault import Fault
from tests.support.simulation.frame.plan import Plan
from tests.support.simulation.frame.simulated_broker import Broker
from tests.support.simulation.frame.simulated_coordinator import Coordinator
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.events import AnyEvent
from wakeroll_model.records import Record

AnyPlan = TypeVar("AnyPlan", bound=Plan)
Effect = Callable[[Any, Fault], None]
"""Carries out a fault in a world."""


class World(ABC, Generic[AnyPlan]):
    """The state of a world and its history.

    A kind of world adds clients, producers and observers.  The order of random draws is part of a world: with another
    order, a seed is another world.
    """

    topic: str
    """The control topic."""
    partitions = 2
    """Of the control topic."""
    effects: Mapping[str, Effect]
    """Kind of fault -> its effect."""
    start_within_ms: int
    """Each client starts at a random time up to this one."""

    def __init__(self, plan: AnyPlan) -> None:
        self.plan = plan
        self.now_ms = 0
        self.happened: Counter[str] = Counter()
        """Kind of fault -> how often it happened."""
        self.rng = Random(plan.seed + 1)
        self.broker = Broker(self.rng, self.topic, self.partitions)
        self.coordinators = [
            Coordinator(self.topic, partition, self.partitions, log, self.rng)
            for partition, log in enumerate(self.broker.log)
        ]
        self.unobserved_until_ms = 0
        """Until this time no observer works."""
        self._steps: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        """A heap; the second number keeps the order of steps at the same time."""
        self._count = 0
        self._behind_until_ms = 0
        self._catches_up = False
        self.replicas: list[Coordinator] = []
        """Second coordinators of some partitions: they read the same log and publish the same, at their own pace."""

    # --- time ---

    def after(self, later_ms: int, step: Callable[..., None], *details: Any) -> None:
        """Schedule a step."""
        self._count += 1
        heapq.heappush(self._steps, (self.now_ms + later_ms, self._count, step, details))

    def run(self) -> Self:
        """Run the world from the beginning to the end."""
        self.begin()
        self.after(300, self._coordinate)
        if self.replicas:
            self.after(350, self._coordinate_replicas)
        self.after(500, self.produce)
        for name in self.plan.clients:
            self.after(self.rng.randint(0, self.start_within_ms), self.start, name)
        for fault in self.plan.faults:
            self.after(fault.at_ms, self.strike, fault)
        self.after(self.plan.chaos_ms, self.calm)
        self.after(self.plan.probe_ms, self.probe)
        with self.surroundings():
            while not self.is_over:
                self.now_ms, _, step, details = heapq.heappop(self._steps)
                step(*details)
            self.finish()
            for coordinator in self.coordinators:
                while not coordinator.is_done:
                    coordinator.batch(all_of_it=True)
            for replica in self.replicas:
                while not replica.is_done:
                    replica.batch(all_of_it=True)
        return self

    @property
    def is_over(self) -> bool:
        """Whether no step is left before the end."""
        return not self._steps or self._steps[0][0] > self.plan.end_ms

    # --- the parts that differ by kind of world ---

    @abstractmethod
    def begin(self) -> None:
        """Start the observers."""

    @abstractmethod
    def start(self, name: str) -> None:
        """Start a client."""

    @abstractmethod
    def produce(self) -> None:
        """Add a message now and then."""

    @abstractmethod
    def publish(self, coordinator: Coordinator, decisions: list[AnyDecision]) -> None:
        """Deliver the decisions of a batch."""

    @abstractmethod
    def probe(self) -> None:
        """Add the last messages; the checkers ask whether they are read."""

    def calm(self) -> None:
        """Put right what would not end with the chaos by itself."""

    def surroundings(self) -> AbstractContextManager[object]:
        """Return the changes to the process that hold while the world runs."""
        return nullcontext()

    def finish(self) -> None:
        """Append the last records; the coordinators read them all."""

    # --- the log and the coordinators ---

    def append(self, event: AnyEvent, *, is_refused: bool = False) -> None:
        """Append an event at once, unless the log is dark.

        Args:
            event: the event.
            is_refused: the event must be rejected.
        """
        if self.now_ms >= self.broker.dark_until_ms:
            for record in self.broker.append(event, self.now_ms, is_refused=is_refused):
                self.note_appended(record, None if is_refused else event)

    def note_appended(self, record: Record, event: AnyEvent | None) -> None:
        """Take note of a record that `append` appended."""

    def _coordinate(self) -> None:
        self.after(self.rng.choice((100, 400, 1_000)), self._coordinate)
        if self.now_ms < max(self._behind_until_ms, self.broker.dark_until_ms):
            return
        catches_up, self._catches_up = self._catches_up, False
        for coordinator in self.coordinators:
            self.run_batch(coordinator, all_of_it=catches_up)

    def _coordinate_replicas(self) -> None:
        self.after(self.rng.choice((200, 700, 5_000)), self._coordinate_replicas)
        if self.now_ms >= self.broker.dark_until_ms:
            for replica in self.replicas:
                self.run_batch(replica)

    def run_batch(self, coordinator: Coordinator, *, all_of_it: bool = False) -> None:
        """Run a batch of a coordinator, and publish it, unless it is away."""
        if self.now_ms >= coordinator.away_until_ms:
            self.publish(coordinator, coordinator.batch(all_of_it=all_of_it))

    def add_replicas(self) -> None:
        """Start a second coordinator for each partition."""
        self.replicas = [
            Coordinator(self.topic, partition, self.partitions, log, self.rng)
            for partition, log in enumerate(self.broker.log)
        ]

    def delay_coordinators(self, length_ms: int) -> None:
        """Stop the coordinators for a while; then they catch up in one batch."""
        self._behind_until_ms, self._catches_up = max(self._behind_until_ms, self.now_ms + length_ms), True

    # --- faults ---

    def strike(self, fault: Fault) -> None:
        """Carry out a fault."""
        self.happened[fault.kind] += 1
        self.effects[fault.kind](self, fault)
