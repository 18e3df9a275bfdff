"""Migration of tables that an earlier version created: new columns are added, and nothing else changes."""

from collections.abc import Iterator

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import Table
from wakeroll_pipeline.ledger.column_types import checks_of
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.storage.place import Place

CHECK = "delta.constraints."
"""Prefix of the table properties in which Delta stores CHECK constraints."""


def evolve(spark: SparkSession, path: Place, table: Table) -> list[str]:
    """Add the declared columns that the table lacks; they are null in older rows.

    Earlier Delta versions stay readable.  A column that is no longer declared is null in new rows.

    Returns:
        The names of the added columns.

    Raises:
        InvalidUsage: the table conflicts with the declaration in a way that a new column cannot solve; the message
            names the column or CHECK, and the solution.
    """
    there = properties_there(spark, path)
    found = spark.read.format("delta").load(path.for_spark()).schema
    checks = {name.removeprefix(CHECK) for name in there if name.startswith(CHECK)}
    if wrong := [*_wrong(table, found), *_wrong_checks(table, checks)]:
        raise InvalidUsage(f"table {table.name!r} in {path.parent} conflicts with this version: " + "; ".join(wrong))
    new = [column for column in schema_of(table.row) if column.name not in found.names]
    if new:
        columns = (
            f"`{column.name}` {column.dataType.simpleString()} comment '{_quoted(column.metadata.get('comment', ''))}'"
            for column in new
        )
        spark.sql(f"alter table delta.`{path.for_spark()}` add columns ({', '.join(columns)})")
    return [column.name for column in new]


def properties_there(spark: SparkSession, path: Place) -> dict[str, str]:
    """Return the properties of a Delta table, with its CHECK constraints; this needs no Spark job."""
    return {row.key: row.value for row in spark.sql(f"show tblproperties delta.`{path.for_spark()}`").collect()}


def _wrong(table: Table, found: StructType) -> Iterator[str]:
    declared = schema_of(table.row)
    for column in declared:
        if column.name not in found.names:
            if not column.nullable:
                yield f"the new column {column.name} is NOT NULL, but old rows have no value for it; make it nullable"
            continue
        was = found[column.name]
        is_type, was_type = column.dataType.simpleString(), was.dataType.simpleString()
        if is_type != was_type:
            yield f"{column.name} is {was_type} in the table, but declared as {is_type}; give the new one another name"
        elif column.nullable != was.nullable:
            words = {True: "allows null", False: "is NOT NULL"}
            old, new = words[was.nullable], words[column.nullable]
            yield f"{column.name} {old} in the table, but its declaration {new}; restore the declaration"
    for was in found:
        if was.name not in declared.names and not was.nullable:
            yield f"{was.name} is NOT NULL in the table and not declared; keep the declaration of a NOT NULL column"


def _wrong_checks(table: Table, found: set[str]) -> Iterator[str]:
    for name, condition in checks_of(table.row).items():
        if name not in found:
            yield f"CHECK {name} ({condition}) is new, but old rows were not checked; check the bound in the model only"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
