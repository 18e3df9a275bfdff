"""Upkeep of a ledger in an S3 store, where a lease in Kafka keeps a second writer from the tables."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.ledgers import PARTITIONS, a_long_life
from tests.support.systems.s3_copies import upload
from tests.support.systems.s3_server import BUCKET, S3Server
from tests.support.waiting import wait_until
from wakeroll_model.rows import EVENTS, RECORDED
from wakeroll_pipeline.jobs.maintain import Report, maintain
from wakeroll_pipeline.kafka.control_topics import ensure_lease_topic
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.delta_files import number_of_rows, open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.questions.quality.check_in_duckdb import check_in_duckdb
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.lease_keeper import LeaseKeeper
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files

pytest.importorskip("moto.server", reason="needs the package moto: pip install 'moto[s3,server]'")
pytestmark = [pytest.mark.e2e, pytest.mark.operate]

YEARS_MS = 100 * 366 * 24 * 3_600_000
LEASE_MS = 1_500


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chained ledger of some batches, in a local folder."""
    warehouse = tmp_path_factory.mktemp("sound") / "warehouse"
    create_tables(warehouse)
    chains, story = Chains(warehouse), a_long_life()
    append(warehouse, story, chains)
    append_snapshots(warehouse, story, chains)
    return warehouse


@pytest.fixture
def settings(store: S3Server, broker, sound: Path, tmp_path: Path) -> Settings:
    """A home in the store with a copy of the ledger; none of its rows is older than the retention."""
    name = f"kept-{uuid.uuid4().hex[:6]}"
    upload(sound, store.place(f"{name}/warehouse"))
    return Settings(
        home=f"s3a://{BUCKET}/{name}",
        work=str(tmp_path),
        bootstrap=broker.bootstrap,
        prefix=name,
        s3_endpoint=store.endpoint,
        s3_region="us-east-1",
        partitions=PARTITIONS,
        lease_ms=LEASE_MS,
        keep_events_ms=YEARS_MS,
        keep_decisions_ms=YEARS_MS,
        keep_snapshots_ms=YEARS_MS,
    )


def maintained(settings: Settings, *, newest_only: bool = False) -> Report:
    return maintain(settings, pytest.fail, newest_only=newest_only)  # type: ignore[arg-type]


def broken_rules(settings: Settings) -> list[str]:
    with duck_ledger(settings.warehouse) as ledger:
        return [one.rule.name for one in check_in_duckdb(ledger) if one.broken or one.not_checked]


def test_a_ledger_in_a_store_has_one_file_of_rows_per_table_and_the_check_holds(settings):
    """Also when all versions but the newest are deleted, which a store can bring back no more."""
    rows = {table.name: number_of_rows(open_delta(settings.warehouse / table.name)) for table in RECORDED}

    reports = [maintained(settings), maintained(settings, newest_only=True)]

    assert [(one.failures, one.skipped) for one in reports] == [([], [])] * 2
    for table in RECORDED:
        delta = open_delta(settings.warehouse / table.name)
        assert (len(delta.file_uris()), number_of_rows(delta)) == (1, rows[table.name]), table.name
        assert len(small_files.files(settings.warehouse / table.name)) <= 4, table.name
    assert {one.name for one in reports[0].parts} >= {table.name for table in RECORDED}
    assert broken_rules(settings) == []


def test_beside_a_process_with_the_lease_the_tables_are_left_alone(settings):
    """A recorder on another machine appends to them; its lock is no file of this one."""
    connection = settings.connection
    ensure_lease_topic(connection)
    before = {one.place: one.size for one in small_files.files(settings.warehouse)}

    with LeaseKeeper(connection, "run@elsewhere:1", 60_000, [RECORD]) as other:
        wait_until(lambda: other[RECORD].state == "held", "the other process has the lease")
        report = maintained(settings)
        other[RECORD].confirm()

    assert [one.part for one in report.skipped] == ["tables"]
    assert "run@elsewhere:1" in report.skipped[0].why
    assert EVENTS.name not in {one.name for one in report.parts}
    assert {one.place: one.size for one in small_files.files(settings.warehouse)} == before

    report = maintained(settings)
    assert (report.failures, report.skipped) == ([], [])
    assert EVENTS.name in {one.name for one in report.parts}
