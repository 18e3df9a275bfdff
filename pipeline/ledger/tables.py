"""The ledger's Delta tables: made from the declarations in `model.rows`, found again by their folder."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from model import config, decisions
from model.decision_order import ERA_SQL
from model.rows import DECIDED, TABLES, Table
from pipeline.ledger.migrations import CHECK, evolve, properties_there
from pipeline.ledger.schemas import checks_of, schema_of
from wakeroll.errors import InvalidUsage

log = logging.getLogger("wakeroll.tables")

KINDS: Mapping[str, type[decisions.Decision]] = {
    "memberships": decisions.Membership,
    "rebalances": decisions.Rebalance,
    "handovers": decisions.Handover,
    "locks": decisions.Lock,
    "wake_decisions": decisions.Wake,
    "rejections": decisions.Rejected,
    "fencings": decisions.Fenced,
}
"""View -> the kind of decision that it shows: one column per field, and `era`."""

_SQL_VIEWS = ("current_assignments", "current_offsets", "current_members", "groups", "wakes")
"""Those of the folder `views`; each may build on the ones before it."""


def path_of(warehouse: Path, table: Table) -> Path:
    """Return the folder of a table."""
    return warehouse / table.name


def ensure_tables(spark: SparkSession, warehouse: Path, keep_versions_ms: int = config.KEEP_VERSIONS_MS) -> None:
    """Make the tables that are not there yet, and bring the others up to their declarations.

    All at once: each takes seconds in a session that has just started.

    Raises:
        InvalidUsage: a table has another declaration, which this program cannot go on with.
    """
    with ThreadPoolExecutor(len(TABLES)) as threads:
        list(threads.map(lambda table: ensure_table(spark, warehouse, table, keep_versions_ms), TABLES.values()))


def ensure_table(spark: SparkSession, warehouse: Path, table: Table, keep_versions_ms: int) -> None:
    """Make one table, or bring it up to its declaration; its versions can be read for so long.

    Raises:
        InvalidUsage: as `ensure_tables`.
    """
    path = path_of(warehouse, table)
    properties = properties_of(table, keep_versions_ms)
    if DeltaTable.isDeltaTable(spark, str(path)):
        for column in evolve(spark, path, table):
            log.info("table %s has a new column, %s", table.name, column)
        there = properties_there(spark, path)
        if other := {name: value for name, value in properties.items() if there.get(name) != value}:
            pairs = ", ".join(f"'{name}' = '{value}'" for name, value in other.items())
            spark.sql(f"alter table delta.`{path}` set tblproperties ({pairs})")
        return
    comment = (table.row.__doc__ or "").splitlines()[0]
    builder = DeltaTable.createIfNotExists(spark).location(str(path)).addColumns(schema_of(table.row)).comment(comment)
    checks = {CHECK + name: condition for name, condition in checks_of(table.row).items()}
    for name, value in (properties | checks).items():
        builder = builder.property(name, value)
    builder.execute()


def properties_of(table: Table, keep_versions_ms: int) -> dict[str, str]:
    """Return what Delta is told about a table, its CHECKs apart."""
    kept = f"interval {keep_versions_ms // 1_000} seconds"
    return {
        # Other readers (DuckDB, Polars) cannot read tables with deletion vectors.
        "delta.enableDeletionVectors": "false",
        "delta.checkpointInterval": "100",
        # What upkeep writes has statistics: old rows are found without reading the young ones.
        "delta.dataSkippingStatsColumns": ",".join(dict.fromkeys((*table.stream, table.position, table.at))),
        "delta.deletedFileRetentionDuration": kept,
        "delta.logRetentionDuration": kept,
    }


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


def with_era(rows: DataFrame) -> DataFrame:
    """Add the column `era` behind `shard`: decisions are ordered by it (`model.decision_order.ORDER`)."""
    era = f.expr(ERA_SQL).alias("era", metadata={"comment": "era of the shard; (era, seq) is the order of decisions"})
    return rows.select([column for name in rows.columns for column in ((name, era) if name == "shard" else (name,))])


def open_views(spark: SparkSession, warehouse: Path, versions: Mapping[str, int] | None = None) -> list[str]:
    """Make tables and views known to this session's SQL; return their names.

    A table whose rows are made by decisions has the column `era` besides: see `with_era`.

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
        rows = reader.load(str(path))
        (with_era(rows) if table.key == DECIDED else rows).createOrReplaceTempView(table.name)
    names = [*TABLES]
    for name, sql in views():
        spark.sql(f"create or replace temporary view {name} as {sql}")
        names.append(name)
    return names


@contextmanager
def read_once(spark: SparkSession, names: Iterable[str]) -> Iterator[None]:
    """Keep what is read of tables and views until the end, for many questions: each look at a Delta table is a job."""
    frames = [spark.table(name).persist() for name in names]
    try:
        yield
    finally:
        for frame in frames:
            frame.unpersist()


def views() -> Iterator[tuple[str, str]]:
    """Yield name and query of each view; each may build on the ones before it.

    They expect that tables whose rows are made by decisions have the column `era`.
    """
    for name, declared in KINDS.items():
        fields = schema_of(declared)
        tag = declared.__struct_config__.tag
        said = [f"said.`{field.name}`" for field in fields]
        said.insert(fields.names.index("shard") + 1, "era")
        yield (
            name,
            f"select {', '.join(said)}, published_ms from ("
            f"select from_json(json, '{fields.simpleString()}') as said, era, published_ms "
            f"from decisions where kind = '{tag}')",
        )
    for name in _SQL_VIEWS:
        yield name, resources.files("pipeline.ledger").joinpath("views", f"{name}.sql").read_text(encoding="utf-8")
