"""The sink of `record` writes tables that Spark created, and Spark maintains what it has written."""

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from msgspec import structs

from model.rows import EVENTS, EventRow
from pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from pipeline.ledger.maintenance import clean, compact, session_for_upkeep
from pipeline.ledger.tables import ensure_tables, highest_positions, path_of
from pipeline.sinks.arrow_sink import ArrowSink
from pipeline.sinks.table_fence import TableFence
from pipeline.storage.place import Place

pytestmark = pytest.mark.spark

ROW = EventRow(topic="t", partition=0, offset=1, at_ms=1, key=None, value=b"\xff", type=None)


@pytest.fixture
def table(spark, tmp_path):
    """Return the folder of an empty table `events`; its name has a space."""
    ensure_tables(spark, tmp_path / "ware house")
    return path_of(tmp_path / "ware house", EVENTS)


def rows(*offsets: int) -> pa.Table:
    return arrow_table(EventRow, [structs.replace(ROW, offset=offset) for offset in offsets])


def offsets_in(spark, table: Place) -> list[int]:
    return sorted(row.offset for row in spark.read.format("delta").load(table.for_spark()).collect())


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"partition": -1}, {"topic": None}, {"at_ms": None}])
def test_a_row_that_breaks_a_constraint_is_refused_with_its_batch(spark, table, wrong):
    """NOT NULL and CHECK hold for this writer as for Spark's."""
    bad = structs.asdict(structs.replace(ROW, offset=2)) | wrong
    lenient = pa.schema([field.with_nullable(True) for field in arrow_schema_of(EventRow)])
    sink = ArrowSink()
    sink.append(rows(1), table)

    with pytest.raises(DeltaError, match="failed validation check"):
        sink.append(pa.Table.from_pylist([structs.asdict(structs.replace(ROW, offset=3)), bad], lenient), table)
    sink.append(rows(4), table)

    assert offsets_in(spark, table) == [1, 4]


def test_spark_reads_compacts_and_cleans_what_the_sink_appends(spark, table):
    """The log has checkpoints of both writers; the sink continues behind commits of Spark."""
    sink = ArrowSink()
    for offset in range(105):
        sink.append(rows(offset), table)
    assert (table.path / "_delta_log" / f"{99:020}.checkpoint.parquet").exists()
    assert offsets_in(spark, table) == list(range(105))

    compact(session_for_upkeep(spark), table)
    clean(session_for_upkeep(spark), table)
    sink.append(rows(105, 106), table)

    assert offsets_in(spark, table) == list(range(107))
    assert len(DeltaTable(str(table.path)).file_uris()) == 2


def test_an_idle_sink_continues_when_the_log_entries_after_its_last_append_are_deleted(spark, table):
    """Upkeep deletes log entries of expired versions, which a later checkpoint replaces."""
    idle, busy = ArrowSink(), ArrowSink()
    idle.append(rows(0), table)
    for offset in range(1, 105):
        busy.append(rows(offset), table)
    for version in range(99):
        (table.path / "_delta_log" / f"{version:020}.json").unlink()

    idle.append(rows(105), table)

    assert offsets_in(spark, table) == list(range(106))


def test_a_writer_that_another_one_replaced_appends_nothing(spark, table):
    """It may have been suspended between the check of its lease and its append."""
    sink, later = ArrowSink(), ArrowSink()
    first = TableFence(spark, [table])
    sink.append(rows(1), table, first.options(table))
    sink.append(rows(2), table, first.options(table))
    late = first.options(table)
    second = TableFence(spark, [table])

    sink.append(rows(3), table, late)
    later.append(rows(4), table, second.options(table))
    sink.append(rows(5), table, first.options(table))

    assert offsets_in(spark, table) == [1, 2, 4]
    assert highest_positions(spark, table.parent, EVENTS) == {("t", 0): 4}


def test_an_append_fails_if_a_fence_is_raised_while_it_commits(spark, table, monkeypatch):
    """Both had read the same version of the table."""
    sink = ArrowSink()
    first = TableFence(spark, [table])
    sink.append(rows(1), table, first.options(table))
    newest = ArrowSink._newest

    def overtaken(of: ArrowSink, path: Place) -> DeltaTable:
        known = newest(of, path)
        TableFence(spark, [path])
        return known

    monkeypatch.setattr(ArrowSink, "_newest", overtaken)
    with pytest.raises(CommitFailedError, match="Concurrent transaction"):
        sink.append(rows(2), table, first.options(table))

    assert offsets_in(spark, table) == [1]
