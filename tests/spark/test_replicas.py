"""Coordinators at once, and writers one after the other: on a real broker and a real Spark."""

import json
import shutil
from functools import partial

import pytest
from msgspec import structs
from pyspark.sql import Row, SparkSession

from tests.support.systems.deployment import Log, deploy, replayed, told, written
from tests.support.systems.replicas import coordinator, log_of, publications, replica_of
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.errors import InvalidUsage
from wakeroll.keys import add_key, new_key
from wakeroll_model.partitioner import ControlPartition
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.jobs.era_watch import EraWatch, LaterEra
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.recovery import replica_start
from wakeroll_pipeline.recovery.checkpoint_state import furthest
from wakeroll_pipeline.recovery.replica_start import join
from wakeroll_pipeline.recovery.restore_plan import prepare_restore
from wakeroll_pipeline.recovery.snapshots import SnapshotWriter, newest_snapshots
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark

_RECORDS = ("--only", "record")


def settle(settings: Settings, queries: list, log: Log, members: list[tuple[str, str]]) -> None:
    """Let time pass until each member has been told some queues."""

    def all_told() -> bool:
        log.tick()
        for query in queries:
            query.processAllAvailable()
        log.answer(settings, members)
        return all(told(settings).get(member) for member in members)

    wait_until(all_told, "each member has an assignment", patience_s=PATIENCE_WITH_SPARK_S)


@pytest.mark.operate
def test_a_replica_joins_from_snapshots_and_the_other_one_may_die(spark, broker, tmp_path):
    """Both publish the same bytes; the tables have each decision once, and a replay says the same."""
    settings = deploy(broker, tmp_path, "replicas")
    first, second = replica_of(settings, "a"), replica_of(settings, "b")
    log = Log(settings)
    assert set(join(spark, first).values()) == {1}
    queries = [coordinate.start(spark, first), record.start(spark, first)]
    log.tick()
    log.route(4)
    log.beat("billing", "c1")
    settle(settings, queries, log, [("billing", "c1")])
    assert SnapshotWriter(spark, furthest(settings)).take(furthest(settings)).shards == 8

    assert len(join(spark, second)) == 8
    queries.append(coordinate.start(spark, second))
    log.beat("billing", "c2")
    settle(settings, queries, log, [("billing", "c1"), ("billing", "c2")])
    queries.pop(0).stop()
    log.beat("billing", "c3")
    settle(settings, queries, log, [("billing", f"c{number}") for number in (1, 2, 3)])
    for query in queries:
        query.processAllAvailable()
    open_views(spark, settings.warehouse)
    with publications(settings) as reader:
        by_replica: dict[str, dict[tuple[str, int], bytes]] = {"a": {}, "b": {}}
        for replica, value in reader.read(5):
            said = json.loads(value)
            by_replica[replica][said["shard"], said["seq"]] = value

    common = by_replica["a"].keys() & by_replica["b"].keys()
    assert common
    assert {one for one in common if by_replica["a"][one] != by_replica["b"][one]} == set()
    assert by_replica["b"].keys() - by_replica["a"].keys()
    assert written(spark) == replayed(spark)
    assert {shard.rpartition(".")[2] for shard, _, _ in written(spark)} == {"1"}
    assert spark.table("divergences").count() == 0
    for query in queries:
        query.stop()


@pytest.mark.operate
def test_a_replica_with_other_keys_is_found(spark, broker, tmp_path, caplog):
    """It rejects what the other one accepts: its decisions have the same numbers and other bytes."""
    settings = deploy(broker, tmp_path, "diverging")
    keys = tmp_path / "keys.toml"
    for role in ("observer", "operator"):
        add_key(keys, new_key(role))
    right = replica_of(settings, "right")
    wrong = structs.replace(settings, replica="wrong", keys=str(keys))
    log = Log(settings)
    counted: list[int] = []
    for one in (right, wrong):
        join(spark, one)
    queries = [coordinate.start(spark, right), coordinate.start(spark, wrong)]
    log.tick()
    log.route(4)
    log.beat("billing", "c1")
    for query in queries:
        query.processAllAvailable()
    recorded = record.start(spark, settings, diverged=counted.append)
    recorded.processAllAvailable()
    open_views(spark, settings.warehouse)

    rows = spark.table("divergences").collect()
    assert rows
    writers = {frozenset((row.writer.partition("@")[0], row.kept_writer.partition("@")[0])) for row in rows}
    assert writers == {frozenset(("right", "wrong"))}
    assert counted[-1] >= len(rows)
    kept = {(row.shard, row.seq): row.json for row in spark.table("decisions").collect()}
    assert all(row.json != kept[row.shard, row.seq] for row in rows)
    assert any("coordinators decide differently" in one.getMessage() for one in caplog.records)
    assert [row.found[:16] for row in broken(spark)] == ["another decision"] * len(rows)
    for query in (*queries, recorded):
        query.stop()


