"""The command that puts a question in SQL to the tables, views and marts of a home; it only reads."""

import logging
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from model.rows import TABLES
from pipeline.cli.open_ledger import ledger
from pipeline.cli.options import ConfigFile, Home, TablesAt, settings_of
from pipeline.cli.output import Answer, plain, write_csv, write_json, write_table
from wakeroll.errors import InvalidUsage
from wakeroll.reset import time_of

if TYPE_CHECKING:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

# What is no row goes to the other stream: rows may be on their way to a file.
aside = Console(stderr=True, highlight=False, soft_wrap=True)

Question = Annotated[
    str | None, typer.Argument(metavar="[QUERY]", help="The question; -: it is read from standard input.")
]
File = Annotated[Path | None, typer.Option("--file", metavar="FILE", help="The file that the question stands in.")]
Format = Annotated[
    Literal["table", "csv", "json"], typer.Option("--format", help="How rows are written; json: one object a line.")
]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000_000, help="At most so many rows.")]
Version = Annotated[
    str | None,
    typer.Option("--version", metavar="TABLE=N", help="As TABLE was in this Delta version, the others with it."),
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
    """Ask in Spark's SQL: tables, views, and the marts that `wakeroll marts` has made; nothing can be changed.

    [dim]wakeroll sql "select * from groups"[/]

    [dim]wakeroll sql "describe assignments"[/]

    [dim]wakeroll sql --file question.sql --format csv > answer.csv[/]

    [dim]wakeroll sql "select count(*) from offsets" --version offsets=3[/]

    [dim]wakeroll sql "select * from current_assignments" --at 2026-07-01T03:00:00Z[/]

    Times are UTC.  The marts are those of now, and not there with --version or --at.
    """
    asked = _question(question, file)
    if version is not None and at is not None:
        raise InvalidUsage("--version is of one table, --at a time for all of them; give one of the two")
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
        aside.print(f"wakeroll: these are the first {limit} rows, there are more; --limit N shows N")


def ask(spark: "SparkSession", question: str, limit: int, known: list[str]) -> Answer:
    """Put a question to a session.

    Args:
        spark: knows the tables.
        question: one statement of Spark's SQL.
        limit: rows that are returned at most.
        known: names of the tables that there are, for who asks for another.

    Raises:
        InvalidUsage: it is no question, or Spark cannot answer it; the message says why.
    """
    from pyspark.errors import PySparkException
    from pyspark.logger import PySparkLogger

    # It would tell all of the plan, and where in Spark's own code one was; we say the sentence.
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
    """Refuse what is no query before Spark does it: a statement that changes something is carried out when it is heard.

    Raises:
        InvalidUsage: it is another statement.
        ParseException: it is none.
    """
    from pyspark.errors import ParseException

    # PySpark itself has no way to read a statement without doing it.
    parser: Any = spark._jsparkSession.sessionState().sqlParser()
    parser.parsePlan(question)
    if _LOOKS.match(question):
        return
    try:
        parser.parseQuery(question.rstrip().rstrip(";"))
    except ParseException as error:
        raise InvalidUsage(
            f"`sql` only reads: give it a query, or describe, show or explain; not {question.split()[0]!r} ..."
        ) from error


def _why(error: "PySparkException", known: list[str]) -> str:
    """Return Spark's own reason as one sentence, without its code, its plan and the places in its source.

    Raises:
        PySparkException: it is nothing about the question.
    """
    condition, details = error.getCondition(), error.getMessageParameters() or {}
    if condition is None or condition == "INTERNAL_ERROR":
        raise error
    if condition == "TABLE_OR_VIEW_NOT_FOUND":
        name = details["relationName"].replace("`", "")
        return f"no table or view {name!r}; there are: {', '.join(sorted(known))}"
    reason = " ".join(str(error.getMessage()).split())
    reason = re.sub(r"^\[[\w.]+\] | SQLSTATE: \w+$", "", reason).rstrip(".")
    place = re.search(r"\bline (\d+),? (pos|position) (\d+)", str(error))
    if place is None:
        return f"Spark cannot answer that: {reason}"
    # Spark's `pos` counts from 0, its `position` from 1.
    return f"Spark cannot answer that: {reason} (line {place[1]}, column {int(place[3]) + (place[2] == 'pos')})"


def _question(given: str | None, file: Path | None) -> str:
    if (given is None) == (file is None):
        raise InvalidUsage('give one question: as an argument, like "select * from groups", by --file, or - for stdin')
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace")
    return sys.stdin.read() if given == "-" else str(given)


def _version(text: str) -> tuple[str, int]:
    table, _, number = text.partition("=")
    if table not in TABLES or not re.fullmatch(r"[0-9]{1,18}", number):
        raise InvalidUsage(
            f"--version is {text!r}; it must be a table and its Delta version, like offsets=3, with one of "
            f"{', '.join(TABLES)}"
        )
    return table, int(number)


_LOOKS = re.compile(r"\s*(describe|desc|show|explain)\b", re.IGNORECASE)
"""Statements that are no queries, and change nothing."""
