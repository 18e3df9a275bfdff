"""A ledger that is queried by Spark, for ledgers that are too large for one process."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession

from wakeroll_pipeline.ledger.ledger import Row, Value, row_of
from wakeroll_pipeline.ledger.view_queries import Engine


class SparkLedger:
    """The tables and views that a Spark session has: see `wakeroll_pipeline.ledger.tables.open_views`."""

    engine: Engine = "spark"

    def __init__(self, spark: SparkSession, versions: Mapping[str, int] = MappingProxyType({})) -> None:
        """Use this session, which has these versions of the tables."""
        self.spark = spark
        self.versions = versions

    def rows(self, sql: str, /, **values: Value) -> list[Row]:
        """Return the rows of a query: see `wakeroll_pipeline.ledger.ledger.Ledger`."""
        return [row_of(row.asDict(recursive=True)) for row in self.spark.sql(_with(sql, values)).collect()]

    def stream(self, sql: str, /, **values: Value) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one: see `wakeroll_pipeline.ledger.ledger.Ledger`."""
        for row in self.spark.sql(_with(sql, values)).toLocalIterator():
            yield tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)


def _with(sql: str, values: dict[str, Value]) -> str:
    """Return a query in which its parameters are replaced by values.

    Spark's own named parameters cannot be used: its parser and Delta's parser together lose them.
    """
    return re.sub(r"\$([a-z][a-z0-9_]*)", lambda found: _literal(values[found[1]]), sql)


def _literal(value: Value) -> str:
    """Return a value as a literal of Spark's SQL."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L"
        case float():
            return f"{value!r}D"
        case str():
            escaped = value.replace("\\", "\\\\").replace("'", "\\'")
            return f"'{escaped}'"
