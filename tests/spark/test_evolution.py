"""Tables that an earlier version made: they get the columns that are new, or one sentence says why not."""

from dataclasses import replace
from typing import Annotated, Any

import msgspec
import pytest
from msgspec import Meta, Struct
from pyspark.sql import SparkSession

from tests.support.spark_tables import append
from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import OFFSETS, Table
from wakeroll_pipeline.ledger.migrations import evolve
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import ensure_table

pytestmark = pytest.mark.spark

NEW = "reset_by"
"""A column that may be null: what `offsets` might have been without."""
HOUR_MS = 3_600_000


def declared(without: tuple[str, ...] = (), **changed: Any) -> Table:
    """Return `offsets` as another version may have declared it: columns fewer, others, or new ones behind."""
    hints = {name: hint for name, hint in OFFSETS.row.__annotations__.items() if name not in without} | changed
    row = msgspec.defstruct("OffsetRow", list(hints.items()), bases=(Struct,), frozen=True, kw_only=True)
    row.__doc__ = OFFSETS.row.__doc__
    return replace(OFFSETS, row=row)


def rows(spark: SparkSession, table: Table, seq: int, **values: object) -> Any:
    known = {"shard": "groups-0.1", "seq": seq, "partition": 0, "group_id": "billing", "topic": "orders", "broker": ""}
    known |= {"queue_id": 1, "client_id": "c", "committed_offset": 7, "epoch": 1, "at_ms": 5, "mode": "clustering"}
    schema = schema_of(table.row)
    return spark.createDataFrame([tuple((known | values).get(name) for name in schema.names)], schema)


@pytest.fixture(scope="module")
def older(spark, tmp_path_factory):
    """A warehouse whose `offsets` an earlier version made; it has a row."""
    warehouse, table = tmp_path_factory.mktemp("older") / "a warehouse", declared(without=(NEW,))
    ensure_table(spark, warehouse, table, HOUR_MS)
    append(rows(spark, table, 1), path_of(warehouse, table))
    return warehouse


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            declared(without=(NEW,), at_ms=str),
            "at_ms is bigint in the table, but declared as string; give the new one another name",
        ),
        (declared(without=(NEW,), who=str), "the new column who is NOT NULL, but old rows have no value for it"),
        (
            declared(without=(NEW,), client_id=str | None),
            "client_id is NOT NULL in the table, but its declaration allows null",
        ),
        (declared(without=(NEW, "mode")), "mode is NOT NULL in the table and not declared"),
        (
            declared(without=(NEW,), at_ms=Annotated[int, Meta(ge=5)]),
            "CHECK at_ms_at_least (at_ms >= 5) is new, but old rows were not checked",
        ),
    ],
)
def test_what_old_rows_could_not_keep_to_is_refused_in_a_sentence(spark, older, table, sentence):
    """The table is left as it was: the version that made it can go on with it."""
    path = path_of(older, OFFSETS)
    before = spark.read.format("delta").load(str(path)).schema

    with pytest.raises(InvalidUsage) as told:
        evolve(spark, path, table)

    assert f"table 'offsets' in {older} conflicts with this version: " in str(told.value)
    assert sentence in str(told.value)
    assert spark.read.format("delta").load(str(path)).schema == before


def test_a_new_column_is_null_in_old_rows_and_old_versions_stay_as_they_were(spark, older):
    """An update of the program needs no migration, and no old row is touched."""
    path = path_of(older, OFFSETS)

    ensure_table(spark, older, OFFSETS, HOUR_MS)
    append(rows(spark, OFFSETS, 2, reset_by="mia"), path)

    now = spark.read.format("delta").load(str(path))
    assert sorted((row.seq, row.reset_by, row.mode) for row in now.collect()) == [
        (1, None, "clustering"),
        (2, "mia", "clustering"),
    ]
    assert now.schema[NEW].metadata["comment"] == "operator or `route` that reset the offset; null for a commit"
    then = spark.read.format("delta").option("versionAsOf", 1).load(str(path))
    assert NEW not in then.columns
    assert [row.seq for row in then.collect()] == [1]
    assert evolve(spark, path, OFFSETS) == []
