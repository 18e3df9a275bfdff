"""The Delta tables of the ledger, which follow the declarations in `wakeroll_model.rows`, and their views."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from wakeroll_model import config
from wakeroll_model.decision_order import ERA_SQL
from wakeroll_model.rows import DECIDED, READ, TABLES, Table
from wakeroll_pipeline.ledger.column_types import checks_of
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.duck_ledger import find_table
from wakeroll_pipeline.ledger.migrations import CHECK, evolve, properties_there
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.table_creation import path_of, properties_of
from wakeroll_pipeline.ledger.table_damage import problem_in
from wakeroll_pipeline.ledger.view_queries import ERA, declared_views, spark_head, views
from wakeroll_pipeline.storage.hadoop_files import delete_with_marks
from wakeroll_pipeline.storage.place import Folder

log = logging.getLogger("wakeroll.tables")


def ensure_tables(spark: SparkSession, warehouse: Folder, keep_versions_ms: int = config.KEEP_VERSIONS_MS) -> None:
    """Create the missing tables, and migrate the others to their declarations.

    The tables are handled in parallel, because each takes seconds in a new session.

    Raises:
        InvalidUsage: a table conflicts with its declaration, and no migration solves it.
    """
    with ThreadPoolExecutor(len(TABLES)) as threads:
        list(threads.map(lambda table: ensure_table(spark, warehouse, table, keep_versions_ms), TABLES.values()))


def ensure_table(spark: SparkSession, warehouse: Folder, table: Table, keep_versions_ms: int) -> None:
    """Create one table, or migrate it to its declaration; set the retention of its versions.

    Raises:
        InvalidUsage: as `ensure_tables`.
    """
    path = path_of(warehouse, table)
    properties = properties_of(table, keep_versions_ms)
    if is_delta(path):
        for column in evolve(spark, path, table):
            log.info("added column %s to table %s", column, table.name)
        there = properties_there(spark, path)
        if other := {name: value for name, value in properties.items() if there.get(name) != value}:
            pairs = ", ".join(f"'{name}' = '{value}'" for name, value in other.items())
            spark.sql(f"alter table delta.`{path.for_spark()}` set tblproperties ({pairs})")
        return
    # A process that died while it created the table has left the folder of its log, which Delta would take for a table.
    delete_with_marks(spark, path / "_delta_log")
    comment = (table.row.__doc__ or "").splitlines()[0]
    builder = (
        DeltaTable.createIfNotExists(spark).location(path.for_spark()).addColumns(schema_of(table.row)).comment(comment)
    )
    checks = {CHECK + name: condition for name, condition in checks_of(table.row).items()}
    for name, value in (properties | checks).items():
        builder = builder.property(name, value)
    builder.execute()


def with_era(rows: DataFrame) -> DataFrame:
    """Add the column `era` after `shard`; the order of decisions needs it (`wakeroll_model.decision_order.ORDER`)."""
    era = f.expr(ERA_SQL).alias("era", metadata={"comment": ERA.comment})
    return rows.select([column for name in rows.columns for column in ((name, era) if name == "shard" else (name,))])


def as_declared(rows: DataFrame, table: Table) -> DataFrame:
    """Return rows with the declared columns in their order, followed by columns that are not declared any more.

    A table that an earlier release created lacks new columns, or has them at the end. Missing columns are null.
    """
    declared = schema_of(table.row)
    shown = [
        f.col(field.name) if field.name in rows.columns else f.lit(None).cast(field.dataType).alias(field.name)
        for field in declared
    ]
    return rows.select(*shown, *(name for name in rows.columns if name not in declared.names))


def open_views(spark: SparkSession, warehouse: Folder, versions: Mapping[str, int] | None = None) -> list[str]:
    """Register the tables and views in this session's SQL; return their names.

    A table with one row per decision gets the column `era` too: see `with_era`.

    Args:
        spark: the session.
        warehouse: folder of the tables.
        versions: table -> Delta version to read; None: the newest of each.

    Raises:
        InvalidUsage: the warehouse has no tables; the message names the first one.
        UnreadableTable: a table is missing or damaged; the message names it.
    """
    for table in READ:
        path = path_of(warehouse, table)
        version = None if versions is None else versions.get(table.name)
        delta = find_table(warehouse, table, version)
        if delta is None:
            spark.createDataFrame([], schema_of(table.row)).createOrReplaceTempView(table.name)
            continue
        if (problem := problem_in(table, delta, path)) is not None:
            raise problem
        reader = spark.read.format("delta")
        if version is not None:
            reader = reader.option("versionAsOf", version)
        rows = as_declared(reader.load(path.for_spark()), table)
        (with_era(rows) if table.key == DECIDED else rows).createOrReplaceTempView(table.name)
    names = [*TABLES]
    for view, (name, sql) in zip(declared_views(), views("spark"), strict=True):
        spark.sql(f"create or replace temporary view {name} {spark_head(view)} {sql}")
        names.append(name)
    return names


@contextmanager
def read_once(spark: SparkSession, names: Iterable[str]) -> Iterator[None]:
    """Cache tables and views while many queries read them; every uncached read of a Delta table is a Spark job."""
    frames = [spark.table(name).persist() for name in names]
    try:
        yield
    finally:
        for frame in frames:
            frame.unpersist()
