"""The sink of `record` writes tables that Spark created, and Spark reads what it has written."""

import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from msgspec import structs

from tests.support.ledgers import highest_positions
from wakeroll.epoch_ms import now_ms
from wakeroll_model.rows import EVENTS, EventRow
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.ledger.expired_versions import delete_expired
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import ensure_tables
from wakeroll_pipeline.recovery.checkpoint_state import number_of_recording
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks import arrow_sink
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.sinks.table_fence import Fenced, Fences
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

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


_MORE_WRONG: list[dict[str, int | None]] = [{"topic": None}, {"partition": -1}, {"at_ms": None}]


@pytest.mark.parametrize(
    "wrong", [{"offset": -1}, *(pytest.param(one, marks=pytest.mark.operate) for one in _MORE_WRONG)]
)
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


def test_spark_reads_what_the_sink_appends_while_upkeep_merges_and_deletes_files(spark, table):
    """The log has checkpoints of both writers; the sink continues behind commits of Spark."""
    sink = ArrowSink()
    for offset in range(105):
        sink.append(rows(offset), table)
    assert (table.path / "_delta_log" / f"{99:020}.checkpoint.parquet").exists()
    assert offsets_in(spark, table) == list(range(105))

    compact(table, EVENTS)
    delete_expired(table, 0, now_ms())
    sink.append(rows(105, 106), table)

    assert offsets_in(spark, table) == list(range(107))
    assert len(DeltaTable(str(table.path)).file_uris()) == 2


@pytest.mark.operate
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
    """It may have been suspended between the check of its lease and its append. It is told: its batch is not done."""
    fences = Fences([table])
    fences.raise_to(7)
    sink, later = ArrowSink(7), ArrowSink(9)
    sink.append(rows(1), table)
    sink.append(rows(2), table)
    fences.raise_to(9)

    with pytest.raises(Fenced, match="its fence is 9, that of this process 7"):
        sink.append(rows(3), table)
    later.append(rows(4), table)
    with pytest.raises(Fenced):
        sink.append(rows(5), table)
    with pytest.raises(Fenced):
        fences.raise_to(8)

    assert offsets_in(spark, table) == [1, 2, 4]
    assert highest_positions(spark, table.parent, EVENTS) == {("t", 0): 4}


def test_an_append_fails_if_a_fence_is_raised_while_it_commits(spark, table, monkeypatch):
    """Both had read the same version of the table."""
    fences = Fences([table])
    fences.raise_to(7)
    sink = ArrowSink(7)
    sink.append(rows(1), table)
    write = arrow_sink.write_deltalake

    def overtaken(known: DeltaTable, *args: object, **named: object) -> None:
        fences.raise_to(8)
        write(known, *args, **named)

    monkeypatch.setattr(arrow_sink, "write_deltalake", overtaken)
    with pytest.raises(Fenced):
        sink.append(rows(2), table)

    assert offsets_in(spark, table) == [1]


def test_an_append_to_a_version_that_the_log_does_not_have_any_more_is_refused(spark, table, monkeypatch):
    """The writer was suspended before its commit; meanwhile another one has written, and upkeep has cleaned the log."""
    fences = Fences([table])
    fences.raise_to(7)
    sink, write = ArrowSink(7), arrow_sink.write_deltalake

    def overtaken(known: DeltaTable, *args: object, **named: object) -> None:
        monkeypatch.setattr(arrow_sink, "write_deltalake", write)
        fences.raise_to(8)
        later = ArrowSink(8)
        for offset in range(10, 120):
            later.append(rows(offset), table)
        for version in range(99):
            (table.path / "_delta_log" / f"{version:020}.json").unlink()
        write(known, *args, **named)

    monkeypatch.setattr(arrow_sink, "write_deltalake", overtaken)
    with pytest.raises(Fenced):
        sink.append(rows(2), table)

    assert offsets_in(spark, table) == list(range(10, 120))


@pytest.mark.operate
def test_a_table_that_was_replaced_takes_no_rows_of_an_earlier_writer(spark, table):
    """The new table has no fence yet: the writer must not take that for its own."""
    fences = Fences([table])
    fences.raise_to(7)
    sink = ArrowSink(7)
    sink.append(rows(1), table)
    shutil.rmtree(table.path)
    ensure_tables(spark, table.parent)

    with pytest.raises(Fenced, match="the table was replaced"):
        ArrowSink(7).append(rows(2), table)

    assert offsets_in(spark, table) == []


@pytest.mark.operate
def test_a_fence_of_an_earlier_release_is_below_that_of_the_next_turn(spark, tmp_path):
    """Earlier releases counted it up by Spark's writer, in steps of 2**32, and named checkpoints after terms."""
    settings = Settings(home=str(tmp_path), checkpoints=str(tmp_path / "checkpoints"))
    ensure_tables(spark, settings.warehouse)
    table = path_of(settings.warehouse, EVENTS)
    for step in (1, 2):
        empty = spark.read.format("delta").load(table.for_spark()).limit(0)
        numbered = {"txnAppId": "wakeroll.record", "txnVersion": str(step * 2**32)}
        empty.write.format("delta").mode("append").options(**numbered).save(table.for_spark())
    small_files.write(settings.checkpoint("record.4200").child("offsets", "0"), b"v1\n{}\n{}")
    small_files.write(settings.checkpoint("record.4200").child("sources", "0", "0"), b"v1\n{}\n{}")

    turn = WriteTurn(settings)
    ArrowSink(turn.number).append(rows(1), table)

    assert turn.number > 2 * 2**32
    assert turn.number > number_of_recording("record.4200")
    assert turn.before == "record.4200"
    assert offsets_in(spark, table) == [1]
