"""More partitions: each new shard continues where the old one stopped; no epoch, offset or owner is lost."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.control_log import QUEUES, TOPIC, ControlLog
from tests.support.histories.group_histories import GROUPS, PARTITION, History, plans
from wakeroll_model import Queue
from wakeroll_model.decisions import AnyDecision, Assignment, Membership, Rebalance
from wakeroll_model.events import Commit, CommittedOffset, Heartbeat, Pull, Route, RoutedQueue, Subscription, Tick
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record
from wakeroll_model.resharding import CannotSplit, check_number, split
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import ShardState

NO_GRACE = -(10**9)
decode_state = msgspec.msgpack.Decoder(ShardState).decode


def moved(record: Record, partition: int, offset: int) -> Record:
    return structs.replace(record, partition=partition, offset=offset)


def content(decision: AnyDecision) -> AnyDecision:
    """Return a decision without the parts that say where it was made."""
    bare = structs.replace(decision, shard="", seq=0, cause=None)
    return structs.replace(bare, causes=[]) if isinstance(bare, Rebalance) else bare


@given(plan=plans, cut=st.integers(0, 200), times=st.integers(2, 5))
def test_each_part_decides_as_the_whole_shard_would(plan, cut, times):
    """Members, owners, epochs, offsets, settings and deadlines of a group do not change, wherever the log is cut."""
    records = History(plan).records
    before, after = records[:cut], records[cut:]
    whole = Shard(TOPIC, PARTITION, 4)
    for record in before:
        whole.apply(record)
    parts = split(TOPIC, PARTITION, whole.body(), 4 * times, offset=whole.offset + 1, metadata_ms=NO_GRACE)

    whole_seq = decode_state(whole.body()).seq

    for number, body in parts.items():
        old, new = Shard(TOPIC, PARTITION, 4, whole.body()), Shard(TOPIC, number, 4 * times, body)
        its = [one for one in after if one.key is None or partition_of(one.key, 4 * times) == number]
        first = new.offset + 1
        expected = [content(one) for record in its for one in old.apply(record)]
        found = [one for i, record in enumerate(its) for one in new.apply(moved(record, number, first + i))]
        here = {name for name in GROUPS if partition_of(name.encode(), 4 * times) == number}
        assert [content(one) for one in found] == [one for one in expected if getattr(one, "group_id", None) in here]
        assert [(one.shard, one.seq - whole_seq) for one in found] == [
            (f"groups-{number}.1", i + 1) for i in range(len(found))
        ]


@given(plan=plans, times=st.integers(2, 5))
def test_every_group_is_in_one_part_and_as_it_was(plan, times):
    """No group is in two shards, and none is missing."""
    whole = History(plan).shard

    parts = split(TOPIC, PARTITION, whole.body(), 4 * times, offset=whole.offset + 1)

    shards = [Shard(TOPIC, number, 4 * times, body) for number, body in parts.items()]
    assert sorted(parts) == [PARTITION + 4 * i for i in range(times)]
    assert sorted(name for shard in shards for name in shard.names()) == whole.names()
    assert sum((shard.load.bytes for shard in shards), 0) == whole.load.bytes
    for shard in shards:
        for name in shard.names():
            assert partition_of(name.encode(), 4 * times) == shard.partition
            assert shard.group(name) == whole.group(name)
        assert {name for names in decode_state(shard.body()).readers.values() for name in names} <= {*shard.names()}


def beat(client_id: str, group_id: str, epoch: int = -1, owned: tuple[int, ...] = ()) -> Heartbeat:
    return Heartbeat(
        group_id=group_id,
        client_id=client_id,
        instance_id=f"{client_id}-1",
        epoch=epoch,
        owned=[Queue("orders", "", number) for number in owned],
        subscriptions=[Subscription(topic="orders")],
    )


ROUTE = Route(
    topic="orders", version="2", queues=[RoutedQueue(topic="orders", broker="", queue_id=number) for number in (0, 1)]
)
MOVES, STAYS = "taxes", "billing"


class Growing:
    """Two groups of one partition, before and after the number of partitions grows from 4 to 8."""

    def __init__(self) -> None:
        self.log = ControlLog(4)
        self.shards = {PARTITION: Shard(TOPIC, PARTITION, 4)}
        self.at_ms = 0
        self.tell(ROUTE)
        for client_id in "ab":
            self.pass_seconds(2)
            for group_id in (MOVES, STAYS):
                self.tell(beat(client_id, group_id))
        self.pass_seconds(2)
        for client_id, number in (("a", 0), ("b", 1)):
            for group_id in (MOVES, STAYS):
                self.tell(beat(client_id, group_id, 2, (number,)))

    def tell(self, event: object) -> list[AnyDecision]:
        """Append an event where a client that knows all partitions does; return the decisions about it."""
        records = self.log.append(event, self.at_ms)
        return [one for record in records if record.partition in self.shards for one in self.apply(record)]

    def apply(self, record: Record) -> list[AnyDecision]:
        return self.shards[record.partition].apply(record)

    def pass_seconds(self, count: int) -> list[AnyDecision]:
        found: list[AnyDecision] = []
        for _ in range(count):
            self.at_ms += 1_000
            found += self.tell(Tick())
        return found

    def grow(self) -> None:
        """Split the shard; the log of the old partition goes on."""
        ends = self.log.grow(8)
        parts = split(TOPIC, PARTITION, self.shards[PARTITION].body(), 8, offset=ends[TOPIC, PARTITION])
        self.shards = {number: Shard(TOPIC, number, 8, body) for number, body in parts.items()}


@pytest.fixture
def growing() -> Growing:
    return Growing()


def test_the_examples_move_and_stay():
    assert [partition_of(name.encode(), 4) for name in (MOVES, STAYS)] == [PARTITION, PARTITION]
    assert partition_of(STAYS.encode(), 8) == PARTITION
    assert partition_of(MOVES.encode(), 8) == PARTITION + 4


def test_a_member_that_does_not_know_the_new_partition_yet_does_not_expire(growing):
    """Kafka's clients learn of new partitions after five minutes, and their heartbeats are rejected until then."""
    growing.grow()

    said = growing.pass_seconds(344)

    assert [one for one in said if getattr(one, "group_id", None) == MOVES] == []
    assert growing.shards[PARTITION + 4].group(MOVES).owners == {
        Queue("orders", "", 0): "a",
        Queue("orders", "", 1): "b",
    }


