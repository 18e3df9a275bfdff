"""Both jobs on a real broker, in one Spark session: what is decided, what is written, and that replay says the same."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.systems.deployment import Log, decided, deploy, inbox_of, replayed, told, written
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_model.config import CONTROL_PARTITIONS
from wakeroll_model.rows import TABLES
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.cli.describe_command import waits_columns, waits_of
from wakeroll_pipeline.cli.group_tables import hold_columns
from wakeroll_pipeline.cli.text_table import table_lines
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import ensure_tables, open_views
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.recovery.checkpoint_state import read_states
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def settings(broker, tmp_path_factory) -> Settings:
    return deploy(broker, tmp_path_factory.mktemp("jobs"), "jobs")


def settled(log: Log, settings: Settings, query: StreamingQuery) -> bool:
    """Let a moment pass, and each client answer what it was told."""
    log.tick()
    query.processAllAvailable()
    log.answer(settings, SETTLED)
    query.processAllAvailable()
    return SETTLED.items() <= told(settings).items()


@pytest.fixture(scope="module")
def ledger(spark: SparkSession, settings: Settings) -> Iterator[SparkSession]:
    """A run of both jobs over a story that takes several batches; the session knows its tables and views."""
    log = Log(settings)
    queries = [coordinate.start(spark, settings), record.start(spark, settings)]
    try:
        queues = [{"topic": "orders", "broker": "", "queue_id": queue_id} for queue_id in range(4)]
        log.tick()
        log.everywhere(type="route", topic="orders", version="1", queues=queues)
        queries[0].processAllAvailable()
        for group_id in ("billing", "audit", "mail"):
            log.beat(group_id, "a")
            log.beat(group_id, "b")
        queries[0].processAllAvailable()
        for text in (b"", b"not json", b'{"type": "heartbeat"}', b"\xff\xfe"):
            log.raw(text)
        log.raw(b'{"type": "unregister", "group_id": "mail", "client_id": "a", "instance_id": "a-1"}', key="other")
        log.group("mail", type="unregister", client_id="a", instance_id="a-1")
        log.configure("audit", strategy="AVG_BY_CIRCLE")
        for client_id, from_offset in (("first", 0), ("early", 0), ("late", 7), ("held", 9)):
            log.pull(client_id, 3, from_offset=from_offset)
        for client_id in ("c", "d"):
            log.beat("alerts", client_id, mode="broadcasting", orderly=client_id == "d")
        queries[0].processAllAvailable()
        log.report("orders", 3, next_offset=9)
        log.pull("after", 3, from_offset=5)
        for client_id, offset in (("c", 5), ("c", 6), ("d", 9)):
            committed = [{"queue": {"topic": "orders", "broker": "", "queue_id": 1}, "offset": offset}]
            names = {"client_id": client_id, "instance_id": f"{client_id}-1"}
            log.group("alerts", type="commit", epoch=9, offsets=committed, **names)
        # The trailing targets come with the first ticks after the settle interval.
        wait_until(lambda: settled(log, settings, queries[0]), "groups are settled", patience_s=PATIENCE_WITH_SPARK_S)
        for query in queries:
            query.processAllAvailable()
        open_views(spark, settings.warehouse)
        yield spark
    finally:
        for query in queries:
            query.stop()


SETTLED = {
    ("audit", "a"): [0, 2],
    ("audit", "b"): [1, 3],
    ("billing", "a"): [0, 1],
    ("billing", "b"): [2, 3],
    ("mail", "b"): [0, 1, 2, 3],
}


def count(spark: SparkSession, query: str) -> int:
    return int(spark.sql(query).collect()[0][0])


def test_the_running_plan_keeps_state_with_apply_in_pandas_with_state(ledger: SparkSession):
    """Every decision comes out of Spark's own state operator, grouped by shard."""
    query = next(query for query in ledger.streams.active if query.name == coordinate.NAME)
    plan = query._jsq.explainInternal(False)

    assert "FlatMapGroupsInPandasWithState" in plan
    assert "topic" in plan
    assert "Exchange" not in plan, "one partition of state needs no shuffle"
    for key in DEV_KEYS.by_id.values():
        shown = f"{plan} {query._jsq.explainInternal(True)} {query._jsq.streamingQuery().lastExecution()}"
        assert key.secret.decode() not in shown, "the keys are in the function, not in the plan"
    assert query.lastProgress["batchId"] >= 3
    assert query.lastProgress["stateOperators"][0]["numRowsTotal"] == 2 * CONTROL_PARTITIONS


def test_each_query_begins_its_batches_as_its_settings_say(ledger: SparkSession, settings: Settings):
    """Who may wait spares the machine: a batch a second instead of one after the other."""
    triggers = {query.name: query._jsq.streamingQuery().trigger().intervalMs() for query in ledger.streams.active}

    assert triggers == {coordinate.NAME: settings.batch_interval_ms, record.NAME: settings.record_interval_ms}


def test_decisions_in_delta_are_what_replay_makes_of_the_events_in_delta(ledger: SparkSession):
    """Byte for byte, however Spark cut the log into batches: that is what makes a history trustworthy."""
    found = written(ledger)

    assert len(found) > 20
    assert found == replayed(ledger)


def test_every_control_record_is_archived_once(ledger: SparkSession):
    """`events` has no gap and no duplicate: (topic, partition, offset) runs from 0 without holes."""
    rows = ledger.sql(
        "select topic, partition, count(*) as n, count(distinct offset) as d, min(offset) as low, max(offset) as high "
        "from events group by topic, partition"
    ).collect()

    assert len(rows) == 2 * CONTROL_PARTITIONS
    assert [(row.n, row.d, row.low) for row in rows] == [(row.high + 1, row.high + 1, 0) for row in rows]


