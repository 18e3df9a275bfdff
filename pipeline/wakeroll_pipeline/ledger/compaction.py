"""Compaction: the small files of a table become larger ones, whose rows are sorted.

The sink appends a file per batch. Compaction replaces consecutive files by one file that has the same rows, sorted by
`Table.layout`, in the encodings of `_write`. The reasons and the figures are in decision 34.

Neither Spark nor deltalake is used to write, because both choose files by their size: they would merge rows of this
minute into a file of last month, and a question about this minute would open both (decision 33). The commit is one of
Delta's OPTIMIZE: files are removed and added, and no data changes.
"""

import io
import json
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable

from wakeroll.epoch_ms import now_ms
from wakeroll.errors import WakerollError
from wakeroll_model.rows import SNAPSHOTS, Table
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Place

FULL_BYTES = 4 * 1024 * 1024
"""A file with so many bytes is not merged again: an earlier release has merged it, or it has a large batch."""
_MOST_IN_MEMORY = 96 * 1024 * 1024
"""Size of the rows of one file (bytes in memory), about: 300,000 decisions, or 500,000 events."""
_FULL = "full-"
"""Begin of the name of a file that is full; the log has nothing else by which a later round could recognize it."""
_ROW_GROUP = 131_072
"""Maximum rows of a row group: a reader decodes groups in parallel, and skips those without the kind that it needs."""
_OWN_GROUP = 4_096
"""A kind with so many rows does not share its row groups with the next kind."""
_MOST_KINDS = 64
_PAGE = 4 * 1024 * 1024
"""Size of a page, and of a dictionary (bytes). Each page is compressed by itself, and JSON documents of one kind repeat
each other: pages of 1 MiB need 8 % more for decisions, and 50 % more for events."""
_LEVEL = 9
"""Of Zstandard: a quarter less than level 3, for 1 µs of CPU per row. It decompresses as quickly."""
_MOST_WRITER_VERSION = 4
_FEATURES = frozenset({"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"})
"""Of Delta: a compaction may ignore them, because it changes no data."""


class NotCompacted(WakerollError):
    """A table stays as it is; the message names the table and the reason."""


class DataFile(NamedTuple):
    """A data file of a table."""

    path: str
    """In the log: relative to the folder, and encoded like a URL."""
    size: int
    """Bytes."""
    last_ms: int
    """Newest time of its rows, or, if the log does not have it, when the file was written (epoch ms)."""

    @property
    def is_full(self) -> bool:
        """Whether the file is not merged again."""
        return self.size >= FULL_BYTES or self.path.startswith(_FULL)


def compact(folder: Place, table: Table) -> bool:
    """Merge some small files of a table into a larger one, in one commit.

    The files are consecutive ones by the time of their rows, behind the newest full file. A crash leaves at most a file
    that no version has; `clean` deletes it.

    Args:
        folder: of the table; nobody else compacts it or deletes its rows meanwhile.
        table: its declaration.

    Returns:
        Whether files were merged: then there may be more.

    Raises:
        NotCompacted: another program has enabled a feature of Delta for the table that compaction does not know, or
            has committed at the same time; or a file of the table is missing or damaged.
        DeltaError: the log of the table is damaged.
        StorageFailed, OSError: the store did not answer, or a file cannot be written.
    """
    delta = open_delta(folder)
    _refuse_features(delta, folder)
    small = small_files_of(delta, table)
    while len(small) > 1:
        number, rows = _first_rows(delta, folder, small)
        if number > 1:
            _replace(delta, folder, table, small[:number], rows, is_full=number < len(small))
            return True
        small = small[1:]
    return False


def _refuse_features(delta: DeltaTable, folder: Place) -> None:
    protocol = delta.protocol()
    unknown = sorted({*(protocol.writer_features or ())} - _FEATURES)
    if unknown or (protocol.min_writer_version > _MOST_WRITER_VERSION and protocol.writer_features is None):
        names = ", ".join(unknown) or f"writer version {protocol.min_writer_version}"
        raise NotCompacted(f"{folder} is not compacted: its protocol has {names}, which wakeroll does not know")


def data_files(delta: DeltaTable, table: Table) -> list[DataFile]:
    """Return the files of a table, ordered by the newest time of their rows."""
    actions: Any = delta.get_add_actions(flatten=True)

    def values(name: str) -> list[Any]:
        return actions.column(name).to_pylist() if name in actions.schema.names else [None] * actions.num_rows

    times = zip(values(f"max.{table.at}"), values("modification_time"), strict=True)
    last_ms = [written_ms if newest_ms is None else newest_ms for newest_ms, written_ms in times]
    columns = (values("path"), values("size_bytes"), last_ms)
    return sorted(map(DataFile._make, zip(*columns, strict=True)), key=lambda file: (file.last_ms, file.path))


def small_files_of(delta: DeltaTable, table: Table) -> Sequence[DataFile]:
    """Return the files that `compact` would merge, if there is more than one: those behind the newest full one."""
    files = data_files(delta, table)
    return files[max((number for number, file in enumerate(files, 1) if file.is_full), default=0) :]


def _first_rows(delta: DeltaTable, folder: Place, files: Sequence[DataFile]) -> tuple[int, pa.Table]:
    """Return a number of files, and the rows of these first ones: as many as a full file has."""
    schema = pa.schema(delta.schema())
    parts: list[pa.Table] = []
    size = 0
    for file in files:
        if size >= _MOST_IN_MEMORY:
            break
        part = _as(_rows_in(folder, unquote(file.path)), schema)
        parts.append(part)
        size += part.nbytes
    # Arrow would do this again for each row group.
    return len(parts), pa.concat_tables(parts).combine_chunks()


