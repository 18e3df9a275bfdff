"""A shard without its state: it learns from the log and from heartbeats, and takes nothing away from who reads."""

import pytest

from tests.support.control_log import TOPIC
from tests.support.histories.one_group import World, commit, work
from wakeroll_model.config import SESSION_TIMEOUT_MS
from wakeroll_model.decisions import AnyDecision, Assignment, Fenced, Handover, Membership
from wakeroll_model.events import (
    Commit,
    CommittedOffset,
    Configure,
    Reset,
    ResetOffset,
    Route,
    RoutedQueue,
    Tick,
    Unregister,
)
from wakeroll_model.queue import Queue
from wakeroll_model.shard import Shard

LONG_MS = 180_000
"""A session that an operator has set."""


def of_kind(kind: type, decisions: list[AnyDecision]) -> list:
    return [one for one in decisions if isinstance(one, kind)]


# --- what the log says ---


def with_long_session_and_cut_log() -> World:
    """A group whose `configure` has left the log; its member says in each heartbeat which session it trusts."""
    world = World()
    world.append(Configure(group_id="billing", session_timeout_ms=LONG_MS, heartbeat_ms=60_000))
    first = world.shard.offset + 1
    world.join("a1")
    for _ in range(4):
        world.beat("a1")
        world.pass_time(60_000)
    world.lose_state(first=first)
    world.route()
    return world


def test_who_is_silent_for_less_than_it_said_is_not_ended_by_what_is_learnt_from_the_log():
    """Its heartbeats came every minute; the settings that allow that are gone."""
    world = with_long_session_and_cut_log()

    decisions = world.beat("a1")

    assert of_kind(Fenced, decisions) == []
    assert [(one.queue.queue_id, one.to) for one in of_kind(Handover, decisions)] == [(0, "a"), (1, "a")]


def test_a_session_that_only_the_log_tells_is_waited_for():
    """A newcomer gets nothing before the reader has given up, though that is not heard for long."""
    world = with_long_session_and_cut_log()
    world.beat("n1")

    waited = world.pass_time(LONG_MS - 1_000)
    world.pass_time(3_000)

    assert of_kind(Handover, waited) == []
    assert [one.to for one in of_kind(Handover, world.beat("n1"))] == ["n", "n"]


def test_only_who_left_by_itself_has_ended_by_what_is_learnt_from_the_log():
    """All else may have been decided otherwise, for the log does not begin where the group did."""
    world = World()
    world.join("a1", "b1")
    first = world.shard.offset + 1
    world.beat("a1")
    world.pass_time(SESSION_TIMEOUT_MS + 2_000)  # b is silent by this part of the log
    world.lose_state(first=first)

    assert world.shard.group("billing").ended == {}
    assert of_kind(Fenced, world.beat("b1")) == []


# --- who was in comes first ---


@pytest.mark.parametrize(
    ("newcomer", "says"),
    [("n1", {}), ("a2", {}), ("n1", {"mode": "broadcasting"})],
    ids=["takes the last place", "uses the same client_id", "consumes in another mode"],
)
def test_a_newcomer_that_is_heard_first_does_not_shut_out_who_reads(newcomer, says):
    """Nothing is given meanwhile, so it loses nothing by waiting."""
    world = World()
    world.append(Configure(group_id="billing", max_members=1))
    world.join("a1")
    world.lose_state()
    world.pass_time(1_000)
    assert world.beat(newcomer, **says) == []

    decisions = world.beat("a1")

    assert of_kind(Fenced, decisions) == []
    assert world.members() == ["a1"]
    assert [one.to for one in of_kind(Handover, decisions)] == ["a", "a"]


def test_a_newcomer_joins_when_the_session_is_over():
    world = World()
    world.join("a1")
    world.lose_state()
    world.pass_time(1_000)
    for _ in range(6):
        world.beat("a1")
        world.beat("n1")
        world.pass_time(10_000)

    assert world.members() == ["a1", "n1"]


def test_what_a_client_drains_of_a_topic_that_it_left_stays_with_it_until_it_is_done():
    """In an ordered group nothing may time out, so another reader would break the order."""
    world = World()
    world.join("a1")
    world.lose_state()
    owned = [Queue("orders", "", number) for number in range(2)]

    def drains(owned: list[Queue]) -> list[AnyDecision]:
        return world.beat("a1", "payments", orderly=True, owned=owned)

    drains(owned)
    world.beat("n1", orderly=True)
    for _ in range(10):
        world.pass_time(10_000)
        drains(owned)
        world.beat("n1", orderly=True)
    handovers = [one for one in of_kind(Handover, world.decisions) if one.shard.endswith(".2")]
    assert {one.to for one in handovers if one.queue.topic == "orders"} == {"a"}
    assert set(world.told["a1"].revoke) == set(owned)

    decisions = drains([])

    assert [(one.from_, one.to, one.how) for one in of_kind(Handover, decisions)] == [("a", "n", "released")] * 2


