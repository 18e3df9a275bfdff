"""Snapshots of a real run: many records make them due early, and only the newest states are read."""

from contextlib import ExitStack

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from pyspark.sql import SparkSession

from tests.support.systems.deployment import Log, deploy
from wakeroll.epoch_ms import now_ms
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_pipeline.jobs import coordinate, record
from wakeroll_pipeline.jobs.recording_part import Recording
from wakeroll_pipeline.jobs.supervise import stop_between_batches
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.recovery.snapshots import newest_number, newest_snapshots
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.spark]

RECORDS = 1_000


@pytest.fixture
def settings(broker, tmp_path) -> Settings:
    return structs.replace(deploy(broker, tmp_path, "snapshots"), snapshot_records=RECORDS)


def offsets(spark: SparkSession, settings: Settings) -> list[int]:
    """Return the offsets of the snapshots of the shard of `billing`, ascending."""
    rows = spark.read.format("delta").load(path_of(settings.warehouse, SNAPSHOTS).for_spark()).collect()
    places = {(row.topic, row.partition) for row in rows if row.offset >= RECORDS}
    return sorted(row.offset for row in rows if (row.topic, row.partition) in places)


def test_a_busy_log_gets_snapshots_before_the_interval_is_over(spark, settings):
    """Otherwise a reader of the state of a busy deployment applies the records of ten minutes."""
    log = Log(settings)
    hour_ms = 3_600_000
    with ExitStack() as stack:
        locks = stack.enter_context(process_locks(settings, [coordinate.NAME, record.NAME]))
        metrics = RunMetrics(decides=True, writes=True, registry=CollectorRegistry())
        recording = Recording(spark, settings, metrics, locks, started_ms=now_ms() + hour_ms)  # none is due by time
        queries = [coordinate.start(spark, settings), recording.start()]
        stack.callback(lambda: [stop_between_batches(query, 0.0) for query in queries])

        def append(records: int) -> None:
            for _ in range(records):
                log.send(settings.connection.topics.groups, b"{}", key="billing")
            log.flush()
            for query in queries:
                query.processAllAvailable()
            recording.take_snapshots_if_due(settings)

        log.tick()
        append(RECORDS - 100)
        assert offsets(spark, settings) == []
        append(200)
        [first] = offsets(spark, settings)
        assert first >= RECORDS
        append(100)
        assert offsets(spark, settings) == [first]

        # The next ones are due by the number of records again, as soon as the price of the first ones allows.
        recording._schedule.end(0, 0, state_bytes=0)
        append(RECORDS)
        assert offsets(spark, settings) == [first, first + RECORDS + 100]

    newest = newest_snapshots(spark, settings)
    assert len(newest) == 2 * settings.partitions
    assert max(row.offset for row in newest.values()) == first + RECORDS + 100
    assert newest_number(spark, settings) == settings.partitions
