"""Readers see one moment of all tables: each batch of the recorder is in all of its tables, or in none."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from wakeroll_model.rows import RECORDED
from wakeroll_pipeline.ledger.batches import Batch, Moment, moment_of, newest_number, versions_of_batch
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

Write = Callable[..., None]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for table in RECORDED:
        DeltaTable.create(tmp_path / table.name, pa.schema([("seq", pa.int64())]))
    return tmp_path


@pytest.fixture
def write(tables: Path) -> Write:
    """Return a function that commits a batch to the first of its tables, as the recorder does."""
    sink = ArrowSink()

    def write(number: int, names: Sequence[str], done: int | None = None) -> None:
        batch = Batch(number=number, tables=tuple(names))
        for name in names[:done]:
            sink.append(pa.table({"seq": [number]}), tables / name, batch.as_metadata())

    return write


def moment(tables: Path) -> Moment:
    return moment_of(tables, {table.name: DeltaTable(tables / table.name).version() for table in RECORDED})


def seqs_at(tables: Path, at: Moment) -> dict[str, list[int]]:
    found = {}
    for name, version in at.versions.items():
        rows = DeltaTable(tables / name, version=version).to_pyarrow_table()
        found[name] = sorted(rows["seq"].to_pylist())
    return found


ALL = tuple(table.name for table in RECORDED)


@pytest.mark.parametrize("done", range(1, len(ALL)))
def test_a_batch_is_left_out_until_its_last_table_has_it(tables, write, done):
    """The recorder commits to one table after the other."""
    write(1, ALL)
    write(2, ALL, done)

    shorter = moment(tables)

    assert shorter.unfinished is not None
    assert (shorter.unfinished.number, shorter.unfinished.lacking) == (2, list(ALL[done:]))
    assert seqs_at(tables, shorter) == {name: [1] for name in ALL}


def test_a_batch_that_is_in_all_tables_is_read(tables, write):
    write(1, ALL)
    write(2, ALL)

    assert moment(tables).unfinished is None
    assert seqs_at(tables, moment(tables)) == {name: [1, 2] for name in ALL}


def test_a_table_to_which_a_batch_does_not_append_lacks_nothing(tables, write):
    write(1, ALL)
    write(2, ("events", "decisions"))

    assert moment(tables).unfinished is None
    assert seqs_at(tables, moment(tables))["decisions"] == [1, 2]


def test_a_batch_that_is_repeated_after_a_crash_is_whole_again(tables, write):
    """The repetition appends to the tables that lack it; a crash in it leaves out both."""
    write(1, ALL)
    write(2, ALL, 2)
    write(3, ("assignments", "offsets"), 1)
    assert seqs_at(tables, moment(tables)) == {name: [1] for name in ALL}

    write(4, ("offsets",))

    assert moment(tables).unfinished is None
    assert seqs_at(tables, moment(tables))["events"] == [1, 2]


def test_upkeep_behind_a_batch_changes_nothing(tables, write):
    """Compaction, and the deletion of old rows, are commits without a batch."""
    write(1, ALL)
    write(2, ALL)
    DeltaTable(tables / "offsets").optimize.compact()
    for _ in range(60):
        DeltaTable(tables / "offsets").alter.set_table_properties({"delta.appendOnly": "false"})

    assert moment(tables).unfinished is None
    assert newest_number(tables, {name: DeltaTable(tables / name).version() for name in ALL}) == 2


def test_a_commit_that_was_deleted_leaves_its_batch_unfinished(tables, write):
    """A reader of this table alone sees an older table that is sound."""
    write(1, ALL)
    write(2, ALL)
    (tables / "assignments" / "_delta_log" / f"{2:020}.json").unlink()

    found = moment(tables).unfinished

    assert found is not None
    assert (found.number, found.lacking) == (2, ["assignments"])


@pytest.mark.parametrize("lost", ALL)
def test_a_table_that_was_created_again_does_not_hide_the_rows_of_the_others(tables, write, lost):
    write(1, ALL)
    write(2, ALL)
    write(3, ALL)
    shutil.rmtree(tables / lost)
    DeltaTable.create(tables / lost, pa.schema([("seq", pa.int64())]))

    assert moment(tables).unfinished is None
    assert seqs_at(tables, moment(tables)) == {name: [1, 2, 3] for name in ALL} | {lost: []}


def test_tables_of_an_earlier_version_are_read_in_their_newest_versions(tables):
    ArrowSink().append(pa.table({"seq": [7]}), tables / "decisions")

    assert moment(tables).unfinished is None
    assert seqs_at(tables, moment(tables)) == {name: [] for name in ALL} | {"decisions": [7]}
    shutil.rmtree(tables / "offsets")
    assert newest_number(tables, {name: DeltaTable(tables / name).version() for name in ALL[:2]}) == 0


@pytest.mark.parametrize(
    ("table", "version", "numbers"),
    [
        ("events", 1, {"events": [1], "decisions": [1], "assignments": [1], "offsets": [1]}),
        ("decisions", 2, {"events": [1, 2], "decisions": [1, 2], "assignments": [1], "offsets": [1]}),
        ("events", 3, {"events": [1, 2, 3], "decisions": [1, 2], "assignments": [1], "offsets": [1]}),
        ("offsets", 2, {"events": [1, 2, 3, 4], "decisions": [1, 2, 4], "assignments": [1, 4], "offsets": [1, 4]}),
        ("offsets", 0, None),
    ],
)
def test_a_version_of_one_table_leads_to_those_of_the_same_batches(tables, write, table, version, numbers):
    """By time, it was a guess: the commits of a batch are milliseconds apart, and batches may be too."""
    write(1, ALL)
    write(2, ("events", "decisions"))
    write(3, ("events",))
    write(4, ALL)
    newest = {name: DeltaTable(tables / name).version() for name in ALL}

    found = versions_of_batch(tables, newest, table, version)

    assert (None if found is None else seqs_at(tables, Moment(found, None))) == numbers
