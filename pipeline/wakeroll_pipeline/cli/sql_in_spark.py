"""One query of a user, answered by Spark."""

import logging
import re
from typing import TYPE_CHECKING, Any

from pyspark.errors import ParseException, PySparkException
from pyspark.logger import PySparkLogger

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.output import Answer, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ask_spark(spark: "SparkSession", question: str, limit: int, known: list[str]) -> Answer:
    """Run one SQL statement, and return its rows.

    Args:
        spark: session with the tables and views.
        question: one statement of Spark SQL.
        limit: maximum number of rows to return.
        known: names of the existing tables and views, for the error about an unknown one.

    Raises:
        InvalidUsage: the statement is not a query, or Spark rejects it; the message gives the reason.
    """
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
    """Reject a statement that is not a query before `spark.sql` runs it: Spark executes commands immediately.

    Raises:
        InvalidUsage: the statement is not a query.
        ParseException: the text is not a statement.
    """
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


def _why(error: PySparkException, known: list[str]) -> str:
    """Return Spark's error as one sentence, without its error code, its plan and its stack trace.

    Raises:
        PySparkException: the error is not about the statement, but may come from a damaged file.
    """
    condition, details = error.getCondition(), error.getMessageParameters() or {}
    if condition is None or condition == "INTERNAL_ERROR" or condition.startswith(_OF_FILES):
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


_OF_FILES = ("FAILED_READ_FILE", "CANNOT_READ_FILE", "DELTA_")
"""Prefixes of the error conditions that damaged files cause."""

_LOOKS = re.compile(r"\s*(describe|desc|show|explain)\b", re.IGNORECASE)
"""First words of statements that only read although they are not queries."""
