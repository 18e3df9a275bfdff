"""What events cost: an event that names twice as much, in a group twice as large, costs about twice as many steps."""

import copy
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from msgspec import structs

from tests.support.step_counter import Name, steps_of
from wakeroll_model import group_machine, shard
from wakeroll_model.balance import loads
from wakeroll_model.config import NEVER_MS
from wakeroll_model.decisions import AnyDecision, Assignment, Cause
from wakeroll_model.events import (
    AnyEvent,
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Lock,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unlock,
    Unregister,
)
from wakeroll_model.group import Group, GroupSettings, Loss
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.shard_clock import Moment
from wakeroll_model.strategies import weighted

TWICE = 2.2
"""Most steps for twice as much: sorting takes a little more than twice, and whatever is squared four times as many."""


class _Routes(Routes):
    """Routes whose queues have names that count how often they are compared."""

    def get(self, topic: str) -> Route | None:
        route = super().get(topic)
        return route and structs.replace(route, queues=[*map(_renamed, route.queues)])


def _renamed(routed: RoutedQueue) -> RoutedQueue:
    return structs.replace(routed, topic=Name(routed.topic), room="r1")


def queue(topic: str, number: int) -> Queue:
    return Queue(Name(topic), "", number)


class World:
    """One group, and clients that do at once what they are told."""

    def __init__(self, mode: str) -> None:
        self.group = Group(group_id="g", settings=GroupSettings())
        self.mode = mode
        self.topics: dict[str, list[str]] = {}
        """Client -> the topics it wants."""
        self.told: dict[str, Assignment] = {}
        self.routes = _Routes({})
        self.now_ms = 0

    @property
    def first(self) -> str:
        return next(iter(self.topics))

    @property
    def everything(self) -> list[Queue]:
        """The queues that are routed or held."""
        held = {queue for member in self.group.members.values() for queue in member.owned}
        routed = {queue for topic in self.group.topics for queue in self.routes.queues(topic) or ()}
        return [queue(one.topic, one.queue_id) for one in sorted(held | routed)]

    def route(self, topic: str, count: int) -> Route:
        queues = [RoutedQueue(topic=topic, broker="", queue_id=number, max_offset=50) for number in range(count)]
        route = Route(topic=topic, queues=queues, version=str(count), topic_id="one")
        self.routes.learn(route)
        return route

    def step(self, event: AnyEvent, after_ms: int = 0) -> list[AnyDecision]:
        self.now_ms += after_ms
        moment, cause = Moment(self.now_ms, self.now_ms, True), Cause("wakeroll.groups", 0, 0)
        decisions = group_machine.step(self.group, event, moment, cause, self.routes)
        self.told |= {one.client_id: one for one in decisions if isinstance(one, Assignment)}
        return decisions

    def beat(self, client_id: str, **says: object) -> Heartbeat:
        told = self.told.get(client_id)
        known = {
            "group_id": "g",
            "client_id": client_id,
            "instance_id": client_id,
            "epoch": told.epoch if told else -1,
            "owned": [queue(one.queue.topic, one.queue.queue_id) for one in told.queues] if told else [],
            "subscriptions": [Subscription(topic=topic) for topic in self.topics[client_id]],
            "mode": self.mode,
            "room": "r1",
        }
        return Heartbeat(**known | says)

    def join(self, client_id: str, topics: list[str], **says: object) -> Heartbeat:
        self.topics[client_id] = topics
        return self.beat(client_id, **says)

    def settle(self) -> None:
        """Let everybody answer until all is given."""
        for _ in range(4):
            self.step(Tick(), 1_000)
            for client_id in self.topics:
                self.step(self.beat(client_id))
        self.now_ms += 5_000


# --- groups that grow ---


def many_queues(count: int, mode: str) -> World:
    world = World(mode)
    world.route("orders", count)
    world.step(world.join("c", ["orders"]))
    return world


def many_members(count: int, mode: str) -> World:
    world = World(mode)
    world.route("orders", count if mode == "clustering" else 3)
    for number in range(count):
        world.step(world.join(f"c{number:03}", ["orders"]))
    return world


def many_topics(count: int, mode: str) -> World:
    world = World(mode)
    for topic in topics_of(count):
        world.route(topic, 1)
    world.step(world.join("c", topics_of(count)))
    return world


def many_topics_not_routed(count: int, mode: str) -> World:
    """After a loss of state, the client claims what it had."""
    world = World(mode)
    claims = [queue(topic, 0) for topic in topics_of(count)]
    world.step(world.join("c", topics_of(count), epoch=7, owned=claims))
    return world


