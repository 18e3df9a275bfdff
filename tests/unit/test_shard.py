"""A shard: decisions are numbered and named, and do not depend on where Spark cuts its batches."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.control_log import START_MS, TOPIC, ControlLog
from tests.support.histories.group_histories import PARTITION, History, plans
from wakeroll_model.decisions import AnyDecision, Cause
from wakeroll_model.events import Configure, Heartbeat, Route, RoutedQueue, Subscription, Tick, Unregister
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision, replay
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import ShardState

decode_state = msgspec.msgpack.Decoder(ShardState).decode
encode_state = msgspec.msgpack.Encoder().encode


def beat(client_id: str, group_id: str = "billing", topic: str = "orders") -> Heartbeat:
    return Heartbeat(
        group_id=group_id, client_id=client_id, instance_id=client_id, subscriptions=[Subscription(topic=topic)]
    )


def route(topic: str, count: int) -> Route:
    queues = [RoutedQueue(topic=topic, broker="", queue_id=number) for number in range(count)]
    return Route(topic=topic, queues=queues, version=str(count))


def in_batches(records: list[Record], cuts: list[int]) -> list[bytes]:
    """Apply the records with the state saved and loaded at each of these places."""
    shard = Shard(TOPIC, PARTITION, 4)
    decided = []
    for i, record in enumerate(records):
        if i in cuts:
            shard = Shard(TOPIC, PARTITION, 4, shard.body())
        decided += map(encode_decision, shard.apply(record))
    return decided


@given(plan=plans, cuts=st.lists(st.integers(0, 200)))
def test_batches_may_be_cut_anywhere(plan, cuts):
    """A retried, a smaller or a larger batch must not change a byte of what was decided."""
    history = History(plan)
    expected = list(map(encode_decision, history.decisions))

    assert in_batches(history.records, cuts) == expected
    assert in_batches(history.records, list(range(len(history.records)))) == expected


@given(plan=plans)
def test_a_state_that_is_saved_twice_is_the_same(plan):
    """Loading and saving without a record in between is no change: Spark may do it at any time."""
    once = History(plan).shard.body()

    twice = Shard(TOPIC, PARTITION, 4, once).body()

    assert decode_state(twice) == decode_state(once)


@given(plan=plans)
def test_a_replay_decides_what_was_decided(plan):
    """That is what "the log is the clock" buys: an audit, a what-if, a restore."""
    history = History(plan)

    assert list(map(encode_decision, replay(history.records, 4))) == list(map(encode_decision, history.decisions))


def decisions_of(*happened: tuple[int, object]) -> tuple[list[Record], list[AnyDecision]]:
    log, shard = ControlLog(4), Shard(TOPIC, PARTITION, 4)
    records, decisions = [], []
    for at_ms, event in happened:
        record = next(one for one in log.append(event, at_ms) if one.partition == PARTITION)
        records.append(record)
        decisions += shard.apply(record)
    return records, decisions


def test_every_decision_says_who_made_it_and_why():
    """(shard, seq) is its identity, and `cause` the record that anybody can look up."""
    records, decisions = decisions_of(
        (0, Tick()),
        (100, route("orders", 2)),
        (1_000, beat("a")),
        (1_500, beat("a")),
        (2_000, Tick()),
        (3_000, Tick()),
        (5_000, beat("b")),
    )

    assert [(one.shard, one.seq, one.at_ms - START_MS, one.cause) for one in decisions] == [
        *((f"groups-{PARTITION}.1", seq, 1_000, Cause(TOPIC, PARTITION, 2)) for seq in (1, 2, 3, 4, 5)),
        (f"groups-{PARTITION}.1", 6, 1_500, Cause(TOPIC, PARTITION, 3)),
        *((f"groups-{PARTITION}.1", seq, 5_000, Cause(TOPIC, PARTITION, 6)) for seq in range(7, 11)),
    ]
    assert records[2].offset == 2


def test_a_shard_goes_on_counting_where_it_stopped():
    log, shard = ControlLog(4), Shard(TOPIC, PARTITION, 4)
    first = shard.apply(log.append(beat("a"), 0)[0])

    again = Shard(TOPIC, PARTITION, 4, shard.body())

    assert again.apply(log.append(beat("b"), 5_000)[0])[0].seq == first[-1].seq + 1


@pytest.mark.parametrize(
    ("topic", "name"), [("wakeroll.groups", "groups-3"), ("my.own.prefix.queues", "queues-3"), ("groups", "groups-3")]
)
def test_a_shard_is_named_for_what_it_holds(topic, name):
    """The prefix of the topics is a setting; names of shards do not change with it."""
    assert Shard(topic, 3, 4).name == name


def shard_with_garbage(deadline_ms: int) -> Shard:
    """Return a shard whose one group cannot be decoded: whoever touches it is found out."""
    log, shard = ControlLog(4), Shard(TOPIC, PARTITION, 4)
    for event in (Tick(), route("orders", 2), beat("a")):
        for record in log.append(event, 0):
            if record.partition == PARTITION:
                shard.apply(record)
    state = decode_state(shard.body())
    state.entities["billing"] = b"\xc1 is no msgpack"
    state.deadlines["billing"] = state.next_due_ms = START_MS + deadline_ms
    return Shard(TOPIC, PARTITION, 4, encode_state(state))


def test_a_tick_with_nothing_due_touches_no_group():
    """Ten thousand groups tick every second; what is not due stays as bytes."""
    shard = shard_with_garbage(deadline_ms=46_000)
    log = ControlLog(4)

    for second in range(1, 46):
        assert shard.apply(log.append(Tick(), second * 1_000)[PARTITION]) == []
    with pytest.raises(msgspec.DecodeError):
        shard.apply(log.append(Tick(), 46_000)[PARTITION])


@pytest.mark.parametrize(
    "event",
    [route("payments", 3), route("orders", 2), beat("a", "shipping", "payments")],
    ids=["other topic", "equal version", "other group"],
)
def test_what_does_not_concern_a_group_does_not_touch_it(event):
    """A batch costs what it touches, not what the shard holds."""
    shard = shard_with_garbage(deadline_ms=46_000)

    record = next(one for one in ControlLog(4).append(event, 1_000) if one.partition == PARTITION)
    shard.apply(record)
    shard.body()


def test_groups_that_are_due_on_one_tick_come_in_order_of_their_names():
    """Not in the order in which they came into memory: that depends on the batches."""
    names = [f"group-{number}" for number in range(40)]
    log, shards = ControlLog(4), [Shard(TOPIC, partition, 4) for partition in range(4)]
    for name in reversed(names):
        record = log.append(beat("a", name), 0)[0]
        shards[record.partition].apply(record)

    for second in range(1, 47):
        for record in log.append(Tick(), second * 1_000):
            decisions = shards[record.partition].apply(record)
            expired = [one.group_id for one in decisions if getattr(one, "change", None) == "expired"]
            assert expired == sorted(expired)
            names = [name for name in names if name not in expired]
    assert names == []


def test_a_topic_that_nobody_wants_any_more_has_no_readers():
    """Topics come and go; what a group once subscribed must not be asked for ever, nor fill the state."""
    log, shard = ControlLog(4), Shard(TOPIC, PARTITION, 4)
    readers = []
    for event in (
        beat("a"),
        beat("b", topic="payments"),
        Unregister(group_id="billing", client_id="a", instance_id="a"),
    ):
        shard.apply(log.append(event, 0)[0])
        readers.append(dict(decode_state(shard.body()).readers))

    assert readers == [
        {"orders": ["billing"]},
        {"orders": ["billing"], "payments": ["billing"]},
        {"payments": ["billing"]},
    ]


def test_a_route_reaches_every_group_that_subscribes_its_topic_in_order_of_their_names():
    log, shard = ControlLog(4), Shard(TOPIC, PARTITION, 4)
    for group_id in ("shipping", "billing"):
        shard.apply(log.append(beat("a", group_id), 0)[0])

    decisions = shard.apply(log.append(route("orders", 1), 2_000)[PARTITION])

    rebalanced = [one.group_id for one in decisions if hasattr(one, "trigger")]
    assert rebalanced == ["billing", "shipping"]


@pytest.mark.parametrize(
    "event",
    [
        Heartbeat(group_id="billing", client_id="a", instance_id="a", epoch=2**53),
        Configure(group_id="billing", session_timeout_ms=20_000),
    ],
    ids=["an epoch from nowhere", "wrong settings"],
)
def test_a_group_that_was_only_refused_something_is_not_kept(event):
    """Mistyped group names must not stay in the state for ever."""
    log, shard = ControlLog(4), Shard(TOPIC, PARTITION, 4)

    shard.apply(log.append(event, 0)[0])

    assert Shard(TOPIC, PARTITION, 4, shard.body()).names() == []
