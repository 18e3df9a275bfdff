"""Files of states: rows of megabytes, of which a reader needs one."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.support.delta_tables import append
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.rows import SNAPSHOTS, SnapshotRow
from wakeroll_model.shard_state import VERSION
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.parquet_files import STATES
from wakeroll_pipeline.storage.place import Place

SIZE = 1_000_000
"""Bytes of a state."""
PLACES: list[ControlPartition] = [("wakeroll.groups", 0), ("wakeroll.queues", 0)]


def row(place: ControlPartition, offset: int) -> SnapshotRow:
    body = b"a group, " * (SIZE // 9) + b"%d" % offset
    return SnapshotRow(topic=place[0], partition=0, offset=offset, era=1, version=VERSION, at_ms=offset, body=body)


@pytest.fixture
def table(tmp_path) -> Path:
    append(tmp_path, SNAPSHOTS, [])
    sink = ArrowSink(properties=STATES)
    for offset in range(10):
        rows = arrow_table(SnapshotRow, [row(place, offset) for place in PLACES])
        sink.append(rows, tmp_path / SNAPSHOTS.name)
    return tmp_path / SNAPSHOTS.name


def files(table: Path) -> list[Path]:
    return [Path(uri.removeprefix("file://")) for uri in DeltaTable(table).file_uris()]


def test_a_file_does_not_contain_states_in_its_statistics(table):
    """Without a bound, Parquet's statistics have the smallest and the largest value of each column, uncompressed."""
    assert len(files(table)) >= 10
    assert all(file.stat().st_size < SIZE // 10 for file in files(table))


def test_many_files_become_one_whose_rows_are_read_one_by_one(table):
    """Snapshots are taken every few seconds under load, and each state may have many megabytes."""
    before = DeltaTable(table).to_pyarrow_table().sort_by([("topic", "ascending"), ("offset", "ascending")])

    compact(Place.of(table), SNAPSHOTS)

    [file] = files(table)
    assert file.stat().st_size < SIZE
    assert pq.read_metadata(file).num_row_groups == 20
    after = DeltaTable(table).to_pyarrow_table().sort_by([("topic", "ascending"), ("offset", "ascending")])
    assert after.equals(before)


def test_a_table_that_is_compact_gets_no_commit(table):
    compact(Place.of(table), SNAPSHOTS)
    version = DeltaTable(table).version()

    compact(Place.of(table), SNAPSHOTS)

    assert DeltaTable(table).version() == version
