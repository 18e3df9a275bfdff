"""DuckDB's queries of the files of a Delta table."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType, VariantType


def reading(delta: DeltaTable | None, folder: Path, columns: Iterable[tuple[str, str]]) -> str:
    """Return the query of a table's rows, in the version that `delta` has.

    Args:
        delta: the table; None: it has no rows.
        folder: folder of the table.
        columns: name and DuckDB type of each column.
    """
    # The first part has no rows.  It gives every column its type, also one that was added to the table after the files
    # were written, and also if there are no files.
    rows = f"select {', '.join(f'null::{type_} as {quoted(name)}' for name, type_ in columns)} where false"
    # DuckDB takes these characters for patterns; in brackets they stand for themselves.
    exact = (re.sub(r"([\[*?])", r"[\1]", file) for file in (files_of(delta, folder) if delta is not None else ()))
    if listed := ", ".join(map(literal, exact)):
        rows += f" union all by name select * from read_parquet([{listed}], union_by_name = true)"
    return rows


def files_of(delta: DeltaTable, folder: Path) -> list[str]:
    """Return the paths of the Parquet files of a table in a folder."""
    # `file_uris` encodes spaces in the path of the folder too; in the log, only the names of files are encoded.
    return [str(folder / unquote(path)) for path in _of_files(delta, "path")]


def size_of(delta: DeltaTable) -> int:
    """Return the size of the files of a table (bytes)."""
    return sum(_of_files(delta, "size_bytes"))


def _of_files(delta: DeltaTable, name: str) -> list[Any]:
    """Return a column of the log's entries for the files of a table."""
    found: Any = delta.get_add_actions(flatten=True).column(name)
    return [value.as_py() for value in found]


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
"""Simple type in Delta -> in DuckDB; a decimal has the same name in both."""


def stored_columns(delta: DeltaTable) -> dict[str, str]:
    """Return column -> its type in DuckDB, as the table has it."""
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
