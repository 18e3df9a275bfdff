"""Declared rules, checked by DuckDB on all rows of a table or view: one query counts the rows that break each rule."""

from collections.abc import Mapping, Sequence

from duckdb import DuckDBPyConnection

from wakeroll_pipeline.ledger.delta_files import literal, quoted
from wakeroll_pipeline.questions.quality.rule import SHOWN, Rule, RuleResult


def judge_rows(
    connection: DuckDBPyConnection, table: str, rules: Sequence[Rule], key: Sequence[str]
) -> list[RuleResult]:
    """Return the results of the rules about rows, with the first rows that break them.

    Args:
        connection: has the table or view.
        table: name of the table or view.
        rules: its rules.
        key: columns that identify a row.
    """
    conditions = {rule.name: _broken(rule, table) for rule in rules if not rule.is_of_type}
    counts = ", ".join(f"count(case when {condition} then 1 end)" for condition in conditions.values())
    [(rows, *broken)] = connection.sql(f"select count(*), {counts} from {table}").fetchall()
    by_name = dict(zip(conditions, broken, strict=True))
    return [
        RuleResult(
            rule,
            by_name[rule.name],
            _first_rows(connection, table, rule, conditions[rule.name], key) if by_name[rule.name] else (),
            looked_at=rows,
        )
        for rule in rules
        if rule.name in conditions
    ]


def judge_types(rules: Sequence[Rule], declared: Mapping[str, str], stored: Mapping[str, str]) -> list[RuleResult]:
    """Return the results of the rules about types of columns.

    Args:
        rules: the rules of a table.
        declared: column -> its declared type, by DuckDB's name.
        stored: column -> its type in the files; a column that the files lack is left out.
    """
    results = []
    for rule in (rule for rule in rules if rule.is_of_type):
        found = stored.get(rule.column, "no such column")
        is_wrong = found != declared[rule.column]
        results.append(RuleResult(rule, int(is_wrong), [{"found": found}] if is_wrong else ()))
    return results


def _first_rows(
    connection: DuckDBPyConnection, table: str, rule: Rule, condition: str, key: Sequence[str]
) -> list[dict[str, object]]:
    names = list(dict.fromkeys([*key, *([rule.column] if rule.column else [])]))
    # Only a null breaks a rule of a binary column or of a struct.
    found = connection.sql(
        f"select {', '.join(map(quoted, names))} from {table} where {condition} "
        f"order by {', '.join(map(quoted, key))} limit {SHOWN}"
    )
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def _broken(rule: Rule, table: str) -> str:
    """Return the SQL condition that a row breaks a rule."""
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
    raise AssertionError(f"no SQL is known for {rule.expectation}")
