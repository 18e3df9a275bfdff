"""The marts in a warehouse: Delta tables in its folder `marts`, which both engines of dbt read and write."""

from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable, write_deltalake
from duckdb import DuckDBPyConnection, DuckDBPyRelation

from pipeline.ledger.delta_files import quoted, reading, stored_columns


def mart_paths(warehouse: Path) -> dict[str, Path]:
    """Return mart -> folder, for the marts that have been built."""
    return {log.parent.name: log.parent for log in sorted((warehouse / "marts").glob("*/_delta_log"))}


def mart_query(path: Path) -> str:
    """Return DuckDB's query of the newest rows of a mart."""
    mart = DeltaTable(str(path))
    return reading(mart, path, stored_columns(mart).items())


def open_marts(connection: DuckDBPyConnection, warehouse: Path) -> list[str]:
    """Create a view of each built mart in the current schema of a connection; return their names."""
    paths = mart_paths(warehouse)
    for name, path in paths.items():
        connection.execute(f"create or replace view {quoted(name)} as {mart_query(path)}")
    return list(paths)


def replace_mart(path: Path, rows: DuckDBPyRelation, description: str) -> None:
    """Store all rows of a mart, as a new version of its table."""
    write_deltalake(
        str(path),
        rows,
        mode="overwrite",
        schema_mode="overwrite",
        description=description,
        # Other readers cannot read tables with deletion vectors.
        configuration={"delta.enableDeletionVectors": "false"},
    )


def merge_mart(path: Path, rows: DuckDBPyRelation, key: Sequence[str]) -> None:
    """Store new and changed rows of a mart, as a new version of its table; rows with other keys stay."""
    same = " and ".join(f"new.{quoted(column)} = old.{quoted(column)}" for column in key)
    merge = DeltaTable(str(path)).merge(rows, same, source_alias="new", target_alias="old")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
