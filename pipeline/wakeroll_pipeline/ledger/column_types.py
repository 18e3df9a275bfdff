"""Columns that are derived from the declarations in `model`, and their types in the SQL of Spark and of DuckDB."""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

Simple = Literal["string", "int", "bigint", "double", "boolean", "binary", "date", "timestamp"]
"""Name of a simple type, as in Spark's SQL."""

_LARGEST_INT = 2**31 - 1
_SIMPLE: Mapping[type[Any], Simple] = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.LiteralType: "string",
    msgspec.inspect.DictType: "string",
    msgspec.inspect.BytesType: "binary",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.FloatType: "double",
}
_IN_DUCKDB: Mapping[Simple, str] = {
    "string": "VARCHAR",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "boolean": "BOOLEAN",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}


class ListOf(NamedTuple):
    """The type of a list column."""

    item: "Type"
    has_nulls: bool


Type = Simple | ListOf | tuple["Column", ...]
"""Type of a column; a tuple of columns is a struct."""


class Column(NamedTuple):
    """A column of a table, or a field of a struct."""

    name: str
    type: Type
    is_nullable: bool
    comment: str


@cache
def columns_of(declared: type[Struct]) -> tuple[Column, ...]:
    """Return the columns of a declaration, with descriptions as comments; a struct has the first line of its docstring.

    A mapping is a string with its JSON object.
    A column is nullable exactly if the type of its field allows None.  An integer is a bigint, or an int if its upper
    bound fits.

    Raises:
        TypeError: no column type fits the type of a field.
    """
    return tuple(_column(field) for field in fields_of(declared))


def fields_of(declared: type[Struct]) -> tuple[msgspec.inspect.Field, ...]:
    """Return the fields of a declaration."""
    info = msgspec.inspect.type_info(declared)
    assert isinstance(info, msgspec.inspect.StructType)
    return info.fields


def checks_of(declared: type[Struct]) -> dict[str, str]:
    """Return the CHECK constraints of a declaration: name -> SQL condition."""
    return {
        f"{field.encode_name}_at_least": f"{field.encode_name} >= {plain.ge}"
        for field in fields_of(declared)
        if isinstance(plain := plain_type(field.type), msgspec.inspect.IntType) and plain.ge is not None
    }


def plain_type(declared: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return a declared type without its metadata and without `| None`."""
    return _unwrap(declared)[0]


def in_spark(of: Type) -> str:
    """Return a type in Spark's SQL.

    >>> in_spark(ListOf((Column("topic", "string", False, ""), Column("partition", "int", False, "")), False))
    'array<struct<topic:string,partition:int>>'
    """
    match of:
        case str():
            return of
        case ListOf(item=item):
            return f"array<{in_spark(item)}>"
        case _:
            return f"struct<{','.join(f'{field.name}:{in_spark(field.type)}' for field in of)}>"


def in_duckdb(of: Type) -> str:
    """Return a type in DuckDB's SQL.

    >>> in_duckdb(ListOf((Column("topic", "string", False, ""), Column("partition", "int", False, "")), False))
    'STRUCT("topic" VARCHAR, "partition" INTEGER)[]'
    """
    match of:
        case str():
            return _IN_DUCKDB[of]
        case ListOf(item=item):
            return f"{in_duckdb(item)}[]"
        case _:
            fields = (f'"{field.name}" {in_duckdb(field.type)}' for field in of)
            return f"STRUCT({', '.join(fields)})"


def json_in_duckdb(of: Type) -> str:
    """Return the structure that DuckDB's `from_json` expects for a type, as JSON.

    >>> json_in_duckdb((Column("epoch", "bigint", False, ""), Column("notes", ListOf("string", False), False, "")))
    '{"epoch": "BIGINT", "notes": ["VARCHAR"]}'
    """
    return json.dumps(_structure(of))


def _structure(of: Type) -> Any:
    match of:
        case str():
            return _IN_DUCKDB[of]
        case ListOf(item=item):
            return [_structure(item)]
        case _:
            return {field.name: _structure(field.type) for field in of}


def _column(field: msgspec.inspect.Field) -> Column:
    plain, is_nullable, comment = _unwrap(field.type)
    if isinstance(plain, msgspec.inspect.StructType):
        comment = comment or (plain.cls.__doc__ or "").partition("\n")[0].rstrip(".")
    return Column(field.encode_name, _type_of(plain, field.encode_name), is_nullable, comment)


def _unwrap(declared: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, bool, str]:
    """Return the plain type without metadata and `| None`, whether null is allowed, and the description."""
    comment, nullable = "", False
    for wrapper in _wrappers(declared):
        if isinstance(wrapper, msgspec.inspect.Metadata):
            comment = comment or (wrapper.extra_json_schema or {}).get("description", "")
        elif isinstance(wrapper, msgspec.inspect.UnionType):
            nullable = True
        else:
            return wrapper, nullable, comment
    raise AssertionError("a type has no innermost type")


def _wrappers(declared: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    yield declared
    if isinstance(declared, msgspec.inspect.Metadata):
        yield from _wrappers(declared.type)
    elif isinstance(declared, msgspec.inspect.UnionType):
        others = [member for member in declared.types if not isinstance(member, msgspec.inspect.NoneType)]
        if len(others) != 1:
            raise TypeError(f"a column must have one type, or one type and None; found {declared}")
        yield from _wrappers(others[0])


def _type_of(plain: msgspec.inspect.Type, name: str) -> Type:
    if type(plain) in _SIMPLE:
        return _SIMPLE[type(plain)]
    match plain:
        case msgspec.inspect.IntType():
            return "int" if plain.le is not None and plain.le <= _LARGEST_INT else "bigint"
        case msgspec.inspect.StructType():
            return columns_of(plain.cls)
        case msgspec.inspect.ListType() | msgspec.inspect.VarTupleType():
            item, has_nulls, _ = _unwrap(plain.item_type)
            return ListOf(_type_of(item, name), has_nulls)
    raise TypeError(f"no column type fits field {name} of type {plain}")
