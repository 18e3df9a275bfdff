"""Kafka's own groups are watched: what real consumers of each protocol do is on record as decisions.

The consumers are processes with Kafka's client, and do not know that they are watched.
"""

import re
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ShareConsumer, TopicPartition

from tests.support.systems.coordinator_thread import Coordinator, plane_of_its_own
from tests.support.systems.decision_sink import Sink
from tests.support.systems.kafka_member import member
from tests.support.waiting import PATIENCE_S, wait_until
from wakeroll.kafka_groups import KafkaGroups
from wakeroll_model.decisions import AnyDecision, Handover, Membership, Offset, Rebalance, Rejected
from wakeroll_model.queue import Queue
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka_watch.group_reader import GroupReader
from wakeroll_pipeline.kafka_watch.group_watcher import GroupWatcher, WatchRules
from wakeroll_pipeline.kafka_watch.watched_decisions import kafka_group_of
from wakeroll_pipeline.local.child_process import Child

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("sink")]

README = (Path(__file__).parents[2] / "README.md").read_text()
QUEUES = 4
PROTOCOLS = {
    "eager": {"partition_assignment_strategy": "range"},
    "cooperative": {"partition_assignment_strategy": "cooperative-sticky"},
    "consumer": {"group_protocol": "consumer"},
}


class Watched:
    """One Kafka group, its consumers, and what is on record about it."""

    def __init__(self, coordinator: Coordinator, group_id: str, folder: Path) -> None:
        self.coordinator = coordinator
        self.kafka_group = group_id
        self.name = f"kafka.{group_id}"
        self.topic = coordinator.topic(QUEUES)
        self._folder = folder
        self._reader = GroupReader(coordinator.connection, PATIENCE_S)
        self.kafka = KafkaGroups(coordinator.connection, PATIENCE_S)

    def produce(self, count: int) -> None:
        for number in range(QUEUES):
            self.coordinator.produce(self.topic, number, count)

    def member(self, client_id: str, **settings: str | int) -> Child:
        bootstrap = self.coordinator.connection.bootstrap
        return member(self._folder, bootstrap, self.kafka_group, self.topic, client_id, **settings)

    def assigned(self) -> dict[Queue, str]:
        """Return who has which queue by Kafka's own answer."""
        seen = self._reader.read({self.kafka_group: False})[self.kafka_group].seen
        members = () if seen is None else seen.members or ()
        return {queue: member.client_id for member in members for queue in member.queues}

    def wait_for_owners(self, members: int) -> dict[Queue, str]:
        """Wait until all queues have the owners on record that they have in Kafka, so many of them."""

        def agreed() -> dict[Queue, str]:
            owners = self.coordinator.owners(self.name)
            is_right = len(owners) == QUEUES and len(set(owners.values())) == members
            return owners if is_right and self.assigned() == owners else {}

        return wait_until(
            agreed,
            f"{members} members own all queues here as in Kafka",
            state=lambda: (self.coordinator.owners(self.name), self.assigned(), self.said()[-5:]),
        )

    def wait_for_offsets(self, offset: int) -> None:
        wanted = dict.fromkeys(range(QUEUES), offset)
        wait_until(
            lambda: self.coordinator.offsets(self.name, self.topic) == wanted,
            f"offsets {offset} are on record",
            state=lambda: (self.coordinator.offsets(self.name, self.topic), self.kafka.read(self.kafka_group)),
        )

    def said(self, *kinds: type) -> list[AnyDecision]:
        return [
            decision
            for decision in tuple(self.coordinator.decided)
            if getattr(decision, "group_id", None) == self.name and isinstance(decision, kinds or object)
        ]

    def changes(self) -> list[str]:
        return [decision.change for decision in self.said(Membership)]


@pytest.fixture
def watched(coordinator: Coordinator, group_id: str, tmp_path: Path) -> Watched:
    return Watched(coordinator, group_id, tmp_path)


