"""Feature levels: behaviour changes at a position of the log, for all who read it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from tests.support.control_log import QUEUES, TOPIC, ControlLog, encode_event
from wakeroll_model.decisions import Rejected
from wakeroll_model.events import AnyEvent, Heartbeat, Level, Pull, Route, RoutedQueue, Subscription, Tick, Unregister
from wakeroll_model.feature_levels import CHANGES, FIRST, NEWEST, STATE_VERSIONS, UnknownLevel
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, read_event
from wakeroll_model.replay import encode_decision
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import ShardState, version_of
from wakeroll_model.what_if import Variation, predict

PARTITIONS = 4
HOME = partition_of(b"billing", PARTITIONS)
AWAY = (HOME + 1) % PARTITIONS

decode_state = msgspec.msgpack.Decoder(ShardState).decode


def misplaced(offset: int) -> Record:
    """A record of the group billing in a partition to which it does not belong."""
    event = Unregister(group_id="billing", client_id="c1", instance_id="i1")
    return Record(TOPIC, AWAY, offset, 1_000 + offset, b"billing", encode_event(event))


def level(offset: int, number: int, *, topic: str = TOPIC, partition: int = AWAY) -> Record:
    return Record(topic, partition, offset, 1_000 + offset, None, encode_event(Level(level=number)))


def refusal(shard: Shard, record: Record) -> Rejected:
    [decision] = shard.apply(record)
    assert isinstance(decision, Rejected)
    return decision


def decided(shard: Shard, records: list[Record]) -> list[bytes]:
    return [encode_decision(decision) for record in records for decision in shard.apply(record)]


def test_level_2_names_the_right_partition_of_a_record_in_a_wrong_one():
    """A client whose metadata is old learns that there are more partitions now: it refreshes it and sends again."""
    shard = Shard(TOPIC, AWAY, PARTITIONS)
    before = refusal(shard, misplaced(0))
    assert shard.apply(level(1, 2)) == []

    after = refusal(shard, misplaced(2))

    assert (before.rule, before.partition, before.partitions) == ("partition", UNSET, UNSET)
    assert (after.rule, after.partition, after.partitions) == ("partition", HOME, PARTITIONS)
    assert (before.detail, before.raw) == (after.detail, after.raw)


def test_a_shard_of_queues_has_a_level_too():
    queue = Queue("orders", "", 3)
    key = queue.key.encode()
    home = partition_of(key, PARTITIONS)
    away = (home + 1) % PARTITIONS
    pull = Pull(request_id="i1:1", group_id="g", client_id="c1", instance_id="i1", queue=queue, from_offset=0)
    shard = Shard(QUEUES, away, PARTITIONS)
    shard.apply(level(0, 2, topic=QUEUES, partition=away))

    said = refusal(shard, Record(QUEUES, away, 1, 2_000, key, encode_event(pull)))

    assert (said.partition, said.partitions) == (home, PARTITIONS)


def test_at_level_1_the_bytes_are_those_of_release_0_1():
    """A new field that is null, or a new type in a list, would differ in the rejections of every archived log."""
    shard = Shard(TOPIC, AWAY, PARTITIONS)

    first, second = refusal(shard, misplaced(0)), refusal(shard, Record(TOPIC, AWAY, 1, 2_000, None, b'{"type":"x"}'))

    assert encode_decision(first).endswith(b'"group_id":"billing","client_id":"c1"}')
    assert second.detail == (
        "no type 'x'; there are: arrival, cancel, commit, configure, failures, heartbeat, lock, pull, reset, route, "
        "tick, unlock, unregister"
    )


def test_from_level_2_on_a_rejection_lists_the_level_among_the_types():
    shard = Shard(TOPIC, AWAY, PARTITIONS, level=2)

    assert "heartbeat, level, lock" in refusal(shard, Record(TOPIC, AWAY, 0, 1_000, None, b'{"type":"x"}')).detail


@pytest.mark.parametrize("number", [1, 2])
def test_a_level_never_goes_down(number):
    """A record that an operator appends late with an older tool must not change how the shard decides."""
    shard = Shard(TOPIC, AWAY, PARTITIONS)
    shard.apply(level(0, 2))

    assert shard.apply(level(1, number)) == []
    assert shard.level == 2


def test_a_level_beyond_this_release_is_refused_and_not_guessed():
    shard = Shard(TOPIC, AWAY, PARTITIONS)

    sentence = rf"groups-{AWAY}, from offset 7 on, is at feature level {NEWEST + 1}, but this release knows"
    with pytest.raises(UnknownLevel, match=sentence):
        shard.apply(level(7, NEWEST + 1))


def test_a_state_at_a_level_beyond_this_release_is_refused():
    """As when a release is installed again that is older than the level."""
    body = msgspec.msgpack.encode(ShardState(PARTITIONS, level=NEWEST + 1))

    with pytest.raises(UnknownLevel, match="install the release that raised the level"):
        Shard(TOPIC, AWAY, PARTITIONS, body)
    with pytest.raises(UnknownLevel, match="install the release that raised the level"):
        version_of(body)


def test_a_state_has_the_version_of_its_level():
    """The release before reads version 4: until the level is raised, a deployment can return to it."""
    shard = Shard(TOPIC, AWAY, PARTITIONS)
    first = shard.body()
    shard.apply(level(0, 2))

    assert (version_of(first), version_of(shard.body()), shard.version) == (4, 5, 5)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        (b"billing", b'{"type":"level","level":2}', "key"),
        (None, b'{"type":"level","level":0}', "bounds"),
        (None, b'{"type":"level"}', "bounds"),
        (None, b'{"type":"level","level":2147483648}', "bounds"),
    ],
)
def test_an_invalid_level_is_rejected(key, value, rule):
    shard = Shard(TOPIC, AWAY, PARTITIONS, level=2)

    assert refusal(shard, Record(TOPIC, AWAY, 0, 1_000, key, value)).rule == rule
    assert shard.level == 2


@pytest.mark.parametrize("number", range(FIRST, NEWEST + 1))
def test_each_level_is_described_and_has_a_version_and_its_types(number):
    answer = read_event(Record(TOPIC, 0, 0, 0, None, b'{"type":"x"}'), PARTITIONS, number)

    assert isinstance(answer, Rejected)
    assert CHANGES.keys() == STATE_VERSIONS.keys() == {*range(FIRST, NEWEST + 1)}


def test_an_era_without_any_state_begins_at_the_level_that_it_is_given():
    """After the loss of the tables and of the record that raised the level."""
    shard = Shard(TOPIC, AWAY, PARTITIONS, era=2, quiet_until=5, level=2)

    shard.apply(misplaced(4))

    assert refusal(shard, misplaced(5)).partitions == PARTITIONS
    assert Shard(TOPIC, AWAY, PARTITIONS, shard.body(), level=1).level == 2


def beat(group_id: str, client_id: str) -> Heartbeat:
    wants = [Subscription(topic="orders")]
    return Heartbeat(group_id=group_id, client_id=client_id, instance_id=f"{client_id}-1", subscriptions=wants)


EVENTS = st.one_of(
    st.builds(beat, st.sampled_from(["billing", "audit"]), st.sampled_from(["a", "b"])),
    st.just(Tick()),
    st.just(Unregister(group_id="billing", client_id="a", instance_id="a-1")),
    st.none(),
)
"""None: a record in the wrong partition."""


@given(before=st.lists(EVENTS, max_size=12), after=st.lists(EVENTS, max_size=12), cut=st.integers(0, 25))
def test_a_replay_over_an_upgrade_is_equal_byte_for_byte(before, after, cut):
    """From the start, from a snapshot before the level, and from one after it."""
    stray = next(name for name in map(str, range(100)) if partition_of(name.encode(), 2) == 1)
    log, records = ControlLog(2), []
    for number, event in enumerate([Tick(), *before, Level(level=2), *after, None]):
        its = event or beat(stray, "a")
        value, key = encode_event(its), getattr(its, "group_id", "").encode() or None
        records.append(log.write(value, 1_000 * number, 0, key))
    cut = min(cut, len(records))

    whole = Shard(TOPIC, 0, 2)
    expected = decided(whole, records)
    first = Shard(TOPIC, 0, 2)
    said = decided(first, records[:cut])
    second = Shard(TOPIC, 0, 2, first.body())
    said += decided(second, records[cut:])

    assert said == expected
    assert second.body() == whole.body()
    assert b'"partitions":2' in said[-1]


def grown(*more: AnyEvent) -> tuple[ControlLog, Shard]:
    """A shard with a group of one member that has shown its assignment, and then these events."""
    log, shard = ControlLog(1), Shard(TOPIC, 0, 1)
    route = Route(topic="orders", queues=[RoutedQueue(topic="orders", broker="", queue_id=0)], version="1")
    shows = msgspec.structs.replace(beat("billing", "a"), epoch=1, owned=[Queue("orders", "", 0)])
    for number, event in enumerate([Tick(), route, beat("billing", "a"), shows, shows, *more]):
        for record in log.append(event, 1_000 * number):
            shard.apply(record)
    return log, shard


def test_no_heartbeat_is_skipped_because_of_what_it_meant_before_the_level():
    """A level may change what a heartbeat leads to, so each is read again once."""
    _, before = grown()
    _, after = grown(Level(level=2))

    def listed(shard: Shard) -> list[int]:
        kept = decode_state(shard.body()).routine.values()
        return [len(msgspec.msgpack.decode(beats)[0]) for beats in kept]

    assert (listed(before), listed(after)) == ([1], [0])


def test_a_simulated_change_is_decided_at_the_level_of_the_shard():
    _, shard = grown(Level(level=2))

    assert shard.copy().level == 2
    assert predict(shard, "billing", Variation(add=1)).is_calm
