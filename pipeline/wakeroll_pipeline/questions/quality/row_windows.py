"""Rows in the order of their streams, sorted in windows: neither memory nor temporary files grow with their number.

DuckDB would sort all rows of a query together, values included, in temporary files as large as the decoded table.
"""

from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any

from duckdb import DuckDBPyConnection

from wakeroll_pipeline.ledger.archived_log import SORTED_POSITIONS
from wakeroll_pipeline.ledger.delta_files import quoted

_FETCHED = 10_000


def rows_in_order(
    connection: DuckDBPyConnection, query: str, stream: Sequence[str], position: str, width: int = SORTED_POSITIONS
) -> Iterator[Any]:
    """Yield the rows of a query as named tuples: each stream together, and sorted by position.

    Args:
        connection: to DuckDB.
        query: the query.
        stream: its columns that identify a stream; they may be null.
        position: its column with the position of a row in its stream; null comes first.
        width: number of positions that are sorted together.
    """
    keys = ", ".join(map(quoted, stream))
    order = f"order by {keys}, {quoted(position)}"
    streams = (
        connection.cursor()
        .execute(
            f"select min({quoted(position)}), max({quoted(position)}), count(*), {keys} from ({query}) as rows "
            f"group by {keys} order by {keys}"
        )
        .fetchall()
    )
    if sum(count for _, _, count, *_ in streams) <= width:
        yield from stream_rows(connection, f"from ({query}) as rows {order}")
        return
    is_of_stream = " and ".join(
        f"{quoted(column)} is not distinct from ${number}" for number, column in _numbered(stream)
    )
    for first, last, _, *values in streams:
        named = {str(number): value for number, value in enumerate(values, 1)}
        for begin in range(first, last + 1, width) if first is not None else (None,):
            part = f"from ({query}) as rows where {is_of_stream} and {_between(position, begin, first, width)}"
            yield from stream_rows(connection, f"{part} {order}", named)


def stream_rows(
    connection: DuckDBPyConnection, query: str, values: dict[str, Any] | None = None, fetched: int = _FETCHED
) -> Iterator[Any]:
    """Yield the rows of a query as named tuples; the memory does not grow with their number.

    Args:
        connection: to DuckDB.
        query: the query.
        values: parameter -> its value.
        fetched: number of rows that are fetched at once.
    """
    found = connection.cursor().execute(query, values)
    row_type = namedtuple("Row", [column[0] for column in found.description or ()])  # type: ignore[misc]
    while rows := found.fetchmany(fetched):
        yield from map(row_type._make, rows)


def _numbered(stream: Sequence[str]) -> Iterator[tuple[int, str]]:
    return ((number, column) for number, column in enumerate(stream, 1))


def _between(position: str, begin: int | None, first: int | None, width: int) -> str:
    """Return the condition of the rows of a window; those without a position are in the first one of their stream."""
    if begin is None:
        return f"{quoted(position)} is null"
    inside = f"{quoted(position)} between {begin} and {begin + width - 1}"
    return f"({inside} or {quoted(position)} is null)" if begin == first else inside
