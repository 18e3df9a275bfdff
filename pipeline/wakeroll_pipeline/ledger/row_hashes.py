"""Hashes of rows, for the chain of a table: the same rows have the same hash in every program.

A row is encoded as its columns that are not null, in the order of their declaration, each as ``name:length:value``.
So a column that a later version adds does not change the hash of older rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from wakeroll_model.chain import Part
from wakeroll_model.rows import SNAPSHOTS, Table
from wakeroll_pipeline.ledger.column_types import Column, ListOf, columns_of

_UNHASHED: Mapping[str, frozenset[str]] = {SNAPSHOTS.name: frozenset({"body"})}
"""Table -> columns that are not hashed: the body of a snapshot has a hash of its own, in another column."""

_EMPTY = pa.scalar(b"", pa.large_binary())


@cache
def hashed_columns(table: Table) -> tuple[str, ...]:
    """Return the columns that are hashed, in order; a field of a structure as ``column.field``."""
    left_out = _UNHASHED.get(table.name, frozenset())
    return tuple(name for column in columns_of(table.row) if column.name not in left_out for name in _names_of(column))


def _names_of(column: Column) -> Iterator[str]:
    if isinstance(column.type, tuple) and not isinstance(column.type, ListOf):
        yield from (f"{column.name}.{name}" for field in column.type for name in _names_of(field))
    else:
        yield column.name


def flat(rows: pa.Table, table: Table) -> pa.Table:
    """Return rows of a table with the hashed columns only, without structures."""
    while any(pa.types.is_struct(field.type) for field in rows.schema):
        rows = rows.flatten()
    return rows.select([name for name in hashed_columns(table) if name in rows.column_names])


def stream_columns(table: Table) -> tuple[str, ...]:
    """Return the columns that identify a stream; the snapshots of a new era may begin at an earlier record."""
    return (*table.stream, "era") if table is SNAPSHOTS else table.stream


def streams_of(rows: pa.Table, table: Table) -> pa.ChunkedArray:
    """Return the name of the stream of each row.

    It is the name of the control partition (``wakeroll.groups-3``; with the era for a snapshot:
    ``wakeroll.groups-3.1``), of the shard with its era and Kafka partition (``groups-3.1@3``), or of a partition of the
    decisions topic (``3``).
    """
    text = [rows[name].cast(pa.string()) for name in table.stream]
    if table.stream == ("partition", "shard"):
        return pc.binary_join_element_wise(text[1], text[0], "@")
    names = reduce(lambda one, other: pc.binary_join_element_wise(one, other, "-"), text)
    if table is SNAPSHOTS:
        return pc.binary_join_element_wise(names, rows["era"].cast(pa.string()), ".")
    return names


def stream_of(table: Table, values: Mapping[str, object]) -> str:
    """Return the name of the stream of one row, as `streams_of` does."""
    if table.stream == ("partition", "shard"):
        return f"{values['shard']}@{values['partition']}"
    name = "-".join(str(values[column]) for column in table.stream)
    return f"{name}.{values['era']}" if table is SNAPSHOTS else name


def encoded(rows: pa.Table) -> pa.LargeBinaryArray:
    """Return the encoding of each row of `flat` rows."""
    pieces = [_piece(name, rows[name]) for name in rows.column_names]
    if not pieces:
        return pa.array([b""] * rows.num_rows, pa.large_binary())
    whole = pc.binary_join_element_wise(*pieces, pa.scalar(b"\n", pa.large_binary()), pa.scalar(b"", pa.large_binary()))
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def _piece(name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    elif not pa.types.is_large_binary(values.type):
        values = values.cast(pa.string()).cast(pa.large_binary())
    length = pc.binary_length(values).cast(pa.string()).cast(pa.large_binary())
    head = pa.scalar(f"{name}:".encode(), pa.large_binary())
    colon = pa.scalar(b":", pa.large_binary())
    return pc.coalesce(pc.binary_join_element_wise(head, length, colon, values, _EMPTY), _EMPTY)


class OfStream(Part, frozen=True):
    """The rows of one stream in a line, with the positions of the new ones."""

    positions: Sequence[int]
    """Positions of the new rows, ascending."""
    hasher: Any
    """SHA-256 of all rows so far; a copy is used to continue."""


def parts_of(rows: pa.Table, table: Table, before: Mapping[str, OfStream] = {}) -> Iterator[OfStream]:
    """Yield the rows of an Arrow table by stream, in the order of their positions.

    Args:
        rows: the new rows.
        table: their table.
        before: stream -> its earlier rows in the same line.
    """
    order = pc.sort_indices(
        pa.table({"stream": streams_of(rows, table), "position": rows[table.position]}),
        [("stream", "ascending"), ("position", "ascending")],
    )
    rows = rows.take(order)
    positions, whole = rows[table.position].to_pylist(), encoded(flat(rows, table))
    streams = streams_of(rows, table).combine_chunks().dictionary_encode()
    for begin, end in _runs(streams.indices.to_numpy()):
        stream = streams[begin].as_py()
        first = before.get(stream)
        hasher = sha256() if first is None else first.hasher.copy()
        hasher.update(_bytes(whole, begin, end))
        count = end - begin + (0 if first is None else first.rows)
        yield OfStream(stream, count, hasher.digest(), positions[begin:end], hasher)


LinesOf = Mapping[str, tuple[Sequence[int], Sequence[int]]]
"""Stream -> last position of each of its lines, ascending, and the numbers of these lines."""


def parts_by_line(batches: Iterable[pa.Table], table: Table, lines: LinesOf) -> Iterator[tuple[int, Part]]:
    """Yield the number of a line and its part of each stream.

    Args:
        batches: rows, sorted by stream and position across all batches; a position above the last one of its stream
            belongs to the line after the last, number 0.
        table: their table.
        lines: the lines of the positions.
    """
    open_key: tuple[str, int] | None = None
    hasher, count = sha256(), 0
    for rows in batches:
        streams = streams_of(rows, table).combine_chunks().dictionary_encode()
        names, codes = streams.dictionary.to_pylist(), streams.indices.to_numpy()
        positions, whole = rows[table.position].to_numpy(), encoded(flat(rows, table))
        for begin, end in _runs(codes):
            stream = names[codes[begin]]
            ends, numbers = lines.get(stream, ((), ()))
            index = np.searchsorted(np.asarray(ends, dtype=np.int64), positions[begin:end], side="left")
            for first, last in _runs(index):
                key = stream, (numbers[index[first]] if index[first] < len(numbers) else 0)
                if key != open_key:
                    if open_key is not None:
                        yield open_key[1], Part(open_key[0], count, hasher.digest())
                    open_key, hasher, count = key, sha256(), 0
                hasher.update(_bytes(whole, begin + first, begin + last))
                count += last - first
    if open_key is not None:
        yield open_key[1], Part(open_key[0], count, hasher.digest())


def _runs(values: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the first index of each run of equal values, and the index after the run."""
    if len(values):
        bounds = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
        yield from pairwise(bounds)


def _bytes(rows: pa.LargeBinaryArray, begin: int, end: int) -> memoryview:
    """Return the bytes of encoded rows from one index to another."""
    _, offsets, data = rows.buffers()
    if begin == end or data is None:
        return memoryview(b"")
    bounds = memoryview(offsets).cast("q")
    return memoryview(data)[bounds[rows.offset + begin] : bounds[rows.offset + end]]
