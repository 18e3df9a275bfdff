"""The Delta tables of a story, written without Spark."""

from typing import Any

import duckdb
import pyarrow as pa
from deltalake import write_deltalake

from tests.support.ledgers import Story
from wakeroll.connection import Topics
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, SNAPSHOTS, Table
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.storage.place import Folder, Place


def write_tables(warehouse: Folder, story: Story) -> None:
    """Append the records, decisions, offsets and snapshots of a story; the table of assignments stays empty."""
    records = [KafkaRecord(*row, None) for row in story.rows]
    decisions = read_decisions(one for one in records if one.topic == Topics().decisions)
    rows = rows_of((one for one in records if one.topic != Topics().decisions), decisions)
    for table in (EVENTS, DECISIONS, OFFSETS):
        write(warehouse, table, arrow_table(table.row, [one.row for one in rows[table.name]]))
    append(warehouse, SNAPSHOTS, [(*row[:6], bytes(row[6]), row[7]) for row in story.snapshots])  # type: ignore[call-overload]
    append(warehouse, ASSIGNMENTS, [])


def write_assignments(warehouse: Folder, story: Story) -> None:
    """Append the assignments of a story."""
    decisions = read_decisions(KafkaRecord(*row, None) for row in story.rows if row[0] == Topics().decisions)
    rows = [one.row for one in rows_of([], decisions)[ASSIGNMENTS.name]]
    write(warehouse, ASSIGNMENTS, arrow_table(ASSIGNMENTS.row, rows))


def append(warehouse: Folder, table: Table, rows: list[tuple[Any, ...]]) -> None:
    """Append rows, whose values have the order of the table's columns."""
    columns = columns_of(table.row)
    with duckdb.connect() as connection:
        typed = ", ".join(f'"{column.name}" {in_duckdb(column.type)}' for column in columns)
        connection.execute(f"create table made ({typed})")
        if rows:
            connection.executemany(f"insert into made values ({', '.join('?' for _ in columns)})", rows)
        write(warehouse, table, connection.sql("from made").to_arrow_table())


def write(warehouse: Folder, table: Table, rows: pa.Table) -> None:
    """Append rows to a table; create it if it is missing."""
    location, options = (Place.of(warehouse) / table.name).for_deltalake()
    write_deltalake(location, rows, mode="append", storage_options=options)
