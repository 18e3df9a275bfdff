"""Brokers of a cluster of three are restarted and die, while consumers consume: a whole system."""

import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message
from pyspark.sql import SparkSession

from tests.support.running_processes import run_process
from tests.support.systems.broker_cluster import NUMBERS, BrokerCluster
from tests.support.systems.fleet import GROUP, Fleet
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Admin
from wakeroll.connection import Connection, Topics
from wakeroll_model import config
from wakeroll_model.events import Configure
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka.control_topics import check_topics, ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.ports import HOST, free_ports
from wakeroll_pipeline.local.traffic import configure
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.spark]

SOURCE = Path(__file__).parents[1] / "support" / "systems" / "shifted_clock.c"
HOUR_S = 3_600
SHORT_SESSION_MS = 12_000
LONG_SESSION_MS = 600_000
OUTAGE_MS = 20_000
"""Shortest time for which two brokers are dead."""
MORE = 400
"""Messages of two seconds."""

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


def control_places(settings: Settings) -> list[tuple[str, int]]:
    """Return the control partitions of a deployment."""
    return [(topic, number) for topic in settings.connection.topics.control for number in range(settings.partitions)]


def move_control_partitions(cluster: BrokerCluster, settings: Settings, number: int) -> None:
    """Let a node lead all control partitions: the others are restarted."""
    for other in NUMBERS:
        if other != number and any(cluster.leader(*place) == other for place in control_places(settings)):
            cluster.stop(other)
            cluster.start(other)
            cluster.wait_until_whole()


def test_topics_of_a_cluster_are_replicated(cluster):
    """The brokers' defaults are used, or what `replication` says; `doctor` reports what would lose a log."""
    default = Connection(cluster.bootstrap, topics=Topics("default"))
    given = Connection(cluster.bootstrap, topics=Topics("given"))
    alone = Connection(cluster.bootstrap, topics=Topics("alone"))

    assert ensure_topics(default) == []
    assert ensure_topics(given, replication=3) == []
    found = ensure_topics(alone, replication=1)

    settings = Cluster(given).settings(given.topics.all)
    assert {its["min.insync.replicas"] for its in settings.values() if isinstance(its, dict)} == {"2"}
    assert [finding.fatal for finding in found] == [False] * 4
    assert str(found[0]).startswith("alone.groups has 1 replica on a cluster of 3 brokers: it is lost with its broker")
    assert check_topics(default) == []


def test_a_rolling_restart_is_not_noticed(cluster, spark, tmp_path):
    """Brokers are updated one after the other, under load; no member leaves, and nothing is lost."""
    with Fleet(cluster.bootstrap, tmp_path) as fleet:
        fleet.wait_for_more(MORE)
        for number in NUMBERS:
            cluster.stop(number)
            fleet.wait_for_more(MORE)
            cluster.start(number)
            cluster.wait_until_whole()
        fleet.wait_for_more(MORE)
        fleet.system.check()
        fleet.wait_until_consumed()

    fleet.check(spark)


def test_the_loss_of_one_broker_is_not_noticed(cluster, spark, tmp_path):
    """The one that leads a control partition dies, as with its machine, and comes back later."""
    with Fleet(cluster.bootstrap, tmp_path) as fleet:
        fleet.wait_for_more(MORE)
        lost = cluster.leader(fleet.settings.connection.topics.groups, 0)
        cluster.kill(lost)
        fleet.wait_for_more(2 * MORE)
        cluster.start(lost)
        cluster.wait_until_whole()
        fleet.system.check()
        fleet.wait_until_consumed()

    fleet.check(spark)


