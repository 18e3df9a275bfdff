"""Arrow schemas that are derived from the declarations in `model`, and Arrow tables of declared rows."""

from collections.abc import Iterable, Sequence
from functools import cache

import pyarrow as pa  # type: ignore[import-untyped]
from msgspec import Struct, structs

from wakeroll_pipeline.ledger.column_types import Column, ListOf, Simple, Type, columns_of

_ARROW: dict[Simple, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


@cache
def arrow_schema_of(declared: type[Struct]) -> pa.Schema:
    """Return the Arrow schema of a declaration, with its nulls.

    Raises:
        TypeError: no column type fits the type of a field.
    """
    return pa.schema(_fields(columns_of(declared)))


def arrow_table(declared: type[Struct], rows: Sequence[Struct]) -> pa.Table:
    """Return rows of a declaration as an Arrow table.

    Raises:
        pyarrow.ArrowInvalid, OverflowError: a value does not fit its column.
    """
    schema = arrow_schema_of(declared)
    columns = [_array([getattr(row, field.name) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _array(values: list[object], its_type: pa.DataType) -> pa.Array:
    if pa.types.is_struct(its_type):
        values = [structs.asdict(value) if isinstance(value, Struct) else value for value in values]
    return pa.array(values, its_type)


def _fields(columns: Iterable[Column]) -> list[pa.Field]:
    return [pa.field(column.name, _type(column.type), column.is_nullable) for column in columns]


def _type(of: Type) -> pa.DataType:
    match of:
        case str():
            return _ARROW[of]
        case ListOf(item=item, has_nulls=has_nulls):
            return pa.list_(pa.field("element", _type(item), has_nulls))
        case _:
            return pa.struct(_fields(of))