def many_members_of_one_topic_each(count: int, mode: str) -> World:
    """The oldest member wants them all, and each of the others is compared with it."""
    world = many_topics(count, mode)
    for topic in topics_of(count):
        world.step(world.join(f"of-{topic}", [topic]))
    return world


def topics_of(count: int) -> list[str]:
    return [f"t{number:03}" for number in range(count)]


GROUPS = [many_queues, many_members, many_topics, many_topics_not_routed, many_members_of_one_topic_each]


# --- events ---


def nothing_new(world: World) -> list[AnyEvent]:
    return [world.beat(world.first)]


def commits(world: World) -> list[AnyEvent]:
    """The last ones first: what is looked for in a list would be found at its end."""
    return [_commit(world, reversed(world.told[world.first].queues), world.told[world.first].epoch)]


def refused_commits(world: World) -> list[AnyEvent]:
    return [_commit(world, reversed(world.told[world.first].queues), -1)]


def _commit(world: World, assigned: Iterator, epoch: int) -> Commit:
    offsets = [CommittedOffset(queue=queue(one.queue.topic, one.queue.queue_id), offset=5) for one in assigned]
    offsets = offsets or [CommittedOffset(queue=queue("other", 0), offset=5)]
    return Commit(group_id="g", client_id=world.first, instance_id=world.first, epoch=epoch, offsets=offsets)


def commits_while_learning(world: World) -> list[AnyEvent]:
    """After a loss of state, of what the log shows; all offsets were reset just before."""
    world.group.loss = Loss(NEVER_MS, 45_000)
    for event in (*resets(world), world.beat(world.first)):
        world.step(event)
    return [*commits(world), world.beat(world.first)]


def locks_and_unlocks(world: World) -> list[AnyEvent]:
    who = {"group_id": "g", "client_id": world.first, "instance_id": world.first}
    return [Lock(**who, queues=world.everything[::-1]), Unlock(**who, queues=world.everything)]


def resets(world: World) -> list[AnyEvent]:
    offsets = [ResetOffset(queue=one, offset=1) for one in world.everything[::-1]]
    return [Reset(request_id="r1", group_id="g", offsets=offsets, by="mia")]


def resets_and_leaves(world: World) -> list[AnyEvent]:
    return [*resets(world), *leaves(world)]


def configures(_: World) -> list[AnyEvent]:
    return [Configure(group_id="g", heartbeat_ms=5_000)]


def shares_by_room(_: World) -> list[AnyEvent]:
    return [Configure(group_id="g", strategy="MACHINE_ROOM_NEARBY-AVG")]


def shares_by_weight(_: World) -> list[AnyEvent]:
    return [Configure(group_id="g", strategy="WEIGHTED")]


def fails_to_share(_: World) -> list[AnyEvent]:
    return [Configure(group_id="g", strategy="NEAREST")]


def leaves(world: World) -> list[AnyEvent]:
    return [Unregister(group_id="g", client_id=world.first, instance_id=world.first)]


def joins(world: World) -> list[AnyEvent]:
    return [world.join("one-more", world.topics[world.first])]


def joins_and_the_first_one_releases(world: World) -> list[AnyEvent]:
    world.step(world.join("one-more", world.topics[world.first]))
    return [world.beat(world.first)]


def joins_and_the_first_one_times_out(world: World) -> list[AnyEvent]:
    before = world.beat(world.first)
    world.step(world.join("one-more", world.topics[world.first]))
    world.step(world.beat(world.first, owned=before.owned))
    world.now_ms += 40_000
    return [Tick()]


def claims_what_is_not_its_own(world: World) -> list[AnyEvent]:
    return [world.beat(world.first, owned=[queue("other", number) for number in range(len(world.everything))])]


def says_that_it_owns_nothing(world: World) -> list[AnyEvent]:
    return [world.beat(world.first, owned=[])]


def wants_nothing(world: World) -> list[AnyEvent]:
    return [world.beat(world.first, subscriptions=[])]


def wants_other_messages(world: World) -> list[AnyEvent]:
    wants = [Subscription(topic=topic, expression="a", version=3) for topic in world.topics[world.first]]
    return [world.beat(world.first, subscriptions=wants)]


def loses_the_topic(world: World) -> list[AnyEvent]:
    return [world.route(world.topics[world.first][0], 0)]


