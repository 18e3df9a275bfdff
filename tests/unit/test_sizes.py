"""No decision can become too large for its topic, and no client is given more than it can acknowledge."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.histories.group_histories import GROUPS, History, plans
from wakeroll_model import assignment_limits, config, decision_sizes
from wakeroll_model.config import DEFAULT_LIMITS, Limits
from wakeroll_model.decisions import (
    AnyDecision,
    AssignedQueue,
    Assignment,
    Cause,
    Fenced,
    Membership,
    Rebalance,
    Rejected,
    Start,
)
from wakeroll_model.events import (
    AnyEvent,
    Commit,
    CommittedOffset,
    Configure,
    Heartbeat,
    Lock,
    Pull,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Subscription,
    Tick,
    Unregister,
)
from wakeroll_model.group import Group, GroupSettings
from wakeroll_model.group_machine import step
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, entity_of
from wakeroll_model.shard import Shard
from wakeroll_model.shard_clock import Moment

GROUP = "g" * 255
CLIENT = "c" * 255
INSTANCE = "i" * 64
BROKER = '"' * 255
LARGEST = decision_sizes.largest()


def topic(number: int, length: int = 249) -> str:
    return f"{number:03}".ljust(length, "t")


def test_the_bounds_of_a_decision_leave_room_in_its_topic():
    """Kafka counts the names of a record and its headers too."""
    assert max(LARGEST.values()) <= config.MAX_DECISION_BYTES <= config.MAX_RECORD_BYTES // 2


def test_what_a_client_may_be_assigned_it_may_list():
    """Its receipt and its commits name all of it; were they refused, a living client would be expired for ever."""
    shortest = Queue("t", "", 0)

    assert config.MAX_SHARE_BYTES // assignment_limits.bytes_of(shortest) < config.MAX_QUEUES
    assert config.MAX_SHARE_BYTES + config.MAX_PREFERENCES_BYTES < config.MAX_RECORD_BYTES


@given(
    queue=st.builds(
        Queue, st.sampled_from(["t", topic(1)]), st.sampled_from(["", "b", BROKER]), st.integers(0, 2**31 - 1)
    ),
    given_in=st.integers(0, 2**53),
    start=st.builds(Start, offset=st.integers(0, 2**63 - 1), leader_epoch=st.none() | st.integers(0, 2**31 - 1))
    | st.builds(Start, policy=st.sampled_from(["last", "first"]))
    | st.builds(Start, policy=st.just("timestamp"), ms=st.integers(0, 2**53)),
)
def test_a_queue_takes_no_more_of_an_assignment_than_is_counted(queue, given_in, start):
    encoded = msgspec.json.encode(AssignedQueue(queue, given_in, start))

    counted = assignment_limits.bytes_of(queue)
    uncounted = 0 if start.leader_epoch is None else assignment_limits.UNCOUNTED_BYTES
    assert len(encoded) + len(",") <= counted + uncounted
    assert counted <= assignment_limits.MAX_QUEUE_BYTES


# --- events at their bounds ---


class Hostile:
    """A log whose records keep all bounds, as closely as they can."""

    def __init__(self, kind: str = "groups") -> None:
        self.topic = f"wakeroll.{kind}"
        self.shard = Shard(self.topic, 0, 1, raises=True)
        self.offset = 0
        self.at_ms = 1_000

    def append(self, event: AnyEvent) -> list[AnyDecision]:
        value = msgspec.json.encode(event)
        assert len(value) < config.MAX_RECORD_BYTES
        self.offset += 1
        self.at_ms += 2_000
        key = entity_of(event).encode() or None
        return self.shard.apply(Record(self.topic, 0, self.offset, self.at_ms, key, value))

    def route(self, number: int, queues: int) -> list[AnyDecision]:
        routed = [
            RoutedQueue(topic=topic(number), broker=BROKER, queue_id=2**31 - 1 - one, room="r" * 255)
            for one in range(queues)
        ]
        return self.append(Route(topic=topic(number), queues=routed, version="v"))

    def beat(self, client_id: str = CLIENT, topics: int = 3, **says: object) -> list[AnyDecision]:
        wants = {"subscriptions": [Subscription(topic=topic(number)) for number in range(topics)]} | says
        return self.append(Heartbeat(group_id=GROUP, client_id=client_id, instance_id=INSTANCE, **wants))

    def routed(self) -> None:
        """3 topics of 2,000 queues with the longest names: 5.4 MB in one assignment."""
        for number in range(3):
            self.route(number, 2_000)


def all_to_one_client(log: Hostile) -> Iterator[list[AnyDecision]]:
    log.routed()
    yield log.beat()


def all_to_one_client_that_claims_them(log: Hostile) -> Iterator[list[AnyDecision]]:
    """After a loss of state; what a client claims need not be what it was given."""
    log.routed()
    for number in range(3):
        claims = [Queue(topic(number), BROKER, 2**31 - 1 - one) for one in range(2_000)]
        yield log.beat(epoch=2**40 + 2 * number, owned=claims)


def claims_of_others_queues(log: Hostile) -> Iterator[list[AnyDecision]]:
    yield log.beat()
    yield log.beat(epoch=1, owned=[Queue(topic(7), BROKER, one) for one in range(9_000)])


def a_long_parameter_in_a_long_reason(log: Hostile) -> Iterator[list[AnyDecision]]:
    log.routed()
    params = {"inner": "\0" * 4_096, "machine_room_list": "\0" * 4_096, "message_queue_list": "\0" * 4_096}
    for strategy in ("POP", "MACHINE_ROOM_NEARBY", "CONFIG", "MACHINE_ROOM", "CONSISTENT_HASH"):
        yield log.append(Configure(group_id=GROUP, strategy=strategy, strategy_params=params))
        yield log.beat(strategy=strategy)


def a_strategy_that_does_not_exist(log: Hostile) -> Iterator[list[AnyDecision]]:
    log.routed()
    yield log.beat(strategy="N" * 64)


def a_thousand_topics(log: Hostile) -> Iterator[list[AnyDecision]]:
    yield log.beat(topics=900)
    yield log.beat(topics=0)
    yield log.beat(topics=900)
    yield log.beat("another", topics=5, strategy="SPREAD", orderly=True)


def long_expressions(log: Hostile) -> Iterator[list[AnyDecision]]:
    for client_id, character in (("a", "\0"), ("b", "\1")):
        wants = [Subscription(topic=topic(number), expression=character * 4_096) for number in range(8)]
        yield log.beat(client_id, subscriptions=wants)


def commits_locks_and_resets(log: Hostile) -> Iterator[list[AnyDecision]]:
    log.route(0, 300)
    given = log.beat(topics=1)
    [assignment] = [one for one in given if isinstance(one, Assignment)]
    queues = [one.queue for one in assignment.queues]
    who = {"group_id": GROUP, "client_id": CLIENT, "instance_id": INSTANCE}
    metadata = "\0" * 4_096
    good = [CommittedOffset(queue=queue, offset=2**62, metadata=metadata) for queue in queues]
    bad = [CommittedOffset(queue=queue, offset=2**63 - 1, metadata=metadata) for queue in queues]
    yield given
    yield log.append(Commit(**who, epoch=assignment.epoch, offsets=good))
    yield log.append(Commit(**who, epoch=-1, offsets=bad))
    yield log.append(Lock(**who, queues=queues))
    resets = [ResetOffset(queue=queue, offset=1) for queue in queues]
    said = {"asked": "\0" * 255, "by": "\0" * 255}
    yield log.append(Reset(request_id="r1", group_id=GROUP, offsets=resets, **said))
    unknown = [ResetOffset(queue=Queue(topic(0), BROKER, 1), offset=1)]
    yield log.append(Reset(request_id="r2", group_id=GROUP, offsets=unknown, **said))


def broadcasting(log: Hostile) -> Iterator[list[AnyDecision]]:
    log.routed()
    yield log.beat(mode="broadcasting", topics=1)
    yield log.beat(mode="broadcasting", topics=3)
    for number in range(3):
        yield log.route(number, 2_001)


def everybody_goes(log: Hostile) -> Iterator[list[AnyDecision]]:
    log.route(0, 100)
    for number in range(30):
        yield log.beat(f"{number:03}".ljust(255, "c"))
    log.at_ms += 60_000
    for _ in range(60):
        yield log.append(Tick())


EVENTS = [
    all_to_one_client,
    all_to_one_client_that_claims_them,
    claims_of_others_queues,
    a_long_parameter_in_a_long_reason,
    a_strategy_that_does_not_exist,
    a_thousand_topics,
    long_expressions,
    commits_locks_and_resets,
    broadcasting,
    everybody_goes,
]


@pytest.mark.parametrize("happens", EVENTS, ids=lambda happens: happens.__name__)
def test_no_decision_is_larger_than_its_kind_may_be(happens):
    """One record of 8 MiB, or of 4 kB, once made a decision that no topic takes: each restart failed at it again."""
    found = [decision for decisions in happens(Hostile()) for decision in decisions]
    too_large = [
        (decision.__struct_config__.tag, size)
        for decision in found
        if (size := len(msgspec.json.encode(decision))) > LARGEST[str(decision.__struct_config__.tag)]
    ]

    assert found
    assert too_large == []


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_no_answer_to_a_pull_is_larger_than_its_kind_may_be(kind):
    queue = Queue(topic(0), BROKER, 2**31 - 1)
    who = {"group_id": GROUP, "client_id": CLIENT, "instance_id": INSTANCE, "queue": queue, "from_offset": 2**63 - 1}
    log = Hostile("queues")
    found = []
    for number in range(3):
        pull = Pull(**who, request_id=f"{INSTANCE}:{number}", expression="(\0" * 2_048, expression_type=kind)
        found += log.append(pull)

    assert found
    assert all(len(msgspec.json.encode(one)) <= LARGEST[str(one.__struct_config__.tag)] for one in found)


def test_a_rebalance_counts_what_it_does_not_list():
    """The reason is the same for all of a topic; 10,000 times it would be a record of its own."""
    log = Hostile()
    log.route(0, 1_000)

    [rebalance] = [one for one in log.beat(topics=70, strategy="NEAREST") if isinstance(one, Rebalance)]

    assert (len(rebalance.unassigned), rebalance.unassigned_count, rebalance.queues) == (256, 1_000, 1_000)
    assert (len(rebalance.notes), rebalance.notes[-1]) == (64, "and 7 more notes")
    assert max(len(note) for note in rebalance.notes) <= config.MAX_DETAIL


def test_a_decision_that_is_too_large_all_the_same_becomes_a_refusal():
    """The last guard: it keeps its place among the decisions, and says which of them failed."""
    large = Membership(
        shard="groups-1.1",
        seq=7,
        at_ms=5,
        cause=Cause("wakeroll.groups", 1, 9),
        group_id="billing",
        client_id="a",
        change="joined",
        epoch=1,
        detail="x" * config.MAX_DECISION_BYTES,
    )

    refusal, value = decision_sizes.bounded(large)

    assert refusal == Rejected(
        shard="groups-1.1",
        seq=7,
        at_ms=5,
        cause=Cause("wakeroll.groups", 1, 9),
        rule="internal",
        detail=f"the membership has {len(msgspec.json.encode(large))} bytes; it must have at most 4194304",
        group_id="billing",
        client_id="a",
    )
    assert value == msgspec.json.encode(refusal)
    assert len(value) < LARGEST["rejected"]


def test_an_instance_that_waits_is_kept_without_what_it_claims():
    """Its heartbeat stands in the state, by which it joins when the live one is out; it may have 8 MiB of claims."""
    log = Hostile()
    log.beat()
    before = len(log.shard.body())

    claims = [Queue(topic(7), BROKER, number) for number in range(9_000)]
    log.append(Heartbeat(group_id=GROUP, client_id=CLIENT, instance_id="another", owned=claims))

    assert len(log.shard.body()) < before + 2_000


# --- what one client may have ---

EACH_BYTES = assignment_limits.bytes_of(Queue("orders", "", 0)) + 2
"""A queue of orders, and of payments."""


@contextmanager
def room_for(queues: int) -> Iterator[None]:
    """Let an assignment have room for so few queues."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(config, "MAX_SHARE_BYTES", queues * EACH_BYTES)
        patch.setattr(assignment_limits, "ALWAYS_FIT", 1)
        yield


