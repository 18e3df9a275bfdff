"""Rewritten files of a table: some data files are replaced by others in one commit, which this module writes itself.

Neither Spark nor deltalake is used to write, because both choose files by their size: they would merge rows of this
minute into a file of last month, and a query of this minute would open both (decision 33). Rows are sorted by
`Table.layout`, in the encodings of `_encode`. The reasons and the figures are in decision 34.
"""

import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
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
"""Size (bytes) from which on a file is not merged again: an earlier release has merged it, or it has a large batch."""
MOST_IN_MEMORY = 96 * 1024 * 1024
"""Approximate size of the rows of one file (bytes in memory): 300,000 decisions, or 500,000 events."""
_FULL = "full-"
"""Prefix of the name of a full file, by which later rounds recognize it; the log has no other place for that."""
_ROW_GROUP = 131_072
"""Maximum number of rows of a row group: a reader decodes groups in parallel, and skips those without the kind that it
needs."""
_OWN_GROUP = 4_096
"""Number of rows from which on a kind does not share its row groups with the next kind."""
_MOST_KINDS = 64
_PAGE = 4 * 1024 * 1024
"""Size of a page, and of a dictionary (bytes). Each page is compressed by itself, and JSON documents of one kind repeat
each other: pages of 1 MiB need 8 % more for decisions, and 50 % more for events."""
_LEVEL = 9
"""Level of Zstandard: files are a quarter smaller than with level 3, for 1 µs of CPU per row, and decompress as
quickly."""
_MOST_WRITER_VERSION = 4
_FEATURES = frozenset({"appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"})
"""Features of Delta that need no further support here, because existing files and rows are only rewritten."""


class NotRewritten(WakerollError):
    """A table was not rewritten; the message names the table and the reason."""


class DataFile(NamedTuple):
    """A data file of a table."""

    path: str
    """Path in the log: relative to the folder, and encoded like a URL."""
    size: int
    """Size of the file (bytes)."""
    last_ms: int
    """Newest time of its rows, or, if the log does not have it, when the file was written (epoch ms)."""
    first_ms: int = 0
    """Earliest time of its rows (epoch ms); 0 if the log does not have it."""

    @property
    def is_full(self) -> bool:
        """Whether the file is not merged again."""
        return self.size >= FULL_BYTES or self.path.startswith(_FULL)


