"""The reasons why a table of the ledger cannot be read: a damaged file, a missing right, or another table in its place.

Each opening compares the columns, and the sizes of local files, with the Delta log. The content of the files is checked
only after an engine has failed: then the files are decoded one by one until one fails.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import duckdb
import msgspec
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from wakeroll_model.events import UNREADABLE
from wakeroll_model.rows import RECORDED, TABLES, Table
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.ledger.delta_files import (
    connected,
    exactly,
    files_of,
    is_delta,
    literal,
    open_delta,
    sizes_of,
    stored_columns,
)
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Place

_COMMIT = re.compile(r"(\d{20})\.json")
_OF_FILES = (
    duckdb.IOException,
    duckdb.InvalidInputException,
    duckdb.InternalException,
    duckdb.FatalException,
    duckdb.SerializationException,
    duckdb.OutOfMemoryException,
)
"""Errors of DuckDB that a damaged file may cause; some other errors have the base class itself."""
_SHOWN = 3
"""Maximum number of columns that a sentence names."""


def unreadable(name: str, what: str, remedy: str) -> UnreadableTable:
    """Return the error of a table: its name, the damage, and the remedy."""
    error = UnreadableTable(f"cannot read table {name!r}: {what}; {remedy}")
    error.table = name
    return error


def _damaged(folder: Place, what: str) -> UnreadableTable:
    """Return the error of a table or mart with a lost or damaged file."""
    return _of_damage(folder.name, what, remedy_for(folder))


def _of_damage(name: str, what: str, remedy: str) -> UnreadableTable:
    error = unreadable(name, what, remedy)
    error.damage = f"cannot read table {name!r}: {what}"
    return error


def remedy_for(folder: Place) -> str:
    """Return the remedy for a lost or damaged file in the folder of a table or mart, as a part of a sentence."""
    back = "put it back from a copy of the tables"
    if folder.name in _RECORDED:
        return f"{back}, or stop `run`, move the folder of the table away and {_AGAIN}"
    if folder.name in TABLES:
        return (
            f"{back}, or stop `run` and move the folder of the table away: the next `run` creates it without its rows"
        )
    return f"{back}, or delete {folder} and run `wakeroll marts`, which builds it again"


_RECORDED = {table.name for table in RECORDED}
_AGAIN = "run `wakeroll restore`: the next `run` writes it again from the records that Kafka still has"


def missing_table(warehouse: Place, name: str) -> UnreadableTable | None:
    """Return the error of a missing table in a warehouse with other tables; None without others: none was lost.

    Raises:
        UnreadableTable: this user may not read the folder of the tables.
    """
    if warehouse.is_local:
        try:
            next(warehouse.path.iterdir(), None)
        except PermissionError as error:
            raise denied(error) from error
        except OSError:
            return None
    others = [other for other in TABLES if other != name and is_delta(warehouse / other)]
    if not others:
        return None
    folder = warehouse / name
    lost = folder / "_delta_log" if small_files.exists(folder) else folder
    again = f", or {_AGAIN}" if name in _RECORDED else "; the next `run` creates an empty one"
    what = f"{lost} is missing, although the table {others[0]!r} is there"
    return _of_damage(name, what, f"put it back from a copy of the tables{again}")


def denied(error: OSError) -> UnreadableTable:
    """Return the error of a file or folder that this user may not read."""
    return UnreadableTable(f"cannot read {error.filename}: {error.strerror}; give this user the right to read it")


def of_log(folder: Place, error: BaseException) -> UnreadableTable:
    """Return the error of a table whose Delta log cannot be read: the missing or damaged file, or else the reason."""
    reason = in_one_line(error)
    if "Permission denied" in reason:
        return unreadable(folder.name, reason, "give this user the right to read it")
    what = _lost_commit(folder) or _damaged_log_file(folder) or f"its log {folder / '_delta_log'} is damaged ({reason})"
    return _damaged(folder, what)


def problem_in(table: Table, delta: DeltaTable, folder: Place) -> UnreadableTable | None:
    """Return why a table cannot be the ledger's, or lacks files, as far as its log and the sizes of files show it.

    Args:
        table: its declaration.
        delta: the table in the version that is read.
        folder: folder of the table.

    Raises:
        DeltaError: the log is damaged.
    """
    if conflict := _conflict(table, delta):
        return unreadable(
            table.name,
            f"{folder} has {conflict}",
            "put the table of this deployment there, or name its folder with --home",
        )
    return lost_file(delta, folder)


def lost_file(delta: DeltaTable, folder: Place) -> UnreadableTable | None:
    """Return the error of the first file of a local table that is missing, or has another size than in the log."""
    if not folder.is_local:
        return None
    if lost := _lost_commit(folder):
        return _damaged(folder, lost)
    for file, size in zip(files_of(delta, folder), sizes_of(delta), strict=True):
        try:
            found = Path(file).stat()
        except PermissionError as error:
            return denied(error)
        except OSError:
            return _damaged(folder, f"the file {file} is missing")
        if found.st_size != size:
            what = f"the file {file} has {found.st_size} bytes, but was written with {size}"
            return _damaged(folder, what)
    return None


def damage_behind(
    error: BaseException, warehouse: Place, versions: Mapping[str, int] | None = None
) -> UnreadableTable | None:
    """Return the damage that made an engine fail; None if every file of every table can be read.

    Args:
        error: the error of the engine. The tables that its message names are checked first.
        warehouse: folder of the tables; the marts in its folder `marts` are checked too.
        versions: table -> Delta version that was read; None: the newest.
    """
    named = str(error)
    folders = [warehouse / name for name in TABLES]
    try:
        folders += [warehouse / "marts" / name for name in small_files.names(warehouse / "marts")]
        for folder in sorted(folders, key=lambda one: f"{one}/" not in named):
            if is_delta(folder) and (found := damage_in(folder, (versions or {}).get(folder.name))):
                return found
    except PermissionError as denial:
        return denied(denial)
    return None


def is_of_files(error: duckdb.Error) -> bool:
    """Return whether an error of DuckDB may come from a damaged file, and not only from a query."""
    return type(error) is duckdb.Error or isinstance(error, _OF_FILES)


def damage_in(folder: Place, version: int | None) -> UnreadableTable | None:
    """Return the damage of a table or mart at a version (None: the newest); None if each value of it can be read."""
    try:
        delta = open_delta(folder, version)
        table = TABLES.get(folder.name)
        if found := lost_file(delta, folder) if table is None else problem_in(table, delta, folder):
            return found
        files = files_of(delta, folder)
    except (DeltaError, OSError) as error:
        return of_log(folder, error)
    for file in files:
        if why := _why_undecodable(file, folder):
            if "Permission denied" in why:
                return unreadable(folder.name, f"no right to read the file {file}", "give it to this user")
            return _damaged(folder, f"the file {file} is damaged ({why})")
    return None


def _why_undecodable(file: str, folder: Place) -> str | None:
    """Return the reason why a Parquet file cannot be decoded; None if each value in it can."""
    with connected(folder) as connection:
        try:
            query = f"select bit_xor(hash(rows)) from read_parquet([{literal(exactly(file))}]) as rows"
            connection.execute(query).fetchall()
        except duckdb.Error as error:
            reason, *_ = str(error).splitlines()
            return reason.replace(file, folder.name).strip()
    return None


def _conflict(table: Table, delta: DeltaTable) -> str | None:
    """Return the conflict of a table's columns with its declaration; None if there is none.

    A column that may be null can be missing: `run` of this release has not added it yet.  Further columns are those of
    a newer release.
    """
    stored, columns = stored_columns(delta), columns_of(table.row)
    if lacking := [column.name for column in columns if not column.is_nullable and column.name not in stored]:
        has = f"; its columns are {_first(list(stored))}" if len(lacking) > _SHOWN else ""
        return f"no column {_first(lacking)}{has}"
    wrong = [
        f"{column.name} of type {stored[column.name]} instead of {in_duckdb(column.type)}"
        for column in columns
        if column.name in stored and stored[column.name] != in_duckdb(column.type)
    ]
    return f"the column {_first(wrong)}" if wrong else None


def _first(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def _lost_commit(folder: Place) -> str | None:
    """Return the commit that a log lacks after its newest checkpoint; deltalake accepts any first commit."""
    log = folder / "_delta_log"
    names = small_files.names(log)
    versions = sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name)))
    checkpoint = max((int(name[:20]) for name in names if ".checkpoint." in name and name[:20].isdigit()), default=-1)
    needed = checkpoint + 1
    for version in versions:
        if version > needed:
            return f"the commit {log / f'{needed:020}.json'} is missing, and no checkpoint contains it"
        needed = max(needed, version + 1)
    return None


def _damaged_log_file(folder: Place) -> str | None:
    """Return the file of a log that cannot be decoded."""
    log = folder / "_delta_log"
    for name in small_files.names(log):
        if _COMMIT.fullmatch(name):
            try:
                msgspec.json.Decoder().decode_lines(small_files.read(log / name) or b"")
            except UNREADABLE as error:
                return f"the commit {log / name} is damaged ({error})"
        elif name.endswith(".parquet") and folder.is_local and (why := _why_undecodable(str(log / name), folder)):
            return f"the checkpoint {log / name} is damaged ({why})"
    return None
