"""Upkeep of a ledger at rest: what grows is bounded, and no answer of the tables changes."""

import json
import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.ledgers import PARTITIONS, a_long_life
from wakeroll.epoch_ms import now_ms
from wakeroll_model.rows import CHAIN, EVENTS, RECORDED, TABLES
from wakeroll_pipeline.cli.app import run_app
from wakeroll_pipeline.jobs.maintain import Maintained, Report, maintain, plan
from wakeroll_pipeline.jobs.maintained_parts import Checkpoints, Mart
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.expired_versions import delete_expired, expired_of
from wakeroll_pipeline.ledger.stored_marts import look_after_mart
from wakeroll_pipeline.recovery.checkpoint_state import ASIDE
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.process_lock import only_one
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.place import Place

HOUR_MS = 3_600_000
YEARS_MS = 100 * 366 * 24 * HOUR_MS


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chained ledger of some batches."""
    warehouse = tmp_path_factory.mktemp("sound") / "warehouse"
    create_tables(warehouse)
    chains, story = Chains(warehouse), a_long_life()
    append(warehouse, story, chains)
    append_snapshots(warehouse, story, chains)
    return warehouse


@pytest.fixture
def settings(sound: Path, tmp_path: Path) -> Settings:
    """A home with a copy of the ledger; none of its rows is older than the retention."""
    settings = Settings(
        home=str(tmp_path),
        partitions=PARTITIONS,
        keep_events_ms=YEARS_MS,
        keep_decisions_ms=YEARS_MS,
        keep_snapshots_ms=YEARS_MS,
    )
    shutil.copytree(sound, settings.warehouse)
    return settings


def forget_nothing(_folder: Path, _before_ms: int) -> None:
    raise AssertionError("no result is old")


def maintained(settings: Settings, *, newest_only: bool = False) -> Report:
    return maintain(settings, forget_nothing, newest_only=newest_only)


def code_of(arguments: list[str]) -> object:
    """Run a command; return its exit code."""
    try:
        return run_app(arguments)
    except SystemExit as end:
        return end.code


def named(report: Report) -> dict[str, Maintained]:
    return {one.name: one for one in report.parts}


def snapshot_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def ages(folder: Path, ago_ms: int) -> None:
    """Let the files in a folder be old."""
    then_s = time.time() - ago_ms / 1_000
    for path in folder.rglob("*"):
        os.utime(path, (then_s, then_s))


def overwrite(folder: Path, times: int) -> None:
    for number in range(times):
        write_deltalake(folder, pa.table({"number": [number]}), mode="overwrite", schema_mode="overwrite")


def files_in(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))


@pytest.mark.operate
def test_a_stopped_ledger_has_one_file_of_rows_per_table_and_the_check_holds(settings, capfd):
    """Nobody but this command looks after a ledger whose `run` is stopped."""
    before = {table.name: DeltaTable(settings.warehouse / table.name).to_pyarrow_table() for table in RECORDED}

    report = maintained(settings)

    assert (report.failures, report.skipped) == ([], [])
    assert {one.name for one in report.parts} == {*TABLES, "daily_facts"}
    for table in RECORDED:
        delta = DeltaTable(settings.warehouse / table.name)
        assert len(delta.file_uris()) == 1, table.name
        order = [(name, "ascending") for name in table.key]
        assert delta.to_pyarrow_table().sort_by(order) == before[table.name].sort_by(order), table.name
    assert code_of(["check", "--no-docs", "--home", settings.home]) == 0
    line = capfd.readouterr().out.rpartition("elsewhere: ")[2].strip()
    assert code_of(["check", "--no-docs", "--home", settings.home, "--since", line]) == 0
    assert named(maintained(settings))[EVENTS.name].files_after == named(report)[EVENTS.name].files_after + 1, (
        "a second call only takes the turn"
    )


def test_only_the_newest_version_may_be_kept_and_the_check_holds(settings):
    """Lines of the chain are in the commits first: they must not be deleted with these."""
    report = maintained(settings, newest_only=True)

    for table in RECORDED:
        assert files_in(settings.warehouse.path / table.name) <= 4, table.name
        assert DeltaTable(settings.warehouse / table.name).to_pyarrow_table().num_rows > 0
    assert named(report)[EVENTS.name].bytes_after < named(report)[EVENTS.name].bytes_before
    assert DeltaTable(settings.warehouse / CHAIN.name).to_pyarrow_table().num_rows > 0
    assert code_of(["check", "--no-docs", "--home", settings.home]) == 0


def test_a_ledger_at_rest_does_not_grow_by_its_upkeep(settings):
    """Each call takes the turn, which is a commit per table."""
    counts = [named(maintained(settings, newest_only=True))[EVENTS.name].files_after for _ in range(4)]

    assert len(set(counts)) == 1


def test_beside_a_writer_the_tables_are_left_alone(settings):
    """Two processes that write one local table could lose each other's commits."""
    before = snapshot_of(settings.warehouse.path)

    with process_locks(settings, [RECORD]):
        report = maintained(settings)

    assert [(one.part, str(os.getpid()) in one.why) for one in report.skipped] == [("tables", True)]
    after = snapshot_of(settings.warehouse.path)
    assert {name: body for name, body in after.items() if not name.endswith(".lock")} == before


def test_a_second_upkeep_does_nothing(settings):
    """A slow one may not be over when the next one is due."""
    with only_one(settings.lock_file(settings.warehouse / "maintain.lock"), "maintains this deployment"):
        report = maintained(settings)

    assert report.parts == []
    assert [(one.part, str(os.getpid()) in one.why) for one in report.skipped] == [("everything", True)]


