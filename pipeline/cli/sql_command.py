"""The `sql` command: read-only Spark SQL on the tables, views and marts of a home."""

import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from model.rows import TABLES
from pipeline.cli.open_ledger import ledger
from pipeline.cli.options import ConfigFile, Home, TablesAt, settings_of
from pipeline.cli.output import Answer, Output, plain, write_csv, write_json, write_table
from wakeroll.errors import InvalidUsage
from wakeroll.reset import time_of

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

# Messages go to standard error, because standard output may be redirected to a file of rows.
aside = Output(stderr=True, highlight=False, soft_wrap=True)

Question = Annotated[
    str | None, typer.Argument(metavar="[QUERY]", help="One SQL statement; - reads it from standard input.")
]
File = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="File that holds the statement, instead of QUERY.")
]
Format = Annotated[
    Literal["table", "csv", "json"],
    typer.Option("--format", help="Output format of the rows; json writes one object per line."),
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=10_000_000, help="Maximum number of rows to show.")
]
Version = Annotated[
    str | None,
    typer.Option(
        "--version",
        metavar="TABLE=N",
        help="Read TABLE at Delta version N, and the other tables as of the same moment; default: newest.",
    ),
]


def sql(
    question: Question = None,
    file: File = None,
    format: Format = "table",  # noqa: A002 - the option's name
    limit: Limit = 1_000,
    version: Version = None,
    at: TablesAt = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Query the tables, the views, and the marts that `wakeroll marts` has built, in Spark SQL; read-only.

    [dim]wakeroll sql "select * from groups"[/]

    [dim]wakeroll sql "describe assignments"[/]

    [dim]wakeroll sql --file question.sql --format csv > answer.csv[/]

    [dim]wakeroll sql "select count(*) from offsets" --version offsets=3[/]

    [dim]wakeroll sql "select * from current_assignments" --at 2026-07-01T03:00:00Z[/]

    Times are UTC.  The marts are not available with --version or --at.
    """
    asked = _question(question, file)
    if version is not None and at is not None:
        raise InvalidUsage(
            "--version and --at exclude each other: --version selects by one table, --at by time; use only one of them"
        )
    then = None if version is None else _version(version)
    at_ms = None if at is None else int(time_of(at))
    settings = settings_of(config, home=home)
    with ledger(settings, aside, version=then, at_ms=at_ms) as spark:
        from pipeline.ledger.tables import views
        from pipeline.questions.marts import open_marts

        marts = open_marts(spark, settings.warehouse) if (then, at_ms) == (None, None) else []
        known = [*TABLES, *(name for name, _ in views()), *marts]
        answer = ask(spark, asked, limit, known)
    {"table": write_table, "csv": write_csv, "json": write_json}[format](answer)
    if answer.has_more:
        aside.print(f"wakeroll: these are the first {limit} rows, and there are more; --limit N shows N rows")


def ask(spark: "SparkSession", question: str, limit: int, known: list[str]) -> Answer:
    """Run one SQL statement, and return its rows.

    Args:
        spark: session with the tables and views.
        question: one statement of Spark SQL.
        limit: maximum number of rows to return.
        known: names of the existing tables and views, for the error about an unknown one.

    Raises:
        InvalidUsage: the statement is no query, or Spark rejects it; the message gives the reason.
    """
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # PySpark would log the plan and a stack trace of every failed statement; the error sentence is enough.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    try:
        _ensure_it_reads(spark, question)
        found = spark.sql(question).limit(limit + 1).toArrow()
    except PySparkException as error:
        raise InvalidUsage(_why(error, known)) from error
    columns = [[plain(value) for value in column.to_pylist(maps_as_pydicts="lossy")] for column in found.columns]
    rows = list(zip(*columns, strict=True))
    return Answer(found.column_names, rows[:limit], len(rows) > limit)


def _ensure_it_reads(spark: "SparkSession", question: str) -> None:
    """Reject a statement that is no query before `spark.sql` runs it: Spark executes commands immediately.

    Raises:
        InvalidUsage: the statement is no query.
        ParseException: the text is no statement.
    """
    from pyspark.errors import ParseException

    # PySpark has no public function that parses a statement and does not run it.
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    parser.parsePlan(question)
    if _LOOKS.match(question):
        return
    try:
        parser.parseQuery(question.rstrip().rstrip(";"))
    except ParseException as error:
        raise InvalidUsage(
            f"`sql` only reads; it accepts a query, describe, show or explain, not {question.split()[0]!r} ..."
        ) from error


def _why(error: "PySparkException", known: list[str]) -> str:
    """Return Spark's reason as one sentence, without its error code, its plan and its stack trace.

    Raises:
        PySparkException: the error is not about the statement.
    """
    condition, details = error.getCondition(), error.getMessageParameters() or {}
    if condition is None or condition == "INTERNAL_ERROR":
        raise error
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = details["relationName"].replace("`", "")
        return f"no table or view {name!r}; it must be one of: {', '.join(sorted(known))}"
    reason = " ".join(str(error.getMessage()).split())
    reason = re.sub(r"^\[[\w.]+\] | SQLSTATE: \w+$", "", reason).rstrip(".")
    place = re.search(r"\bline (\d+),? (pos|position) (\d+)", str(error))
    if place is None:
        return f"Spark rejects the query: {reason}"
    # Spark's `pos` counts from 0, its `position` from 1.
    return f"Spark rejects the query: {reason} (line {place[1]}, column {int(place[3]) + (place[2] == 'pos')})"


def _question(given: str | None, file: Path | None) -> str:
    if (given is None) == (file is None):
        raise InvalidUsage(
            'name one query: as an argument, such as "select * from groups", with --file, or - for standard input'
        )
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace")
    return sys.stdin.read() if given == "-" else str(given)


def _version(text: str) -> tuple[str, int]:
    table, _, number = text.partition("=")
    if table not in TABLES or not re.fullmatch(r"[0-9]{1,18}", number):
        raise InvalidUsage(
            f"--version is {text!r}; it must be a table and its Delta version, such as offsets=3; the tables are: "
            f"{', '.join(TABLES)}"
        )
    return table, int(number)


_LOOKS = re.compile(r"\s*(describe|desc|show|explain)\b", re.IGNORECASE)
"""First words of the statements that are no queries but only read."""
