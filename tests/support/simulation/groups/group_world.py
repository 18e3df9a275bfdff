"""A world made from a plan, in virtual time: clients, an observer, a broker and a coordinator, and what goes wrong."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

from tests.support.control_log import TOPIC
from tests.support.simulation.frame.simulated_coordinator import Coordinator
from tests.support.simulation.frame.world import World as AnyWorld
from tests.support.simulation.groups.client_process import Process, Reader
from tests.support.simulation.groups.group_fault_effects import EFFECTS
from tests.support.simulation.groups.group_observer import Observer
from tests.support.simulation.groups.group_operator import Operator
from tests.support.simulation.groups.group_plan import TOPICS, Plan
from tests.support.simulation.groups.known_strategies import by_percent, careless
from tests.support.simulation.groups.seen import Giving, Handling, Seen
from wakeroll_model import feature_levels
from wakeroll_model.client_actions import Dropped, Give, Output, Send
from wakeroll_model.decisions import TO_A_CLIENT, AnyDecision, Start
from wakeroll_model.events import Commit, Heartbeat
from wakeroll_model.queue import Queue
from wakeroll_model.slices import container

MOST_EVENTS = 30_000
MOST_DECISIONS = 20_000
"""In a world: what comes beyond is chatter without an end."""


class World(AnyWorld[Plan]):
    """A world of groups."""

    topic = TOPIC
    effects = EFFECTS
    start_within_ms = 20_000

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if plan.has_replicas:
            self.add_replicas()
        if plan.slices:  # records below their level would name whole queues
            for coordinator in (*self.coordinators, *self.replicas):
                coordinator.begin_at(feature_levels.NEWEST)
        self.seen = Seen()
        self.inbox: dict[str, list[AnyDecision]] = {}
        """client_id -> all decisions that were ever published to it."""
        self.inbox_begins: dict[str, int] = {}
        """client_id -> number of its decisions that were in an inbox that was deleted."""
        self.came_ms: dict[str, list[int]] = {}
        """client_id -> when each of these came."""
        self.observer = Observer(self)
        self.operator = Operator(self)
        self.ends: dict[Queue, int] = {}
        """How many messages a queue has."""
        self.processes: list[Process] = []
        self.probes: list[Queue] = []
        """Queues that get one more message in the calm, or the cells that it belongs to."""
        self._late = self._echo = (0, 0)
        self._lost: dict[str, tuple[int, tuple[str, ...]]] = {}
        """client_id -> until when which decisions for it are lost."""
        self._delayed: dict[str, int] = {}
        """client_id -> how late the next decision for it is."""
        self._published_ms = [0] * self.partitions
        self._open: dict[tuple[int, Queue], Handling] = {}
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._preferred: dict[str, str] = {}

    @property
    def is_runaway(self) -> bool:
        """Whether more was said than there can be to say."""
        decisions = sum(len(coordinator.decisions) for coordinator in self.coordinators)
        return sum(map(len, self.broker.log)) > MOST_EVENTS or decisions > MOST_DECISIONS

    # --- the frame ---

    @property
    def is_over(self) -> bool:
        """Whether no step is left before the end, or there is no end."""
        return super().is_over or self.is_runaway

    def begin(self) -> None:
        """Start the operator and the observers."""
        self.operator.start()
        self.observer.start()

    def surroundings(self) -> AbstractContextManager[None]:
        """Have the strategy CARELESS."""
        return careless()

    # --- what always goes on ---

    def produce(self) -> None:
        """Add a message to a random queue now and then, until the calm."""
        self.after(self.rng.choice((200, 400, 900)), self.produce)
        queues = self.observer.queues(self.rng.choice(TOPICS))
        if self.now_ms < self.plan.chaos_ms and queues:
            self._add_message(self.rng.choice(queues))

    def _add_message(self, queue: Queue) -> None:
        self.ends[queue] = self.ends.get(queue, 0) + 1
        for process in self.processes:
            for read in [one for one in process.readers if one.whole == queue] if process.alive else ():
                self.after(self.broker.latency_ms(), process.when_awake, process.look, read)

    def publish(self, coordinator: Coordinator, decisions: list[AnyDecision]) -> None:
        """Put decisions into the inboxes, in their order; late or twice, if a fault says so."""
        late_until_ms, later_ms = self._late
        echo_until_ms, echo_ms = self._echo
        later_ms = later_ms if self.now_ms < late_until_ms else self.broker.latency_ms()
        at_ms = max(self.now_ms + later_ms, self._published_ms[coordinator.partition])
        self._published_ms[coordinator.partition] = at_ms
        for decision in decisions:
            if isinstance(decision, TO_A_CLIENT) and decision.client_id:
                self.after(at_ms - self.now_ms, self._deliver, decision.client_id, decision)
                if self.now_ms < echo_until_ms:
                    self.after(at_ms - self.now_ms + echo_ms, self._deliver, decision.client_id, decision)

    def _deliver(self, client_id: str, decision: AnyDecision) -> None:
        self.seen.published_ms.setdefault((decision.shard, decision.seq), self.now_ms)
        until_ms, kinds = self._lost.get(client_id, (0, ()))
        if self.now_ms < until_ms and decision.__struct_config__.tag in kinds:
            return
        if client_id in self._delayed:
            self.after(self._delayed.pop(client_id), self._deliver, client_id, decision)
            return
        self.inbox.setdefault(client_id, []).append(decision)
        self.came_ms.setdefault(client_id, []).append(self.now_ms)
        for process in self.living():
            if process.client_id == client_id:
                self.after(self.broker.latency_ms(), process.when_awake, process.hear)

    def delay_inbox(self, length_ms: int, later_ms: int) -> None:
        """Let what is decided in this time be published later."""
        self._late = self.now_ms + length_ms, later_ms

    def recreate_inbox(self) -> None:
        """Delete the inbox with all its decisions, and create it again; each process looks at its end within 5 s."""
        self.inbox_begins = {client_id: len(decisions) for client_id, decisions in self.inbox.items()}
        for process in self.living():
            self.after(self.rng.randint(1, 5_000), process.when_awake, process.watch_inbox)

    def echo_inbox(self, length_ms: int, later_ms: int) -> None:
        """Let what is published in this time come once more, so much later, whatever was published meanwhile."""
        self._echo = self.now_ms + length_ms, later_ms

    def lose_decisions(self, client_id: str, kinds: tuple[str, ...], length_ms: int) -> None:
        """Let decisions of these kinds for a client be lost for a while."""
        self._lost[client_id] = self.now_ms + length_ms, kinds

    def delay_decision(self, client_id: str, later_ms: int) -> None:
        """Let the next decision for a client be late, and those after it not."""
        self._delayed[client_id] = later_ms

    def delete(self, topic: str) -> None:
        """A topic has no messages any more."""
        for queue in [queue for queue in self.ends if queue.topic == topic]:
            del self.ends[queue]
        self.seen.made_again.append((self.now_ms, topic))

    def truncate(self, topic: str, messages: int) -> None:
        """The queues of a topic lose so many of their last messages."""
        for queue in [queue for queue in self.ends if queue.topic == topic]:
            self.ends[queue] = max(0, self.ends[queue] - messages)
            self.seen.truncated.add(queue)

    # --- clients ---

    def living(self, name: str = "") -> Iterator[Process]:
        """Yield the processes that live, those of one client or all."""
        return (process for process in list(self.processes) if process.alive and name in ("", process.name))

    def wanted(self, name: str) -> tuple[str, ...]:
        """Return the topics that a client subscribes; at first, every second one wants all of them."""
        return self._wanted.get(name, TOPICS if int(name[-1]) % 2 else TOPICS[:1])

    def preferred(self, name: str) -> str:
        """Return the strategy that a client wants."""
        return self._preferred.get(name, "AVG")

    def change_wish(self, name: str, which: int) -> None:
        """Let a client subscribe both topics, the first or the second one."""
        self._wanted[name] = (TOPICS, TOPICS[:1], TOPICS[1:])[which - 1]
        self._tell_wishes(name)

    def change_preference(self, name: str, percent: int) -> None:
        """Let a client want another strategy."""
        self._preferred[name] = by_percent(percent)
        self._tell_wishes(name)

    def _tell_wishes(self, name: str) -> None:
        for process in self.living(name):
            process.when_awake(process.wish)

    def start(self, name: str) -> None:
        """Start a client's process, if it has none."""
        if not any(self.living(name)):
            self.start_another(name)

    def start_another(self, name: str, fights_until_ms: int = 0) -> None:
        """Start a process of a client, though it may have one."""
        process = Process(self, name, len(self.processes))
        process.fights_until_ms = fights_until_ms
        self.processes.append(process)
        process.join()

    # --- what is seen ---

    def note_given(self, process: Process, reader: Reader) -> None:
        """A process knows where to begin."""
        give = reader.give
        under_way = tuple(send.event for send in process.producer.unsent if isinstance(send.event, Commit))
        for cell in self.plan.cells(give.queue):
            who = (process.scope, cell, give.instance_id, give.assigned_epoch)
            start, offset = _start_of(give, cell, reader.next_offset)
            self.seen.givings.append(Giving(*who, start, offset, self.now_ms, give.queue, under_way))

    def note_handed(self, process: Process, reader: Reader) -> None:
        """A message is in an application's hands."""
        give = reader.give
        if reader.taken:
            self.seen.handed_after_take.append((self.now_ms, process.group_id, give.queue, give.instance_id))
        who = (process.client_id, give.instance_id, give.assigned_epoch)
        cell = self.plan.cell_of(give.queue, reader.next_offset)
        handling = Handling(process.scope, cell, reader.next_offset, *who, self.now_ms)
        self.seen.handlings.append(handling)
        self._open[process.number, give.queue] = handling

    def note_done(self, process: Process, reader: Reader) -> None:
        """A message is handled."""
        self._open.pop((process.number, reader.give.queue)).to_ms = self.now_ms

    def note_lost(self, process: Process, queue: Queue) -> None:
        """A process died with a message in its hands."""
        self._open.pop((process.number, queue)).lost_ms = self.now_ms

    def note_released(self, process: Process, queue: Queue, outputs: list[Output]) -> None:
        """A process has drained a queue; does it say so, or is it out?"""
        beats = [one.event for one in outputs if isinstance(one, Send) and isinstance(one.event, Heartbeat)]
        if all(queue in beat.owned for beat in beats) and not any(isinstance(one, Dropped) for one in outputs):
            life = process.client.instance_id
            self.seen.not_reported.append((self.now_ms, process.group_id, queue, life))

    def note_dropped(self, process: Process, dropped: Dropped) -> None:
        """A life ended."""
        life = f"{process.client_id}.{process.number}.{process.lives}"
        self.seen.drops.append((self.now_ms, process.name, life, dropped))

    # --- the end ---

    def calm(self) -> None:
        """Nothing goes wrong from now on, everybody is there, and what cannot work is put right."""
        self.operator.put_right()
        for topic in TOPICS:
            self.observer.come_back(topic)
        self.observer.find_leaders()
        for coordinator in (*self.coordinators, *self.replicas):
            coordinator.away_until_ms = coordinator.longest_batch = 0
        self._lost.clear()
        self._delayed.clear()
        for process in self.living():
            process.slow_ms = process.unheard_until_ms = process.lags_until_ms = 0
            process.when_awake(process.hear)
        for name in self.plan.clients:
            self.start(name)

    def probe(self) -> None:
        """One more message for each queue: is there anybody to handle it?"""
        for topic in TOPICS:
            for queue in self.observer.queues(topic):
                self.probes.append(self.plan.cell_of(queue, self.ends.get(queue, 0)))
                self._add_message(queue)


def _start_of(give: Give, cell: Queue, offset: int) -> tuple[Start, int]:
    """Return where a cell of a queue starts, and its first message that may be handed out."""
    done = [one.offset for one in give.start.done if container(cell, one.slices).slice == one.slice]
    if done:
        return Start(offset=max(done)), max(done)
    start = give.start
    return (Start(policy=start.policy) if start.policy is not None else start), offset