def test_what_a_client_was_told_to_give_up_is_given_up_before_it_is_its_own():
    """Its topic had no queues when it was claimed first, so the client drains; the map must not say anything else."""
    world = World()
    world.join("a1")
    world.lose_state()
    world.append(Route(topic="orders", queues=[], version="gone"))
    owned = [Queue("orders", "", number) for number in range(2)]
    world.beat("a1", owned=owned)
    assert set(world.told["a1"].revoke) == set(owned)

    world.route()
    [told] = of_kind(Assignment, world.beat("a1", owned=owned))

    assert world.shard.group("billing").owners == dict.fromkeys(owned, "a")
    assert (set(told.revoke), told.queues) == (set(owned), [])
    decisions = world.beat("a1", owned=[])
    assert [(one.from_, one.to) for one in of_kind(Handover, decisions)] == [("a", None)] * 2


def test_who_is_told_late_that_it_is_out_reads_on_alone():
    """Two instances of a client_id claim to have read; the second one is fenced, and may hear that a session later."""
    world = World()
    world.join("a1")
    world.lose_state()
    world.pass_time(1_000)
    orders = [Queue("orders", "", number) for number in range(2)]
    world.beat("a1", owned=orders[:1])
    world.pass_time(30_000)
    world.beat("a1")

    assert [one.reason for one in of_kind(Fenced, world.beat("a2", epoch=1, owned=orders[1:]))] == ["expired"]
    decisions = []
    for _ in range(11):
        decisions += world.pass_time(4_000)
        world.beat("a1")

    assert [one for one in of_kind(Handover, decisions) if one.queue == orders[1]] == []
    assert [one.to for one in of_kind(Handover, world.pass_time(4_000))] == ["a"]


def test_nobody_holds_up_a_group_by_claiming_to_read_again_and_again():
    """Two sessions after the loss all queues are owned, whatever is claimed under ever new names."""
    world = World()
    world.join("a1")
    world.lose_state()
    world.pass_time(1_000)
    world.beat("a1", owned=[])
    for number in range(2, 20):
        world.pass_time(5_000)
        world.beat("a1")
        world.beat(f"a{number}", epoch=1, owned=[Queue("orders", "", 0)])

    assert [one.to for one in of_kind(Handover, world.decisions)][-2:] == ["a", "a"]
    assert [one.change for one in of_kind(Membership, world.decisions)].count("expired") == 0


def test_a_group_that_is_first_heard_of_by_an_end_takes_newcomers_when_the_session_is_over():
    """A process that starts again says first that its former instance has ended."""
    world = World()
    world.append(Unregister(group_id="other", client_id="x", instance_id="x0"))
    world.lose_state()
    world.pass_time(1_000)
    world.append(Unregister(group_id="billing", client_id="n", instance_id="n0"))

    world.pass_time(SESSION_TIMEOUT_MS + 2_000)
    world.beat("n1")

    assert world.members() == ["n1"]


def test_a_topic_that_was_away_for_a_moment_is_not_another_one_because_the_log_was_cut():
    """Its id was told before the log that is left begins; the commits in that log count."""
    world = World()
    ids = {"version": "2", "topic_id": "t1"}
    queues = [RoutedQueue(topic="orders", broker="", queue_id=number, max_offset=50) for number in range(2)]
    world.append(Route(topic="orders", queues=queues, **ids))
    world.join("a1")
    first = world.shard.offset + 1
    world.beat("a1")
    committed = [CommittedOffset(queue=queues[0].queue, offset=40)]
    names = {"group_id": "billing", "client_id": "a", "instance_id": "a1"}
    world.append(Commit(**names, epoch=world.told["a1"].epoch, offsets=committed))
    world.append(Route(topic="orders", queues=[], version="gone"))
    world.append(Route(topic="orders", queues=queues, **ids))
    world.lose_state(first=first)
    world.beat("a1")

    assert world.shard.group("billing").offsets == {queues[0].queue: 40}


# --- what the log says of offsets ---


@pytest.mark.parametrize("end", ["shares", "leaves", "dies", "dies and comes back"])
def test_commits_behind_a_hand_over_are_learnt_from_the_log(end):
    """Whoever commits lists the queue in its heartbeats; who was given it, and when, the log does not say."""
    world, queue = World(), Queue("orders", "", 1)
    work(world, "a1", seconds=3)
    commit(world, "a1", queue, 50)
    after = {"shares": ["a1", "b1"], "leaves": ["b1"], "dies": ["b1"], "dies and comes back": ["a2"]}[end]
    if end == "leaves":
        world.append(Unregister(group_id="billing", client_id="a", instance_id="a1"))
    work(world, *after, seconds=6 if end in ("shares", "leaves") else 60)
    commit(world, after[-1], queue, 80)
    assert world.shard.group("billing").offsets[queue] == 80

    world.lose_state()

    assert world.shard.group("billing").offsets[queue] == 80


