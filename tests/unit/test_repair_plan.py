"""The plan of a repair: rows are made again from others, as far as these prove them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from tests.support.delta_tables import write, write_tables
from tests.support.ledgers import PARTITIONS, a_day
from wakeroll.connection import Topics
from wakeroll_model.partitioner import partition_of
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, OFFSETS, SNAPSHOTS, Table
from wakeroll_model.snapshot_proof import differences
from wakeroll_pipeline.jobs.repair_plan import RepairPlan, plan_repair
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.stored_snapshots import row_of
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of

Rows = list[dict[str, Any]]


@pytest.fixture
def warehouse(tmp_path: Path) -> Path:
    """The sound tables of a story."""
    story = a_day()
    write_tables(tmp_path, story)
    decisions = read_decisions(KafkaRecord(*row) for row in story.rows if row[0] == Topics().decisions)
    rows = [one.row for one in rows_of([], decisions)[ASSIGNMENTS.name]]
    write(tmp_path, ASSIGNMENTS, arrow_table(ASSIGNMENTS.row, rows))
    return tmp_path


def rows(warehouse: Path, table: Table) -> Rows:
    found: Rows = DeltaTable(str(warehouse / table.name)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: [row[name] for name in table.key])


def damage(warehouse: Path, table: Table, change: Callable[[Rows], Rows]) -> Rows:
    """Change the rows of a table; return those that it had."""
    before = rows(warehouse, table)
    schema = DeltaTable(str(warehouse / table.name)).to_pyarrow_table().schema
    changed = pa.Table.from_pylist(change([dict(row) for row in before]), schema=schema)
    write_deltalake(str(warehouse / table.name), changed, mode="overwrite")
    return before


def plan(warehouse: Path) -> RepairPlan:
    with duck_ledger(warehouse) as ledger:
        return plan_repair(ledger, PARTITIONS)


def changed(found: RepairPlan, table: Table) -> tuple[list[Struct], list[Struct]]:
    """Return the rows that the plan deletes from a table and appends to it."""
    return next(([*one.deleted], [*one.appended]) for one in found.changes if one.table is table)


def as_dicts(table: Table, made: list[Struct]) -> Rows:
    found: Rows = arrow_table(table.row, made).to_pylist()
    return sorted(found, key=lambda row: [row[name] for name in table.key])


def again(row: dict[str, Any]) -> dict[str, Any]:
    """Return a decision as a replay can make it again.

    The time of its publication is lost: that of the record is the nearest one that is known. A decision without a group
    has its shard as the key, which a story does not know.
    """
    partition = row["partition"] if row["group_id"] else partition_of(row["shard"].split(".")[0].encode(), PARTITIONS)
    return row | {"published_ms": row["at_ms"], "partition": partition}


def without(*gone: int) -> Callable[[Rows], Rows]:
    return lambda found: [row for number, row in enumerate(found) if number not in [one % len(found) for one in gone]]


def test_a_sound_ledger_needs_no_repair(warehouse):
    assert plan(warehouse) == RepairPlan([], [])


@pytest.mark.parametrize("table", [ASSIGNMENTS, OFFSETS], ids=lambda table: table.name)
@pytest.mark.parametrize("gone", ["all", "first", "middle", "last"])
def test_rows_are_made_again_from_decisions(warehouse, table, gone):
    """Both tables are pure functions of the decisions."""
    count = len(rows(warehouse, table))
    numbers = {"all": range(count), "first": [0], "middle": [count // 2, count // 2 + 1], "last": [-1]}[gone]
    before = damage(warehouse, table, without(*numbers))

    found = plan(warehouse)

    assert [one.table for one in found.changes] == [table]
    deleted, appended = changed(found, table)
    assert deleted == []
    assert as_dicts(table, appended) + rows(warehouse, table) != []
    key = [*table.key]
    together = sorted(as_dicts(table, appended) + rows(warehouse, table), key=lambda row: [row[name] for name in key])
    assert together == before
    assert sum(one.rows for one in found.findings) == len(appended) == len(numbers)
    assert {(one.table, one.problem, one.source) for one in found.findings} == {(table.name, "missing", "decisions")}


def test_edited_and_doubled_rows_are_replaced(warehouse):
    def edit(found: Rows) -> Rows:
        found[3]["client_id"] = "somebody"
        return [*found, dict(found[5])]

    before = damage(warehouse, ASSIGNMENTS, edit)

    found = plan(warehouse)

    deleted, appended = changed(found, ASSIGNMENTS)
    assert [(one.problem, one.first) for one in found.findings] == [
        ("wrong", before[3]["seq"]),
        ("doubled", before[5]["seq"]),
    ]
    assert as_dicts(ASSIGNMENTS, appended) == [before[3], before[5]]
    assert [row["seq"] for row in as_dicts(ASSIGNMENTS, deleted)] == [before[3]["seq"], before[5]["seq"]]


def test_a_row_without_its_decision_is_kept(warehouse):
    """It may be all that is left of the decision."""
    damage(warehouse, DECISIONS, lambda _: [])
    damage(warehouse, SNAPSHOTS, lambda _: [])

    found = plan(warehouse)

    assert {one.table for one in found.changes} == {DECISIONS}


@pytest.mark.parametrize("gone", [[0], [7], [20, 21, 22]])
def test_decisions_are_made_again_from_events(warehouse, gone):
    """A later decision that the replay makes, too, proves those before it."""
    before = damage(warehouse, DECISIONS, without(*gone))

    found = plan(warehouse)

    [change] = found.changes
    made = as_dicts(DECISIONS, [*change.appended])
    assert change.deleted == []
    assert made == [again(before[number]) for number in gone]
    assert {(one.problem, one.source) for one in found.findings} == {("missing", "a replay of events")}


def test_all_decisions_are_made_again_if_rows_that_were_made_from_them_prove_them(warehouse):
    before = damage(warehouse, DECISIONS, lambda _: [])

    found = plan(warehouse)

    made = as_dicts(DECISIONS, changed(found, DECISIONS)[1])
    by_key = {(row["shard"], row["seq"]): row for row in before}
    assert made == [again(by_key[row["shard"], row["seq"]]) for row in made]
    assert len(made) > 0.9 * len(before), "only those behind the last row of another table are not proven"


def test_decisions_that_a_row_contradicts_are_not_made_again(warehouse):
    """If an event was edited or lost, the replay leads to other decisions: they would be inventions."""
    shard = "groups-1.1"
    damage(warehouse, SNAPSHOTS, lambda _: [])
    damage(warehouse, ASSIGNMENTS, lambda found: [row for row in found if row["shard"] != shard])
    damage(warehouse, DECISIONS, lambda found: [row for row in found if row["shard"] != shard])
    its = [row["seq"] for row in rows(warehouse, OFFSETS) if row["shard"] == shard]

    def edit(found: Rows) -> Rows:
        for row in found:
            row["committed_offset"] += row["shard"] == shard and row["seq"] == its[1]
        return found

    damage(warehouse, OFFSETS, edit)
    found = plan(warehouse)

    assert [row.seq for row in changed(found, DECISIONS)[1]] == [*range(1, its[0] + 1)]
    unproven = [one for one in found.findings if not one.source]
    assert [(one.stream, one.first, one.last, one.problem) for one in unproven] == [
        (shard, its[0] + 1, its[-1], "missing")
    ]
    assert unproven[0].text == (
        f"decisions of {shard}, {its[0] + 1} to {its[-1]}: {its[-1] - its[0]} rows missing, cannot be had again from "
        "the tables. No row behind them proves a replay"
    )


def test_a_damaged_snapshot_is_made_again_from_the_replay(warehouse):
    def flip(found: Rows) -> Rows:
        found[2]["body"] = found[2]["body"][:-1] + b"\x07"
        return found

    before = damage(warehouse, SNAPSHOTS, flip)

    found = plan(warehouse)

    [deleted], [made] = changed(found, SNAPSHOTS)
    sound = row_of(tuple(before[2].values()))
    assert (made.topic, made.partition, made.era, made.offset) == (sound.topic, sound.partition, 1, sound.offset)
    assert deleted.offset == sound.offset
    assert [part for part in differences(sound.topic, sound.body, made.body) if part != "signers"] == []
    assert [one.problem for one in found.findings] == ["damaged"]
