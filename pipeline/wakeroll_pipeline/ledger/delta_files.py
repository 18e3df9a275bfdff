"""DuckDB's queries of the files of a Delta table."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from typing import Any, NamedTuple
from urllib.parse import unquote

import duckdb
import msgspec
from deltalake import DeltaTable
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType, VariantType
from msgspec import Struct

from wakeroll_model.events import UNREADABLE
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Folder, Place
from wakeroll_pipeline.storage.small_files import StorageFailed

_FIRST = (f"{0:020}.json", "_last_checkpoint")
_VERSION = re.compile(r"\d{20}\.(json|checkpoint\.)")
"""Name of a file of a Delta log with a version, or with the state of the table at a version."""

REMOTE = "wakeroll"
"""Protocol of the names of remote files in DuckDB, which `wakeroll_pipeline.ledger.remote_files` serves."""


def open_delta(folder: Folder, version: int | None = None) -> DeltaTable:
    """Return a Delta table, local or remote, at a version; None: the newest.

    Raises:
        TableNotFoundError: there is no table.
        DeltaError: there is no such version, or the log is damaged.
        StorageFailed: the store of a remote table did not answer.
    """
    place = Place.of(folder)
    location, options = place.for_deltalake()
    try:
        return DeltaTable(location, version=version, storage_options=options)
    except OSError as error:
        if place.is_local:
            raise
        raise StorageFailed(f"cannot read {place}: {in_one_line(error)}") from error


class Commit(NamedTuple):
    """A commit of a Delta table."""

    version: int
    info: Mapping[str, Any]
    """Metadata of the commit: `timestamp` (epoch ms), and the metadata of the writer under their keys."""


def commits_with(folder: Folder, version: int, key: str) -> Iterator[Commit]:
    """Yield the commits of a table with a key in their metadata, from a version back; each is one small file.

    The search ends where the log was cleaned, or after `_WITHOUT_KEY` commits without the key, which an earlier release
    has written. It does not use `deltalake`, whose `history` stops all threads of this process while it waits for a
    store.

    Raises:
        StorageFailed: the store of a remote table did not answer.
    """
    log, without = Place.of(folder) / "_delta_log", 0
    for number in range(version, -1, -1):
        text = small_files.read(log / f"{number:020}.json")
        if text is None:
            return
        info = _info_of(text)
        without = 0 if key in info else without + 1
        if without == _WITHOUT_KEY:
            return
        if key in info:
            yield Commit(number, info)


_WITHOUT_KEY = 100


def _info_of(text: bytes) -> Mapping[str, Any]:
    """Return the metadata in a file of a Delta log; empty if it has none, or is damaged."""
    for action in text.splitlines():
        try:
            if info := _decode_action(action).commitInfo:
                return info
        except UNREADABLE:
            continue
    return {}


class _Action(Struct):
    commitInfo: dict[str, Any] = {}  # noqa: N815 - the name of Delta


_decode_action = msgspec.json.Decoder(_Action).decode


@contextmanager
def connected(folder: Place) -> Iterator[duckdb.DuckDBPyConnection]:
    """Provide a connection to DuckDB that reads the files of a local or remote folder."""
    with duckdb.connect() as connection:
        if not folder.is_local:
            from wakeroll_pipeline.ledger.remote_files import register

            register(connection, folder)
        try:
            yield connection
        finally:
            release(connection)


def release(connection: duckdb.DuckDBPyConnection) -> None:
    """Free the file system of a connection; otherwise each would keep the other in memory."""
    if connection.filesystem_is_registered(REMOTE):
        connection.unregister_filesystem(REMOTE)


def is_delta(folder: Folder) -> bool:
    """Return whether there is a Delta table in a folder, local or remote: a log that has a version.

    A folder with only a log folder is not a table: a process may have died before it committed the first version.
    Spark's own check (`DeltaTable.isDeltaTable`) would accept it as a table.

    Raises:
        StorageFailed: the store of a remote folder did not answer.
    """
    # deltalake's own check would stop all threads of this process while it waits for a store.
    log = Place.of(folder) / "_delta_log"
    # A log without its first version was cleaned, so it has a checkpoint. Listing a long log takes several requests.
    return any(small_files.exists(log / name) for name in _FIRST) or any(map(_VERSION.match, small_files.names(log)))


class Period(NamedTuple):
    """A period of the times in a column; a reader that needs its rows leaves out files without such rows."""

    column: str
    from_ms: int
    to_ms: int | None
    """The end, inclusive; None: no end."""


class Written(NamedTuple):
    """A moment; a reader that needs only the rows of later appends leaves out the files that were written earlier."""

    from_ms: int
    """The moment (epoch ms), inclusive."""


Range = Mapping[str, tuple[int | None, int | None]]
"""Column -> its lowest and highest value, inclusive; None: unbounded. Rows are in a range if each of the columns is."""


class Ranges(NamedTuple):
    """Ranges of values; a reader that needs only the rows in any of them leaves out files without such rows."""

    any_of: tuple[Range, ...]


Part = Period | Written | Ranges
"""A part of the rows of a table; a reader of this part may receive other rows too."""


def reading(
    delta: DeltaTable | None, folder: Place, columns: Iterable[tuple[str, str]], part: Part | None = None
) -> str:
    """Return the query of a table's rows, in the version of `delta`.

    Args:
        delta: the table; None: it has no rows.
        folder: folder of the table.
        columns: name and DuckDB type of each column.
        part: leaves out files, as in `files_of`.
    """
    files = files_of(delta, folder, part) if delta is not None else []
    if not files:
        return f"select {', '.join(f'null::{type_} as {quoted(name)}' for name, type_ in columns)} where false"
    # With a schema, DuckDB reads the footer of a file only when a query needs the file. A file may be older than a
    # column, which is null then.
    schema = ", ".join(
        f"{literal(name)}: {{name: {literal(name)}, type: {literal(type_)}, default_value: null}}"
        for name, type_ in columns
    )
    return f"from read_parquet([{', '.join(literal(exactly(file)) for file in files)}], schema = map {{{schema}}})"


def exactly(file: str) -> str:
    """Return the name of a file for DuckDB, which reads some characters as patterns unless they are in brackets."""
    return re.sub(r"([\[*?])", r"[\1]", file)


def failing_query(columns: Iterable[tuple[str, str]], message: object) -> str:
    """Return a query that fails with a message as soon as a row of it is needed.

    Args:
        columns: name and DuckDB type of each column.
        message: becomes a part of DuckDB's error.
    """
    # A cast that fails, and not the function `error`, which is volatile: DuckDB rejects that in windows.  It stands in
    # each column too, or DuckDB could conclude from constants that a condition leaves no rows.
    failing = f"{literal(message)}::bigint"
    values = ", ".join(f"({failing})::varchar::{type_} as {quoted(name)}" for name, type_ in columns)
    return (
        f"with failing as materialized (select {values} from range(1) where ({failing}) is null) select * from failing"
    )


def files_of(delta: DeltaTable, folder: Place, part: Part | None = None) -> list[str]:
    """Return the names of the Parquet files of a table in a folder: their paths, or ``wakeroll://SIZE/KEY``.

    Args:
        delta: the table.
        folder: its folder.
        part: leaves out the files without rows of this part. For a period, the statistics in the log show them; files
            without statistics are kept. If the period has no end, the files of the last hour are kept too: they have
            the newest rows, even if the clock of these rows was set back. None: all files.
    """
    actions: Any = delta.get_add_actions(flatten=True)
    paths, sizes = (actions.column(name).to_pylist() for name in ("path", "size_bytes"))
    if part is not None:
        is_needed = _needed(actions, part)
        paths, sizes = (list(compress(values, is_needed)) for values in (paths, sizes))
    # `file_uris` encodes spaces in the path of the folder too; in the log, only the names of files are encoded.
    files = [folder / unquote(path) for path in paths]
    if folder.is_local:
        return [str(file) for file in files]
    return [f"{REMOTE}://{size}/{file.key}" for file, size in zip(files, sizes, strict=True)]


def _needed(actions: Any, part: Part) -> list[bool]:
    """Return for each file whether it may have rows of a part."""
    if isinstance(part, Written):
        return [at_ms >= part.from_ms for at_ms in actions.column("modification_time").to_pylist()]
    if isinstance(part, Ranges):
        each = [_in_range(actions, one) for one in part.any_of]
        return [any(is_in) for is_in in zip(*each, strict=True)]
    period = part
    low, high = f"min.{period.column}", f"max.{period.column}"
    if not {low, high} <= {*actions.schema.names}:
        return [True] * actions.num_rows
    written_ms = actions.column("modification_time").to_pylist()
    newest_ms = max(written_ms, default=0) - _NEWEST_MS
    return [
        (
            (last_ms is None or last_ms >= period.from_ms)
            and (first_ms is None or period.to_ms is None or first_ms <= period.to_ms)
        )
        or (period.to_ms is None and at_ms >= newest_ms)
        for first_ms, last_ms, at_ms in zip(
            actions.column(low).to_pylist(), actions.column(high).to_pylist(), written_ms, strict=True
        )
    ]


_NEWEST_MS = 3_600_000


def _in_range(actions: Any, wanted: Range) -> list[bool]:
    """Return for each file whether it may have rows in a range."""
    found = [True] * actions.num_rows
    for column, (low, high) in wanted.items():
        names = f"min.{column}", f"max.{column}"
        if {*names} <= {*actions.schema.names}:
            bounds = zip(*(actions.column(name).to_pylist() for name in names), strict=True)
            found = [
                is_in
                and (low is None or last is None or last >= low)
                and (high is None or first is None or first <= high)
                for is_in, (first, last) in zip(found, bounds, strict=True)
            ]
    return found


def bounds_of(delta: DeltaTable, column: str) -> tuple[int, int] | None:
    """Return the lowest and the highest value of a column; None without rows, or if a file has no statistics."""
    actions: Any = delta.get_add_actions(flatten=True)
    found = []
    for name, choose in ((f"min.{column}", min), (f"max.{column}", max)):
        values = actions.column(name).to_pylist() if name in actions.schema.names else [None]
        if not values or None in values:
            return None
        found.append(choose(values))
    return found[0], found[1]


def split_name(name: str) -> tuple[int, str]:
    """Return the size (bytes) and the key in a remote file's name.

    >>> split_name("wakeroll://7/a/b.parquet")
    (7, 'a/b.parquet')
    """
    size, _, key = name.removeprefix(f"{REMOTE}://").partition("/")
    return int(size), key


def size_of(delta: DeltaTable, part: Part | None = None) -> int:
    """Return the size of the files of a table (bytes).

    Args:
        delta: the table.
        part: leaves out files, as in `files_of`.
    """
    if part is None:
        return sum(sizes_of(delta))
    return sum(compress(sizes_of(delta), _needed(delta.get_add_actions(flatten=True), part)))


def number_of_rows(delta: DeltaTable, part: Part | None = None) -> int:
    """Return the number of rows in the files of a table, by the statistics in its log.

    Args:
        delta: the table; files without statistics count as empty.
        part: leaves out files, as in `files_of`.
    """
    actions: Any = delta.get_add_actions(flatten=True)
    counts = actions.column("num_records").to_pylist() if "num_records" in actions.schema.names else []
    is_needed = [True] * len(counts) if part is None else _needed(actions, part)
    return sum(count or 0 for count in compress(counts, is_needed))


def sizes_of(delta: DeltaTable) -> list[int]:
    """Return the sizes (bytes) of the files of a table, in the order of `files_of`."""
    actions: Any = delta.get_add_actions(flatten=True)
    sizes: list[int] = actions.column("size_bytes").to_pylist()
    return sizes


_TYPES = {
    "string": "VARCHAR",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "integer": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMPTZ",
    "timestamp_ntz": "TIMESTAMP",
}
"""Name of a simple type in Delta -> its name in DuckDB; a decimal has the same name in both."""


def add_comments(connection: duckdb.DuckDBPyConnection, view: str, comment: str, columns: Mapping[str, str]) -> None:
    """Add the comments of a view and of its columns."""
    text = [f"comment on view {quoted(view)} is {literal(comment)}"]
    text += [f"comment on column {quoted(view)}.{quoted(name)} is {literal(says)}" for name, says in columns.items()]
    connection.execute(";".join(text))


def stored_comments(delta: DeltaTable) -> tuple[str, dict[str, str]]:
    """Return the comment of a table, and column -> its comment; empty where there is none."""
    columns = {field.name: str(field.metadata.get("comment", "")) for field in delta.schema().fields}
    return delta.metadata().description or "", columns


def stored_columns(delta: DeltaTable) -> dict[str, str]:
    """Return column -> its type in DuckDB, for the stored columns of a table."""
    return {field.name: _type_of(field.type) for field in delta.schema().fields}


def _type_of(of: PrimitiveType | StructType | ArrayType | MapType | VariantType) -> str:
    match of:
        case StructType():
            return f"STRUCT({', '.join(f'{quoted(field.name)} {_type_of(field.type)}' for field in of.fields)})"
        case ArrayType():
            return f"{_type_of(of.element_type)}[]"
        case MapType():
            return f"MAP({_type_of(of.key_type)}, {_type_of(of.value_type)})"
        case VariantType():
            return "VARIANT"
        case _:
            return _TYPES.get(of.type, of.type)


def literal(value: object) -> str:
    """Return a value as a string literal of SQL."""
    escaped = str(value).replace("'", "''")
    return f"'{escaped}'"


def quoted(name: str) -> str:
    """Return a name as an identifier of DuckDB's SQL."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
