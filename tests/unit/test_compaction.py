"""Compaction: few files instead of many, and each reader finds the same rows."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, TableFeatures, write_deltalake
from deltalake.schema import PrimitiveType

from tests.support.delta_tables import append, write, write_assignments, write_tables
from tests.support.ledgers import three_days
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, EventRow, Table
from wakeroll_pipeline.ledger import compaction
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.ledger.file_rewrites import NotRewritten, data_files
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

KINDS = ("heartbeat", "tick", "commit")


def events(first: int, count: int, partition: int = 0, kind: str | None = None) -> pa.Table:
    """Return rows of records, whose kinds take turns; a second of log time passes with each."""
    rows = [
        EventRow(
            topic="wakeroll.groups",
            partition=partition,
            offset=number,
            at_ms=number * 1_000,
            key=b"billing",
            value=b'{"type":"heartbeat","client_id":"c1","epoch":%d}' % (number // 100),
            type=kind or KINDS[number % len(KINDS)],
        )
        for number in range(first, first + count)
    ]
    return arrow_table(EventRow, rows)


def table_of(warehouse: Path, *parts: pa.Table) -> Place:
    """Return a table of events with a file for each part."""
    append(warehouse, EVENTS, [])
    for part in parts:
        write(warehouse, EVENTS, part)
    return Place.of(warehouse / EVENTS.name)


def rows_of(place: Place, table: Table = EVENTS) -> pa.Table:
    found = DeltaTable(place.location).to_pyarrow_table()
    return found.sort_by([(name, "ascending") for name in (*table.stream, table.position)])


def files_of(place: Place) -> list[Path]:
    """Return the files of the newest version, in the order of their rows."""
    return [place.path / file.path for file in data_files(open_delta(place), EVENTS)]


def compacted(place: Place, table: Table = EVENTS) -> int:
    """Compact as long as there is something to do; return the number of commits."""
    before = open_delta(place).version()
    while compact(place, table):
        pass
    return open_delta(place).version() - before


def statistics_of(place: Place) -> list[dict[str, Any]]:
    """Return the declared statistics of the files, as a reader of the log sees them."""
    actions: Any = DeltaTable(place.location).get_add_actions(flatten=True)
    columns = (*EVENTS.key, EVENTS.at)
    names = ["num_records", *(f"{kind}.{column}" for kind in ("min", "max", "null_count") for column in columns)]
    return pa.table({name: actions.column(name).to_pylist() for name in names}).to_pylist()


@pytest.mark.parametrize("table", [EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS], ids=lambda table: table.name)
def test_each_reader_finds_the_rows_of_before(tmp_path, table):
    """A story of three days, whose rows are in many files."""
    write_tables(tmp_path / "whole", three_days())
    write_assignments(tmp_path / "whole", three_days())
    whole = rows_of(Place.of(tmp_path / "whole" / table.name), table)
    for begin in range(0, len(whole), len(whole) // 10 + 1):
        write(tmp_path, table, whole.slice(begin, len(whole) // 10 + 1))
    place = Place.of(tmp_path / table.name)
    before = rows_of(place, table)

    assert compacted(place, table) == 1

    [file] = DeltaTable(place.location).file_uris()
    assert rows_of(place, table).equals(before)
    assert len(before) > 0
    order = ", ".join(f'"{name}"' for name in (*table.stream, table.position))
    read = duckdb.sql(f"select * from read_parquet('{file}') order by {order}").to_arrow_table()
    assert read.select(before.column_names).to_pylist() == before.to_pylist()
    stored = pq.read_table(file)
    assert stored.equals(stored.sort_by([(name, "ascending") for name in table.layout])), "sorted"


def test_the_log_says_the_same_of_the_file_as_of_an_append(tmp_path):
    """Readers skip files by these statistics."""
    place = table_of(tmp_path / "many", *(events(number * 10, 10) for number in range(5)))
    one = table_of(tmp_path / "one", events(0, 50))
    compacted(place)

    assert statistics_of(place) == statistics_of(one)


def test_rows_of_now_do_not_go_into_a_file_of_long_ago(tmp_path, monkeypatch):
    """Otherwise a question about this minute would open all files (docs/decisions/0033)."""
    monkeypatch.setattr(compaction, "MOST_IN_MEMORY", events(0, 100).nbytes)
    place = table_of(tmp_path)
    for number in range(30):
        write(tmp_path, EVENTS, events(number * 30, 30))
        if number % 7 == 6:
            compacted(place)
    compacted(place)

    bounds = [(one["min.at_ms"], one["max.at_ms"]) for one in statistics_of(place)]
    bounds.sort()
    assert 5 <= len(bounds) <= 9
    assert all(last < first for (_, last), (first, _) in pairwise(bounds)), "no two overlap"
    assert len(rows_of(place)) == 900


def test_a_full_file_is_never_merged_again(tmp_path, monkeypatch):
    """The cost of a round grows with the new rows, not with the table."""
    monkeypatch.setattr(compaction, "MOST_IN_MEMORY", events(0, 100).nbytes)
    place = table_of(tmp_path, *(events(number * 30, 30) for number in range(8)))
    compacted(place)
    full = [file for file in files_of(place) if file.name.startswith("full-")]
    assert full

    write(tmp_path, EVENTS, events(240, 5))
    write(tmp_path, EVENTS, events(245, 5))
    compacted(place)

    assert set(full) <= set(files_of(place))
    assert compacted(place) == 0


def test_a_kind_is_read_without_the_others(tmp_path):
    """A question about ticks skips the row groups of heartbeats, which are most of the rows."""
    parts = [events(0, 20_000, kind="heartbeat"), events(20_000, 10, kind="route"), events(20_010, 5_000, kind="tick")]
    place = table_of(tmp_path, *parts)
    compacted(place)

    [file] = files_of(place)
    found = pq.read_metadata(file)
    groups = [found.row_group(number).column(6).statistics for number in range(found.num_row_groups)]
    assert [(group.min, group.max) for group in groups] == [("heartbeat", "heartbeat"), ("route", "tick")]


def test_positions_are_stored_as_differences(tmp_path):
    """A dictionary of offsets would have every offset: it is a third of the bytes of a heartbeat."""
    place = table_of(tmp_path, events(0, 50_000, kind="tick"), events(50_000, 50_000, kind="tick"))
    compacted(place)

    [file] = files_of(place)
    offsets = pq.read_metadata(file).row_group(0).column(2)
    assert offsets.path_in_schema == "offset"
    assert offsets.encodings == ("RLE", "DELTA_BINARY_PACKED")
    assert file.stat().st_size < 2 * 100_000


def test_a_file_without_a_newer_column_gets_nulls_and_a_column_of_a_newer_release_stays(tmp_path):
    """A release may be taken back: the tables keep the columns that it does not know."""
    place = table_of(tmp_path, events(0, 3))
    DeltaTable(place.location).alter.add_columns([Field("headers", PrimitiveType("string"))])
    newer = events(3, 3).append_column("headers", pa.array(["a", "b", "c"]))
    write_deltalake(place.location, newer, mode="append")

    assert compacted(place) == 1

    assert rows_of(place).column("headers").to_pylist() == [None, None, None, "a", "b", "c"]


def test_a_process_that_dies_before_the_commit_changes_nothing(tmp_path, monkeypatch):
    """The new file is in no version; the next round merges the files."""
    place = table_of(tmp_path, events(0, 3), events(3, 3))
    before = rows_of(place)

    def die(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as context:
        context.setattr(small_files, "create", die)
        with pytest.raises(SystemExit):
            compact(place, EVENTS)

    assert rows_of(place).equals(before)
    assert len(files_of(place)) == 2
    assert compacted(place) == 1
    assert rows_of(place).equals(before)


def test_a_commit_of_another_program_in_between_wins(tmp_path, monkeypatch):
    """Rows that it has appended are not lost, and those that it has deleted do not come back."""
    place = table_of(tmp_path, events(0, 3), events(3, 3))
    write_file = small_files.write

    def write_and_lose(where: Place, body: bytes) -> None:
        write_file(where, body)
        DeltaTable(place.location).delete("offset = 1")

    with monkeypatch.context() as context:
        context.setattr(small_files, "write", write_and_lose)
        with pytest.raises(NotRewritten, match="at the same time"):
            compact(place, EVENTS)

    assert rows_of(place).column("offset").to_pylist() == [0, 2, 3, 4, 5]
    assert compacted(place) == 1
    assert rows_of(place).column("offset").to_pylist() == [0, 2, 3, 4, 5]


def test_a_table_with_an_unknown_feature_stays_as_it_is(tmp_path):
    """Its files may have rows that are deleted, or columns with other names."""
    place = table_of(tmp_path, events(0, 3), events(3, 3))
    features = DeltaTable(place.location).alter
    features.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)

    with pytest.raises(NotRewritten, match="its protocol has deletionVectors"):
        compact(place, EVENTS)


def test_a_missing_file_is_named(tmp_path):
    place = table_of(tmp_path, events(0, 3), events(3, 3))
    files_of(place)[0].unlink()

    with pytest.raises(NotRewritten, match=r"events stays as it is: its file .*\.parquet is missing"):
        compact(place, EVENTS)


@pytest.mark.parametrize("damage", [lambda body: body[:-20], lambda body: body[:40] + b"\0" * 20 + body[60:]])
def test_a_damaged_file_is_named_and_the_table_stays_as_it_is(tmp_path, damage):
    """Upkeep logs the sentence, and `maintain` ends with it."""
    place = table_of(tmp_path, events(0, 300), events(300, 300))
    version, broken = DeltaTable(place.location).version(), files_of(place)[1]
    broken.write_bytes(damage(broken.read_bytes()))

    with pytest.raises(NotRewritten, match=rf"its file {broken.name} cannot be read"):
        compact(place, EVENTS)

    assert DeltaTable(place.location).version() == version


def test_the_log_gets_its_checkpoints(tmp_path):
    """Without them, a reader would read every commit since the last one of another writer."""
    place = table_of(tmp_path, events(0, 3), events(3, 3))
    properties = {"delta.checkpointInterval": "2"}
    DeltaTable(place.location).alter.set_table_properties(properties)
    version = DeltaTable(place.location).version()
    if version % 2 == 0:
        write(tmp_path, EVENTS, events(6, 3))

    compact(place, EVENTS)

    version = DeltaTable(place.location).version()
    log = place.path / "_delta_log"
    assert (log / f"{version:020}.checkpoint.parquet").exists()
    assert json.loads((log / "_last_checkpoint").read_text())["version"] == version
    assert len(rows_of(place)) in (6, 9)
