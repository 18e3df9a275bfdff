"""Both engines give the same rows of every table and view."""

import json
import shutil
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from wakeroll_model.decision_order import ERA_SQL, SHARD_SQL, era_of
from wakeroll_model.rows import DECISIONS, EVENTS, TABLES
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb, in_spark
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger, has_era
from wakeroll_pipeline.ledger.ledger import Row
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.ledger.view_queries import ERA, VIEWS, declared_views

pytestmark = pytest.mark.spark


def rows_of(ledger, name: str) -> list[str]:
    """Return all rows of a table or view, as sorted text."""

    def text_of(value: Any) -> str:
        # Spark gives times in the zone of this process, without naming it.
        return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else repr(value)

    return sorted(
        json.dumps(one.as_dict(), default=text_of, sort_keys=True) for one in ledger.rows(f"select * from {name}")
    )


@pytest.mark.parametrize(
    "home", ["day", *(pytest.param(one, marks=pytest.mark.operate) for one in ("days", "eras", "cut", "sliced"))]
)
def test_every_row_of_every_view_is_the_same(request, spark, home):
    """With eras above 9, a log clock that stepped back, and a log that retention has shortened."""
    warehouse = request.getfixturevalue(home)
    open_views(spark, warehouse)

    with duck_ledger(warehouse) as opened:
        found = {name: rows_of(opened, name) for name in (*TABLES, *VIEWS)}

    assert found == {name: rows_of(SparkLedger(spark), name) for name in found}
    assert all(found[name] for name in ("events", "handovers", "groups", "current_assignments"))


@pytest.mark.operate
def test_rows_about_slices_are_the_same(spark, sliced):
    """Null is a value of the column `slice`, also in joins: a queue that is not cut."""
    open_views(spark, sliced)
    names = [view.name for view in declared_views() if any(column.name == "slice" for column in view.columns)]
    names += ["assignments", "offsets", "groups"]

    with duck_ledger(sliced) as opened:
        found = {name: rows_of(opened, name) for name in names}

    assert found == {name: rows_of(SparkLedger(spark), name) for name in found}
    assert all(any("/8" in row or "/4" in row for row in found[name]) for name in names if name != "groups")


def test_both_engines_have_the_columns_and_comments_that_are_declared(spark, day):
    """Of each table and view: a name that tells its unit, a type, and what it means; `describe` shows them."""
    open_views(spark, day)
    views = {view.name: (view.comment, view.columns) for view in declared_views()}
    columns = {table.name: (*columns_of(table.row), *([ERA] if has_era(table) else [])) for table in TABLES.values()}
    declared = {
        name: {one.name: (one.type, one.comment) for one in found}
        for name, found in (columns | {name: found for name, (_, found) in views.items()}).items()
    }
    assert all(comment for found in declared.values() for _, comment in found.values())

    with duck_ledger(day) as opened:
        opened.add_comments()
        told = opened.connection.execute("select view_name, comment from duckdb_views() where not internal").fetchall()
        found = opened.connection.execute("select table_name, column_name, data_type, comment from duckdb_columns()")
        in_duck: dict[str, Any] = {}
        for name, column, type_, comment in found.fetchall():
            in_duck.setdefault(name, {})[column] = (type_.replace('"', ""), comment)
    in_spark_sql = {
        name: {row.col_name: (row.data_type, row.comment) for row in spark.sql(f"describe {name}").collect()}
        for name in declared
    }

    assert {name: in_duck[name] for name in declared} == {
        name: {one: (in_duckdb(type_).replace('"', ""), comment) for one, (type_, comment) in columns.items()}
        for name, columns in declared.items()
    }
    assert in_spark_sql == {
        name: {one: (in_spark(type_), comment) for one, (type_, comment) in columns.items()}
        for name, columns in declared.items()
    }
    comments = {name: comment for name, (comment, _) in views.items()}
    assert {name: comment for name, comment in told if name in comments} == comments


@pytest.mark.parametrize("home", ["day", "eras"])
def test_no_column_is_null_that_is_declared_to_have_values(request, home):
    """The data dictionary says of each column whether it may be null."""
    with duck_ledger(request.getfixturevalue(home)) as opened:
        for view in declared_views():
            never = [column.name for column in view.columns if not column.is_nullable]
            nulls = ", ".join(f'count(*) - count("{name}") as "{name}"' for name in never)
            [found] = opened.rows(f"select {nulls} from {view.name}")
            assert {name: number for name, number in found.as_dict().items() if number} == {}, view.name


