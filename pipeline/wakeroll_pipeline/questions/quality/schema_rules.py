"""Rules that follow from the declarations in `model`: types, nulls, bounds, words, patterns, keys."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from wakeroll_model.decisions import Fenced, Handover, Membership
from wakeroll_model.rows import DECIDED, TABLES, AssignmentRow, Table
from wakeroll_pipeline.ledger.column_types import (
    Column,
    ListOf,
    Simple,
    Type,
    columns_of,
    fields_of,
    in_spark,
    plain_type,
)
from wakeroll_pipeline.ledger.view_queries import KINDS
from wakeroll_pipeline.questions.quality.rule import Rule

FORMER_WORDS: Mapping[type[Struct], Mapping[str, Mapping[str, str]]] = {
    Membership: {"change": {"replaced": "resubscribed"}},
    Handover: {"how": {"replaced": "removed"}},
    AssignmentRow: {"how": {"replaced": "removed"}},
    Fenced: {"reason": {"replaced": "duplicate"}},
}
"""Declaration -> field -> values that an earlier version wrote, and older rows still hold -> a value of this version of
which the model demands nothing more."""

_TYPE_NAMES: Mapping[Simple, str] = {
    "string": "StringType",
    "int": "IntegerType",
    "bigint": "LongType",
    "double": "DoubleType",
    "boolean": "BooleanType",
    "binary": "BinaryType",
    "timestamp": "TimestampType",
}


def declared_rules() -> Mapping[str, Sequence[Rule]]:
    """Return suite -> rules, for each table and for each view that shows one kind of decision."""
    tables = {table.name: list(_of_table(table)) for table in TABLES.values()}
    views = {name: [*_of_rows(name, declared), _key(name, DECIDED)] for name, declared in KINDS.items()}
    return tables | views


def _of_table(table: Table) -> Iterator[Rule]:
    for column in columns_of(table.row):
        yield _rule(
            *(table.name, column, "type", f"is a {in_spark(column.type)}", "ExpectColumnValuesToBeOfType"),
            type_=_type_name(column.type),
        )
    yield from _of_rows(table.name, table.row)
    yield _key(table.name, table.key)


def _of_rows(suite: str, declared: type[Struct]) -> Iterator[Rule]:
    """Yield the rules that a declaration implies for the values of its columns."""
    for column, field in zip(columns_of(declared), fields_of(declared), strict=True):
        if not column.is_nullable:
            yield _rule(suite, column, "null", "is never null", "ExpectColumnValuesToNotBeNull")
        match plain_type(field.type):
            # An upper bound only states that the number fits its type.
            case msgspec.inspect.IntType(ge=least) if least is not None:
                says = f"is at least {least}"
                yield _rule(suite, column, "bounds", says, "ExpectColumnValuesToBeBetween", min_value=least)
            case msgspec.inspect.StrType(pattern=pattern) if pattern is not None:
                yield _rule(
                    suite, column, "pattern", f"matches {pattern}", "ExpectColumnValuesToMatchRegex", regex=pattern
                )
            case msgspec.inspect.StrType(min_length=least, max_length=most) if (least, most) != (None, None):
                says = f"has {least or 0} to {'any number of' if most is None else most} characters"
                lengths = {"min_value": least, "max_value": most}
                yield _rule(suite, column, "length", says, "ExpectColumnValueLengthsToBeBetween", **lengths)
            case msgspec.inspect.LiteralType(values=words):
                known = list(dict.fromkeys([*words, *FORMER_WORDS.get(declared, {}).get(column.name, ())]))
                says = f"is one of {', '.join(map(str, known))}"
                yield _rule(suite, column, "words", says, "ExpectColumnValuesToBeInSet", value_set=known)


def _rule(suite: str, column: Column, what: str, says: str, expectation: str, **arguments: Any) -> Rule:
    name = f"{suite}.{column.name}.{what}"
    return Rule(suite, name, f"{column.name} {says}", expectation, {"column": column.name, **arguments})


def _type_name(of: Type) -> str:
    """Return the name of a type in Spark, which the suites use for both engines."""
    if isinstance(of, str):
        return _TYPE_NAMES[of]
    return "ArrayType" if isinstance(of, ListOf) else "StructType"


def _key(suite: str, columns: Sequence[str]) -> Rule:
    says = f"no two rows have the same {', '.join(columns)}"
    return Rule(suite, f"{suite}.key", says, "ExpectCompoundColumnsToBeUnique", {"column_list": list(columns)})
