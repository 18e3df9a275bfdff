"""dbt in DuckDB and in Spark: both engines build equal marts from the same ledger, and each continues the other's."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
import yaml
from deltalake import DeltaTable

from tests.support.engines import ENGINES as ASKED
from tests.support.ledgers import Story, a_day, two_eras, write_ledger
from wakeroll_model.rows import EVENTS, RECORDED, TABLES
from wakeroll_pipeline.ledger.batches import Batch
from wakeroll_pipeline.ledger.delta_files import open_delta, stored_comments
from wakeroll_pipeline.ledger.stored_marts import mart_paths
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions import marts
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

pytestmark = pytest.mark.spark

ENGINES: tuple[Engine, ...] = ("duckdb", "spark")
Marts = dict[str, tuple[list[str], list[str]]]
"""Mart -> its columns with their types, and its rows."""


def marts_in(warehouse: Path) -> Marts:
    """Return the marts of a warehouse, as a reader of Delta sees them: columns with type and comment, and rows."""
    found: Marts = {}
    for name, path in mart_paths(warehouse).items():
        table = DeltaTable(str(path))
        rows = table.to_pyarrow_table()
        _, comments = stored_comments(table)
        columns = [f"{field.name} {field.type.type}: {comments[field.name]}" for field in table.schema().fields]
        found[name] = columns, sorted(repr(tuple(row.values())) for row in rows.to_pylist())
    return found


def declared_marts() -> dict[str, tuple[str, list[str]]]:
    """Return mart -> its comment and its columns, as dbt's file declares them."""
    names = {"string": "string", "int": "integer", "bigint": "long", "double": "double", "boolean": "boolean"}
    names |= {"timestamp": "timestamp"}
    page = yaml.safe_load(marts.declared_marts())
    return {
        model["name"]: (
            model["description"],
            [f"{one['name']} {names[one['data_type']]}: {one['description']}" for one in model["columns"]],
        )
        for model in page["models"]
    }


def found_by_tests(done: list[marts.BuildResult]) -> dict[str, tuple[bool, int | None]]:
    """Return test -> whether it passed, and the number of rows that it found."""
    return {one.name: (one.is_good, one.failures) for one in done if one.kind == "test"}


@pytest.fixture
def build(request: pytest.FixtureRequest) -> Callable[..., list[marts.BuildResult]]:
    """Build the marts of a home with an engine."""

    def build(home: Path, by: Engine, *options: str) -> list[marts.BuildResult]:
        if by == "spark":
            request.getfixturevalue("engine")
        return marts.build(home / "warehouse", home / "logs", *options, engine=by)

    return build


def home_of(ledger: Path, home: Path) -> Path:
    shutil.copytree(ledger, home / "warehouse")
    return home


BAD_EVENTS = (
    b"\xff\xfe",
    b"[]",
    b'{"type":"route","topic":"orders","queues":7}',
    b'{"type":"route","topic":"orders","queues":[{"topic":7,"queue_id":"x","max_offset":-3},7,null]}',
    b'{"type":"route","topic":"orders","queues":[{"topic":"orders","queue_id":0,"max_offset":"none"}]}',
    b'{"type":"arrival","queue":{"topic":"orders","queue_id":0},"next_offset":"many"}',
    b'{"type":"arrival","queue":"orders","next_offset":5}',
    b'{"type":"arrival","queue":{"topic":"or\xc3\x28ders","queue_id":0},"next_offset":5}',
    b'{"type":"commit","group_id":"billing","offsets":[{"queue":{"topic":"orders"},"offset":1e400}]}',
    b'{"type":"commit","group_id":["billing"],"offsets":{}}',
    b'{"type":"pull","request_id":"no number","queue":null}',
    b'{"type":"pull","request_id":"c1:7","timeout_ms":99999999999999999999,"queue":{"topic":"orders","queue_id":1}}',
    b'{"type":"pull"',
)
"""Records of the types that the models parse, each with something wrong."""


