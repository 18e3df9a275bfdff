"""`wakeroll state` from the tables: a row per member, whatever their number."""

import gc
from pathlib import Path

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from wakeroll_pipeline.cli import open_ledger, state_command
from wakeroll_pipeline.cli.output import aligned

HEADS = (
    *("shard", "group", "epoch", "client", "instance", "version", "host", "topics"),
    *("queues", "shown epoch", "sent epoch", "silent for"),
)


@pytest.fixture
def home(tmp_path) -> Path:
    write_tables(tmp_path / "warehouse", a_day())
    return tmp_path


def words(line: str) -> list[str]:
    return line.replace("│", " ").split()


def test_many_members_are_shown_without_a_frame_and_with_the_same_words(home, wakeroll, monkeypatch):
    """Rich needs 60 us per cell: 10,000 members took six seconds."""
    code, framed, _ = wakeroll("state", "--home", str(home))
    monkeypatch.setattr(state_command, "MOST_FRAMED", 1)
    again, plain, _ = wakeroll("state", "--home", str(home))

    assert code == again == 0
    lines = plain.splitlines()
    assert lines[0] == "state of 4 shards"
    assert lines[1].split() == "  ".join(HEADS).split()
    rows = [words(line) for line in framed.splitlines() if line.startswith("│")]
    assert len(rows) > 1
    assert [words(line) for line in lines[2:-1]] == rows
    assert lines[-1].startswith("as of the end of the recorded log: ")


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
    lines = list(aligned(["topics", "queues"], [["订单", "4"], ["orders", "12"]], {"queues"}))

    assert lines == ["topics  queues", "订单         4", "orders      12"]


def test_a_command_collects_garbage_again_when_it_has_answered(home, wakeroll):
    """`demo` and tests call several commands in one process."""
    wakeroll("state", "--home", str(home))

    assert gc.isenabled()