def test_what_nobody_lists_is_not_learnt():
    """A process that was fenced may still commit; its queue is another's."""
    world, queue = World(), Queue("orders", "", 1)
    work(world, "a1", seconds=3)
    commit(world, "a1", queue, 50)
    world.beat("a1", owned=[Queue("orders", "", 0)])
    commit(world, "a1", queue, 80)

    world.lose_state()

    assert world.shard.group("billing").offsets[queue] == 50


@pytest.mark.parametrize(("seconds", "offset"), [(10, 10), (SESSION_TIMEOUT_MS // 1_000 + 1, 80)])
@pytest.mark.parametrize("mode", ["clustering", "broadcasting"])
def test_a_commit_counts_again_a_session_after_a_reset(mode, seconds, offset):
    """Until then it may have been made before its client heard of the reset: an operator's word is kept."""
    world, queue = World(), Queue("orders", "", 0)
    work(world, "a1", seconds=3, mode=mode)
    commit(world, "a1", queue, 50)
    entry = ResetOffset(queue=queue, offset=10)
    world.append(Reset(request_id="r", group_id="billing", by="ops", offsets=[entry]))
    work(world, "a1", seconds=seconds, mode=mode)
    commit(world, "a1", queue, 80)

    world.lose_state()

    group = world.shard.group("billing")
    known = group.offsets if mode == "clustering" else group.broadcast_offsets["a"].offsets
    assert known[queue] == offset


def test_a_broadcasting_client_s_offsets_of_later_topics_are_learnt():
    """Else its next life would start at the last message."""
    world, queue = World(), Queue("payments", "", 0)
    work(world, "a1", seconds=3, mode="broadcasting")
    for _ in range(3):
        world.beat("a1", "orders", "payments", mode="broadcasting")
    commit(world, "a1", queue, 80)

    world.lose_state()

    assert world.shard.group("billing").broadcast_offsets["a"].offsets[queue] == 80


def test_members_of_a_broadcasting_group_that_are_not_heard_yet_have_not_left():
    """Their offsets do not count as those of clients that are gone."""
    world, queue = World(), Queue("orders", "", 0)
    names = [f"{name}1" for name in "abcdefgh"]
    work(world, *names, seconds=3, mode="broadcasting")
    for name in names:
        commit(world, name, queue, 50)
    body = world.shard.body()
    limits = {"max_gone_offsets": 1, "max_broadcast": 16}

    world.shard = Shard(TOPIC, 0, 1, body, era=2, raises=True)
    world.append(Tick(observer="o", uptime_ms=world.now_ms, limits=limits))
    for _ in range(60):
        work(world, *names, seconds=1, mode="broadcasting")

    own = world.shard.group("billing").broadcast_offsets
    assert {name: one.offsets[queue] for name, one in own.items()} == dict.fromkeys("abcdefgh", 50)
    assert world.members() == names


def test_an_empty_group_is_reset_as_its_members_consumed_last():
    """It was broadcasting once, and clustering since; the next member starts where the operator said."""
    world, queue = World(), Queue("orders", "", 0)
    work(world, "a1", seconds=3, mode="broadcasting")
    commit(world, "a1", queue, 70)
    world.append(Unregister(group_id="billing", client_id="a", instance_id="a1"))
    work(world, "b1", seconds=3)
    commit(world, "b1", queue, 50)
    world.append(Unregister(group_id="billing", client_id="b", instance_id="b1"))

    world.append(Reset(request_id="r", group_id="billing", by="ops", offsets=[ResetOffset(queue=queue, offset=10)]))
    world.lose_state()

    assert world.shard.group("billing").offsets[queue] == 10


def wait(world: World, *instances: str) -> None:
    """Let instances beat for 40 s, almost a session."""
    for _ in range(4):
        for instance in instances:
            world.beat(instance)
        world.pass_time(10_000)


def test_queues_of_a_reader_that_is_refused_wait_until_it_has_given_up():
    """Fewer members may be in the group than before the loss; one that is refused may receive its fence late."""
    world = World()
    queues = [RoutedQueue(topic="orders", broker="", queue_id=number) for number in range(3)]
    world.append(Route(topic="orders", queues=queues, version="3"))
    world.join("a1", "b1", "c1")
    assert world.told["c1"].queues != []
    world.append(Configure(group_id="billing", max_members=1))
    world.lose_state()
    wait(world, "a1", "b1")

    refused = world.beat("c1")
    begin = len(world.decisions)
    wait(world, "a1", "b1")
    while_it_may_read = world.decisions[begin:]
    world.pass_time(6_000)

    assert [one.reason for one in of_kind(Fenced, refused)] == ["refused"]
    assert of_kind(Handover, while_it_may_read) == []
    assert of_kind(Handover, world.decisions[begin:]) != []
