"""`wakeroll state` from the tables: a row per member, whatever their number."""

import gc
import json
from pathlib import Path

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from wakeroll_pipeline.cli import open_ledger
from wakeroll_pipeline.cli.text_table import Column, table_lines


@pytest.fixture
def home(tmp_path) -> Path:
    write_tables(tmp_path / "warehouse", a_day())
    return tmp_path


def test_each_member_is_one_line_in_a_pipe(home, wakeroll):
    code, said, _ = wakeroll("state", "--home", str(home))
    groups = json.loads(wakeroll("state", "--json", "--home", str(home))[1])["groups"]

    assert code == 0
    lines = said.splitlines()
    begin = lines.index("state of 4 shards") + 1
    assert lines[begin].split()[:5] == ["group", "epoch", "shard", "member", "queues"]
    rows = [line.split()[:5] for line in lines[begin + 1 :]]
    assert rows == [
        [one["group_id"], str(one["epoch"]), one["shard"], member["client_id"], str(member["queues"])]
        for one in groups
        for member in one["members"]
    ]


def test_the_names_are_whole_at_any_width(home, wakeroll, monkeypatch):
    """What is left out is named; names never are."""
    for width in (40, 60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        said = wakeroll("state", "--home", str(home))[1]
        assert max(map(len, said.splitlines())) <= width
        assert "audit" in said
        assert "wider terminals also show: " in said or "    " in said


def test_the_size_of_the_tables_does_not_matter(home, wakeroll, monkeypatch):
    """A busy deployment has gigabytes of events after some days, and only those since the snapshots are read."""
    monkeypatch.setattr(open_ledger, "LARGEST_BYTES", 1_000)
    monkeypatch.setattr(open_ledger, "find_spec", lambda _name: None)

    for words in ("state", "lag", "groups", "describe billing"):
        assert wakeroll(*words.split(), "--home", str(home))[0] == 0
    code, _, complaint = wakeroll("sql", "select count(*) from decisions", "--home", str(home))
    assert code == 2
    assert "Spark, which would read them, is not installed" in complaint
    assert wakeroll("sql", "select count(*) from decisions", "--engine", "duckdb", "--home", str(home))[0] == 0


def test_columns_stay_aligned_next_to_wide_characters():
    """Topics of RocketMQ's clients may have any letters; an ideograph takes two cells of a terminal."""
    table = table_lines([Column("topic", ["订单", "orders"]), Column("queues", ["4", "12"], is_number=True)], 80)

    assert list(map(str, table.all())) == ["topic   queues", "订单         4", "orders      12"]


def test_a_command_collects_garbage_again_when_it_has_answered(home, wakeroll):
    """`demo` and tests call several commands in one process."""
    wakeroll("state", "--home", str(home))

    assert gc.isenabled()
