"""The driver is killed again and again while it is busy: nothing is missing, contradictory or repeated.

KILLS=20 tells the whole story; a few are enough for every change.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from model.config import CONTROL_PARTITIONS
from model.records import Record
from model.replay import encode_decision, replay
from pipeline.local.process import Child
from pipeline.local.system import LocalSystem
from pipeline.local.traffic import Traffic
from pipeline.local.witness import balance, doubly_owned, read_handled
from pipeline.session import start_brief_session
from pipeline.settings import Settings
from pipeline.status import read_status
from pipeline.tables import open_views

pytestmark = pytest.mark.e2e

KILLS = int(os.environ.get("KILLS", "2"))
PATIENCE_S = 180.0


def until(true: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


def test_a_driver_that_dies_at_any_moment_loses_and_repeats_nothing(broker, tmp_path):
    """The log is the truth: whatever died, the next driver decides what the first would have decided."""
    seed = int(os.environ.get("SEED", str(random.randrange(10**6))))
    print(f"KILLS={KILLS} SEED={seed}")
    moments = random.Random(seed)
    settings = Settings(
        bootstrap=broker.bootstrap,
        prefix=f"crash-{seed}-{os.getpid()}",
        home=str(tmp_path / "home"),
        checkpoints=str(tmp_path / "checkpoints"),
        record_interval_ms=1_000,
    )
    system = LocalSystem(settings)
    stop = threading.Event()
    topic = f"orders-{seed}-{os.getpid()}"
    admin = settings.connection.admin()
    admin.create_topics([NewTopic(topic, 8, 1)])[topic].result(30)
    logs = {name: tmp_path / name for name in ("c1", "c2", "c3")}
    consumers = [consumer(settings, topic, name, log, tmp_path) for name, log in logs.items()]
    traffic = Traffic(settings.connection, topic, per_second=200)
    try:
        system.start(stop)
        traffic.start()
        for each in consumers:
            each.start()
        for _ in range(KILLS):
            until(lambda: alive(system), "the driver decides")
            time.sleep(moments.uniform(0.0, 4.0))
            system.jobs.kill()
            system.jobs.start()
        until(lambda: alive(system), "the driver decides at last")
        traffic.close()
        until(
            lambda: not traffic.produced - {(one.queue_id, one.offset) for one in read_handled(logs)},
            "every message is consumed",
        )
    finally:
        traffic.close()
        for each in consumers:
            each.stop()
        time.sleep(2 * settings.record_interval_ms / 1000)
        system.stop()
    spark = start_brief_session(settings, "tests")
    try:
        open_views(spark, settings.warehouse)
        events = spark.sql("select * from events order by topic, partition, offset").collect()
        decisions = spark.sql("select shard, seq, json from decisions order by shard, seq").collect()
        members = spark.sql("select client_id, change from memberships where group_id = 'billing'").collect()
        grants = spark.sql(
            "select queue.queue_id, count(*) as n from handovers "
            "where group_id = 'billing' and `to` is not null group by 1"
        ).collect()
    finally:
        spark.stop()

    highest: dict[tuple[str, int], int] = {}
    for row in events:
        at = (row.topic, row.partition)
        assert row.offset == highest.get(at, -1) + 1, f"{at} has a gap or a repetition at {row.offset}"
        highest[at] = row.offset
    newest = {row.shard: row.seq for row in decisions}
    again = [
        (decision.shard, decision.seq, encode_decision(decision).decode())
        for decision in replay(map(record_of, events), CONTROL_PARTITIONS)
    ]
    assert [tuple(row) for row in decisions] == sorted(one for one in again if one[1] <= newest.get(one[0], 0))
    assert [row.client_id for row in members if row.change in ("expired", "replaced")] == []
    assert sorted(row.client_id for row in members if row.change == "joined") == ["c1", "c2", "c3"]
    handled = read_handled(logs)
    assert balance(traffic.produced, handled).lost == 0
    assert doubly_owned(handled, {row.queue_id: row.n for row in grants}) == set()


def alive(system: LocalSystem) -> bool:
    """Whether the driver of the last start has decided a batch."""
    status = read_status(Path(system.settings.home))
    return status is not None and status.pid == system.jobs.pid and status.queries["coordinate"].batch >= 0


def consumer(settings: Settings, topic: str, name: str, log: Path, folder: Path) -> Child:
    """Describe a real consumer process."""
    connection = settings.connection
    argv = [sys.executable, "-m", "pipeline.local.worker", "--bootstrap", connection.bootstrap, "--group", "billing"]
    argv += ["--prefix", connection.topics.prefix, "--client", name, "--topic", topic, "--log", str(log)]
    return Child(f"consumer {name}", argv, log=folder / f"{name}.log")


def record_of(row) -> Record:
    key, value = (None if part is None else bytes(part) for part in (row.key, row.value))
    return Record(row.topic, row.partition, row.offset, row.at_ms, key, value)
