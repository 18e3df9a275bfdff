"""The ledger's Delta tables: made from the declarations in `model.rows`, found again by their folder."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from model import decisions
from model.rows import TABLES, Table
from pipeline.schemas import checks_of, schema_of
from wakeroll.errors import InvalidUsage

PROPERTIES = {
    # Other readers (DuckDB, Polars) cannot read tables with deletion vectors.
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "100",
    "delta.dataSkippingNumIndexedCols": "8",
}

KINDS: Mapping[str, type[decisions.Decision]] = {
    "memberships": decisions.Membership,
    "rebalances": decisions.Rebalance,
    "handovers": decisions.Handover,
    "locks": decisions.Lock,
    "wake_decisions": decisions.Wake,
    "rejections": decisions.Rejected,
}
"""View -> the kind of decision that it shows, a column a field."""

_SQL_VIEWS = ("current_assignments", "current_offsets", "current_members", "groups", "wakes")
"""Those of the folder `views`; each may build on the ones before it."""


def path_of(warehouse: Path, table: Table) -> Path:
    """Return the folder of a table."""
    return warehouse / table.name


def ensure_tables(spark: SparkSession, warehouse: Path) -> None:
    """Make the tables that are not there yet, all at once: each takes seconds in a session that has just started."""
    with ThreadPoolExecutor(len(TABLES)) as threads:
        list(threads.map(lambda table: _ensure(spark, path_of(warehouse, table), table), TABLES.values()))


def _ensure(spark: SparkSession, path: Path, table: Table) -> None:
    if DeltaTable.isDeltaTable(spark, str(path)):
        return
    comment = (table.row.__doc__ or "").splitlines()[0]
    builder = DeltaTable.createIfNotExists(spark).location(str(path)).addColumns(schema_of(table.row)).comment(comment)
    checks = {f"delta.constraints.{name}": condition for name, condition in checks_of(table.row).items()}
    for name, value in (PROPERTIES | checks).items():
        builder = builder.property(name, value)
    builder.execute()


def highest_positions(spark: SparkSession, warehouse: Path, table: Table) -> dict[tuple[object, ...], int]:
    """Return how far a table has come: stream -> the highest position in it."""
    rows = (
        spark.read.format("delta")
        .load(str(path_of(warehouse, table)))
        .groupBy(*table.stream)
        .agg(f.max(table.position).alias("highest"))
        .collect()
    )
    return {tuple(row[column] for column in table.stream): row["highest"] for row in rows}


def open_views(spark: SparkSession, warehouse: Path, versions: Mapping[str, int] | None = None) -> list[str]:
    """Make tables and views known to this session's SQL; return their names.

    `versions`: table -> its Delta version; None: the newest of each.

    Raises:
        InvalidUsage: there are no tables in the warehouse; the message says where it looked.
    """
    for table in TABLES.values():
        path = path_of(warehouse, table)
        if not DeltaTable.isDeltaTable(spark, str(path)):
            raise InvalidUsage(f"no table {table.name!r} in {warehouse}; has `wakeroll run` been started here?")
        reader = spark.read.format("delta")
        if versions is not None:
            reader = reader.option("versionAsOf", versions[table.name])
        reader.load(str(path)).createOrReplaceTempView(table.name)
    names = [*TABLES]
    for name, sql in views():
        spark.sql(f"create or replace temporary view {name} as {sql}")
        names.append(name)
    return names


def views() -> Iterator[tuple[str, str]]:
    """Yield name and query of each view; each may build on the ones before it."""
    for name, declared in KINDS.items():
        fields = schema_of(declared)
        tag = declared.__struct_config__.tag
        columns = ", ".join(f"said.`{field.name}`" for field in fields)
        yield (
            name,
            f"select {columns}, published_ms from ("
            f"select from_json(json, '{fields.simpleString()}') as said, published_ms "
            f"from decisions where kind = '{tag}')",
        )
    for name in _SQL_VIEWS:
        yield name, resources.files("pipeline").joinpath("views", f"{name}.sql").read_text(encoding="utf-8")
