"""One query of a user, answered by DuckDB."""

import re
from collections.abc import Sequence

import duckdb

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.output import Answer, plain
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger

_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_DESCRIBE = re.compile(r"\s*(?:describe|desc)\s+(\w+)\s*;?\s*", re.IGNORECASE)
_COLUMNS = """
select column_name as col_name, lower(data_type) as data_type, comment
from duckdb_columns()
where table_name = $name
order by column_index
"""


def ask_duckdb(ledger: DuckLedger, question: str, limit: int, known: Sequence[str]) -> Answer:
    """Run one SQL statement, and return its rows.

    Args:
        ledger: the open ledger.
        question: one statement of DuckDB's SQL.
        limit: maximum number of rows to return.
        known: names of the existing tables and views, for the error about an unknown one.

    Raises:
        InvalidUsage: the statement is not a query, or DuckDB rejects it; the message gives the reason.
        UnreadableTable: it reads a table that cannot be read.
    """
    described = _DESCRIBE.fullmatch(question)
    try:
        if described and described[1].lower() in known:
            found = ledger.connection.execute(_COLUMNS, {"name": described[1].lower()})
        else:
            query = _query_in(question)
            ledger.narrow(query.query)
            found = ledger.connection.execute(query)
        names = [column[0] for column in found.description or ()]
        rows = found.fetchmany(limit + 1)
    except duckdb.Error as error:
        if (damage := ledger.damage_behind(error)) is not None:
            raise damage from error
        raise InvalidUsage(_why(error, known)) from error
    return Answer(names, [tuple(map(plain, row)) for row in rows[:limit]], len(rows) > limit)


def _query_in(question: str) -> duckdb.Statement:
    """Return the statement; nothing is executed.

    Raises:
        InvalidUsage: it is not a single statement that only reads.
    """
    statements = duckdb.extract_statements(question)
    if len(statements) != 1:
        raise InvalidUsage(
            f"{len(statements)} statements are given; `sql` accepts one query, describe, show or explain"
        )
    [statement] = statements
    if statement.type not in _READS:
        raise InvalidUsage(
            f"`sql` only reads; it accepts a query, describe, show or explain, not {question.split()[0]!r} ..."
        )
    return statement


def _why(error: duckdb.Error, known: Sequence[str]) -> str:
    """Return DuckDB's error as one sentence with the place of the mistake."""
    text = str(error)
    unknown = re.match(r"Catalog Error: Table with name \"?([^\s\"]+)\"? does not exist", text)
    if unknown:
        return f"no table or view {unknown[1]!r}; it must be one of: {', '.join(sorted(known))}"
    reason, _, marked = text.partition("\n\nLINE ")
    reason = " ".join(reason.split()).rstrip(".")
    place = re.match(r"(\d+): .*\n( *)\^", marked)
    if place is None:
        return f"DuckDB rejects the query: {reason}"
    column = len(place[2]) - len(f"LINE {place[1]}: ") + 1
    return f"DuckDB rejects the query: {reason} (line {place[1]}, column {column})"