class Rewrite:
    """A new version of a table, with other files in place of some. No other process may rewrite the table meanwhile."""

    def __init__(self, folder: Place, table: Table) -> None:
        """Open the table.

        Raises:
            NotRewritten: another program has enabled a feature of Delta for the table that is not supported here.
            DeltaError: the log of the table is damaged.
            StorageFailed: the store did not answer.
        """
        self.delta = open_delta(folder)
        self._folder, self._table = folder, table
        self._removed: list[DataFile] = []
        self._added: list[dict[str, Any]] = []
        self._refuse_features()

    def _refuse_features(self) -> None:
        protocol = self.delta.protocol()
        unknown = sorted({*(protocol.writer_features or ())} - _FEATURES)
        if unknown or (protocol.min_writer_version > _MOST_WRITER_VERSION and protocol.writer_features is None):
            names = ", ".join(unknown) or f"writer version {protocol.min_writer_version}"
            raise NotRewritten(f"{self._folder} stays as it is: its protocol has {names}, which wakeroll does not know")

    def rows_in(self, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a file, with these columns of the table or with all; a column that the file lacks is null.

        Raises:
            NotRewritten: the file is missing or damaged.
            StorageFailed: the store did not answer.
        """
        name = unquote(file.path)
        body = small_files.read(self._folder / name)
        if body is None:
            raise NotRewritten(f"{self._folder} stays as it is: its file {name} is missing; run `wakeroll check`")
        try:
            with pq.ParquetFile(pa.BufferReader(body)) as opened:
                rows = opened.read(use_threads=False, columns=columns)
        except (pa.ArrowException, OSError) as error:
            why = f"its file {name} cannot be read ({in_one_line(error)})"
            raise NotRewritten(f"{self._folder} stays as it is: {why}; run `wakeroll check`") from error
        schema = pa.schema(self.delta.schema())
        return _as(rows, schema if columns is None else pa.schema([schema.field(name) for name in columns]))

    def remove(self, files: Sequence[DataFile]) -> None:
        """Leave out files."""
        self._removed += files

    def add(self, rows: pa.Table, *, is_full: bool) -> None:
        """Write a file with rows; `is_full`: it is not merged again.

        Raises:
            StorageFailed, OSError: it cannot be written.
        """
        body = _encode(rows, self._table)
        path = f"{_FULL if is_full else 'part-'}{uuid.uuid4()}.zstd.parquet"
        small_files.write(self._folder / path, body)
        self._added.append({"path": path, "size": len(body), "stats": _statistics(rows, self._table)})

    def commit(self, operation: str, parameters: Mapping[str, str], *, changes_data: bool) -> None:
        """Commit the new version. After a crash before that, `delete_expired` deletes the files that were written.

        Args:
            operation: name of the operation in the log, as in Delta's own writers.
            parameters: parameters of the operation, for the log.
            changes_data: whether the rows of the table change.

        Raises:
            NotRewritten: another program has committed at the same time.
            StorageFailed, OSError: as `add`.
        """
        at_ms = now_ms()
        info = {
            "timestamp": at_ms,
            "operation": operation,
            "operationParameters": parameters,
            "readVersion": self.delta.version(),
            "isBlindAppend": False,
            "engineInfo": "wakeroll",
            "operationMetrics": {
                "numRemovedFiles": str(len(self._removed)),
                "numAddedFiles": str(len(self._added)),
            },
        }
        options = {"partitionValues": {}, "dataChange": changes_data}
        removed = [
            {"path": file.path, "deletionTimestamp": at_ms, "extendedFileMetadata": True, "size": file.size, **options}
            for file in self._removed
        ]
        added = [{**one, "modificationTime": at_ms, **options} for one in self._added]
        actions = [{"commitInfo": info}, *({"remove": one} for one in removed), *({"add": one} for one in added)]
        version = self.delta.version() + 1
        text = b"\n".join(map(msgspec.json.encode, actions)) + b"\n"
        if not small_files.create(self._folder / "_delta_log" / f"{version:020}.json", text):
            other = f"another program committed version {version} at the same time"
            raise NotRewritten(f"{self._folder} stays as it is: {other}")
        if version % _interval(self.delta) == 0:
            open_delta(self._folder).create_checkpoint()


def data_files(delta: DeltaTable, table: Table) -> list[DataFile]:
    """Return the files of a table, ordered by the newest time of their rows."""
    actions: Any = delta.get_add_actions(flatten=True)

    def values(name: str) -> list[Any]:
        return actions.column(name).to_pylist() if name in actions.schema.names else [None] * actions.num_rows

    times = zip(values(f"max.{table.at}"), values("modification_time"), strict=True)
    last_ms = [written_ms if newest_ms is None else newest_ms for newest_ms, written_ms in times]
    first_ms = [at_ms or 0 for at_ms in values(f"min.{table.at}")]
    columns = (values("path"), values("size_bytes"), last_ms, first_ms)
    return sorted(map(DataFile._make, zip(*columns, strict=True)), key=lambda file: (file.last_ms, file.path))


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of a table; a file may be older than a column, which is null then."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _interval(delta: DeltaTable) -> int:
    """Return the number of commits after which a writer of the table makes a checkpoint of its log."""
    return int(delta.metadata().configuration.get("delta.checkpointInterval") or 100)


def _encode(rows: pa.Table, table: Table) -> bytes:
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
    """Yield the numbers of the rows of each row group; a frequent kind has row groups of its own."""
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
    """Return the number of occurrences of each value in sorted values; only the sum if there are too many values."""
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