def test_a_plan_changes_nothing(settings):
    """An operator looks first; also beside a writer."""
    before = snapshot_of(Path(settings.home))

    with process_locks(settings, [RECORD]):
        planned = named(plan(settings, forget_nothing))

    after = snapshot_of(Path(settings.home))
    assert {name: body for name, body in after.items() if not name.endswith(".lock")} == before
    assert planned[EVENTS.name].small_files == 5
    assert planned[EVENTS.name].rows_before_ms is None


def test_a_plan_names_the_rows_that_are_old(settings):
    old = Settings(home=settings.home, partitions=PARTITIONS)

    assert named(plan(old, forget_nothing))[EVENTS.name].rows_before_ms is not None


def test_the_command_tells_what_it_did_as_json(settings, capfd, monkeypatch):
    for name in ("events", "decisions", "snapshots"):
        monkeypatch.setenv(f"WAKEROLL_KEEP_{name.upper()}_MS", str(YEARS_MS))

    assert code_of(["maintain", "--home", settings.home, "--json"]) == 0

    told = json.loads(capfd.readouterr().out)
    assert (told["exit_code"], told["dry_run"], told["skipped"], told["failures"]) == (0, False, [], [])
    events = next(part for part in told["parts"] if part["name"] == "events")
    assert events["files_before"] > 0
    assert events["bytes_after"] > 0


def test_a_damaged_table_ends_the_upkeep_of_the_tables_before_it_begins(settings, capfd, monkeypatch):
    for name in ("events", "decisions", "snapshots"):
        monkeypatch.setenv(f"WAKEROLL_KEEP_{name.upper()}_MS", str(YEARS_MS))
    folder = settings.warehouse.path / "offsets"
    next(folder.glob("*.parquet")).unlink()

    assert code_of(["maintain", "--home", settings.home]) == 3

    assert "offsets" in capfd.readouterr().err
    assert len(DeltaTable(settings.warehouse / "events").file_uris()) == 5


def test_a_file_of_the_right_size_that_cannot_be_decoded_is_named(settings, capfd):
    """Its damage is found by the first query that reads it, and not by the sizes in the log."""
    file = max((settings.warehouse.path / "events").glob("*.parquet"), key=lambda one: one.stat().st_size)
    body = bytearray(file.read_bytes())
    body[60:120] = bytes(60)
    file.write_bytes(body)

    assert code_of(["maintain", "--home", settings.home]) == 3

    complaint = capfd.readouterr().err
    assert "cannot read table 'events': the file" in complaint
    assert "is damaged" in complaint
    assert "Traceback" not in complaint


def test_a_home_without_tables_is_wrong_use(tmp_path):
    assert code_of(["maintain", "--home", str(tmp_path)]) == 2


def test_a_mart_keeps_the_versions_of_the_last_hour_only(tmp_path):
    """Each run of `marts` stores all its rows once more."""
    overwrite(tmp_path / "lag", 30)
    assert files_in(tmp_path / "lag") == 60
    mart = Place.of(tmp_path / "lag")

    look_after_mart(mart, HOUR_MS, now_ms())
    assert DeltaTable(tmp_path / "lag", version=3).to_pyarrow_table()["number"].to_pylist() == [3], "not expired"

    look_after_mart(mart, HOUR_MS, now_ms())
    ages(tmp_path / "lag", 2 * HOUR_MS)
    delete_expired(mart, 0, now_ms() - HOUR_MS)

    assert DeltaTable(tmp_path / "lag").to_pyarrow_table()["number"].to_pylist() == [29]
    assert files_in(tmp_path / "lag") <= 4, "rows, checkpoint, the commit of it, and what names it"
    assert not expired_of(mart, 0, now_ms() - HOUR_MS).files


def test_what_a_build_has_written_and_not_committed_yet_stays(tmp_path):
    """Upkeep may run beside a build of the marts."""
    overwrite(tmp_path / "lag", 3)
    unfinished = tmp_path / "lag" / "part-of-a-build.parquet"
    unfinished.write_bytes(b"rows")

    Mart("lag", Place.of(tmp_path / "lag"), 60_000).clean(now_ms())

    assert unfinished.exists()


def test_a_mart_of_many_small_files_gets_one(tmp_path):
    """An incremental mart gets a file per run."""
    for number in range(15):
        write_deltalake(tmp_path / "costs", pa.table({"number": [number]}), mode="append")

    look_after_mart(Place.of(tmp_path / "costs"), HOUR_MS, now_ms())

    mart = DeltaTable(tmp_path / "costs")
    assert len(mart.file_uris()) == 1
    assert sorted(mart.to_pyarrow_table()["number"].to_pylist()) == list(range(15))


def test_a_replaced_checkpoint_goes_as_a_whole_when_it_is_old(tmp_path):
    """`restore` keeps it for people; a part of one is of no use."""
    settings = Settings(home=str(tmp_path))
    folder = settings.checkpoints_folder.path
    old, new, used = (folder / name for name in (f"coordinate{ASIDE}", f"record{ASIDE}", "record"))
    for checkpoint in (old, new, used):
        (checkpoint / "offsets").mkdir(parents=True)
        for batch in ("0", "1", ".2.tmp"):
            (checkpoint / "offsets" / batch).write_text("v1")
    for checkpoint in (old, used):
        ages(checkpoint, 2 * settings.keep_results_ms)
    ages(new / "offsets", 2 * settings.keep_results_ms)
    (new / "offsets" / "3").write_text("v1")

    Checkpoints(settings).clean(now_ms())

    assert not old.exists()
    assert sorted(path.name for path in new.rglob("*")) == ["0", "1", "3", "offsets"]
    assert sorted(path.name for path in used.rglob("*")) == ["0", "1", "offsets"], "what is in use stays"