def test_bad_records_are_rows_of_rejections_and_the_stream_goes_on(ledger: SparkSession):
    """Somebody's bad record is data, never the end of everybody's stream."""
    rules = sorted(row.rule for row in ledger.sql("select rule from rejections").collect())

    assert rules == ["bounds", "json", "json", "json", "key"]
    assert count(ledger, "select count(*) from rejections where published_ms < at_ms") == 0


def test_the_current_owners_are_those_of_the_last_rebalance(ledger: SparkSession):
    """`current_assignments` answers the operator's first question: who owns what?"""
    owners = {
        (row.group_id, row.queue_id): row.client_id for row in ledger.sql("select * from current_assignments").collect()
    }

    assert {queue: owners["mail", queue] for queue in range(4)} == dict.fromkeys(range(4), "b")
    assert [owners["audit", queue] for queue in range(4)] == ["a", "b", "a", "b"]
    assert [owners["billing", queue] for queue in range(4)] == ["a", "a", "b", "b"]


def test_groups_and_members_are_listed(ledger: SparkSession):
    """`wakeroll groups` and `describe` read these views.

    A broadcasting group is one too, and d, at odds with c, is a member still.
    """
    found = [
        tuple(row) for row in ledger.sql("select group_id, members, owned, unowned from groups order by 1").collect()
    ]
    members = [
        tuple(row)
        for row in ledger.sql(
            "select group_id, client_id, queues from current_members where group_id in ('mail', 'alerts') order by 1, 2"
        ).collect()
    ]

    assert found == [("alerts", 2, 0, 0), ("audit", 2, 4, 0), ("billing", 2, 4, 0), ("mail", 1, 4, 0)]
    assert members == [("alerts", "c", 0), ("alerts", "d", 0), ("mail", "b", 4)]
    assert count(ledger, "select count(*) from memberships where change = 'conflict' and client_id = 'd'") == 1


def test_a_pull_is_answered_through_the_running_query(ledger: SparkSession, settings: Settings):
    """One query runs both machines: a wake goes to the client's inbox, to the record and to its row."""
    [wake] = inbox_of(settings, "early")
    rows = {row.client_id: row for row in ledger.sql("select * from wakes").collect()}
    early, after = rows["early"], rows["after"]

    assert (wake["kind"], wake["request_id"], wake["next_offset"]) == ("wake", "early-1:1", 9)
    assert wake in decided(settings)
    assert (early.topic, early.queue_id, early.reason, early.held_ms) == ("orders", 3, "arrival", wake["held_ms"])
    assert early.arrival_to_wake_ms == early.published_ms - wake["at_ms"] >= 0
    assert (after.reason, after.held_ms, after.arrival_to_wake_ms) == ("arrival", 0, None)
    assert rows["first"].reason == "unknown"
    assert sorted(rows) == ["after", "early", "first", "late"]


def test_describe_shows_who_waits_and_what_ended_a_wait(ledger: SparkSession, settings: Settings):
    """Held pulls are in no table: the snapshots and the log lead to them.  Those that were answered are rows."""
    model = read_ledger(settings.warehouse, settings.connection.topics, settings.partitions)
    view = model.group_view("billing")
    assert view is not None
    waits = waits_of(SparkLedger(ledger), "billing", 0, 2**62)
    columns = hold_columns(view.holds, view.health.as_of_ms), waits_columns(waits)
    shown = "\n".join(str(line) for one in columns for line in table_lines(one, 100).all())

    assert re.search(r"orders-3 +\S+ +9 +\d+ s ", shown), shown
    assert re.search(r"arrival +3 +\d+\.\d s +\d+ ms", shown), shown


def test_each_client_of_a_broadcasting_group_has_offsets_of_its_own(ledger: SparkSession):
    """They share nothing: the slowest is not hidden by the newest commit."""
    query = "select client_id, queue_id, committed_offset, mode from current_offsets where group_id = 'alerts'"

    assert sorted(tuple(row) for row in ledger.sql(query).collect()) == [
        ("c", 1, 6, "broadcasting"),
        ("d", 1, 9, "broadcasting"),
    ]


def test_a_column_says_what_it_means(ledger: SparkSession, settings: Settings):
    """Names, types, NOT NULL and comments of a table are those of its declaration."""
    for table in TABLES.values():
        found = ledger.read.format("delta").load(str(path_of(settings.warehouse, table))).schema
        declared = schema_of(table.row)

        assert [(column.name, column.dataType, column.metadata.get("comment")) for column in found] == [
            (column.name, column.dataType, column.metadata.get("comment")) for column in declared
        ]


def test_state_shows_the_members_that_the_decisions_name(ledger: SparkSession, settings: Settings):
    """The checkpoint can be looked into: one answer from the state and from the ledger."""
    shards = [shard for shard, _ in read_states(ledger, settings)]
    members = {
        group_id: sorted(group.members)
        for shard in shards
        for group_id in shard.names()
        if (group := shard.group(group_id)) is not None
    }

    assert members == {"alerts": ["c", "d"], "audit": ["a", "b"], "billing": ["a", "b"], "mail": ["b"]}


def test_tables_are_made_once(ledger: SparkSession, settings: Settings):
    """A second start finds its tables and leaves them alone."""
    before = count(ledger, "select count(*) from events")
    ensure_tables(ledger, settings.warehouse)

    assert count(ledger, "select count(*) from events") >= before
    assert Path(path_of(settings.warehouse, TABLES["events"]), "_delta_log").is_dir()