def doubles_the_topic(world: World) -> list[AnyEvent]:
    topic = world.topics[world.first][0]
    return [world.route(topic, 2 * len(world.routes.queues(topic) or ()) + 1)]


def passes_a_second(_: World) -> list[AnyEvent]:
    return [Tick()]


def expires_everybody(world: World) -> list[AnyEvent]:
    world.now_ms += 100_000
    return [Tick()]


def expires_everybody_while_others_wait(world: World) -> list[AnyEvent]:
    """Each client's next instance joins at that moment."""
    world.now_ms += 30_000
    for client_id in list(world.topics):
        world.step(world.beat(client_id, instance_id=f"next-{client_id}", epoch=-1, owned=[]))
    world.now_ms += 16_000
    return [Tick()]


def commits_too_far(world: World) -> list[AnyEvent]:
    """Beyond the known ends: the next routes set it right."""
    [commit] = commits(world)
    assert isinstance(commit, Commit)
    far = [CommittedOffset(queue=entry.queue, offset=99) for entry in commit.offsets]
    topic = world.topics[world.first][0]
    route = world.routes.get(topic) or world.route(topic, 1)
    return [structs.replace(commit, offsets=far), route, route]


def makes_the_topic_again(world: World) -> list[AnyEvent]:
    topic = world.topics[world.first][0]
    route = world.routes.get(topic) or world.route(topic, 1)
    for event in (*commits(world), structs.replace(route, topic_id="one")):
        world.step(event)
    return [structs.replace(route, topic_id="another")] * 2


def forgets_topics(world: World) -> list[AnyEvent]:
    """Nobody wants them any more, or they are gone, for a week."""
    for event in (*commits(world), world.beat(world.first, subscriptions=[])):
        world.step(event)
    for topic in list(world.routes.topics):
        world.step(world.route(topic, 0))
    world.step(Tick(), 50_000)
    world.now_ms += 8 * 24 * 3_600_000
    return [Tick()]


EVENTS = [
    nothing_new,
    commits,
    refused_commits,
    commits_while_learning,
    locks_and_unlocks,
    resets,
    resets_and_leaves,
    configures,
    shares_by_room,
    shares_by_weight,
    fails_to_share,
    leaves,
    joins,
    joins_and_the_first_one_releases,
    joins_and_the_first_one_times_out,
    claims_what_is_not_its_own,
    says_that_it_owns_nothing,
    wants_nothing,
    wants_other_messages,
    loses_the_topic,
    doubles_the_topic,
    passes_a_second,
    expires_everybody,
    expires_everybody_while_others_wait,
    commits_too_far,
    makes_the_topic_again,
    forgets_topics,
]

BOUNDED_OTHERWISE = {
    # Each client has an offset of its own for each queue, and a reset sets them all: see MAX_BROADCAST.
    (many_members_of_one_topic_each, "broadcasting", resets),
    (many_members_of_one_topic_each, "broadcasting", resets_and_leaves),
    # A move looks at all topics of the oldest member: see MAX_LOOKS.
    (many_members_of_one_topic_each, "clustering", shares_by_weight),
}


@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
@pytest.mark.parametrize("grown", GROUPS, ids=lambda grown: grown.__name__)
def test_an_event_costs_what_it_names_and_the_size_of_its_group(grown: Callable[[int, str], World], mode: str):
    """Nobody may make the other groups of a shard wait: no event of any group costs the square of anything."""
    small, large = grown(40, mode), grown(80, mode)
    for world in small, large:
        world.settle()
    costly = {}
    for event in EVENTS:
        if (grown, mode, event) not in BOUNDED_OTHERWISE:
            few, many = _steps(small, event), _steps(large, event)
            if many > TWICE * few:
                costly[event.__name__] = few, many

    assert costly == {}


def _steps(world: World, happens: Callable[[World], list[AnyEvent]]) -> int:
    world = copy.deepcopy(world)
    events = happens(world)
    return steps_of(lambda: [world.step(event) for event in events])


def test_easing_ends_when_it_has_looked_often_enough(monkeypatch: pytest.MonkeyPatch):
    """Each move may look at each topic of a member, and at each client for it: some thousand moves would take hours."""
    topics = {topic: [Queue(topic, "", 0)] for topic in topics_of(200)}
    subscribers = {topic: ["old", f"of-{topic}"] for topic in topics}
    before = {queues[0]: "old" for queues in topics.values()}

    def moves() -> int:
        shares = weighted.assign_all(topics, subscribers, {}, before)
        return len(before) - len(shares["old"])

    monkeypatch.setattr(loads, "MAX_LOOKS", 10_000)
    few, steps = moves(), steps_of(moves)
    monkeypatch.setattr(loads, "MAX_LOOKS", 1_000_000)

    assert 0 < few < moves() == 50
    assert steps < 10 * 10_000


