"""A repair makes the tables whole again, and changes nothing without a confirmation or beside a writer."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.delta_tables import write, write_tables
from tests.support.ledgers import PARTITIONS, a_day
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, OFFSETS, SNAPSHOTS, TABLES, Table
from wakeroll_pipeline.cli.app import run_app
from wakeroll_pipeline.jobs.repair import repair
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.questions.replay_here import replay_here
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings

Rows = list[dict[str, Any]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A home with the sound tables of a story."""
    settings = Settings(home=str(tmp_path), partitions=PARTITIONS)
    story = a_day()
    write_tables(settings.warehouse, story)
    decisions = read_decisions(KafkaRecord(*row) for row in story.rows if row[0] == Topics().decisions)
    rows = [one.row for one in rows_of([], decisions)[ASSIGNMENTS.name]]
    write(settings.warehouse, ASSIGNMENTS, arrow_table(ASSIGNMENTS.row, rows))
    return settings


def rows(settings: Settings, table: Table) -> Rows:
    found: Rows = DeltaTable(str(settings.warehouse / table.name)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: [row[name] for name in table.key])


def keep(settings: Settings, table: Table, left: Rows) -> None:
    schema = DeltaTable(str(settings.warehouse / table.name)).to_pyarrow_table().schema
    write_deltalake(str(settings.warehouse / table.name), pa.Table.from_pylist(left, schema=schema), mode="overwrite")


def damage(settings: Settings) -> dict[str, Rows]:
    """Damage four tables; return their sound rows."""
    before = {table.name: rows(settings, table) for table in (DECISIONS, ASSIGNMENTS, OFFSETS, SNAPSHOTS)}
    keep(settings, DECISIONS, [row for row in before["decisions"] if row["seq"] not in (4, 5)])
    first = before["assignments"][0]["seq"]
    edited = [row | {"epoch": row["epoch"] + (row["seq"] == first)} for row in before["assignments"]]
    keep(settings, ASSIGNMENTS, [*edited, edited[-1]])
    keep(settings, OFFSETS, [])
    cut = [row | {"body": row["body"][:-1]} if row["partition"] == 1 else row for row in before["snapshots"]]
    keep(settings, SNAPSHOTS, cut)
    return before


def run(*arguments: str) -> object:
    """Run a command; return its exit code."""
    try:
        return run_app(arguments)
    except SystemExit as end:
        return end.code


def versions(settings: Settings) -> dict[str, int]:
    places = {name: settings.warehouse / name for name in TABLES}
    return {name: DeltaTable(str(place)).version() for name, place in places.items() if is_delta(place)}


def test_a_repair_makes_the_tables_whole(settings):
    before = damage(settings)

    plan = repair(settings, lambda _: True)

    assert {change.table.name for change in plan.changes} == {"decisions", "assignments", "offsets", "snapshots"}
    for table in (ASSIGNMENTS, OFFSETS):
        assert rows(settings, table) == before[table.name], table.name
    known = [row["json"] for row in before["decisions"]]
    assert [row["json"] for row in rows(settings, DECISIONS)] == known
    with duck_ledger(settings.warehouse) as ledger:
        done = replay_here(ledger, PARTITIONS, Period())
    assert sum(one.differences for one in done) == 0
    assert sum(one.snapshots for one in done) == len(before["snapshots"])
    assert [one for its in done for one in its.unequal] == []
    assert repair(settings, lambda _: True).findings == []


def test_nothing_changes_until_the_plan_is_confirmed(settings):
    damage(settings)
    before = versions(settings)

    plan = repair(settings, lambda _: False)

    assert plan.changes != []
    assert versions(settings) == before


def test_the_command_shows_the_plan_and_asks(settings, capsys, monkeypatch):
    """Without a terminal, `--yes` is the answer."""
    damage(settings)
    before = versions(settings)
    monkeypatch.setenv("WAKEROLL_PARTITIONS", str(PARTITIONS))

    assert run("repair", "--home", settings.home) == 1
    said = capsys.readouterr().out
    assert "made again from a replay of events" in said
    assert "nothing has changed; repeat the command with --yes to carry out the plan" in said
    assert versions(settings) == before
    assert run("repair", "--home", settings.home, "--yes") == 0
    assert run("repair", "--home", settings.home) == 0
    assert "nothing to repair" in capsys.readouterr().out


def test_a_process_that_writes_the_tables_keeps_a_repair_away(settings):
    damage(settings)
    with process_locks(settings, [RECORD]), pytest.raises(InvalidUsage, match="already writes"):
        repair(settings, lambda _: True)


def test_tables_that_changed_after_the_plan_are_not_repaired(settings):
    """As by a writer that was suspended while the operator read the plan."""
    before = damage(settings)

    def confirm(_plan: object) -> bool:
        keep(settings, OFFSETS, before["offsets"][:3])
        return True

    with pytest.raises(InvalidUsage, match="have changed since the plan was shown"):
        repair(settings, confirm)
    assert rows(settings, OFFSETS) == before["offsets"][:3]