def test_a_member_that_died_meanwhile_expires_when_the_grace_ends(growing):
    """Its queues wait for so long, but not for ever."""
    growing.grow()
    said: list[AnyDecision] = []
    for _ in range(36):
        said += growing.pass_seconds(10)
        said += growing.tell(beat("a", MOVES, 2, (0,)))

    gone = [one for one in said if isinstance(one, Membership) and one.group_id == MOVES]

    assert [(one.client_id, one.change, one.shard) for one in gone] == [("b", "expired", "groups-5.1")]
    assert set(growing.shards[PARTITION + 4].group(MOVES).owners.values()) == {"a"}


def test_a_group_that_stays_is_not_concerned(growing):
    """Its clients append to the right partition, so silence means what it always does."""
    growing.grow()

    said = growing.pass_seconds(50)

    gone = [one for one in said if isinstance(one, Membership) and one.change == "expired"]
    assert {(one.group_id, one.client_id) for one in gone} == {(STAYS, "a"), (STAYS, "b")}


def test_a_newcomer_joins_a_moved_group_at_once(growing):
    """The members are known, so nobody has to wait for them."""
    growing.grow()
    growing.pass_seconds(3)

    said = growing.tell(beat("c", MOVES))

    assert [one.change for one in said if isinstance(one, Membership)] == ["joined"]
    assert [(one.epoch, one.clients) for one in said if isinstance(one, Rebalance)] == [(3, 3)]
    assert {one.client_id for one in said if isinstance(one, Assignment)} >= {"c"}


def test_a_record_in_the_old_partition_is_rejected_with_the_new_one(growing):
    """A client reads this in its inbox, and queries the partitions."""
    growing.grow()
    record = growing.log.append(beat("a", MOVES, 2, (0,)), growing.at_ms)[0]

    [rejected] = growing.apply(moved(record, PARTITION, 99))

    assert (rejected.rule, rejected.client_id) == ("partition", "a")
    assert "belongs to partition 5 of 8; the record is in partition 1" in rejected.detail


def test_offsets_go_on_in_the_new_shard(growing):
    queue = Queue("orders", "", 0)
    commit = Commit(group_id=MOVES, client_id="a", instance_id="a-1", epoch=2, offsets=[])
    growing.tell(beat("a", MOVES, 2, (0,)))
    growing.tell(structs.replace(commit, offsets=[CommittedOffset(queue=queue, offset=7)]))
    growing.grow()

    growing.tell(structs.replace(commit, offsets=[CommittedOffset(queue=queue, offset=9)]))

    assert growing.shards[PARTITION + 4].group(MOVES).offsets == {queue: 9}


def test_a_held_pull_is_answered_by_the_new_shard():
    queues = [Queue("orders", "", number) for number in range(40)]
    home = next(queue for queue in queues if partition_of(queue.key.encode(), 8) == 6)
    log, shard = ControlLog(4, queues=True), Shard(QUEUES, 2, 4)
    first, pull = (
        Pull(request_id=f"{name}:1", group_id="billing", client_id=name, instance_id=name, queue=home, from_offset=0)
        for name in "ab"
    )
    for event in (Tick(), first, pull):
        for record in log.append(event, 0):
            if (record.topic, record.partition) == (QUEUES, 2):
                shard.apply(record)

    parts = {
        number: Shard(QUEUES, number, 8, body) for number, body in split(QUEUES, 2, shard.body(), 8, offset=2).items()
    }

    assert {number: part.load.pulls for number, part in parts.items()} == {2: 0, 6: 1}
    new = ControlLog(8, queues=True)
    said: list[AnyDecision] = []
    for second in range(40):
        for record in new.append(Tick(), 1_000 * second):
            if (record.topic, record.partition) == (QUEUES, 6):
                said += parts[6].apply(record)
    assert [(one.request_id, one.reason) for one in said] == [("b:1", "timeout")]


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (4, 4, "must be larger"),
        (8, 4, "because Kafka cannot remove partitions"),
        (4, 6, "must be a multiple of 4"),
    ],
)
def test_a_number_that_does_not_fit_is_refused(before, after, sentence):
    with pytest.raises(CannotSplit, match=sentence):
        check_number(before, after)


def test_a_shard_that_has_not_begun_its_era_is_refused():
    """It would recover with its next record, and forget the members."""
    restored = Shard(TOPIC, PARTITION, 4, Growing().shards[PARTITION].body(), era=3)

    with pytest.raises(CannotSplit, match="has begun an era and not applied"):
        split(TOPIC, PARTITION, restored.body(), 8, offset=9)