@pytest.mark.operate
def test_a_time_that_no_calendar_has_stops_no_view(spark, day, tmp_path):
    """A stranger may write any number; the TIMESTAMP beside it is null."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(day, warehouse)
    queue = '"queue":{"topic":"orders","broker":"","queue_id":0}'
    far = f'{{{queue},"revoked_ms":9223372036854775807,"released_ms":-9223372036854775808}}'
    spoil(warehouse, DECISIONS, "seq", json=[far])
    open_views(spark, warehouse)
    asked = "select revoked_at, released_at from handovers where revoked_ms > 1e15"

    with duck_ledger(warehouse) as opened:
        found = [[tuple(row) for row in ledger.rows(asked)] for ledger in (opened, SparkLedger(spark))]

    assert found == [[(None, None)]] * 2


def test_the_day_has_rows_for_the_views_about_lag(day):
    """Otherwise the comparison above would say nothing about them."""
    with duck_ledger(day) as opened:
        assert all(rows_of(opened, name) for name in ("end_offsets", "lag", "current_offsets", "wakes"))


@pytest.fixture(scope="module")
def spoiled(day, tmp_path_factory):
    """The warehouse of the day with records and decisions that are no JSON."""
    warehouse = tmp_path_factory.mktemp("spoiled") / "warehouse"
    shutil.copytree(day, warehouse)
    spoil(warehouse, EVENTS, "offset", value=[b'{"type":"arrival"', b"\xff\xfe", b'{"queue":7,"next_offset":"x"}'])
    spoil(warehouse, DECISIONS, "seq", json=["", "{"])
    return warehouse


def test_records_that_are_no_json_stop_no_view(spoiled, day):
    """Anybody who may append to a control topic could otherwise end every answer."""
    with duck_ledger(spoiled) as opened, duck_ledger(day) as before:
        for name in (*TABLES, *VIEWS):
            assert len(rows_of(opened, name)) >= len(rows_of(before, name)), name


@pytest.mark.operate
def test_records_that_are_no_json_are_the_same_in_both_engines(spark, spoiled):
    open_views(spark, spoiled)

    with duck_ledger(spoiled) as opened:
        found = {name: rows_of(opened, name) for name in (*TABLES, *VIEWS)}

    assert found == {name: rows_of(SparkLedger(spark), name) for name in found}


@pytest.mark.operate
def test_a_field_of_another_type_stops_no_view(day, tmp_path):
    """Only a stranger who may append decisions can do that; each engine has its own idea of the other fields."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(day, warehouse)
    spoil(warehouse, DECISIONS, "seq", json=['{"queue":[],"epoch":"x","trigger":{}}'])

    with duck_ledger(warehouse) as opened, duck_ledger(day) as before:
        for name in VIEWS:
            assert set(rows_of(before, name)) <= set(rows_of(opened, name)) or name in ("groups", "current_members")


def spoil(warehouse, table, position: str, **values: list[Any]) -> None:
    """Append copies of a row of a table with other values in a column, and positions above all."""
    path = path_of(warehouse, table).path
    rows = DeltaTable(path).to_pyarrow_table()
    [row] = rows.slice(0, 1).to_pylist()
    [(column, wrong)] = values.items()
    types = ["arrival", "route"] if table is EVENTS else ["handover", "rebalance", "membership", "rejected", "wake"]
    what = "type" if table is EVENTS else "kind"
    copies = [
        row | {position: 1_000_000 + number, what: kind, column: value}
        for number, (value, kind) in enumerate((value, kind) for value in wrong for kind in types)
    ]
    write_deltalake(path, pa.Table.from_pylist(copies, schema=rows.schema), mode="append")


def test_spark_and_python_find_the_same_era_in_a_name(spark):
    """What a stranger appends has none, and stops no query."""
    names = ["groups-1.9", "groups-1.10", "queues-0.2000000", "groups-1", "", "groups-1.x", "groups-1."]
    frame = spark.createDataFrame([(name,) for name in names], "shard string")

    found = frame.selectExpr("shard", f"{ERA_SQL} as era", f"{SHARD_SQL} as name").collect()

    assert [row.era or 0 for row in found] == [era_of(name) for name in names] == [9, 10, 2_000_000, 0, 0, 0, 0]
    assert [row.name for row in found[:3]] == ["groups-1", "groups-1", "queues-0"]


def test_a_value_cannot_end_its_place_in_the_query(open_in, day):
    """Names come from strangers."""
    opened = open_in(day)
    names = ["it's", 'a "name"', "back\\slash", "$group_id", "' or 'x' = 'x", "\n", "null", ""]

    found = [opened.rows("select $name as name, $number as number", name=name, number=-7) for name in names]

    assert found == [[Row(("name", "number"), (name, -7))] for name in names]
    assert opened.rows("select group_id from groups where group_id = $group_id", group_id="' or 'x' = 'x") == []