def commit_under(group_id: str, coordinator: Coordinator, topic: str) -> None:
    """Commit an offset as an old client does, without being a member: Kafka's client of today refuses an empty name."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    host, _, port = coordinator.connection.bootstrap.partition(":")
    one_queue = struct.pack(">i", 1) + text(topic) + struct.pack(">iiq", 1, 0, 5) + text("")
    request = struct.pack(">hhi", 8, 2, 1) + text("old") + text(group_id) + struct.pack(">i", -1) + text("")
    request += struct.pack(">q", -1) + one_queue

    def committed() -> bool:
        with socket.create_connection((host, int(port))) as connection, connection.makefile("rwb") as stream:
            stream.write(struct.pack(">i", len(request)) + request)
            stream.flush()
            (size,) = struct.unpack(">i", stream.read(4))
            return stream.read(size)[-2:] == b"\0\0"

    wait_until(committed, "the group's coordinator takes the commit")


@contextmanager
def watching(coordinator: Coordinator, groups: str) -> Iterator[None]:
    """The process that watches, as a thread."""
    stop = threading.Event()
    rules = WatchRules(groups=re.compile(groups), interval_ms=500)
    watcher = GroupWatcher(coordinator.connection, DEV_KEYS, rules)
    thread = threading.Thread(target=watcher.run, args=(stop,), name="watcher", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_queues_and_offsets_are_on_record_when_members_join_and_leave(watched, protocol):
    settings = PROTOCOLS[protocol]
    watched.produce(10)
    with watching(watched.coordinator, watched.kafka_group), ExitStack() as members:
        first, second, third = (watched.member(name, **settings) for name in ("first", "second", "third"))
        members.enter_context(first)
        members.enter_context(second)
        owners = watched.wait_for_owners(2)
        assert {name.partition("-")[0] for name in owners.values()} == {"first", "second"}
        watched.wait_for_offsets(10)

        members.enter_context(third)
        watched.wait_for_owners(3)
        watched.produce(5)
        watched.wait_for_offsets(15)

        assert second.stop() == 0
        owners = watched.wait_for_owners(2)
        assert {name.partition("-")[0] for name in owners.values()} == {"first", "third"}
        assert watched.changes() == ["joined", "joined", "joined", "left"]
    assert watched.said(Rejected) == []
    assert {one.trigger for one in watched.said(Rebalance)} <= {"config", "join", "leave", "route", "timer"}
    assert {one.reset_by for one in watched.said(Offset)} == {None}


def test_a_consumer_that_crashes_is_the_cause_of_the_moves_of_its_queues(watched):
    """Kafka does not tell whether a member left or its session ended, so it is on record as left."""
    settings = PROTOCOLS["eager"] | {"session_timeout_ms": 6_000}
    with (
        watching(watched.coordinator, watched.kafka_group),
        watched.member("first", **settings),
        watched.member("second", **settings) as second,
    ):
        owners = watched.wait_for_owners(2)
        second.kill()
        watched.wait_for_owners(1)
    gone = {queue for queue, owner in owners.items() if owner.startswith("second")}
    moved = [one for one in watched.said(Handover) if one.how == "unregistered" and one.to is not None]
    assert {one.queue for one in moved} == gone
    [target] = [one for one in watched.said(Rebalance) if one.trigger == "leave"]
    assert {one.epoch for one in moved} == {target.epoch}


def test_a_watch_that_is_restarted_goes_on_and_sees_what_happened_meanwhile(watched):
    settings = PROTOCOLS["cooperative"]
    watched.produce(10)
    with watched.member("first", **settings), watched.member("second", **settings) as second:
        with watching(watched.coordinator, watched.kafka_group):
            owners = watched.wait_for_owners(2)
            watched.wait_for_offsets(10)
        before = len(watched.said())

        with watching(watched.coordinator, watched.kafka_group):
            watched.produce(5)
            watched.wait_for_offsets(15)
        since = watched.said()[before:]
        assert {type(one).__name__ for one in since} == {"Rebalance", "Assignment", "Offset"}
        assert [one.trigger for one in since if isinstance(one, Rebalance)] == ["config"]
        assert watched.coordinator.owners(watched.name) == owners

        second.stop()
        wait_until(lambda: len(set(watched.assigned().values())) == 1, "Kafka has given all queues to one member")
        with watching(watched.coordinator, watched.kafka_group):
            watched.wait_for_owners(1)
            assert watched.changes() == ["joined", "joined", "left"]
    assert watched.said(Rejected) == []


def test_a_static_member_keeps_its_name(watched):
    """Its restart is no change in Kafka, and none here."""
    settings = PROTOCOLS["eager"] | {"group_instance_id": "till-7"}
    with watching(watched.coordinator, watched.kafka_group):
        with watched.member("first", **settings):
            assert set(watched.wait_for_owners(1).values()) == {"till-7"}
        with watched.member("again", **settings):
            watched.produce(3)
            watched.wait_for_offsets(3)
            assert watched.changes() == ["joined"]


def test_offsets_of_a_group_without_members_follow_in_both_directions(watched):
    queue = Queue(watched.topic, "", 0)
    watched.produce(20)
    assert watched.kafka.write({watched.kafka_group: {queue: 1}}) == {}, "as an operator does"
    with watching(watched.coordinator, watched.kafka_group):
        pass
    assert watched.said() == [], "wakeroll's own tool wrote them"

    commit(watched, 12)
    with watching(watched.coordinator, watched.kafka_group):
        wait_until(lambda: watched.coordinator.offsets(watched.name, watched.topic) == {0: 12}, "12 is on record")
    commit(watched, 4)
    with watching(watched.coordinator, watched.kafka_group):
        wait_until(lambda: watched.coordinator.offsets(watched.name, watched.topic) == {0: 4}, "4 is on record")
    assert {one.reset_by for one in watched.said(Offset)} == {"watch-kafka"}


def commit(watched: Watched, offset: int) -> None:
    """Commit as a consumer that is no member of its group."""
    consumer = watched.coordinator.connection.consumer(**{"group.id": watched.kafka_group})
    consumer.commit(offsets=[TopicPartition(watched.topic, 0, offset)], asynchronous=False)
    consumer.close()


def test_processes_share_the_groups_and_one_goes_on_for_another(watched, coordinator, tmp_path):
    """Each group is watched by one of them. It is in the hands of another at once when its process ends."""
    others = [Watched(coordinator, f"{watched.kafka_group}-{number}", tmp_path) for number in range(4)]
    for other in others:
        commit(other, 1)
    expression = rf"{watched.kafka_group}.*"

    def all_at(offset: int) -> Callable[[], bool]:
        return lambda: all(coordinator.offsets(other.name, other.topic) == {0: offset} for other in others)

    with watching(coordinator, expression):
        with watching(coordinator, expression):
            wait_until(all_at(1), "all groups are on record", state=lambda: [one.said() for one in others])
            shared = kafka_group_of(coordinator.connection.topics.prefix, f"kafka. {expression}")
            wait_until(lambda: len(watched.kafka.read(shared).members) == 2, "both take part")
        for other in others:
            commit(other, 2)
        wait_until(all_at(2), "the one that is left goes on", state=lambda: [one.said() for one in others])
    for other in others:
        assert other.said(Rejected) == []


def test_wakerolls_own_kafka_groups_and_share_groups_are_left_out(watched, coordinator):
    """Kafka's client does not list share groups, whose members have no queue for themselves."""
    share = ShareConsumer(
        {"bootstrap.servers": coordinator.connection.bootstrap, "group.id": f"{watched.kafka_group}-share"}
    )
    share.subscribe([watched.topic])
    commit(watched, 1)
    own = f"{coordinator.connection.topics.prefix}.offset-mirror"
    with watching(coordinator, ".*"):
        wait_until(
            lambda: coordinator.offsets(watched.name, watched.topic) == {0: 1},
            "an ordinary group is on record",
            between=lambda: share.poll(0.05),
        )
    share.close()
    known = {getattr(one, "group_id", "") or "" for one in tuple(coordinator.decided)}
    assert not [name for name in known if name.endswith("-share") or own in name or ".watch-kafka." in name]


