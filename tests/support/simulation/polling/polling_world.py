"""A world of long polling, made from a plan and in virtual time: clients, producers, an observer, coordinators."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from tests.support.control_log import QUEUES
from tests.support.simulation.frame.simulated_coordinator import Coordinator
from tests.support.simulation.frame.world import World as AnyWorld
from tests.support.simulation.polling.bounds import BOUNDS, LIMITS, small_bounds
from tests.support.simulation.polling.message_queues import CODES, Message, MessageQueue
from tests.support.simulation.polling.poller import Poller
from tests.support.simulation.polling.polling_fault_effects import EFFECTS
from tests.support.simulation.polling.polling_observer import NOTICE_MS, Observer
from tests.support.simulation.polling.polling_plan import LOOK_MS, TIMEOUTS_MS, TOLD, Plan
from wakeroll_model.decisions import AnyDecision, Wake
from wakeroll_model.events import AnyEvent, Arrival, Tick
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record

LAST_TICKS = (max(TIMEOUTS_MS) + BOUNDS["REMEMBER_MS"]) // 1_000 + 2
"""After so many, all pulls have ended and all lives are forgotten."""
MARKERS = 0.1
"""Of all messages, so many are markers: an offset is used, and nobody finds anything there."""


class World(AnyWorld[Plan]):
    """A world of long polling."""

    topic = QUEUES
    effects = EFFECTS
    start_within_ms = 3_000

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.messages = {queue: MessageQueue() for queue in plan.queues}
        self.pollers = {name: self._poller(name) for name in plan.clients}
        self.refused: list[tuple[int, int]] = []
        """Partition and offset of what must be rejected."""
        self.told: list[Arrival] = []
        """All arrivals of the log."""
        self.last_before_probe = 0
        """Number of the last message that came before the calm was proved."""
        self.second_until_ms = 0
        """Until this time there is a second observer."""
        self.rough_until_ms = dict.fromkeys(plan.topics, 0)
        """Topic -> until when reports of its growth are lost, repeated or late."""
        self._numbers = 0
        self._observers: list[Observer] = []
        self._observations = 0

    def _poller(self, name: str) -> Poller:
        count = min(self.rng.choice([1, 1, 2]), len(self.plan.queues))
        return Poller(self, name, self.rng.sample(self.plan.queues, count), self.rng)

    # --- the frame ---

    def begin(self) -> None:
        """Start the observers."""
        self.after(100, self._tick)
        self.after(50, self._observe)

    def start(self, name: str) -> None:
        """Start a client."""
        self.pollers[name].start()

    def surroundings(self) -> AbstractContextManager[None]:
        """Have the bounds of a world."""
        return small_bounds()

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
            self.after(later_ms, self.append, event)
        if missed is not None and not way:
            self.after(NOTICE_MS, missed)

    def note_appended(self, record: Record, event: AnyEvent | None) -> None:
        """Let the observers read a record; one without an event must be rejected."""
        if isinstance(event, Arrival):
            self.told.append(event)
        for observer in self._observers:
            self.after(self.rng.choice((1, 40)), observer.hear, record)
        if event is None:
            self.refused.append((record.partition, record.offset))

    def end(self, queue: Queue) -> int:
        """Return the offset after the last message of a queue."""
        return len(self.messages[queue].log)

    # --- what always goes on ---

    def _tick(self) -> None:
        self.after(1_000, self._tick)
        if self.now_ms >= self.unobserved_until_ms:
            self.after(self.rng.choice((0, 1, 15, 40)), self.append, Tick(limits=LIMITS))

    def _observe(self) -> None:
        """Let the observers that there are now look."""
        self.after(LOOK_MS, self._observe)
        if self.now_ms < max(self.unobserved_until_ms, self.broker.dark_until_ms):
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

    def produce(self) -> None:
        """Add a message to a random queue now and then, until the calm."""
        self.after(self.rng.randint(1, 2 * self.plan.pace_ms), self.produce)
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

    def publish(self, _coordinator: Coordinator, decisions: list[AnyDecision]) -> None:
        """Deliver wakes to the clients of the world; twice, if a fault says so."""
        for decision in decisions:
            self._deliver(decision)

    def _deliver(self, decision: AnyDecision) -> None:
        name = f"{decision.group_id}/{decision.client_id}"
        if isinstance(decision, Wake) and name in self.pollers:
            poller = self.pollers[name]
            self.after(self.rng.choice((1, 5, 40)), poller.hear, decision)
            if self.now_ms < poller.echo_until_ms:
                self.after(self.rng.choice((50, 3_000)), poller.hear, decision)

    # --- the end ---

    def probe(self) -> None:
        """Add a last message of each kind to each queue: does everybody read it?"""
        self.last_before_probe = self._numbers
        for queue in self.plan.queues:
            for tag in CODES:
                self._add(queue, tag, is_readable=True)

    def finish(self) -> None:
        """Let everybody be gone, and time pass until nothing of them should be left."""
        for _ in range(LAST_TICKS):
            self.now_ms += 1_000
            self.append(Tick(limits=LIMITS))
