"""Rules that follow from the declarations in `model`: types, nulls, bounds, words, patterns, keys.

A rule is left out if other rules find all of its violations.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from wakeroll_model.decisions import Fenced, Handover, Membership
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, DIVERGENCES, OFFSETS, TABLES, AssignmentRow, Table
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
from wakeroll_pipeline.questions.quality.rule import Rule

FORMER_WORDS: Mapping[type[Struct], Mapping[str, Mapping[str, str]]] = {
    Membership: {"change": {"replaced": "resubscribed"}},
    Handover: {"how": {"replaced": "removed"}},
    AssignmentRow: {"how": {"replaced": "removed"}},
    Fenced: {"reason": {"replaced": "duplicate"}},
}
"""Declaration -> field -> value that only rows of an earlier version have -> value of this version by whose rules such
rows are checked."""

_FOUND_OTHERWISE = (
    # By `decisions.json`, which reads the JSON of each row, and `decisions.header`, which compares it with the columns.
    *(f"{DECISIONS.name}.{column}" for column in ("shard", "seq", "kind", "at_ms", "cause", "json")),
    # By `decisions.derived`: no decision has no shard.
    f"{ASSIGNMENTS.name}.shard.null",
    f"{OFFSETS.name}.shard.null",
    # By `assignments.epochs`: the epoch of a group begins at 0.
    f"{ASSIGNMENTS.name}.epoch.bounds",
    # By `divergences.none`, which each row breaks.
    f"{DIVERGENCES.name}.",
)
"""Name prefixes of rules for values of columns that are not needed, because other rules find the same violations."""

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
    """Return suite -> rules, for each table."""
    return {table.name: list(_of_table(table)) for table in TABLES.values()}


def _of_table(table: Table) -> Iterator[Rule]:
    for column in columns_of(table.row):
        yield _rule(
            *(table.name, column, "type", f"is a {in_spark(column.type)}", "ExpectColumnValuesToBeOfType"),
            type_=_type_name(column.type),
        )
    of_values = (*rules_of_values(table.name, table.row), _key(table.name, table.key))
    yield from (rule for rule in of_values if not rule.name.startswith(_FOUND_OTHERWISE))


def rules_of_values(suite: str, declared: type[Struct]) -> Iterator[Rule]:
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