def broken(spark: SparkSession) -> list:
    """Return the rows that break the rule of `check` about divergences."""
    from wakeroll_pipeline.questions.quality.comparison_rules import queries

    return spark.sql(queries("spark")["divergences.none"]).collect()


@pytest.mark.operate
def test_a_replica_notices_a_new_era_and_joins_it(spark, broker, tmp_path):
    """A coordinator that has lost its state begins an era; the other one would decide for nobody."""
    settings = deploy(broker, tmp_path, "eras")
    first, second = replica_of(settings, "a"), replica_of(settings, "b")
    log = Log(settings)
    for one in (first, second):
        join(spark, one)
    queries = [coordinate.start(spark, first), coordinate.start(spark, second), record.start(spark, settings)]
    log.tick()
    log.route(2)
    log.beat("billing", "c1")
    for query in queries:
        query.processAllAvailable()
    queries.pop(0).stop()
    with EraWatch(second).start(join(spark, second)) as watch:
        shutil.rmtree(first.checkpoint("coordinate@a").path)
        assert all(plan.is_new_era for plan in prepare_restore(spark, first, from_log=True).plans.values())
        join(spark, first)
        queries.insert(0, coordinate.start(spark, first))
        log.pass_seconds(60)
        log.beat("billing", "c2")
        for query in queries:
            query.processAllAvailable()

        def overtaken() -> bool:
            log.tick()
            queries[0].processAllAvailable()
            try:
                watch.raise_if_later()
            except LaterEra as error:
                return "replica 'b' decides in era 1: start it again" in str(error)
            return False

        wait_until(overtaken, "the replica notices the new era", patience_s=PATIENCE_WITH_SPARK_S)
    queries.pop(1).stop()
    with pytest.raises(InvalidUsage, match=r"there is no snapshot of|its newest snapshot is of era"):
        join(spark, second)
    assert SnapshotWriter(spark, first).take(first).shards == 8

    eras = join(spark, second)

    assert set(eras.values()) == {2}
    for query in queries:
        query.stop()


@pytest.mark.operate
def test_a_replica_joins_while_others_take_snapshots(spark, broker, tmp_path, monkeypatch):
    """Under load there are some every few seconds, so one may appear while a replica starts."""
    settings = deploy(broker, tmp_path, "replicas-meanwhile")
    first, second = replica_of(settings, "a"), replica_of(settings, "b")
    log = Log(settings)
    join(spark, first)
    queries = [coordinate.start(spark, first), record.start(spark, first)]
    log.tick()
    queries[0].processAllAvailable()
    assert SnapshotWriter(spark, first).take(first).shards == 8

    def newest_after_more(spark: SparkSession, its: Settings) -> dict[ControlPartition, Row]:
        log.tick()
        queries[0].processAllAvailable()
        assert SnapshotWriter(spark, first).take(first).shards == 8
        return newest_snapshots(spark, its)

    monkeypatch.setattr(replica_start, "newest_snapshots", newest_after_more)

    assert len(join(spark, second)) == 8

    for query in queries:
        query.stop()


@pytest.mark.operate
def test_a_standby_whose_turn_comes_while_no_broker_answers_goes_on(tmp_path):
    """It would end otherwise, with the decisions that it makes; it writes the tables when the broker is back."""
    until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)
    with EmbeddedBroker(tmp_path / "broker") as broker:
        settings = deploy(broker, tmp_path, "standby")
        writer = coordinator(settings, *_RECORDS, name="writer")
        standby = coordinator(settings, *_RECORDS, "--standby", name="standby")
        with writer:
            until(lambda: "running record" in log_of(writer), "the first process writes the tables")
            with standby:
                until(lambda: "standing by" in log_of(standby), "the second one waits")
                broker.kill()
                writer.kill()
                until(lambda: "does not write the tables yet" in log_of(standby), "its turn comes")
                broker.start()
                until(lambda: "this process writes the tables from now on" in log_of(standby), "it takes its turn")
    assert standby.returncode == 0, log_of(standby)
