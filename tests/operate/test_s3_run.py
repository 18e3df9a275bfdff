"""`wakeroll run` with tables and checkpoints in S3, and a store that fails: nothing is lost, and nothing is twice.

A system goes through many faults, because each start of a driver takes some twenty seconds.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from tests.support.probes import probe
from tests.support.running_processes import run_process
from tests.support.systems.deployment import Log, decided, told
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.live.ledger_reader import newest_snapshots
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import free_ports
from wakeroll_pipeline.runtime.run_status import read_status
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files

pytestmark = [pytest.mark.operate, pytest.mark.spark]

_RETRIES = "wakeroll_jvm_store_retries_total"


class Driver:
    """The process `wakeroll run`, and what a test appends to its topics."""

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.log = Log(settings)
        self.ends: list[str] = []
        """Last line of the log of each process that ended by itself."""
        self._run = Child(
            "run",
            [sys.executable, "-m", "wakeroll_pipeline.cli", "run"],
            log=folder / "run.log",
            env={**os.environ, **settings.environment()},
            grace_s=90,
        )

    def start(self) -> None:
        self._run.start()

    def kill(self) -> None:
        self._run.kill()

    def stop(self) -> int | None:
        return self._run.stop()

    def wait_until(self, done, what: str) -> None:
        """Wait until something is true; start the process again if it ended, as a supervisor does."""

        def look() -> bool:
            if not self._run.is_running:
                self.ends.append(self._run.log_tail().strip().splitlines()[-1])
                self._run.start()
            return done()

        wait_until(look, what, patience_s=PATIENCE_WITH_SPARK_S, state=self._run.log_tail)

    def threads(self) -> int:
        """Return the number of threads of the JVM."""
        listed = subprocess.run(
            ["ps", "-o", "nlwp=", "--ppid", str(self._run.pid)], capture_output=True, text=True, check=True
        )
        return max(map(int, listed.stdout.split()))

    def retries(self) -> float:
        """Return how often the JVM has repeated a request to the store, by its metric."""
        families = text_string_to_metric_families(probe(self.settings.metrics_port, "/metrics").partition(" ")[2])
        return sum(one.value for family in families for one in family.samples if one.name == _RETRIES)

    def wait_for_batches(self) -> None:
        """Wait until both queries have finished two batches more."""
        before = self._batches()

        def went_on() -> bool:
            self.log.tick()  # without records there is no batch
            now = self._batches()
            return len(now) == 2 and all(number >= before.get(name, -1) + 2 for name, number in now.items())

        self.wait_until(went_on, "both queries go on")

    def begin(self) -> None:
        """Append the first records: a topic of 8 queues, and a group whose members stay while the store is slow."""
        self.log.tick()
        self.log.route(8)
        # Members do not heartbeat while a test waits for batches, which takes minutes with a slow store.
        self.log.configure("billing", session_timeout_ms=600_000)

    def join(self, client_id: str, members: list[str]) -> None:
        """Let a client join, and all members answer, until each has its share of the queues."""
        self.log.beat("billing", client_id)

        def shared() -> bool:
            self.log.tick()
            self.log.answer(self.settings, [("billing", member) for member in members])
            owned = [told(self.settings).get(("billing", member), []) for member in members]
            return all(owned) and sorted(queue for queues in owned for queue in queues) == list(range(8))

        self.wait_until(shared, f"{client_id} has its share")

    def _batches(self) -> dict[str, int]:
        status = read_status(self.settings.work_folder)
        mine = status is not None and self._run.is_running and status.pid == self._run.pid
        return {name: query.batch for name, query in status.queries.items()} if status and mine else {}


@pytest.fixture
def driver(broker, s3: S3Server, tmp_path: Path) -> Iterator[Driver]:
    home = f"s3a://{BUCKET}/{tmp_path.name}"
    settings = Settings(
        bootstrap=broker.bootstrap,
        prefix=tmp_path.name,
        home=home,
        checkpoints=f"{home}/checkpoints",
        work=str(tmp_path / "work"),
        s3_endpoint=s3.endpoint,
        s3_region="us-east-1",
        batch_interval_ms=500,
        record_interval_ms=1_000,
        snapshot_interval_ms=5_000,
        metrics_port=free_ports(1)[0],
    )
    ensure_topics(settings.connection)
    mark_folders_of_logs(s3, settings)
    driver = Driver(settings, tmp_path)
    driver.start()
    yield driver
    driver.stop()


def mark_folders_of_logs(s3: S3Server, settings: Settings) -> None:
    """Leave what a driver leaves that died while it created the tables: Hadoop's marks of the folders of their logs."""
    for table in TABLES.values():
        log = path_of(settings.warehouse, table) / "_delta_log"
        mark = Request(f"{s3.endpoint}/{BUCKET}/{log.key}/", method="PUT", data=b"")
        with urlopen(mark, timeout=30) as answer:
            assert answer.status == 200


def wakeroll(settings: Settings, *words: str) -> tuple[int, str]:
    done = run_process([sys.executable, "-m", "wakeroll_pipeline.cli", *words], **settings.environment())
    return done.returncode, done.stdout + done.stderr