@given(plan=plans)
def test_nobody_has_more_than_it_can_list_in_any_history(plan):
    """What it is draining counts too: a receipt names both, what it had and what it has."""
    most = 0

    class Watched(History):
        def append(self, event):
            nonlocal most
            decisions = super().append(event)
            for group_id in self.shard.names():
                for member in self.shard.group(group_id).members.values():
                    most = max(most, sum(map(assignment_limits.bytes_of, member.owned)))
            return decisions

    with room_for(3):
        Watched(plan)
        assert most <= config.MAX_SHARE_BYTES


CALM = [("billing", 0, ("all drain",)), ("billing", 300, ("all answer",)), ("billing", 0, ("ticks", 5))]


@settings(max_examples=30)
@given(plan=plans)
def test_in_a_calm_world_everybody_gets_all_that_there_is_room_for(plan):
    """What had no room while its client drained is given when that is done: nothing is forgotten."""
    configured = {"strategy": "AVG", "settle_ms": 1_000, "session_timeout_ms": 45_000, "max_members": 1_000}
    with room_for(3):
        history = History([*plan, *((group_id, 0, ("configure", configured)) for group_id in GROUPS), *CALM * 22])

    for group_id in GROUPS:
        group = history.shard.group(group_id)
        if group is not None and group.mode == "clustering":
            assert group.owners == group.target