def _rows_in(folder: Place, name: str) -> pa.Table:
    body = small_files.read(folder / name)
    if body is None:
        raise NotCompacted(f"{folder} is not compacted: its file {name} is missing; run `wakeroll check`")
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as opened:
            return opened.read(use_threads=False)
    except (pa.ArrowException, OSError) as error:
        why = f"its file {name} cannot be read ({in_one_line(error)})"
        raise NotCompacted(f"{folder} is not compacted: {why}; run `wakeroll check`") from error


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a table; a file may be older than a column, which is null then."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _replace(
    delta: DeltaTable, folder: Place, table: Table, files: Sequence[DataFile], rows: pa.Table, *, is_full: bool
) -> None:
    """Commit a file with rows in place of the files that have them."""
    body = _write(rows, table)
    path = f"{_FULL if is_full else 'part-'}{uuid.uuid4()}.zstd.parquet"
    small_files.write(folder / path, body)
    at_ms = now_ms()
    options = {"partitionValues": {}, "dataChange": False}
    info = {
        "timestamp": at_ms,
        "operation": "OPTIMIZE",
        "operationParameters": {"predicate": "[]", "zOrderBy": "[]", "sortedBy": json.dumps(list(table.layout))},
        "readVersion": delta.version(),
        "isBlindAppend": False,
        "engineInfo": "wakeroll",
        "operationMetrics": {"numRemovedFiles": str(len(files)), "numAddedFiles": "1"},
    }
    added = {"path": path, "size": len(body), "modificationTime": at_ms, "stats": _statistics(rows, table), **options}
    removed = [
        {"path": file.path, "deletionTimestamp": at_ms, "extendedFileMetadata": True, "size": file.size, **options}
        for file in files
    ]
    actions = [{"commitInfo": info}, *({"remove": one} for one in removed), {"add": added}]
    version = delta.version() + 1
    text = b"\n".join(map(msgspec.json.encode, actions)) + b"\n"
    if not small_files.create(folder / "_delta_log" / f"{version:020}.json", text):
        raise NotCompacted(f"{folder} is not compacted: another program committed version {version} at the same time")
    if version % _interval(delta) == 0:
        open_delta(folder).create_checkpoint()


def _interval(delta: DeltaTable) -> int:
    """Return after how many commits a writer of the table makes a checkpoint of its log."""
    return int(delta.metadata().configuration.get("delta.checkpointInterval") or 100)


def _write(rows: pa.Table, table: Table) -> bytes:
    """Return the Parquet file of rows."""
    ordered = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in table.layout])
    numbers = set(_paths(rows.schema, pa.int64()))
    buffer = io.BytesIO()
    with pq.ParquetWriter(
        buffer,
        rows.schema,
        compression="zstd",
        compression_level=_LEVEL,
        # A dictionary of positions and times is larger than their differences.
        use_dictionary=sorted(set(_paths(rows.schema)) - numbers),
        column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        data_page_size=_PAGE,
        dictionary_pagesize_limit=_PAGE,
    ) as writer:
        for group in _row_groups(rows, table, ordered):
            writer.write_table(rows.take(group), row_group_size=len(group))
    return buffer.getvalue()


def _row_groups(rows: pa.Table, table: Table, ordered: pa.Array) -> Iterator[pa.Array]:
    """Yield the rows of each row group, by their numbers: no other row group has a part of a common kind."""
    if table is SNAPSHOTS:  # states have megabytes, and a reader needs one
        yield from (ordered.slice(number, 1) for number in range(len(ordered)))
        return
    begin, end = 0, 0
    for count in _runs(rows[table.layout[0]].take(ordered)):
        end += count
        while end - begin > _ROW_GROUP:
            yield ordered.slice(begin, _ROW_GROUP)
            begin += _ROW_GROUP
        if end - begin >= _OWN_GROUP or end == len(ordered):
            yield ordered.slice(begin, end - begin)
            begin = end


def _runs(values: pa.ChunkedArray) -> list[int]:
    """Return how often each value is repeated in sorted values; the sum alone if there are too many values."""
    ends = pc.run_end_encode(values.combine_chunks()).run_ends.to_pylist()
    if len(ends) > _MOST_KINDS:
        return [len(values)]
    return [end - begin for begin, end in pairwise([0, *ends])]


def _paths(schema: pa.Schema, of: pa.DataType | None = None) -> Iterator[str]:
    """Yield the paths in Parquet of the columns that have no lists, of one type or of any."""
    for field in schema:
        nested = list(field.type) if pa.types.is_struct(field.type) else None
        for path, its_type in (
            [(field.name, field.type)] if nested is None else [(f"{field.name}.{one.name}", one.type) for one in nested]
        ):
            if of is None or its_type == of:
                yield path


def _statistics(rows: pa.Table, table: Table) -> str:
    """Return Delta's statistics of a file: of the columns in `delta.dataSkippingStatsColumns`."""
    names = [*dict.fromkeys((*table.stream, table.position, table.at))]
    bounds = {name: pc.min_max(rows[name]).as_py() for name in names}
    return json.dumps(
        {
            "numRecords": rows.num_rows,
            "minValues": {name: bound["min"] for name, bound in bounds.items()},
            "maxValues": {name: bound["max"] for name, bound in bounds.items()},
            "nullCount": {name: rows[name].null_count for name in names},
        }
    )
