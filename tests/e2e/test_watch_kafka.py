"""Kafka's own groups are watched by what their coordinator records: real consumers of each protocol, before and now.

The consumers are processes with Kafka's client, and do not know that they are watched.
"""

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.systems.coordinator_scenes import COOPERATIVE, PROTOCOLS, RANGE, Scene
from tests.support.systems.kafka_requests import QuickMember
from tests.support.waiting import PATIENCE_S, wait_until
from wakeroll.connection import Connection
from wakeroll_model.coordinator_log.kafka_group import KafkaGroup
from wakeroll_model.coordinator_log.kafka_names import group_name
from wakeroll_model.queue import Queue
from wakeroll_pipeline.kafka_watch.group_watcher import GroupWatcher, WatchRules
from wakeroll_pipeline.kafka_watch.watched_ledger import WatchedLedger
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.questions.explain import explain
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

README = (Path(__file__).parents[2] / "README.md").read_text()


class Watch:
    """A watch of some groups, with its ledger."""

    def __init__(self, bootstrap: str, home: Path, groups: str) -> None:
        self._connection = Connection(bootstrap)
        self._settings = Settings(home=str(home), partitions=4)
        self.warehouse = self._settings.warehouse
        self._rules = WatchRules(groups=re.compile(groups))
        self.ledger: WatchedLedger

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the watch as a thread; at the end, all that was there at its start is on record."""
        stop = threading.Event()
        self.ledger = WatchedLedger(self._settings)
        watcher = GroupWatcher(self._connection, self.ledger, self._rules)
        thread = threading.Thread(target=watcher.run, args=(stop,), name="watcher", daemon=True)
        thread.start()
        try:
            wait_until(lambda: watcher.is_past_read or not thread.is_alive(), "the past is on record")
            yield
        finally:
            stop.set()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()

    def group(self, name: str) -> KafkaGroup | None:
        group = self.ledger.home(name).group(name)
        assert group is None or isinstance(group, KafkaGroup)
        return group

    def owners(self, name: str) -> dict[int, str]:
        """Return partition -> client.id of its owner on record."""
        group = self.group(name)
        seen = {} if group is None else {one.client_id: one.kafka_client_id for one in group.kafka.seen.values()}
        return {} if group is None else {queue.queue_id: seen[owner] for queue, owner in group.owners.items()}

    def rows(self, query: str, **values: str) -> list[tuple[object, ...]]:
        with duck_ledger(self.warehouse) as ledger:
            return [tuple(row) for row in ledger.stream(query, **values)]

    def triggers(self, name: str) -> list[str]:
        query = "select trigger from rebalances where group_id = $name order by epoch"
        return [str(trigger) for (trigger,) in self.rows(query, name=name)]


@pytest.fixture
def scene(broker, group_id: str, tmp_path: Path) -> Scene:
    return Scene(broker.bootstrap, group_id, tmp_path)


@pytest.fixture
def watch(scene: Scene, tmp_path: Path) -> Watch:
    return Watch(scene.bootstrap, tmp_path, re.escape(scene.group_id))


def agree(watch: Watch, scene: Scene, members: int) -> None:
    """Wait until the record shows the owners that the broker describes, so many of them."""
    wait_until(
        lambda: (owners := watch.owners(scene.group_id)) == scene.owners() and len(set(owners.values())) == members,
        f"{members} members own the same here as in Kafka",
        state=lambda: (watch.owners(scene.group_id), scene.owners()),
    )


@pytest.mark.parametrize("protocol", ["consumer", "cooperative", pytest.param("range", marks=pytest.mark.operate)])
def test_each_rebalance_is_on_record_with_its_reason_while_members_come_and_go(scene, watch, protocol):
    settings = PROTOCOLS[protocol]
    with watch.running(), ExitStack() as members:
        first, second = scene.member("a", **settings), scene.member("b", **settings)
        members.enter_context(first)
        scene.settle(1)
        members.enter_context(second)
        scene.settle(2)
        agree(watch, scene, 2)
        second.stop()
        scene.settle(1)
        agree(watch, scene, 1)
        first.stop()
        followed = ["released"] if protocol == "cooperative" else []
        wanted = ["join", "join", *followed, "gone", "gone"]
        wait_until(lambda: len(watch.triggers(scene.group_id)) >= len(wanted), "the last rebalance is in the tables")
    assert watch.triggers(scene.group_id) == wanted
    with duck_ledger(watch.warehouse) as ledger:
        answer = explain(ledger, scene.group_id, Queue(scene.topic, "", 0))
    assert "has no owner since" in answer.answer
    assert "Kafka does not record which" in answer.steps[-1].what


def test_the_first_start_reads_the_past_and_a_restart_goes_on_without_a_gap_or_a_repetition(scene, watch):
    began_ms = int(time.time() * 1_000)
    with scene.member("a", **COOPERATIVE):
        scene.settle(1)  # Kafka records no generation that another one overtakes before its leader has assigned it
        with scene.member("b", **COOPERATIVE) as second:
            scene.settle(2)
            second.stop()
            scene.settle(1)
        with watch.running():
            agree(watch, scene, 1)
        past = watch.rows("select epoch, trigger, at_ms from rebalances order by epoch")
        assert [epoch for epoch, *_ in past] == list(range(1, len(past) + 1))
        assert past[-1][1] == "gone"
        assert all(began_ms <= at_ms <= time.time() * 1_000 for *_, at_ms in past), "the times are Kafka's"
        with watch.running():
            pass
        with scene.member("c", **COOPERATIVE):
            scene.settle(2)
            with watch.running():
                agree(watch, scene, 2)
    rows = watch.rows("select epoch, trigger, at_ms from rebalances order by epoch")
    assert rows[: len(past)] == past
    assert [trigger for _, trigger, _ in rows[len(past) :]] == ["join", "released"]
    [(number, rows)] = watch.rows("select count(distinct (cause.partition, cause.offset)), count(*) from rebalances")
    assert number == rows


def test_a_hundred_rebalances_within_five_seconds_are_all_on_record_in_order(scene, watch):
    with watch.running(), QuickMember(scene.bootstrap, scene.group_id, scene.topic) as member:
        began_s = time.monotonic()
        generations = [member.rejoin([number % 4]) for number in range(100)]
        took_s = time.monotonic() - began_s
        wait_until(
            lambda: (group := watch.group(scene.group_id)) is not None and group.epoch == generations[-1],
            "the last generation is on record",
        )
    epochs = watch.rows("select epoch, moved from rebalances order by seq")
    assert [epoch for epoch, _ in epochs] == generations
    assert [moved for _, moved in epochs] == [0] * 100, "there is nobody else to move to"
    handovers = watch.rows('select count(*) from handovers where "to" is not null')
    assert handovers == [(100,)]
    print(f"{len(generations)} generations in {took_s:.2f} s")


def test_a_static_member_keeps_its_name(scene, watch):
    """Its restart is no rebalance in Kafka, and none here."""
    settings = RANGE | {"group_instance_id": "till-7"}
    with watch.running():
        with scene.member("first", **settings):
            scene.settle(1)
        with scene.member("again", **settings):
            agree(watch, scene, 1)
            wait_until(
                lambda: watch.rows("select count(*) from memberships where change = 'joined'") == [(2,)],
                "its next instance is on record",
            )
            assert list(watch.group(scene.group_id).members) == ["till-7"]
    assert watch.triggers(scene.group_id) == ["join"]


def test_offsets_of_a_group_without_members_follow_in_both_directions(scene):
    """A group may have any name, also none."""
    names = [scene.group_id, f"{scene.group_id} \x1b[31m\u202e", ""]
    with QuickMember(scene.bootstrap, scene.group_id, scene.topic) as client:
        for name in names:
            client.commit_under(name, 12)
        everything = Watch(scene.bootstrap, scene.folder / "all", f"{re.escape(scene.group_id)}.*|")
        with everything.running():
            client.commit_under(names[1], 4)
            hostile = group_name(names[1])
            wait_until(
                lambda: (group := everything.group(hostile)) is not None and [*group.offsets.values()] == [4],
                "the second offset is on record",
            )
    assert re.fullmatch(r"[A-Za-z0-9._-]+", hostile)
    assert everything.group(scene.group_id).offsets == {Queue(scene.topic, "", 0): 12}
    assert everything.rows("select distinct group_id from offsets order by 1") == [(scene.group_id,), (hostile,)]


def test_the_readmes_command_opens_the_history(scene, tmp_path):
    with scene.member("first", **RANGE):
        scene.settle(1)
        words = re.search(r"^wakeroll (watch-kafka) --bootstrap host:9092", README, flags=re.MULTILINE)[1].split()
        command = [sys.executable, "-m", "wakeroll_pipeline.cli", *words, "--bootstrap", scene.bootstrap]
        command += ["--home", str(tmp_path), "--groups", scene.group_id, "--serve", "--port", "0"]
        with Child("the watch", command, log=tmp_path / "watch.log") as watch:
            watch.wait_until(lambda: "the past of all groups is on record" in watch.log_tail(), PATIENCE_S)
            assert re.search(r"serving http://127\.0\.0\.1:\d+/", watch.log_tail())
            assert watch.stop() == 0
    ask = [sys.executable, "-m", "wakeroll_pipeline.cli", "groups", "--home", str(tmp_path)]
    with Child("groups", ask, log=tmp_path / "groups.log") as groups:
        wait_until(lambda: not groups.is_running, "the command answers")
        assert scene.group_id in groups.log_tail()


def test_the_watch_leaves_no_trace_in_kafka(scene, watch):
    """It commits nothing and joins nothing."""
    consumer = Consumer({"bootstrap.servers": scene.bootstrap, "group.id": scene.group_id})
    consumer.commit(offsets=[TopicPartition(scene.topic, 0, 1)], asynchronous=False)
    consumer.close()
    before = {one.group_id for one in scene.admin.list_consumer_groups().result().valid}
    with watch.running():
        assert {one.group_id for one in scene.admin.list_consumer_groups().result().valid} == before
    assert {one.group_id for one in scene.admin.list_consumer_groups().result().valid} == before
