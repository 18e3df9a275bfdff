"""The marts in a warehouse: Delta tables in its folder `marts`, which both engines of dbt read and write."""

from collections.abc import Mapping, Sequence

from arro3.core import RecordBatchReader, Schema
from deltalake import write_deltalake
from deltalake.exceptions import DeltaError
from duckdb import DuckDBPyConnection, DuckDBPyRelation

from wakeroll_pipeline.ledger.delta_files import (
    add_comments,
    is_delta,
    open_delta,
    quoted,
    reading,
    sizes_of,
    stored_columns,
    stored_comments,
)
from wakeroll_pipeline.ledger.expired_versions import Expired, delete_expired
from wakeroll_pipeline.ledger.table_damage import lost_file, of_log
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.parquet_files import HOOKS
from wakeroll_pipeline.storage.place import Folder, Place


def mart_paths(warehouse: Folder) -> dict[str, Place]:
    """Return mart -> folder, for the marts that have been built."""
    marts = Place.of(warehouse) / "marts"
    folders = {name: marts / name for name in small_files.names(marts)}
    return {name: folder for name, folder in folders.items() if is_delta(folder)}


DAILY_FACTS = "daily_facts"
"""Name of the table of daily facts. It is stored like a mart, but its rows outlive the rows from which they were
computed."""


def path_of_facts(warehouse: Folder) -> Place:
    """Return the folder of the daily facts, which is not among the marts, because marts may be deleted."""
    return Place.of(warehouse) / DAILY_FACTS


def derived_paths(warehouse: Folder) -> dict[str, Place]:
    """Return name -> folder of the tables that can be queried beside the ledger: built marts and daily facts."""
    facts = path_of_facts(warehouse)
    return mart_paths(warehouse) | ({DAILY_FACTS: facts} if is_delta(facts) else {})


def mart_query(path: Place) -> str:
    """Return DuckDB's query of the newest rows of a mart.

    Raises:
        UnreadableTable: a file of the mart is missing, or its log is damaged.
    """
    try:
        mart = open_delta(path)
        lost = lost_file(mart, path)
    except (DeltaError, OSError) as error:
        raise of_log(path, error) from error
    if lost is not None:
        raise lost
    return reading(mart, path, stored_columns(mart).items())


def open_marts(connection: DuckDBPyConnection, warehouse: Folder) -> list[str]:
    """Create views of the built marts and of the daily facts, with comments, in the current schema; return their names.

    Raises:
        UnreadableTable: as `mart_query`.
    """
    paths = derived_paths(warehouse)
    for name, path in paths.items():
        connection.execute(f"create or replace view {quoted(name)} as {mart_query(path)}")
        add_comments(connection, name, *stored_comments(open_delta(path)))
    return list(paths)


def replace_mart(path: Place, rows: DuckDBPyRelation, description: str, comments: Mapping[str, str]) -> None:
    """Store all rows of a mart, as a new version of its table, with its description and column -> comment."""
    location, options = path.for_deltalake()
    write_deltalake(
        location,
        with_comments(RecordBatchReader.from_stream(rows), comments),
        storage_options=options,
        mode="overwrite",
        schema_mode="overwrite",
        description=description,
        # Other readers cannot read tables with deletion vectors.
        configuration={"delta.enableDeletionVectors": "false"},
    )


def with_comments(rows: RecordBatchReader, comments: Mapping[str, str]) -> RecordBatchReader:
    """Return the same rows with column -> comment in their schema, from which Delta takes the comments."""
    fields = [rows.schema.field(name) for name in rows.schema.names]
    schema = Schema([field.with_metadata({"comment": comments.get(field.name, "")}) for field in fields])
    return RecordBatchReader.from_batches(schema, (batch.with_schema(schema) for batch in rows))


def merge_mart(path: Place, rows: DuckDBPyRelation, key: Sequence[str]) -> None:
    """Store new and changed rows of a mart, as a new version of its table; rows with other keys are kept."""
    same = " and ".join(f"new.{quoted(column)} = old.{quoted(column)}" for column in key)
    merge = open_delta(path).merge(rows, same, source_alias="new", target_alias="old")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def look_after_mart(path: Place, keep_versions_ms: int, now_ms: int) -> Expired:
    """Combine the small files of a mart, and delete and return the files that only its expired versions need.

    It is for the process that has built the mart: another process that builds it at the same time may fail, and must
    repeat.

    Args:
        path: folder of the mart.
        keep_versions_ms: how long an earlier version can be read (ms).
        now_ms: this machine's time (epoch ms).

    Raises:
        DeltaError: another process has changed the mart at the same time; or its log is damaged.
        StorageFailed: the store did not answer.
    """
    mart = open_delta(path)
    if sum(size < _SMALL for size in sizes_of(mart)) > _MOST_SMALL:
        mart.optimize.compact(target_size=_SMALL, post_commithook_properties=HOOKS)
    return delete_expired(path, keep_versions_ms, now_ms)


_SMALL = 32 * 1024 * 1024
"""Size of a file of a mart below which it is combined with others (bytes)."""
_MOST_SMALL = 10
"""Maximum number of small files of a mart; each merge adds one."""