@pytest.mark.parametrize("session_ms", [LONG_SESSION_MS, SHORT_SESSION_MS])
def test_without_two_of_three_brokers_time_stands_still_and_nobody_is_evicted(cluster, spark, tmp_path, session_ms):
    """The control log accepts no record, so the coordinator ends no session, even if the outage is longer than one.

    Consumers whose own session would have ended have stopped reading, and come back as new instances. Their former
    instances end one session after the return of the log, not earlier.
    """
    with Fleet(cluster.bootstrap, tmp_path) as fleet:
        connection = fleet.settings.connection
        configure(connection, DEV_KEYS, Configure(group_id=GROUP, heartbeat_ms=2_000, session_timeout_ms=session_ms))
        fleet.wait_for_more(MORE)
        kept = cluster.leader(connection.topics.groups, 0)
        lost = [number for number in NUMBERS if number != kept]
        cluster.kill(*lost)
        places = control_places(fleet.settings)
        led = [place for place in places if cluster.leader(*place) == kept]
        ends = Cluster(connection).ends(places)
        refused = send_in_vain(connection, OUTAGE_MS)
        still = Cluster(connection).ends(places)
        cluster.start(*lost)
        cluster.wait_until_whole()
        fleet.wait_for_more(MORE)
        fleet.system.check()
        fleet.wait_until_consumed()

    assert refused == "_MSG_TIMED_OUT"
    assert (connection.topics.groups, 0) in ends
    assert sorted(ends) == sorted(led), "a dead leader has no end"
    assert still == ends
    fleet.check(spark, all_stayed=session_ms == LONG_SESSION_MS)
    assert returned_ms(spark) + config.GRACE_MS <= min(expired_ms(spark), default=config.NEVER_MS)


def returned_ms(spark: SparkSession) -> int:
    """Return the log time at which the longest pause of the recorded log ended (epoch ms)."""
    rows = spark.sql("select distinct at_ms from events order by at_ms").collect()
    gaps = [(after.at_ms - before.at_ms, after.at_ms) for before, after in pairwise(rows)]
    return int(max(gaps)[1])


def expired_ms(spark: SparkSession) -> list[int]:
    """Return the log times at which sessions of the group ended (epoch ms)."""
    rows = spark.sql(f"select at_ms from memberships where group_id = '{GROUP}' and change = 'expired'").collect()
    return [int(row.at_ms) for row in rows]


def send_in_vain(connection: Connection, patience_ms: int) -> str:
    """Append a record to a control topic that cannot take it, for so long; return the name of the error."""
    reports: list[str] = []

    def reported(error: KafkaError | None, _message: Message) -> None:
        reports.append(error.name() if error is not None else "stored")

    producer = connection.producer(**{"message.timeout.ms": patience_ms, "log_level": 0})
    producer.produce(connection.topics.groups, b"lost", partition=0, on_delivery=reported)
    until(lambda: reports, "the record is reported", between=lambda: producer.poll(0.5))
    return reports[0]


@pytest.fixture
def shifted(tmp_path, monkeypatch) -> Iterator[Callable[[int], None]]:
    """Shift the wall clock of the processes that are started until `monkeypatch.undo`, by so many seconds."""
    library, shift = tmp_path / "shifted_clock.so", tmp_path / "shift"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-pthread"], check=True)

    def shifted(seconds: int) -> None:
        shift.write_bytes(struct.pack("q", seconds))
        monkeypatch.setenv("LD_PRELOAD", str(library))
        monkeypatch.setenv("SHIFTED_CLOCK", str(shift))

    yield shifted
    monkeypatch.undo()


def test_a_leader_whose_clock_is_an_hour_off_neither_ends_sessions_nor_stops_them(
    cluster, spark, shifted, monkeypatch, tmp_path
):
    """Log time jumps an hour ahead with one leader, and an hour back with the next one."""
    with Fleet(cluster.bootstrap, tmp_path) as fleet:
        fleet.wait_for_more(MORE)
        cluster.stop(2)
        shifted(HOUR_S)
        cluster.start(2)
        monkeypatch.undo()
        cluster.wait_until_whole()
        move_control_partitions(cluster, fleet.settings, 2)
        fleet.wait_for_more(MORE)
        cluster.stop(2)  # its partitions get leaders with the right time
        fleet.wait_for_more(MORE)
        cluster.start(2)
        cluster.wait_until_whole()
        fleet.system.check()
        fleet.wait_until_consumed()

    fleet.check(spark)
    groups = fleet.settings.connection.topics.groups
    [row] = spark.sql(f"select max(at_ms) - min(at_ms) as ms from events where topic = '{groups}'").collect()
    assert row.ms > HOUR_S * 1_000, "the log has times of both clocks"