# --- shards ---


class Log:
    """One control partition and its shard, which reads the events as they are."""

    def __init__(self) -> None:
        self.shard = Shard("wakeroll.groups", 0, 1)
        self.offset = 0

    def append(self, event: AnyEvent, at_ms: int) -> list[AnyDecision]:
        self.offset += 1
        return self.shard.apply(record_of(event, self.offset, at_ms))


def record_of(event: AnyEvent, offset: int, at_ms: int) -> Record:
    key = event.group_id.encode() if hasattr(event, "group_id") else None
    return Record("wakeroll.groups", 0, offset, at_ms, key, msgspec.json.encode(event))


def beat_of(group_id: str, topics: list[str]) -> Heartbeat:
    wants = [Subscription(topic=topic) for topic in topics]
    return Heartbeat(group_id=group_id, client_id="c", instance_id="c", subscriptions=wants)


def route_of(topic: str, version: str = "1") -> Route:
    return Route(topic=topic, queues=[RoutedQueue(topic=topic, broker="", queue_id=0)], version=version)


def test_a_batch_of_routes_and_heartbeats_keeps_each_route_once():
    """All routes are told again each minute, between everybody's heartbeats.

    Each step of the batch had a copy of the map of all topics: the memory of a batch grew with its square.
    """

    def peak(count: int) -> int:
        log = Log()
        events = [event for topic in topics_of(count) for event in (route_of(topic), beat_of("g", ["t000"]))]
        records = [record_of(event, number, 1_000) for number, event in enumerate(events)]
        tracemalloc.start()
        for record in records:
            log.shard.apply(record)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    assert peak(600) < TWICE * peak(300)


def test_a_tick_costs_what_is_due_not_what_there_is():
    """Ten thousand groups were left and wait for their seven days, while somebody's session ends."""

    def ticks(count: int) -> int:
        log = Log()
        for number in range(count):
            log.append(beat_of(f"g{number}", ["orders"]), 1_000)
            log.append(Unregister(group_id=f"g{number}", client_id="c", instance_id="c"), 1_000)
        for second in range(40):
            log.append(beat_of(f"due{second}", ["orders"]), 1_000 + second * 1_000)
            log.append(Tick(), 1_000 + second * 1_000)
        records = [record_of(Tick(), 10_000 + second, second * 1_000) for second in range(41, 90)]
        return steps_of(lambda: [log.shard.apply(record) for record in records])

    assert ticks(800) < 1.2 * ticks(400)


def test_what_a_group_subscribes_is_indexed_at_the_cost_of_what_it_subscribes(monkeypatch: pytest.MonkeyPatch):
    def wants_others(count: int) -> int:
        log, names = Log(), [Name(topic) for topic in topics_of(count)]
        events = [beat_of("g", names[: count // 2]), beat_of("g", names[count // 4 :])]
        records = [Record("wakeroll.groups", 0, number, 1_000, b"g", b"") for number in range(2)]
        monkeypatch.setattr(shard, "read_event", lambda record, *_: events[record.offset])
        return steps_of(lambda: [log.shard.apply(record) for record in records])

    assert wants_others(400) < TWICE * wants_others(200)


def test_events_that_the_machine_fails_at_do_not_repeat_the_batch_each_time(monkeypatch: pytest.MonkeyPatch):
    """The group is made again from its bytes and the events since; the routes between them are as they were then."""
    fails = Unregister(group_id="g", client_id="poison", instance_id="p")
    real = group_machine.step

    def step(group: Group, event: AnyEvent, *around: Any) -> list[AnyDecision]:
        if event == fails:
            raise ZeroDivisionError
        return real(group, event, *around)

    monkeypatch.setattr(group_machine, "step", step)

    def poisoned(count: int) -> int:
        log = Log()
        round_of = [(route_of(topic), beat_of("g", ["t000"]), fails) for topic in topics_of(count)]
        records = [
            record_of(event, number, 1_000) for number, event in enumerate(event for each in round_of for event in each)
        ]
        return steps_of(lambda: [log.shard.apply(record) for record in records])

    assert poisoned(80) < TWICE * poisoned(40)
