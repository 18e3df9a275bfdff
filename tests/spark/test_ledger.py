"""The ledger of a story: what `record` makes of its records."""

import json

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as f

from tests.support.ledgers import Story, a_day, batch_of
from wakeroll.connection import Topics
from wakeroll_model.decisions import Membership
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import RECORDED, TABLES
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.table_creation import create_tables, path_of
from wakeroll_pipeline.ledger.tables import ensure_tables, open_views

pytestmark = pytest.mark.spark


def test_every_record_and_every_decision_is_a_row(spark, day):
    """Whatever else the tables say, nothing may be missing."""
    story = a_day()
    open_views(spark, day)

    assert spark.table("events").count() + spark.table("decisions").count() == len(story.rows)
    assert spark.table("decisions").count() == len(story.decisions)
    kinds = {row.kind for row in spark.table("decisions").select("kind").distinct().collect()}
    assert kinds >= {"assignment", "membership", "rebalance", "handover", "offset", "wake", "rejected"}
    assert spark.table("snapshots").select(f.countDistinct("topic", "partition")).collect()[0][0] == 8


@pytest.mark.operate
def test_a_batch_that_is_appended_in_pieces_has_the_same_rows(spark, day, tmp_path, monkeypatch):
    """A process that catches up reads large batches; their order in Kafka's partitions is kept across pieces."""
    monkeypatch.setattr(record, "MOST_AT_ONCE", 50)
    ensure_tables(spark, tmp_path)
    write = record.writer(tmp_path, Topics())
    records = a_day().rows
    for _ in range(2):  # the second time, all rows are there already
        write(batch_of(records[::-1]))

    for table in RECORDED:
        pieces, whole = (spark.read.format("delta").load(str(at / table.name)) for at in (tmp_path, day))
        assert pieces.count() == whole.count() > 0, table.name
        assert pieces.exceptAll(whole).count() == 0, table.name


@pytest.mark.operate
def test_what_an_old_coordinator_still_publishes_beside_a_restored_one_is_left_out(spark, tmp_path, caplog):
    """Its machine was cut off; the log says once that it is still there, and no row contradicts another."""
    story = Story()
    story.route("orders", 4)
    story.join("billing", "c1", "orders")
    story.pass_seconds(5)
    old = [one for one in story.decisions if isinstance(one, Membership)][-1]
    story.lose_state()
    story.join("billing", "c2", "orders")
    story.pass_seconds(5)
    [(*where, offset, at_ms, key, _)] = [row for row in story.rows if row[5] == encode_decision(old)]
    stale = [
        (*where, 1_000 + number, at_ms, key, json.dumps({**json.loads(encode_decision(old)), "seq": number}).encode())
        for number in (old.seq, old.seq + 1_000, old.seq + 1_001)
    ]
    ensure_tables(spark, tmp_path)
    write = record.writer(tmp_path, Topics())

    for rows in (story.rows + stale[:1], stale[1:2], stale[2:]):
        write(batch_of(rows))
    open_views(spark, tmp_path)

    shards = [row.shard for row in spark.table("decisions").select("shard").collect()]
    warned = [one.getMessage() for one in caplog.records if one.name == "wakeroll.run"]
    assert offset < 1_000
    assert len(shards) == len(story.decisions)
    assert {shard.rpartition(".")[2] for shard in shards} == {"1", "2"}
    assert len(warned) == 1
    assert f"dropped decisions of {old.shard}: the shard is now in era 2" in warned[0]


def test_a_process_that_died_while_it_created_the_tables_is_followed_by_one_that_creates_them(spark, tmp_path):
    """Delta creates the folder of the log before the first version: such a folder is not a table yet."""
    for number, table in enumerate(TABLES.values()):
        log = path_of(tmp_path, table).path / "_delta_log"
        log.mkdir(parents=True)
        if number % 2:  # it died while it wrote the first version
            (log / f".{0:020}.json.7c9ff7e1.tmp").write_text("{")
    assert [name for name, table in TABLES.items() if is_delta(path_of(tmp_path, table))] == []

    for _ in range(2):
        ensure_tables(spark, tmp_path)

    assert [name for name, table in TABLES.items() if is_delta(path_of(tmp_path, table))] == [*TABLES]
    assert set(open_views(spark, tmp_path)) >= set(TABLES)

    # Processes without Spark create the same tables; so do most tests (`write_ledger`).
    create_tables(tmp_path / "without Spark")
    for table in TABLES.values():
        by_spark, here = (DeltaTable(path_of(at, table).path) for at in (tmp_path, tmp_path / "without Spark"))
        assert json.loads(here.schema().to_json()) == json.loads(by_spark.schema().to_json()), table.name
        assert here.metadata().configuration == by_spark.metadata().configuration, table.name
        assert here.metadata().description == by_spark.metadata().description, table.name
        assert here.protocol() == by_spark.protocol(), table.name
