"""The drill of docs/storage.md: a deployment on a local disk moves to an object store, while consumers are at work."""

import sys
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.running_processes import run_process
from tests.support.systems.fleet import Fleet
from tests.support.systems.s3_copies import download, upload
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.local_system import LocalSystem
from wakeroll_pipeline.settings import Settings

pytestmark = [pytest.mark.operate, pytest.mark.e2e, pytest.mark.spark]

until = partial(wait_until, patience_s=PATIENCE_WITH_SPARK_S)


def wakeroll(settings: Settings, *words: str) -> str:
    """Run a command to its end; return what it prints."""
    done = run_process([sys.executable, "-m", "wakeroll_pipeline.cli", *words], **settings.environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_deployment_moves_from_a_disk_to_a_store(broker: EmbeddedBroker, spark, s3: S3Server, tmp_path: Path):
    """Only the tables are copied. No member leaves, no message is lost, and each row is there once."""
    home = f"s3a://{BUCKET}/{tmp_path.name}"
    with Fleet(broker.bootstrap, tmp_path) as fleet:
        moved = structs.replace(
            fleet.settings,
            home=home,
            checkpoints=f"{home}/checkpoints",
            work=str(tmp_path / "work"),
            s3_endpoint=s3.endpoint,
            s3_region="us-east-1",
        )
        fleet.wait_for_more(300)
        snapshots = fleet.settings.warehouse.path / "snapshots"
        until(lambda: any(snapshots.glob("*.parquet")), "there are snapshots")
        fleet.system.jobs.stop()
        upload(fleet.settings.warehouse.path, moved.warehouse)
        said = wakeroll(moved, "restore", "--from-snapshots")
        fleet.system.jobs = LocalSystem(moved).jobs
        fleet.system.jobs.start()
        fleet.wait_for_more(300)
        fleet.wait_until_consumed()

    assert "8 of 8 shards continue in their era" in said
    copy = tmp_path / "copy"
    download(moved.warehouse, copy)
    fleet.check(spark, copy)
    assert "decisions compared: equal" in wakeroll(moved, "replay")
    wakeroll(moved, "check")
