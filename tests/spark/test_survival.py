"""Thousands of bad records, a bug in the machine, a group of ten thousand queues: the stream lives, all is on record.

One run of both jobs goes through all of it.  SEED=... repeats the records of another run, BAD_RECORDS=10000 sends more.
"""

import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import KafkaError, Message
from pyspark.sql import SparkSession

from tests.support import planted_bug
from tests.support.systems.deployment import Log, decided, deploy, replayed, told, written
from tests.support.systems.hostile_records import Hostile, hostile_records
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.operators.shard_operator import Counts
from wakeroll_pipeline.recovery.checkpoint_state import read_states
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
BAD = int(os.environ.get("BAD_RECORDS", "2000"))
GROUPS = [f"group-{number}" for number in range(20)]
CLIENTS = [f"c{number}" for number in range(5)]
QUEUES = 10_000
SHARE = QUEUES // 20
BIG = [("big", f"m{number:02}") for number in range(20)]

At = tuple[str, int, int]
"""Where a record stands: topic, partition, offset."""


class Survivor(NamedTuple):
    """A run of both jobs that has seen it all."""

    spark: SparkSession
    """Knows the tables and views."""
    settings: Settings
    bad: dict[At, str]
    """Where the bad records stand, and the rule that each breaks."""
    counts: Counts
    queries_live: bool


@pytest.fixture(scope="module")
def survivor(spark: SparkSession, broker, tmp_path_factory) -> Survivor:
    settings = deploy(broker, tmp_path_factory.mktemp("survivor"), "survivor")
    counts = Counts.start(spark)
    with bug_in_workers(spark):
        queries = [coordinate.start(spark, settings, counts), record.start(spark, settings)]
    log = Log(settings)
    log.tick()
    for topic, count in (("orders", 4), ("wide", QUEUES)):
        queues = [{"topic": topic, "broker": "", "queue_id": queue_id} for queue_id in range(count)]
        log.everywhere(type="route", topic=topic, version="1", queues=queues)
    bad = send_all(log, settings)
    for member in BIG:
        log.beat(*member, subscriptions=[{"topic": "wide"}])

    def shared() -> bool:
        """Let a moment pass, and each member of the big group answer what it was told."""
        log.tick()
        queries[0].processAllAvailable()
        log.answer(settings, BIG, subscriptions=[{"topic": "wide"}])
        shares = told(settings)
        return all(len(shares.get(member, ())) == SHARE for member in BIG)

    wait_until(shared, "each member of the big group has its share", patience_s=PATIENCE_WITH_SPARK_S)
    for query in queries:
        query.processAllAvailable()
    live = all(query.isActive for query in queries)
    open_views(spark, settings.warehouse)
    return Survivor(spark, settings, bad, counts, live)


@contextmanager
def bug_in_workers(spark: SparkSession) -> Iterator[None]:
    """Plant the bug for real, into the processes in which Spark runs the machines of the queries started meanwhile."""
    environment = spark.sparkContext.environment
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests" / "planted"), str(ROOT)])
    try:
        yield
    finally:
        del environment["PYTHONPATH"]


def send_all(log: Log, settings: Settings) -> dict[At, str]:
    """Send the bad records and, between them, the valid heartbeats of every client; return where the bad ones stand."""
    seed = int(os.environ.get("SEED", str(random.randrange(10**6))))
    print(f"SEED={seed}")
    dice = random.Random(seed)
    joining = [(group_id, client_id) for group_id in GROUPS for client_id in CLIENTS]
    dice.shuffle(joining)
    topics = settings.connection.topics
    bad: dict[At, str] = {}

    def send(hostile: Hostile) -> None:
        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            bad[message.topic(), message.partition(), message.offset()] = hostile.rule

        where = {} if hostile.partition is None else {"partition": hostile.partition}
        topic = topics.queues if hostile.of_queues else topics.groups
        value = hostile.value
        if hostile.by_operator:
            assert value is not None
            value = log.signed("operator", value, hostile.key, hostile.partition)
        log.send(topic, value, key=hostile.key, on_delivery=delivered, **where)

    apart = BAD // len(joining)
    for number, hostile in enumerate(hostile_records(seed, BAD, GROUPS)):
        send(hostile)
        if number % apart == 0:
            log.beat(*joining[number // apart])
    log.flush()
    return bad


def test_every_bad_record_is_one_row_of_rejections_under_the_rule_that_it_breaks(survivor: Survivor):
    """Nothing is lost and nothing is guessed: who sent it can be told which record it was, and what was wrong."""
    rows = survivor.spark.sql(
        "select cause.topic, cause.partition, cause.offset, rule from rejections order by shard, seq"
    ).collect()
    found = {(row.topic, row.partition, row.offset): row.rule for row in rows}

    assert len(survivor.bad) == BAD
    assert len(rows) == BAD
    assert found == survivor.bad
    assert survivor.queries_live


def test_every_valid_event_between_them_is_processed(survivor: Survivor):
    """Somebody's bad record is never the end of anybody's group: all have joined, and own what they should."""
    joined = survivor.spark.sql(
        "select group_id, client_id, count(*) as times from memberships where change = 'joined' group by 1, 2"
    ).collect()
    owned = survivor.spark.sql(
        "select group_id, count(*) as queues from current_assignments where client_id is not null group by 1"
    ).collect()

    everybody = [*((group_id, client_id) for group_id in GROUPS for client_id in CLIENTS), *BIG]
    assert sorted(tuple(row) for row in joined) == sorted((*member, 1) for member in everybody)
    assert {row.group_id: row.queues for row in owned} == {**dict.fromkeys(GROUPS, 4), "big": QUEUES}


def test_a_bug_of_the_machine_s_own_is_counted_and_harms_no_group(survivor: Survivor):
    """`run` says in its status how often that happened; half of a step is no step."""
    planted = sum(rule == "internal" for rule in survivor.bad.values())
    rows = survivor.spark.sql("select distinct detail from rejections where rule = 'internal'").collect()
    epochs = survivor.spark.sql("select max(epoch) as epoch from rebalances where group_id <> 'big'").collect()

    assert planted > BAD // 100
    assert survivor.counts.failures.value >= planted
    assert [row.detail.partition(" in ")[0] for row in rows] == ["heartbeat: ZeroDivisionError"]
    assert epochs[0].epoch < 99


def test_a_group_of_ten_thousand_queues_is_assigned_told_and_recorded(survivor: Survivor):
    """An assignment is complete: the first member's, for a moment, had all the queues in one record."""
    assignments = [
        one for one in decided(survivor.settings) if one["kind"] == "assignment" and one["group_id"] == "big"
    ]
    largest = max(len(json.dumps(one)) for one in assignments)
    owners = survivor.spark.sql(
        "select client_id, count(*) as queues from current_assignments where group_id = 'big' group by 1"
    ).collect()

    assert max(len(one["queues"]) for one in assignments) == QUEUES
    assert QUEUES * 50 < largest < MAX_RECORD_BYTES
    assert sorted(tuple(row) for row in owners) == [(client_id, SHARE) for _, client_id in BIG]


def test_each_shard_reports_the_size_of_its_state(survivor: Survivor):
    """Spark's state store has a limit per value; `run` and `doctor` warn long before it is reached."""
    states = {shard.name: len(body) for shard, body in read_states(survivor.spark, survivor.settings)}

    assert survivor.counts.bytes.value == states
    assert len(states) == 8


def test_a_replay_says_the_same_of_all_of_it(survivor: Survivor):
    """Byte for byte - where the same bug is planted."""
    with planted_bug.planted():
        again = replayed(survivor.spark)

    assert written(survivor.spark) == again
