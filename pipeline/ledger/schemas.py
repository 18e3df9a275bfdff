"""Spark schemas that are derived from the declarations in `model`; no `StructType` is written by hand."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct
from pyspark.sql import types

_LARGEST_INT = 2**31 - 1


def schema_of(declared: type[Struct]) -> types.StructType:
    """Return the Spark schema of a declaration, with descriptions as column comments.

    A field is nullable exactly if its type allows None.  An integer is LONG, or INT if its upper bound fits.

    Raises:
        TypeError: no column type fits the type of a field.
    """
    info = msgspec.inspect.type_info(declared)
    assert isinstance(info, msgspec.inspect.StructType)
    return types.StructType([_column(field) for field in info.fields])


def checks_of(declared: type[Struct]) -> dict[str, str]:
    """Return the CHECK constraints of a declaration: name -> SQL condition."""
    info = msgspec.inspect.type_info(declared)
    assert isinstance(info, msgspec.inspect.StructType)
    return {
        f"{field.encode_name}_at_least": f"{field.encode_name} >= {plain.ge}"
        for field in info.fields
        if isinstance(plain := plain_type(field.type), msgspec.inspect.IntType) and plain.ge is not None
    }


def plain_type(declared: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Return a declared type without its metadata and without `| None`."""
    return _unwrap(declared)[0]


def _column(field: msgspec.inspect.Field) -> types.StructField:
    plain, nullable, comment = _unwrap(field.type)
    metadata = {"comment": comment} if comment else {}
    return types.StructField(field.encode_name, _type_of(plain, field.encode_name), nullable, metadata)


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


def _type_of(plain: msgspec.inspect.Type, name: str) -> types.DataType:
    simple: dict[type[Any], types.DataType] = {
        msgspec.inspect.StrType: types.StringType(),
        msgspec.inspect.LiteralType: types.StringType(),
        msgspec.inspect.BytesType: types.BinaryType(),
        msgspec.inspect.BoolType: types.BooleanType(),
        msgspec.inspect.FloatType: types.DoubleType(),
    }
    if type(plain) in simple:
        return simple[type(plain)]
    match plain:
        case msgspec.inspect.IntType():
            fits = plain.le is not None and plain.le <= _LARGEST_INT
            return types.IntegerType() if fits else types.LongType()
        case msgspec.inspect.StructType():
            return schema_of(plain.cls)
        case msgspec.inspect.ListType():
            item, nullable, _ = _unwrap(plain.item_type)
            return types.ArrayType(_type_of(item, name), nullable)
    raise TypeError(f"no column type fits field {name} of type {plain}")
