"""Rows of a table or view that break a declared rule, found by DuckDB, as a pandas frame for Great Expectations.

Only these rows leave DuckDB, so that the memory of a check does not grow with the ledger.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
from duckdb import DuckDBPyConnection, connect

from wakeroll_pipeline.ledger.delta_files import literal, quoted
from wakeroll_pipeline.questions.quality.rule import Rule

KEPT = 100
"""Maximum number of keys per combination of broken rules whose rows are in the frame; all rows are counted."""

_IN_PANDAS = {pa.int64(): pd.Int64Dtype(), pa.int32(): pd.Int32Dtype()}


def suspects(
    connection: DuckDBPyConnection,
    table: str,
    rules: Sequence[Rule],
    key: Sequence[str],
    types: Mapping[str, str] | None = None,
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Return the rows that break one of the rules, and rule -> number of rows that break it.

    Args:
        connection: has the table or view.
        table: name of the table or view.
        rules: its rules.
        key: columns that identify a row.
        types: column -> its type in the files, in DuckDB's words; None: the types that the view has.
    """
    conditions = {rule.name: broken for rule in rules if (broken := _broken(rule, table)) is not None}
    flags = [f"coalesce({condition}, false)" for condition in conditions.values()]
    columns = ", ".join(_shown(name, type_) for name, type_ in (types or _types(connection, table)).items())
    keys = ", ".join(map(quoted, key))
    found = connection.sql(
        f"select {columns} from {table} where {' or '.join(flags)} "
        f"qualify dense_rank() over (partition by {', '.join(flags)} order by {keys}) <= {KEPT}"
    ).to_arrow_table()
    counts: Sequence[int] = [0] * len(flags)
    if found.num_rows:
        sums = ", ".join(f"count(case when {flag} then 1 end)" for flag in flags)
        [counts] = connection.sql(f"select {sums} from {table}").fetchall()
    return found.to_pandas(types_mapper=_pandas_type), dict(zip(conditions, counts, strict=True))


def frame_of_types(types: Mapping[str, str]) -> pd.DataFrame:
    """Return a frame without rows; its columns have types that are named in DuckDB's words."""
    columns = ", ".join(f"null::{type_} as {quoted(name)}" for name, type_ in types.items())
    with connect() as connection:
        found = connection.sql(f"select {columns} where false").to_arrow_table()
    frame: pd.DataFrame = found.to_pandas(types_mapper=_pandas_type)
    return frame


def _broken(rule: Rule, table: str) -> str | None:
    """Return the SQL condition that a row breaks a rule; None for the type of a column, which has no rows."""
    column, given = quoted(rule.column), rule.arguments
    match rule.expectation:
        case "ExpectColumnValuesToNotBeNull":
            return f"{column} is null"
        case "ExpectColumnValuesToBeBetween":
            return f"{column} < {given['min_value']}"
        case "ExpectColumnValuesToMatchRegex":
            # Python writes \Z for the end of the text, DuckDB \z.
            pattern = given["regex"].replace(r"\Z", r"\z")
            return f"not regexp_matches({column}, {literal(pattern)})"
        case "ExpectColumnValueLengthsToBeBetween":
            least, most = given["min_value"] or 0, given["max_value"]
            return f"length({column}) < {least}" + ("" if most is None else f" or length({column}) > {most}")
        case "ExpectColumnValuesToBeInSet":
            return f"{column} not in ({', '.join(map(literal, given['value_set']))})"
        case "ExpectCompoundColumnsToBeUnique":
            names = ", ".join(map(quoted, given["column_list"]))
            return f"({names}) in (select ({names}) from {table} group by {names} having count(*) > 1)"
        case "ExpectColumnValuesToBeOfType":
            return None
    raise AssertionError(f"no SQL is known for {rule.expectation}")


def _types(connection: DuckDBPyConnection, table: str) -> dict[str, str]:
    """Return column -> type."""
    return {row[0]: row[1] for row in connection.sql(f"describe {table}").fetchall()}


def _shown(name: str, type_: str) -> str:
    # Rules of binary columns are about their type and about null, and one value may have megabytes.
    column = quoted(name)
    value = f"case when {column} is not null then ''::blob end" if type_ == "BLOB" else f"cast({column} as {type_})"
    return f"{value} as {column}"


def _pandas_type(of: Any) -> Any:
    """Return the pandas type for an Arrow type: one that a column without rows has too."""
    if pa.types.is_string(of) or pa.types.is_large_string(of) or pa.types.is_string_view(of):
        return pd.StringDtype("python")
    return _IN_PANDAS.get(of, pd.ArrowDtype(of))