def test_nothing_is_lost_and_nothing_is_there_twice(driver, s3, tell):
    """A driver is killed; the store refuses, is slow, and is away."""
    driver.begin()
    driver.join("a", ["a"])
    driver.kill()
    driver.start()
    driver.join("b", ["a", "b"])
    assert driver.ends == []
    for _ in range(4):
        driver.wait_for_batches()
    assert driver.threads() < 700, "clients of the store, each with threads of its own, remain"
    assert driver.retries() == 0

    with s3.failing(every_nth=7):
        driver.join("c", ["a", "b", "c"])
        driver.wait_for_batches()
    driver.wait_until(lambda: driver.retries() > 0, "repeated requests are counted")
    with s3.failing(delay_s=0.2):
        driver.wait_for_batches()
    assert driver.ends == [], "refused and slow requests are repeated"

    s3.requests.clear()
    with s3.failing(is_dead=True):
        driver.log.beat("billing", "d")
        driver.wait_until(lambda: len(s3.seen("PUT")) >= 3, "the driver tries to write")
    driver.join("d", ["a", "b", "c", "d"])
    driver.wait_for_batches()
    tell(f"the store was away: {driver.ends or 'the driver went on'}")
    driver.stop()

    each_record_is_there_once(driver.settings)
    settings = driver.settings
    assert small_files.names(settings.warehouse.parent) == ["checkpoints", "warehouse"]
    secret = s3.environment["AWS_SECRET_ACCESS_KEY"]
    logs = [*settings.logs.rglob("*.log"), *settings.work_folder.parent.glob("*.log")]
    assert logs
    assert [log.name for log in logs if secret in log.read_text(errors="replace")] == []


def test_lost_checkpoints_are_restored(driver):
    """Hadoop's marks of folders remain when a client of another kind deletes a checkpoint; Spark must not find them."""
    settings = driver.settings
    driver.begin()
    driver.join("a", ["a"])
    driver.wait_until(lambda: len(newest_snapshots(settings.warehouse)) == 8, "every shard has a snapshot")
    driver.kill()
    small_files.delete_folder(settings.checkpoints_folder)
    refused = wakeroll(settings, "run")
    restored = wakeroll(settings, "restore")
    assert refused[0] == 2
    assert "is empty, but" in refused[1]
    assert restored[0] == 0, restored[1]
    assert "8 of 8 shards continue in their era" in restored[1]
    driver.start()
    driver.join("b", ["a", "b"])
    driver.wait_for_batches()
    assert driver.ends == []
    driver.stop()

    each_record_is_there_once(settings)


def each_record_is_there_once(settings: Settings) -> None:
    """Compare what was appended to the topics and published with the tables."""
    published = {(one["shard"], one["seq"]) for one in decided(settings)}
    with duck_ledger(settings.warehouse) as ledger:
        stored = [(row.shard, row.seq) for row in ledger.rows("select shard, seq from decisions")]
        [events] = ledger.rows(
            'select count(*) as n, count(distinct (topic, partition, "offset")) as d, '
            '(select sum(ends) from (select max("offset") + 1 as ends from events group by topic, partition)) as ends '
            "from events"
        )
    assert sorted(stored) == sorted(set(stored)), "no decision is there twice"
    assert published == set(stored), "no decision is lost"
    assert events.n == events.d == events.ends, "each event is there once"
    assert "decisions compared: equal" in wakeroll(settings, "replay")[1]


def test_two_drivers_that_both_believe_to_be_alone_harm_no_checkpoint(driver, tmp_path, tell):
    """A lock file on another machine does not keep the second one away; the store lets one plan each batch."""
    settings = driver.settings
    driver.begin()
    driver.join("a", ["a"])
    second = Child(
        "a second run",
        [sys.executable, "-m", "wakeroll_pipeline.cli", "run", "--only", "coordinate"],
        log=tmp_path / "second.log",
        env={
            **os.environ,
            **settings.environment(),
            "WAKEROLL_WORK": str(tmp_path / "other machine"),
            "WAKEROLL_LOCKS": "file",
        },
        grace_s=60,
    )
    with second:

        def one_has_ended() -> bool:
            driver.log.tick()
            return not second.is_running or bool(driver.ends)

        driver.wait_until(one_has_ended, "one of two drivers of a checkpoint ends")
        tell(f"ended: {driver.ends or second.log_tail().strip().splitlines()[-1]}")
    driver.join("b", ["a", "b"])
    driver.wait_for_batches()
    driver.stop()

    assert "decisions compared: equal" in wakeroll(settings, "replay")[1]


def test_the_tables_in_the_store_are_those_of_any_reader(driver, tmp_path):
    """Copied to a local folder, they answer the same."""
    from tests.support.systems.s3_copies import download

    driver.begin()
    driver.join("a", ["a"])
    driver.wait_for_batches()
    driver.stop()
    copy = tmp_path / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    download(driver.settings.warehouse, copy / "warehouse")

    of_tables = structs.replace(driver.settings, bootstrap="")
    answers = [wakeroll(one, "groups", "--json") for one in (of_tables, structs.replace(of_tables, home=str(copy)))]
    assert [code for code, _ in answers] == [0, 0]
    there, here = (json.loads(said)["groups"] for _, said in answers)
    assert here == there
    assert [(group["group_id"], group["members"]) for group in here] == [("billing", 1)]