class Alone:
    """A group on its own, stepped by hand."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.group = Group(group_id="billing", settings=GroupSettings())
        self.routes = Routes({})
        self.now_ms = 0

    def step(self, event: AnyEvent) -> list[AnyDecision]:
        self.now_ms += 5_000
        moment = Moment(self.now_ms, self.now_ms, True)
        return step(self.group, event, moment, Cause("", 0, 0), self.routes, self.group.load, self.limits)

    def route(self, name: str, count: int) -> list[AnyDecision]:
        queues = [RoutedQueue(topic=name, broker="", queue_id=number) for number in range(count)]
        route = Route(topic=name, queues=queues, version=str(count))
        self.routes.learn(route)
        return self.step(route)

    def beat(self, client_id: str, *topics: str, **says: object) -> list[AnyDecision]:
        wants = [Subscription(topic=name) for name in topics]
        ids = {"group_id": "billing", "client_id": client_id, "instance_id": client_id}
        return self.step(Heartbeat(**ids, subscriptions=wants, **says))


def queues_of(name: str, count: int) -> list[Queue]:
    return [Queue(name, "", number) for number in range(count)]


def told(decisions: list[AnyDecision]) -> dict[str, int]:
    """Return client -> how many queues it was told it has."""
    return {one.client_id: len(one.queues) for one in decisions if isinstance(one, Assignment)}


def test_what_does_not_fit_into_an_assignment_is_unassigned():
    """A client with 40,000 queues could not list them: its receipts were refused, and it was expired while it lived."""
    alone = Alone()
    alone.route("orders", 6)
    with room_for(4):
        decisions = alone.beat("a", "orders")
    [rebalance] = [one for one in decisions if isinstance(one, Rebalance)]

    assert told(decisions) == {"a": 4}
    assert [(one.queue.queue_id, one.reason) for one in rebalance.unassigned] == [
        (4, "the assignment of a is full"),
        (5, "the assignment of a is full"),
    ]
    assert (rebalance.queues, rebalance.unassigned_count) == (6, 2)


def test_a_client_gets_what_had_no_room_once_it_has_given_up_others():
    """While it drains all that it had, there is no room for what it shall have."""
    alone = Alone()
    alone.route("orders", 4)
    alone.route("payments", 4)
    with room_for(4):
        alone.beat("a", "orders")
        asked = alone.beat("a", "payments", epoch=1, owned=queues_of("orders", 4))
        drains = alone.beat("a", "payments", epoch=2, owned=queues_of("orders", 2))
        drained = alone.beat("a", "payments", epoch=2, owned=queues_of("payments", 2))

    assert [told(asked), told(drains), told(drained)] == [{"a": 0}, {"a": 2}, {"a": 4}]


def test_of_what_a_client_claims_and_does_not_own_the_first_ones_are_listed():
    """An assignment is complete: what it does not list must be given up, whether it stands in `revoke` or not."""
    alone = Alone()
    alone.beat("a", "orders")

    [assignment] = alone.beat("a", "orders", epoch=0, owned=queues_of("claimed", 1_000)[::-1])

    assert assignment.revoke == queues_of("claimed", 256)
    assert assignment.state == "unrevoked"


# --- broadcasting: every member has every queue ---


TEN_QUEUES = Limits(max_broadcast=10)
"""For all members of a broadcasting group together."""


def test_who_would_make_a_broadcasting_group_too_large_is_refused():
    alone = Alone(TEN_QUEUES)
    alone.route("orders", 4)
    for client_id in "ab":
        alone.beat(client_id, "orders", mode="broadcasting")

    refused = alone.beat("c", "orders", mode="broadcasting")

    assert [(type(one), getattr(one, "rule", ""), getattr(one, "reason", "")) for one in refused] == [
        (Rejected, "limit", ""),
        (Fenced, "", "refused"),
    ]
    assert refused[0].detail == (
        "the topics of the client have 4 queues, and the members have 8 already; "
        "expected at most 10 in a broadcasting group"
    )
    assert list(alone.group.members) == ["a", "b"]


def test_a_broadcasting_group_grows_as_far_as_it_may_and_says_who_lacks_what():
    """One queue more was 92 MB of decisions, from one record, in a group of 1,000 members and 1,000 queues."""
    alone = Alone(TEN_QUEUES)
    alone.route("orders", 3)
    for client_id in "abc":
        alone.beat(client_id, "orders", mode="broadcasting")

    grown = alone.route("orders", 5)
    lacking = [(one.client_id, one.change, one.detail) for one in grown if isinstance(one, Membership)]

    [rebalance] = [one for one in grown if isinstance(one, Rebalance)]

    assert told(grown) == {"a": 4}
    assert [note.partition("; limits:")[0] for note in rebalance.notes] == [
        "the members subscribe 15 queues; older members get theirs first"
    ]
    assert [(client_id, change, detail.partition("; limits:")[0]) for client_id, change, detail in lacking] == [
        ("a", "conflict", "has 4 queues; further queues of its topics are not assigned"),
    ]
    assert sum(len(member.owned) for member in alone.group.members.values()) == 10


def test_who_leaves_a_broadcasting_group_makes_room_for_the_others():
    alone = Alone(TEN_QUEUES)
    alone.route("orders", 3)
    for client_id in "abc":
        alone.beat(client_id, "orders", mode="broadcasting")
    alone.route("orders", 5)
    alone.step(Unregister(group_id="billing", client_id="c", instance_id="c"))

    looked = [told(alone.step(Tick())) for _ in range(5)]

    assert {client_id: count for one in looked for client_id, count in one.items()} == {"a": 5, "b": 5}


def test_a_reset_of_a_broadcasting_group_sets_a_bounded_number_of_offsets():
    """It sets one offset of each queue for each client: two million records would follow from one."""
    alone = Alone(TEN_QUEUES)
    alone.route("orders", 4)
    for client_id in "ab":
        alone.beat(client_id, "orders", mode="broadcasting")
    offsets = [ResetOffset(queue=queue, offset=7) for queue in queues_of("orders", 4)]
    alone.group.broadcast_offsets["gone"] = alone.group.broadcast_offsets["a"]

    [refused] = alone.step(Reset(request_id="r1", group_id="billing", offsets=offsets, by="mia"))

    assert (refused.rule, refused.detail) == (
        "reset",
        "4 queues of 3 clients have 12 offsets; expected at most 10 in one reset",
    )
