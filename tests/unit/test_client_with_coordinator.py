"""Clients and the real coordinator's shard, with nothing between them: do they understand each other?"""

from collections import defaultdict, deque

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model import Queue
from wakeroll_model.client import Client, Preferences
from wakeroll_model.client_actions import Dropped, Give, Output, Send
from wakeroll_model.decisions import TO_A_CLIENT, AnyDecision
from wakeroll_model.events import Commit, Configure, Event, Heartbeat, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

ORDERS = [Queue("orders", "", number) for number in range(4)]


class World:
    """A log of one partition, its shard, and clients that hear its decisions in order, and at once."""

    def __init__(self, *client_ids: str) -> None:
        self.shard = Shard("wakeroll.groups", 0, 1)
        self.clients = {name: Client("billing", name, preferences()) for name in client_ids}
        self.now_ms = 0
        self.offset = 0
        self.heartbeats = 0
        self.inbox: deque[AnyDecision] = deque()
        self.append(Route(topic="orders", version="1", queues=[routed(queue) for queue in ORDERS]), None)

    def append(self, event: Event, key: bytes | None) -> None:
        """Append an event; its decisions wait for `settle`."""
        record = Record("wakeroll.groups", 0, self.offset, self.now_ms, key, msgspec.json.encode(event))
        self.offset += 1
        self.heartbeats += isinstance(event, Heartbeat)
        assert self.heartbeats < 1_000, "client and coordinator talk without an end"
        self.inbox += self.shard.apply(record)

    def settle(self) -> None:
        """Have every client hear and answer until there is nothing more to say."""
        while self.inbox:
            decision = self.inbox.popleft()
            for client in self.clients.values():
                self.do(client, client.receive(decision, self.now_ms))

    def do(self, client: Client, outputs: list[Output]) -> None:
        """Do what a client wants."""
        for output in outputs:
            if isinstance(output, Send):
                self.append(output.event, b"billing")
                if isinstance(output.event, Commit):
                    client.committed(output.event, output.sent_ms)
                else:
                    client.acknowledged(output.sent_ms, self.now_ms)
            elif isinstance(output, Dropped) and output.comes_back:
                self.do(client, client.join(f"{client.client_id}-{self.now_ms}", self.now_ms))

    def join(self, name: str) -> None:
        """Begin a client's first life."""
        self.do(self.clients[name], self.clients[name].join(f"{name}-{self.now_ms}", self.now_ms))
        self.settle()

    def pass_time(self, duration_ms: int) -> None:
        """Tick once a second."""
        for _ in range(duration_ms // 1_000):
            self.now_ms += 1_000
            self.append(Tick(), None)
            for client in self.clients.values():
                self.do(client, client.on_time(self.now_ms))
            self.settle()

    def drain(self, name: str) -> None:
        """Have a client's application be done with all that was taken."""
        client = self.clients[name]
        self.do(client, client.released(client.draining(), self.now_ms))
        self.settle()

    def readable(self) -> dict[str, list[int]]:
        """Return which queues each client may read."""
        return {name: sorted(queue.queue_id for queue in client.readable()) for name, client in self.clients.items()}


def preferences() -> Preferences:
    return Preferences(subscriptions=[Subscription(topic="orders")])


def routed(queue: Queue) -> RoutedQueue:
    return RoutedQueue(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)


def test_queues_follow_those_who_join_and_leave():
    world = World("c1", "c2")
    world.join("c1")
    assert world.readable() == {"c1": [0, 1, 2, 3], "c2": []}

    world.join("c2")
    world.pass_time(2_000)
    world.drain("c1")
    world.pass_time(2_000)
    assert world.readable() == {"c1": [0, 1], "c2": [2, 3]}

    world.do(world.clients["c1"], world.clients["c1"].leave(world.now_ms))
    world.pass_time(2_000)
    assert world.readable() == {"c1": [], "c2": [0, 1, 2, 3]}


def test_a_long_drain_costs_no_more_heartbeats_than_the_interval_allows():
    """While it lasts the coordinator sees other queues than it knows, and says so after every heartbeat."""
    world = World("c1", "c2")
    world.join("c1")
    world.join("c2")
    world.pass_time(2_000)
    before = world.heartbeats

    world.pass_time(30_000)

    assert world.clients["c1"].draining() == [ORDERS[2], ORDERS[3]]
    assert world.heartbeats - before <= 2 * 3 + 2


def test_a_client_that_was_away_comes_back_in_a_new_life():
    """It noticed its absence itself, before the coordinator's word reached it."""
    world = World("c1", "c2")
    world.join("c1")
    world.join("c2")
    world.pass_time(2_000)
    sleeper = world.clients.pop("c1")
    world.pass_time(90_000)
    assert world.readable() == {"c2": [0, 1, 2, 3]}

    world.clients["c1"] = sleeper
    world.pass_time(2_000)
    world.drain("c2")
    world.pass_time(2_000)

    assert world.readable() == {"c1": [0, 1], "c2": [2, 3]}


# --- in a world that delays, repeats and loses ---


class Rough:
    """Clients with applications at work, and all that is said in between on its way until a step delivers it.

    What a client appends keeps its order, and so does what it hears: Kafka does that much.  Revoke timeouts are out of
    reach, so that nobody may ever lose a queue while alive.
    """

    def __init__(self, names: list[str]) -> None:
        self.shard = Shard("wakeroll.groups", 0, 1)
        self.clients = {name: Client("billing", name, preferences()) for name in names}
        self.now_ms = 0
        self.offset = 0
        self.lives = 0
        self.mishaps = 0
        """Lives that ended by silence, and lost words: after one, messages may be handed out again."""
        self.outgoing: dict[str, deque[Send]] = {name: deque() for name in names}
        self.inbox: dict[str, deque[AnyDecision]] = {name: deque() for name in names}
        self.heard: dict[str, list[AnyDecision]] = {name: [] for name in names}
        self.reading: dict[str, dict[Queue, tuple[Give, int]]] = {name: {} for name in names}
        """Client -> queue -> why it is read, and the offset of its next message."""
        self.in_hand: dict[str, tuple[Give, int]] = {}
        self.finished: dict[Queue, int] = defaultdict(int)
        """Queue -> all messages below were done by somebody."""
        self.append(Route(topic="orders", version="1", queues=[routed(queue) for queue in ORDERS]), None)
        self.append(Configure(group_id="billing", revoke_timeout_ms=24 * 3_600_000), b"billing")

    def append(self, event: Event, key: bytes | None) -> None:
        """Append an event and put the decisions into the inboxes."""
        record = Record("wakeroll.groups", 0, self.offset, self.now_ms, key, msgspec.json.encode(event))
        self.offset += 1
        for decision in self.shard.apply(record):
            if isinstance(decision, TO_A_CLIENT) and decision.client_id:
                self.inbox[decision.client_id].append(decision)

    def do(self, name: str, outputs: list[Output]) -> None:
        """Do what a client wants."""
        for output in outputs:
            if isinstance(output, Send):
                self.outgoing[name].append(output)
            elif isinstance(output, Dropped):
                assert output.comes_back
                self.mishaps += 1
                self.join(name)

    def join(self, name: str) -> None:
        """Begin a life."""
        if not self.clients[name].instance_id:
            self.lives += 1
            self.do(name, self.clients[name].join(f"life-{self.lives}", self.now_ms))

    def leave(self, name: str) -> None:
        """End it in good order; who comes back under this name is another `Consumer`, which hears nothing of before."""
        self.finish(name)
        self.do(name, self.clients[name].leave(self.now_ms))
        self.clients[name] = Client("billing", name, preferences())
        self.reading[name].clear()
        self.inbox[name].clear()
        self.heard[name].clear()

    def deliver(self, name: str) -> None:
        """Let the log have what a client said first."""
        if self.outgoing[name]:
            sent = self.outgoing[name].popleft()
            self.append(sent.event, b"billing")
            if isinstance(sent.event, Heartbeat):
                self.do(name, self.clients[name].acknowledged(sent.sent_ms, self.now_ms))
            elif isinstance(sent.event, Commit):
                self.clients[name].committed(sent.event, sent.sent_ms)

    def hear(self, name: str) -> None:
        """Let a client hear what was said to it first."""
        if self.inbox[name]:
            self.heard[name].append(self.inbox[name].popleft())
            self.do(name, self.clients[name].receive(self.heard[name][-1], self.now_ms))

    def hear_again(self, name: str) -> None:
        """Let a client hear something a second time."""
        if self.heard[name]:
            self.do(
                name, self.clients[name].receive(self.heard[name][self.offset % len(self.heard[name])], self.now_ms)
            )

    def lose_what_is_said(self, name: str) -> None:
        """Let a broker lose what a client says, and its word that it has it."""
        if self.outgoing[name]:
            self.mishaps += 1
            self.outgoing[name].popleft()

    def lose_what_is_heard(self, name: str) -> None:
        """Let a client miss a decision."""
        if self.inbox[name]:
            self.inbox[name].popleft()

    def finish(self, name: str) -> None:
        """Have a client's application be done with its message."""
        if name in self.in_hand:
            held, offset = self.in_hand.pop(name)
            self.finished[held.queue] = max(self.finished[held.queue], offset + 1)
            self.clients[name].done(held, offset + 1)

    def poll(self, name: str) -> None:
        """Do what `Consumer.poll` does: done, release, start, and the next message of the queue that lags most."""
        client, reading = self.clients[name], self.reading[name]
        self.finish(name)
        for queue in [queue for queue, (held, _) in reading.items() if client.readable().get(queue) != held]:
            del reading[queue]
        self.do(name, client.released(client.draining(), self.now_ms))
        news = [held for queue, held in client.readable().items() if queue not in reading]
        starts = [(held, held.start.offset or 0) for held in news]
        for held, offset in starts:
            reading[held.queue] = (held, offset)
            assert offset <= self.finished[held.queue], "messages would be lost"
            assert self.mishaps or offset == self.finished[held.queue], "messages are repeated without need"
        self.do(name, client.started(starts, self.now_ms))
        held, offset = min(reading.values(), key=lambda read: read[1], default=(None, 0))
        if held is not None and client.may_hand_out(held, self.now_ms):
            reading[held.queue] = (held, offset + 1)
            self.in_hand[name] = (held, offset)

    def tick(self, _: str = "") -> None:
        """Let a second pass."""
        self.now_ms += 1_000
        self.append(Tick(), None)
        for name, client in self.clients.items():
            self.do(name, client.on_time(self.now_ms))

    def calm_down(self, seconds: int) -> None:
        """Let time pass with everybody at work, and nothing delayed or lost."""
        for _ in range(seconds):
            self.tick()
            self.deliver_all()

    def deliver_all(self) -> None:
        """Let everybody say and hear all there is, polling on."""
        while any(self.outgoing.values()) or any(self.inbox.values()):
            for name in self.clients:
                self.deliver(name)
                self.hear(name)
                self.poll(name)

    def check(self) -> None:
        """Ask what must hold at any moment."""
        holders = defaultdict(set)
        for name, client in self.clients.items():
            for queue in [*client.readable(), *client.draining()]:
                holders[queue].add(name)
        assert not [names for names in holders.values() if len(names) > 1], "two clients have one queue"
        group = self.shard.group("billing")
        assert group is not None
        assert not [queue for queue, offset in group.offsets.items() if offset > self.finished[queue]], "not done"


CALM_STEPS = [Rough.deliver, Rough.hear, Rough.hear_again, Rough.poll, Rough.tick, Rough.join, Rough.leave]
ROUGH_STEPS = [*CALM_STEPS, Rough.lose_what_is_said, Rough.lose_what_is_heard]
# What moves things on comes more often than what disturbs them.
OFTEN = [Rough.deliver, Rough.hear, Rough.poll]
NAMES = ["a", "b", "c", "d"]


def histories(steps: list) -> st.SearchStrategy:
    """Draw what happens: a step, and whose."""
    return st.lists(st.tuples(st.sampled_from(steps + 2 * OFTEN), st.sampled_from(NAMES)), min_size=50, max_size=250)


def happens(members: int, history: list) -> Rough:
    """Live through a history, from a calm group on, and let it calm down."""
    world = Rough(NAMES[:members])
    for name in world.clients:
        world.join(name)
    world.deliver_all()
    for step, name in history:
        if name in world.clients:
            step(world, name)
            world.check()
    return world


@given(members=st.integers(2, 4), history=histories(CALM_STEPS))
def test_while_nobody_dies_every_message_is_handed_out_once(members, history):
    """However late everything is said and heard, and however often: see `Rough.poll` and `Rough.check`."""
    happens(members, history).calm_down(5)


@given(members=st.integers(2, 4), history=histories(ROUGH_STEPS), gap=st.integers(0, 60))
def test_whatever_is_lost_no_two_have_a_queue_and_in_the_end_each_has_a_reader(members, history, gap):
    """And nothing is skipped, nothing committed that is not done; in the end everything done is on record."""
    world = happens(members, history)
    for _ in range(gap):
        world.tick()
        world.check()
    world.calm_down(60)

    world.check()
    living = {name for name, client in world.clients.items() if client.instance_id}
    read = sorted(queue for name in world.clients for queue in world.clients[name].readable())
    assert read == (ORDERS if living else [])
    group = world.shard.group("billing")
    assert group is not None
    assert set(group.owners.values()) <= living
    for name in living:
        world.finish(name)
        world.do(name, world.clients[name].commit(world.now_ms))
    world.deliver_all()
    for name in living:
        for queue, (_, offset) in world.reading[name].items():
            assert offset - group.offsets[queue] <= (world.in_hand.get(name, (None,))[0] is not None)


def test_a_coordinator_that_lost_everything_skips_nothing():
    """It is told who holds what, and how far; `last`, asked again, would lose what is between."""
    world = World("c1", "c2")
    for name in world.clients:
        world.join(name)
    world.pass_time(2_000)
    world.drain("c1")
    for client in world.clients.values():
        starts = [(held, 70) for held in client.readable().values()]
        world.do(client, client.started(starts, world.now_ms))
    before = world.readable()

    world.shard = Shard("wakeroll.groups", 0, 1, era=2)
    world.append(Route(topic="orders", version="1", queues=[routed(queue) for queue in ORDERS]), None)
    world.pass_time(100_000)

    assert world.readable() == before
    group = world.shard.group("billing")
    assert group is not None
    assert group.offsets == dict.fromkeys(ORDERS, 70)
