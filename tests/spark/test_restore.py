"""Checkpoints are files, and files get lost: groups go on from their snapshots, and no row is written twice."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from deployment import Log, deploy, replayed, told, until, written
from pipeline.history import Period
from pipeline.jobs import coordinate, record
from pipeline.replay import replay_all
from pipeline.settings import Settings
from pipeline.snapshots import prepare_restore, refuse_to_forget, take_snapshots
from pipeline.tables import open_views
from wakeroll.errors import InvalidUsage

pytestmark = pytest.mark.spark


@pytest.fixture
def settings(broker, tmp_path) -> Settings:
    return deploy(broker, tmp_path, "restore")


def start(spark: SparkSession, settings: Settings) -> list[StreamingQuery]:
    return [coordinate.start(spark, settings), record.start(spark, settings)]


def stop(queries: list[StreamingQuery]) -> None:
    for query in queries:
        query.processAllAvailable()
        query.stop()


def share(log: Log, settings: Settings, queries: list[StreamingQuery], expected: dict[str, list[int]]) -> None:
    """Let time pass until each member of `billing` has been told these queues; each answers what it was told."""
    members = [("billing", client_id) for client_id in expected]

    def told_so() -> bool:
        log.tick()
        queries[0].processAllAvailable()
        log.answer(settings, members)
        queries[0].processAllAvailable()
        found = told(settings)
        return all(found.get(member) == expected[member[1]] for member in members)

    until(told_so)


def test_checkpoints_are_lost_and_the_groups_go_on(spark, settings):
    """Epochs, owners and identities continue from the snapshot; what is decided again is the same, and skipped."""
    log = Log(settings)
    queries = start(spark, settings)
    queues = [{"topic": "orders", "broker": "", "queue_id": queue_id} for queue_id in range(4)]
    log.tick()
    log.everywhere(type="route", topic="orders", version="1", queues=queues)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1, 2, 3]})
    assert take_snapshots(spark, settings) == 8
    log.beat("billing", "b")
    share(log, settings, queries, {"a": [0, 1], "b": [2, 3]})
    stop(queries)
    open_views(spark, settings.warehouse)
    before = written(spark)
    epoch = max(row.epoch for row in spark.sql("select epoch from rebalances").collect())

    shutil.rmtree(settings.checkpoints)
    with pytest.raises(InvalidUsage, match="start with `wakeroll restore`"):
        refuse_to_forget(settings)
    restored = prepare_restore(spark, settings)
    refuse_to_forget(settings)
    queries = start(spark, settings)
    log.beat("billing", "c")
    share(log, settings, queries, {"a": [0, 1], "b": [2], "c": [3]})
    stop(queries)
    open_views(spark, settings.warehouse)
    after = written(spark)

    assert len(restored.snapshots) == 8
    assert after[: len(before)] != []
    assert set(before) < set(after)
    assert len({(shard, seq) for shard, seq, _ in after}) == len(after)
    assert {shard.rpartition(".")[2] for shard, _, _ in after} == {"1"}
    assert max(row.epoch for row in spark.sql("select epoch from rebalances").collect()) > epoch
    assert after == replayed(spark)
    assert {one.differences for one in replay_all(spark, settings.partitions, Period())} == {0}
    rows = spark.sql(
        "select count(*) as n, count(distinct topic, partition, offset) as d, max(offset) as high from events"
    ).collect()[0]
    assert rows.n == rows.d


def test_without_snapshots_the_log_is_read_again_in_a_new_era(spark, settings):
    """Nothing that was decided before is published again, and no identity is used twice."""
    log = Log(settings)
    queries = start(spark, settings)
    queues = [{"topic": "orders", "broker": "", "queue_id": queue_id} for queue_id in range(2)]
    log.tick()
    log.everywhere(type="route", topic="orders", version="1", queues=queues)
    log.beat("billing", "a")
    share(log, settings, queries, {"a": [0, 1]})
    stop(queries)

    shutil.rmtree(Path(settings.checkpoints))
    assert prepare_restore(spark, settings).snapshots == {}
    queries = start(spark, settings)
    log.beat("billing", "b")
    share(log, settings, queries, {"a": [0], "b": [1]})
    stop(queries)
    open_views(spark, settings.warehouse)

    joined = spark.sql("select client_id, epoch, shard from memberships where change = 'joined'").collect()
    assert [(row.client_id, row.shard.rpartition(".")[2]) for row in sorted(joined)] == [("a", "1"), ("b", "2")]
    assert len({(shard, seq) for shard, seq, _ in written(spark)}) == len(written(spark))
    done = {one.shard: one for one in replay_all(spark, settings.partitions, Period())}
    assert {one.differences for one in done.values()} == {0}
    assert sum(one.compared for one in done.values()) == len(written(spark))