def a_hostile_day() -> Story:
    """Tell of a day on which somebody appends records that are no valid events."""
    story = a_day()
    for number, value in enumerate(BAD_EVENTS):
        story.nonsense(value, number % 4)
    story.pass_seconds(10)
    return story


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `a_hostile_day`."""
    warehouse = tmp_path_factory.mktemp("hostile") / "warehouse"
    write_ledger(warehouse, a_hostile_day(), batches=1)
    return warehouse


@pytest.mark.operate
@pytest.mark.parametrize("ledger", ["hostile", "day", "eras", "cut", "sliced"])
def test_both_engines_build_equal_marts(ledger: str, build, tmp_path: Path, request: pytest.FixtureRequest):
    """Every row of every mart, its types, and what each test finds; eras above 9 and a clock that stepped back too."""
    tables = request.getfixturevalue(ledger)
    duck, spark = home_of(tables, tmp_path / "in duckdb"), home_of(tables, tmp_path / "in spark")

    by_duckdb, by_spark = build(duck, "duckdb"), build(spark, "spark")

    assert [one for one in by_duckdb if one.kind == "model" and not one.is_good] == []
    # A later question in the same process sees what has come since.
    assert [name for name in TABLES if request.getfixturevalue("engine").catalog.isCached(f"ledger.{name}")] == []
    assert {(one.kind, one.name) for one in by_duckdb} == {(one.kind, one.name) for one in by_spark}
    assert found_by_tests(by_duckdb) == found_by_tests(by_spark)
    assert marts_in(duck / "warehouse") == marts_in(spark / "warehouse")
    # Users, `wakeroll sql "describe consumer_lag"` and docs/data_dictionary.md read the same declaration.
    for home in (duck, spark):
        comments = {name: stored_comments(open_delta(path))[0] for name, path in mart_paths(home / "warehouse").items()}
        columns = {name: columns for name, (columns, _) in marts_in(home / "warehouse").items()}
        assert {name: (comments[name], columns[name]) for name in columns} == declared_marts()
        # The data dictionary says of each column whether it may be null.
        for path in mart_paths(home / "warehouse").values():
            rows = DeltaTable(str(path)).to_pyarrow_table()
            _, meaning = stored_comments(open_delta(path))
            assert [name for name in rows.column_names if rows[name].null_count and "null" not in meaning[name]] == []


@pytest.mark.operate
def test_each_engine_takes_up_what_the_other_has_built(eras: Path, build, tmp_path: Path):
    """An incremental run adds the same rows, also to marts that the other engine built."""
    models = ("--select", "+ownership_timeline", "+rebalance_cost", "--exclude-resource-type", "test")
    homes = {(first, then): tmp_path / f"{first} {then}" for first in ENGINES for then in ENGINES}
    for first in ENGINES:
        build(home_of(eras, tmp_path / first), first, *models)
        for then in ENGINES:
            shutil.copytree(tmp_path / first, homes[first, then])
    before = marts_in(tmp_path / "duckdb" / "warehouse")
    longer = two_eras()
    longer.join("billing", "c4", "orders")
    longer.pass_seconds(12)
    longer.crash("audit", "a1")
    longer.pass_seconds(60)
    write_ledger(tmp_path / "duckdb" / "warehouse", longer, batches=1)

    for (_, then), home in homes.items():
        for name in TABLES:
            shutil.rmtree(home / "warehouse" / name)
            shutil.copytree(tmp_path / "duckdb" / "warehouse" / name, home / "warehouse" / name)
        assert [one for one in build(home, then, *models) if not one.is_good] == []

    found = {by: marts_in(home / "warehouse") for by, home in homes.items()}
    assert all(one == found["spark", "spark"] for one in found.values())
    for name, (_, rows) in found["duckdb", "duckdb"].items():
        [newest] = DeltaTable(str(homes["duckdb", "duckdb"] / "warehouse" / "marts" / name)).history(1)
        assert newest["operation"] == "MERGE"
        # Only what is new or has changed is written.
        written = newest["operationMetrics"]
        assert written["num_target_rows_inserted"] == len(rows) - len(before[name][1]) > 0
        assert written["num_target_rows_updated"] == len(set(before[name][1]) - set(rows)) < len(before[name][1])


@pytest.mark.parametrize("by", ASKED)
def test_marts_are_of_one_moment_of_all_tables(day: Path, build, tmp_path: Path, by: Engine):
    """`record` is at work: its newest batch is in `events` already, and in no other table yet."""
    home, models = home_of(day, tmp_path), ("--select", "+consumer_lag", "--exclude-resource-type", "test")
    events = home / "warehouse" / EVENTS.name
    unfinished = Batch(number=10**9, tables=tuple(table.name for table in RECORDED))
    rows = DeltaTable(str(events)).to_pyarrow_table()
    later = pc.add(pc.max(rows["at_ms"]), 60_000)
    newest = rows.slice(0, 1).set_column(rows.column_names.index("at_ms"), "at_ms", [[later.as_py()]])
    ArrowSink().append(newest, events, unfinished.as_metadata())

    assert [one for one in build(home, by, *models) if not one.is_good] == []
    seen = DeltaTable(str(home / "warehouse" / "marts" / "consumer_lag")).to_pyarrow_table()["as_of"].to_pylist()
    assert {round(one.timestamp() * 1_000) for one in seen} == {pc.max(rows["at_ms"]).as_py()}
