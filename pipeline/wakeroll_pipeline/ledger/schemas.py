"""Spark schemas that are derived from the declarations in `model`; no `StructType` is written by hand."""

from collections.abc import Iterable

from msgspec import Struct
from pyspark.sql import types

from wakeroll_pipeline.ledger.column_types import Column, ListOf, Simple, Type, columns_of

_SPARK: dict[Simple, types.DataType] = {
    "string": types.StringType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "double": types.DoubleType(),
    "boolean": types.BooleanType(),
    "binary": types.BinaryType(),
    "timestamp": types.TimestampType(),
}


def schema_of(declared: type[Struct]) -> types.StructType:
    """Return the Spark schema of a declaration, with descriptions as column comments.

    Raises:
        TypeError: no column type fits the type of a field.
    """
    return _struct(columns_of(declared))


def _struct(columns: Iterable[Column]) -> types.StructType:
    return types.StructType(
        [
            types.StructField(
                column.name,
                _type(column.type),
                column.is_nullable,
                {"comment": column.comment} if column.comment else {},
            )
            for column in columns
        ]
    )


def _type(of: Type) -> types.DataType:
    match of:
        case str():
            return _SPARK[of]
        case ListOf(item=item, has_nulls=has_nulls):
            return types.ArrayType(_type(item), has_nulls)
        case _:
            return _struct(of)
