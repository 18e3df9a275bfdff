"""The folders and properties of the ledger's tables, and their creation by processes without Spark."""

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable
from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.rows import TABLES, Table
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of
from wakeroll_pipeline.ledger.column_types import Column, checks_of, columns_of
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.storage.place import Folder, Place


def path_of(warehouse: Folder, table: Table) -> Place:
    """Return the folder of a table."""
    return Place.of(warehouse) / table.name


def properties_of(table: Table, keep_versions_ms: int) -> dict[str, str]:
    """Return the Delta properties of a table, without its CHECK constraints."""
    kept = f"interval {keep_versions_ms // 1_000} seconds"
    return {
        # Other readers (DuckDB, Polars) cannot read tables with deletion vectors.
        "delta.enableDeletionVectors": "false",
        "delta.checkpointInterval": "100",
        # Compacted files have statistics, so that retention finds old rows without reading the new ones.
        "delta.dataSkippingStatsColumns": ",".join(dict.fromkeys((*table.stream, table.position, table.at))),
        "delta.deletedFileRetentionDuration": kept,
        "delta.logRetentionDuration": kept,
    }


def create_tables(warehouse: Folder, keep_versions_ms: int = config.KEEP_VERSIONS_MS) -> None:
    """Create the missing tables as `wakeroll_pipeline.ledger.tables.ensure_tables` does."""
    for table in TABLES.values():
        path = path_of(warehouse, table)
        location, options = path.for_deltalake()
        if not is_delta(path):
            DeltaTable.create(
                location,
                schema=_described(table.row),
                mode="ignore",
                description=(table.row.__doc__ or "").splitlines()[0],
                configuration=properties_of(table, keep_versions_ms),
                storage_options=options,
            )
        delta = DeltaTable(location, storage_options=options)
        there = delta.metadata().configuration
        for name, condition in checks_of(table.row).items():
            if f"delta.constraints.{name}" not in there:  # also after a process that died in between
                delta.alter.add_constraint({name: condition})


def _described(declared: type[Struct]) -> pa.Schema:
    """Return the schema of a declaration, with its descriptions as comments of the columns and of fields in them."""
    return pa.schema([_with_comment(arrow_schema_of(declared).field(one.name), one) for one in columns_of(declared)])


def _with_comment(field: pa.Field, column: Column) -> pa.Field:
    if isinstance(column.type, tuple):
        within = [_with_comment(field.type.field(one.name), one) for one in column.type]
        field = field.with_type(pa.struct(within))
    return field.with_metadata({"comment": column.comment}) if column.comment else field
