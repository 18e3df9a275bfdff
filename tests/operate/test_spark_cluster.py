"""`wakeroll run` on a Spark cluster whose workers do not see the checkout: code and JARs are sent to them.

Tables and checkpoints are in S3, as where machines share no folder. The workers do not have its keys.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.systems.fleet import Fleet
from tests.support.systems.s3_copies import download
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.systems.spark_cluster import SparkCluster
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.recovery.checkpoint_state import last_batch
from wakeroll_pipeline.runtime.deciding_queries import query_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.executor_packages import FOLDER

pytestmark = [pytest.mark.operate, pytest.mark.spark]

MORE = 400
"""Messages of two seconds."""

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


@pytest.fixture
def spark_cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path / "spark-cluster") as running:
        yield running


def wait_for_batches(settings: Settings, count: int = 3) -> None:
    """Wait until the coordinator has committed so many more batches."""
    checkpoint = settings.checkpoint(query_of(settings))
    enough = last_batch(checkpoint) + count
    until(lambda: last_batch(checkpoint) >= enough, f"{count} more batches", state=lambda: last_batch(checkpoint))


def test_whatever_part_of_a_cluster_dies_the_decisions_are_those_of_one_process(
    broker, s3: S3Server, spark, spark_cluster, tmp_path, tell
):
    """The log is replayed in one plain process: each byte is the same, wherever a batch was cut or repeated."""
    properties = tmp_path / "spark.conf"
    properties.write_text(
        "spark.driver.host 127.0.0.1\n"
        "spark.driver.bindAddress = 127.0.0.1\n"
        # On a busy machine an executor may be silent for minutes. If the driver gives it up while there is no master,
        # nobody replaces it.
        "spark.network.timeout 1200s\n"
    )
    home = f"s3a://{BUCKET}/{tmp_path.name}"
    with Fleet(
        broker.bootstrap,
        tmp_path,
        home=home,
        checkpoints=f"{home}/checkpoints",
        work=str(tmp_path / "work"),
        s3_endpoint=s3.endpoint,
        s3_region="us-east-1",
        master=spark_cluster.url,
        state_partitions=4,
        spark_properties=str(properties),
    ) as fleet:
        settings, jobs = fleet.settings, fleet.system.jobs
        fleet.wait_for_more(MORE)
        assert [len(spark_cluster.executors(number)) for number in (0, 1)] == [1, 1]

        spark_cluster.kill_executor(0)
        wait_for_batches(settings)
        until(lambda: len(spark_cluster.executors(0)) == 1, "the worker starts another executor")

        spark_cluster.workers[1].kill()
        wait_for_batches(settings)
        spark_cluster.start_worker(1)
        until(lambda: len(spark_cluster.executors(1)) == 1, "the worker that is back starts an executor")
        wait_for_batches(settings)

        spark_cluster.master.kill()
        wait_for_batches(settings)
        spark_cluster.start_master()
        wait_for_batches(settings)

        jobs.kill()
        jobs.start()
        fleet.wait_until_decided()
        fleet.wait_for_more(MORE)
        fleet.system.check()
        fleet.wait_until_consumed()

    assert jobs.returncode == 0, jobs.log_tail()
    sent = list(spark_cluster.folder.glob(f"worker-*/app-*/*/{FOLDER}/model/wakeroll_model/shard.py"))
    assert len(sent) >= 4, "each executor has received the packages"
    download(settings.warehouse, tmp_path / "copy" / "warehouse")
    fleet.check(spark, tmp_path / "copy" / "warehouse")
    if not spark_cluster.hides:
        tell("the workers saw the checkout: this user may not mount an empty folder over it")
