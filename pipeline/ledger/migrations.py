"""A table that an earlier version made, brought up to its declaration: columns are added, and nothing else."""

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from model.rows import Table
from pipeline.ledger.schemas import checks_of, schema_of
from wakeroll.errors import InvalidUsage

CHECK = "delta.constraints."
"""What Delta calls a CHECK among a table's properties."""


def evolve(spark: SparkSession, path: Path, table: Table) -> list[str]:
    """Add the columns that are declared and not there; older rows have null in them.

    Versions of before can still be read as they were.  A column that is not declared any more is null from now on.

    Returns:
        The columns that were added.

    Raises:
        InvalidUsage: the table has another declaration than this program can go on with; the message says which
            column or CHECK, and what would be right.
    """
    there = properties_there(spark, path)
    found = spark.read.format("delta").load(str(path)).schema
    checks = {name.removeprefix(CHECK) for name in there if name.startswith(CHECK)}
    if wrong := [*_wrong(table, found), *_wrong_checks(table, checks)]:
        raise InvalidUsage(f"table {table.name!r} in {path.parent} was made by another version: " + "; ".join(wrong))
    new = [column for column in schema_of(table.row) if column.name not in found.names]
    if new:
        columns = (
            f"`{column.name}` {column.dataType.simpleString()} comment '{_quoted(column.metadata.get('comment', ''))}'"
            for column in new
        )
        spark.sql(f"alter table delta.`{path}` add columns ({', '.join(columns)})")
    return [column.name for column in new]


def properties_there(spark: SparkSession, path: Path) -> dict[str, str]:
    """Return what Delta was told about a table, its CHECKs among it; no job of Spark's is needed for that."""
    return {row.key: row.value for row in spark.sql(f"show tblproperties delta.`{path}`").collect()}


def _wrong(table: Table, found: StructType) -> Iterator[str]:
    declared = schema_of(table.row)
    for column in declared:
        if column.name not in found.names:
            if not column.nullable:
                yield f"the new column {column.name} is NOT NULL, but old rows have no value for it; let it allow null"
            continue
        was = found[column.name]
        is_type, was_type = column.dataType.simpleString(), was.dataType.simpleString()
        if is_type != was_type:
            yield f"{column.name} is {was_type} there and {is_type} here; give what is new a name of its own"
        elif column.nullable != was.nullable:
            words = {True: "allows null", False: "is NOT NULL"}
            yield f"{column.name} {words[was.nullable]} there and {words[column.nullable]} here; leave it as it was"
    for was in found:
        if was.name not in declared.names and not was.nullable:
            yield f"{was.name} is NOT NULL there and not declared here; a column that had to have a value keeps it"


def _wrong_checks(table: Table, found: set[str]) -> Iterator[str]:
    for name, condition in checks_of(table.row).items():
        if name not in found:
            yield f"CHECK {name} ({condition}) is new, but old rows were not asked; leave the bound to the model"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
