"""The rows of each table that a user's query needs, from DuckDB's plan of the query.

DuckDB moves the conditions of a query down to the tables, through views and joins. By itself, it compares the
conditions with the statistics in each Parquet file, which it must open for that. `ranges_of` reads the conditions from
a plan over empty tables, so that a ledger can compare them with the statistics in the Delta log, and leave out files.
"""

import re
from collections.abc import Collection, Iterator
from typing import Any

import duckdb
import msgspec

from wakeroll_pipeline.ledger.delta_files import Range, Ranges

_COMPARISON = r'\(*"?(\w+)"? ?(>=|<=|>|<|=) ?(-?\d+)\)*'
_CONDITION = re.compile(_COMPARISON)
_CONDITIONS = re.compile(f"{_COMPARISON}( AND {_COMPARISON})*")
"""A filter of DuckDB's plan that compares a column with whole numbers only; any other filter is ignored."""


def ranges_of(plan: duckdb.DuckDBPyConnection, query: str, tables: Collection[str]) -> dict[str, Ranges] | None:
    """Return the rows that a query needs of each table that it reads.

    Args:
        plan: connection to DuckDB with empty tables and the views of the ledger.
        query: one query of DuckDB's SQL; it is planned, but not run.
        tables: the tables of interest.

    Returns:
        Table -> the ranges of each scan of it; an empty range has all rows. None if DuckDB cannot plan the query.
    """
    # Conclusions from the statistics of empty tables do not hold for the true ones.
    plan.execute("set disabled_optimizers = 'statistics_propagation'")
    found: dict[str, list[Range]] = {}
    try:
        [(_, text)] = plan.execute(f"explain (format json) {query}").fetchall()
    except duckdb.Error:  # the query itself reports it
        return None
    for node in _nodes(msgspec.json.decode(text)):
        info = node["extra_info"]
        table = str(info.get("Table", "")).rpartition(".")[2]
        if table in tables:
            found.setdefault(table, []).append(_range_in(info.get("Filters", ())))
    return {name: Ranges(tuple(its)) for name, its in found.items()}


def _nodes(plan: Any) -> Iterator[Any]:
    for node in plan:
        yield node
        yield from _nodes(node["children"])


def _range_in(filters: str | Collection[str]) -> Range:
    """Return the lowest and highest values that pass all filters of a scan.

    >>> _range_in(["((at_ms >= 5) AND (at_ms < 9))", "(seq = 3)", "(kind = 'a AND at_ms > 7')"])
    {'at_ms': (5, 8), 'seq': (3, 3)}
    """
    found: dict[str, tuple[int | None, int | None]] = {}
    for text in [filters] if isinstance(filters, str) else filters:
        if _CONDITIONS.fullmatch(text):
            for condition in _CONDITION.finditer(text):
                column, sign, number = condition[1], condition[2], int(condition[3])
                low, high = found.get(column, (None, None))
                if sign in (">", ">=", "="):
                    at_least = number + (sign == ">")
                    low = at_least if low is None else max(low, at_least)
                if sign in ("<", "<=", "="):
                    at_most = number - (sign == "<")
                    high = at_most if high is None else min(high, at_most)
                found[column] = low, high
    return found
