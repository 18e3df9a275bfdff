"""`record` may die between the commits of two tables: each table is right by itself when it comes back."""

import pytest

from tests.support.systems.deployment import Log, deploy, replayed, written
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

pytestmark = pytest.mark.spark


def test_a_batch_that_reached_half_of_the_tables_is_finished_without_repetition(broker, spark, tmp_path, monkeypatch):
    """The tables that have the batch keep it, the others get it, and nobody has a row twice."""
    settings = deploy(broker, tmp_path, "crash")
    crashes: list[str] = []

    append = ArrowSink.append

    def crash_once(sink, rows, path, *more):
        if path.name == "decisions" and not crashes:
            assert (settings.warehouse.path / "events" / "_delta_log" / f"{1:020}.json").exists()
            crashes.append(path.name)
            raise OSError("the process dies here")
        append(sink, rows, path, *more)

    monkeypatch.setattr(ArrowSink, "append", crash_once)
    log = Log(settings)
    try:
        coordinated = coordinate.start(spark, settings)
        queues = [{"topic": "orders", "broker": "", "queue_id": queue_id} for queue_id in range(4)]
        log.tick()
        log.everywhere(type="route", topic="orders", version="1", queues=queues)
        for group_id in ("billing", "audit"):
            log.beat(group_id, "a")
        coordinated.processAllAvailable()
        first = record.start(spark, settings)
        wait_until(lambda: not first.isActive, "the query has failed", patience_s=PATIENCE_WITH_SPARK_S)
        assert "the process dies here" in str(first.exception())
        log.beat("mail", "a")
        coordinated.processAllAvailable()
        second = record.start(spark, settings)
        second.processAllAvailable()
        open_views(spark, settings.warehouse)

        assert crashes == ["decisions"]
        assert written(spark) == replayed(spark)
        assert len(written(spark)) > 20
        for table, key in (("events", "topic, partition, offset"), ("assignments", "shard, seq")):
            counts = spark.sql(f"select count(*) as n, count(distinct {key}) as d from {table}").collect()[0]
            assert counts.n == counts.d > 0, table
    finally:
        for query in spark.streams.active:
            query.stop()