def test_the_readmes_command_watches_a_group(watched, tmp_path):
    connection = watched.coordinator.connection
    words = re.search(r"^wakeroll (watch-kafka --groups )'orders-\.\*'", README, flags=re.MULTILINE)[1].split()
    where = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", *words, watched.kafka_group, *where]
    watched.produce(3)
    with Child("the watch", command, log=tmp_path / "watch.log") as watch, watched.member("first"):
        watched.wait_for_owners(1)
        watched.wait_for_offsets(3)
        assert watch.stop() == 0
        assert f"group {watched.kafka_group} is watched as kafka.{watched.kafka_group}" in watch.log_tail()


@pytest.mark.operate
def test_a_broker_that_restarts_ends_no_session(tmp_path, group_id):
    """The log was dark; Kafka's members and the watch come back, and the record goes on."""
    with plane_of_its_own(tmp_path / "broker") as (broker, coordinator):
        sink = Sink(coordinator)
        sink.start()
        watched = Watched(coordinator, group_id, tmp_path)
        watched.produce(3)
        with watching(coordinator, group_id), watched.member("first"):
            owners = watched.wait_for_owners(1)
            watched.wait_for_offsets(3)
            broker.kill()
            broker.start()
            watched.produce(4)
            watched.wait_for_offsets(7)
            assert watched.coordinator.owners(watched.name) == owners
            assert watched.changes() == ["joined"]
        sink.stop()
    assert watched.said(Rejected) == []


def test_a_group_without_a_name_does_not_end_the_watch(coordinator, group_id, tmp_path):
    """Kafka accepts its commits and lists it, and its client raises an error for it; the others must be on record."""
    watched = Watched(coordinator, group_id, tmp_path)
    commit_under("", coordinator, watched.topic)
    commit_under(group_id, coordinator, watched.topic)

    with watching(coordinator, ".*"):
        wait_until(
            lambda: coordinator.offsets(watched.name, watched.topic) == {0: 5}, "the group with a name is on record"
        )
