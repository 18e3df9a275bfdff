"""Rows that no recorder can write, because the tables have constraints: `check` calls them broken, and does not fail.

The constraints of a Delta table bind those who write with Delta. Files can be put there without it.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.damaged_tables import bad_value
from tests.support.delta_tables import write_assignments, write_tables
from tests.support.ledgers import a_day
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.questions.quality.schema_rules import declared_rules

Row = dict[str, Any]
RECORDED = ("events", "decisions", "assignments", "offsets", "snapshots")


@pytest.fixture
def home(tmp_path) -> Path:
    story = a_day()
    write_tables(tmp_path / "warehouse", story)
    write_assignments(tmp_path / "warehouse", story)
    return tmp_path


def forge(home: Path, table: str, rows: list[Row]) -> None:
    """Put a table without constraints in the place of one."""
    path = home / "warehouse" / table
    schema = DeltaTable(path).to_pyarrow_table().schema
    free = pa.schema([pa.field(field.name, field.type, nullable=True) for field in schema])
    write_deltalake(path, pa.Table.from_pylist(rows, schema=free), mode="overwrite", schema_mode="overwrite")


def broken_in(wakeroll: Any, home: Path) -> set[str]:
    code, said, complaint = wakeroll("check", "--no-docs", "--json", "--home", str(home))
    assert (code, complaint) == (1, "")
    return {one["name"] for one in json.loads(said)["rules"] if one["status"] == "broken"}


@pytest.mark.parametrize("table", RECORDED)
def test_each_rule_of_a_column_finds_its_row(wakeroll, home, table):
    """One row per rule breaks it."""
    rules = [rule for rule in declared_rules()[table] if rule.column and not rule.is_of_type]
    rows = DeltaTable(home / "warehouse" / table).to_pyarrow_table().to_pylist()
    rows = sorted(rows, key=lambda row: [row[name] for name in TABLES[table].key]) * (len(rules) // len(rows) + 1)
    for number, rule in enumerate(rules):
        rows[number] = rows[number] | {rule.column: bad_value(rule)}
    forge(home, table, rows)

    assert {rule.name for rule in rules} <= broken_in(wakeroll, home)