def test_brokers_that_come_back_at_another_address_are_found(spark, tmp_path):
    """A client that knew only the old addresses would wait for ever; the new one is among those that it was given."""
    old, new = free_ports(2)
    places = ",".join(f"{HOST}:{port}" for port in (old, new))
    with EmbeddedBroker(tmp_path / "broker", port=old) as before, Fleet(places, tmp_path) as fleet:
        session = Configure(group_id=GROUP, heartbeat_ms=2_000, session_timeout_ms=LONG_SESSION_MS)
        configure(fleet.settings.connection, DEV_KEYS, session)  # the broker's start takes a while on a busy machine
        fleet.wait_for_more(MORE)
        before.stop()
        with EmbeddedBroker(tmp_path / "broker", port=new):
            with Admin(places, prefix=fleet.settings.prefix) as admin:
                admin.configure(GROUP, settle_ms=100, timeout=PATIENCE_WITH_SPARK_S)  # the coordinator answers
            fleet.wait_for_more(MORE)
            fleet.system.check()
            fleet.wait_until_consumed()
            fleet.stop()

    fleet.check(spark)


def test_a_log_that_lost_its_tail_is_recognized_and_restored(cluster, spark, restore, tmp_path):
    """A broker that lacks records becomes the leader, and the log grows again: the same offsets are other records."""
    fleet = Fleet(cluster.bootstrap, tmp_path)
    make_unclean(cluster, fleet.settings.connection, leader=1, follower=3)
    with fleet:
        settings = fleet.settings
        fleet.wait_for_more(MORE)
        cluster.kill(3)
        until(lambda: cluster.in_sync(settings.connection.topics.groups, 0) == [1], "node 3 is no longer in sync")
        fleet.wait_for_more(2 * MORE)  # heartbeats, commits and ticks that only node 1 has
        cluster.kill(1)
        cluster.start(3)  # of those that have the log, only node 3 runs
        cluster.wait_until_led_by(3, control_places(settings))
        cluster.start(1)
        until(lambda: not fleet.system.jobs.is_running, "the coordinator ends", state=fleet.system.jobs.log_tail)
        told = fleet.system.jobs.log.read_text()  # the end of it may be the JVM's
        refused = run_process(fleet.system.jobs.argv, **settings.environment())
        restored = restore(settings)
        cluster.wait_until_whole()
        fleet.system.jobs.start()
        fleet.wait_until_decided()
        fleet.wait_for_more(MORE)
        fleet.system.check()
        fleet.wait_until_consumed()

    for text in (told, refused.stderr):
        assert "the brokers have lost records" in text
        assert "wakeroll restore" in text
    assert refused.returncode == 2
    assert "begins era 2 from the checkpoint" in restored
    fleet.check_messages(spark)
    assert fleet.changes(spark)["expired"] == 0


def make_unclean(cluster: BrokerCluster, connection: Connection, *, leader: int, follower: int) -> None:
    """Make control topics on two nodes, which accept a leader that lacks records."""
    cluster.make_topics(
        connection.topics.control,
        [[leader, follower]] * 4,
        {
            "message.timestamp.type": "LogAppendTime",
            "cleanup.policy": "delete",
            "max.message.bytes": str(8 * 1024 * 1024),
            "min.insync.replicas": "1",
            "unclean.leader.election.enable": "true",
        },
    )
