"""The Delta tables of a story, written without Spark."""

from collections.abc import Iterator
from typing import Any

import duckdb
import msgspec
from deltalake import write_deltalake

from model.decisions import AnyDecision, Offset
from model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, SNAPSHOTS, Table
from pipeline.ledger.column_types import columns_of, in_duckdb
from pipeline.storage.place import Folder, Place
from tests.support.ledgers import Story
from wakeroll.connection import Topics

_decode: msgspec.json.Decoder[AnyDecision] = msgspec.json.Decoder(AnyDecision)


def write_tables(warehouse: Folder, story: Story) -> None:
    """Append the records, decisions, offsets and snapshots of a story; the table of assignments stays empty."""
    control = [row for row in story.rows if row[0] != Topics().decisions]
    append(warehouse, EVENTS, [(*row, _type_of(row[5])) for row in control])
    published = [row for row in story.rows if row[0] == Topics().decisions]
    append(warehouse, DECISIONS, [_decision_row(row[1], row[3], row[5] or b"") for row in published])
    append(warehouse, SNAPSHOTS, [(*row[:-1], bytes(row[-1])) for row in story.snapshots])  # type: ignore[call-overload]
    append(warehouse, ASSIGNMENTS, [])
    append(warehouse, OFFSETS, [row for each in published for row in _offset_rows(each[1], each[5] or b"")])


def append(warehouse: Folder, table: Table, rows: list[tuple[Any, ...]]) -> None:
    """Append rows, whose values have the order of the table's columns."""
    columns = columns_of(table.row)
    with duckdb.connect() as connection:
        typed = ", ".join(f'"{column.name}" {in_duckdb(column.type)}' for column in columns)
        connection.execute(f"create table made ({typed})")
        if rows:
            connection.executemany(f"insert into made values ({', '.join('?' for _ in columns)})", rows)
        location, options = (Place.of(warehouse) / table.name).for_deltalake()
        made = connection.sql("from made").to_arrow_table()
        write_deltalake(location, made, mode="append", storage_options=options)


def _type_of(value: bytes | None) -> str | None:
    try:
        return str(msgspec.json.decode(value or b"")["type"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return None


def _decision_row(partition: int, published_ms: int, value: bytes) -> tuple[Any, ...]:
    one = _decode.decode(value)
    names = getattr(one, "group_id", None), getattr(one, "client_id", None)
    cause = msgspec.to_builtins(one.cause)
    kind = one.__struct_config__.tag
    return (one.shard, one.seq, kind, *names, one.at_ms, cause, published_ms, partition, value.decode())


def _offset_rows(partition: int, value: bytes) -> Iterator[tuple[Any, ...]]:
    one = _decode.decode(value)
    if isinstance(one, Offset):
        place = (one.queue.topic, one.queue.broker, one.queue.queue_id)
        offset = (one.client_id, one.offset, one.epoch, one.at_ms, one.reset_by, one.mode)
        yield (one.shard, one.seq, partition, one.group_id, *place, *offset)
