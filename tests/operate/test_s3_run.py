"""A whole system whose tables and checkpoints are in S3, and a store that fails: nothing is lost, nothing is twice."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.local.child_process import Child
from pipeline.recovery.checkpoint_state import has_batches, last_batch
from pipeline.runtime.deciding_queries import RECORD, query_of
from pipeline.storage import small_files
from tests.support.running_processes import run_process
from tests.support.systems.fleet import CLIENTS, Fleet
from tests.support.systems.s3_copies import download
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until

pytestmark = [pytest.mark.operate, pytest.mark.spark]


@pytest.fixture
def fleet(broker, s3: S3Server, tmp_path: Path) -> Iterator[Fleet]:
    """Observer, jobs, a producer and three consumers; all that is kept is in the store."""
    home = f"s3a://{BUCKET}/{tmp_path.name}"
    more = {"s3_endpoint": s3.endpoint, "s3_region": "us-east-1", "work": str(tmp_path / "work")}
    with Fleet(broker.bootstrap, tmp_path, home=home, checkpoints=f"{home}/checkpoints", **more) as fleet:
        yield fleet


def wait_for_batches(fleet: Fleet, more: int = 3) -> None:
    """Wait until both queries have committed some more batches."""
    places = [fleet.settings.checkpoint(name) for name in (query_of(fleet.settings), RECORD)]
    wanted = [last_batch(place) + more for place in places]
    wait_until(
        lambda: all(last_batch(place) >= number for place, number in zip(places, wanted, strict=True)),
        "both queries go on",
        patience_s=PATIENCE_WITH_SPARK_S,
    )


def test_the_store_fails_in_every_way_and_nothing_is_lost(fleet, s3, spark, tmp_path, tell):
    """A driver that is killed goes on from the store; a store that is away for too long ends the driver, at most."""
    wait_for_batches(fleet)
    fleet.system.jobs.kill()
    fleet.system.jobs.start()
    fleet.wait_until_decided()
    wait_for_batches(fleet)
    with s3.failing(every_nth=7):
        wait_for_batches(fleet)
    with s3.failing(delay_s=0.3):
        wait_for_batches(fleet)
    s3.requests.clear()
    with s3.failing(is_dead=True):
        wait_until(lambda: len(s3.seen("PUT")) >= 4, "the driver has tried to write", patience_s=PATIENCE_WITH_SPARK_S)
    if not fleet.system.jobs.is_running:
        tell(f"the driver ended: {fleet.system.jobs.log_tail().splitlines()[-1]}")
        fleet.system.jobs.start()
        fleet.wait_until_decided()
    wait_for_batches(fleet)
    fleet.wait_until_consumed()
    for client in CLIENTS:
        fleet.let_leave(client)
    wait_for_batches(fleet)
    fleet.stop()
    download(fleet.settings.warehouse, tmp_path / "copy")

    decisions = fleet.check(spark, tmp_path / "copy")
    assert decisions
    assert small_files.names(fleet.settings.warehouse.parent) == ["checkpoints", "warehouse"]
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"]
    assert [log.name for log in fleet.settings.logs.iterdir() if secret in log.read_text(errors="replace")] == []


def test_checkpoints_in_the_store_are_lost_and_restored(fleet, spark, tmp_path):
    """From the snapshots, which are in the store too."""
    settings = fleet.settings
    environment = settings.environment()
    snapshots = settings.warehouse / "snapshots" / "_delta_log"
    wait_until(
        lambda: len([name for name in small_files.names(snapshots) if name.endswith(".json")]) >= 2,
        "there is a snapshot",
        patience_s=PATIENCE_WITH_SPARK_S,
    )
    wait_for_batches(fleet)
    fleet.system.jobs.kill()
    small_files.delete_folder(settings.checkpoints_folder)
    refused = run_process([sys.executable, "-m", "pipeline.cli", "run"], **environment)
    restored = run_process([sys.executable, "-m", "pipeline.cli", "restore"], **environment)
    fleet.system.jobs.start()
    fleet.wait_until_decided()
    wait_for_batches(fleet)
    fleet.wait_until_consumed()
    for client in CLIENTS:
        fleet.let_leave(client)
    wait_for_batches(fleet)
    fleet.stop()
    download(settings.warehouse, tmp_path / "copy")

    assert refused.returncode == 2
    assert f"{settings.checkpoint('coordinate')} is empty" in refused.stderr
    assert "run `wakeroll restore` first" in refused.stderr
    assert restored.returncode == 0, restored.stderr
    assert "8 of 8 shards continue in their era" in restored.stdout
    fleet.check(spark, tmp_path / "copy")
    replayed = run_process([sys.executable, "-m", "pipeline.cli", "replay"], **environment)
    assert "decisions compared: equal" in replayed.stdout


def test_a_second_driver_on_another_machine_ends_and_the_first_goes_on(fleet, tmp_path, tell):
    """Its lock file is on another machine, so it is the store that refuses it: a batch is planned once."""
    settings = fleet.settings
    wait_for_batches(fleet)
    second = Child(
        "a second run",
        [sys.executable, "-m", "pipeline.cli", "run", "--only", "coordinate"],
        log=tmp_path / "second.log",
        env={**os.environ, **settings.environment(), "WAKEROLL_WORK": str(tmp_path / "other machine")},
        grace_s=60,
    )
    with second:
        wait_until(
            lambda: not (second.is_running and fleet.system.jobs.is_running),
            "one of two drivers of a checkpoint ends",
            patience_s=PATIENCE_WITH_SPARK_S,
        )
        loser = fleet.system.jobs if second.is_running else second
        tell(f"{loser.name} ended: {loser.log_tail().splitlines()[-1]}")
    assert has_batches(settings)
    if not fleet.system.jobs.is_running:
        fleet.system.jobs.start()
        fleet.wait_until_decided()
    wait_for_batches(fleet)
