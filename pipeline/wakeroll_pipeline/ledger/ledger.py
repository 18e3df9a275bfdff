"""An open ledger: the tables and views of a home, each in one version, for queries in SQL.

`wakeroll_pipeline.ledger.duck_ledger` opens one in this process, without Java; `wakeroll_pipeline.ledger.spark_ledger`
in Spark.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from wakeroll.errors import WakerollError
from wakeroll_pipeline.ledger.view_queries import Engine


class UnreadableTable(WakerollError):
    """A table cannot be read: a file of it is missing or damaged, a right is missing, or another table is in its place.

    The message names the table, the file and the remedy. A command that ends with this error has the exit code 3.

    Attributes:
        table: name of the table or mart; empty if the whole folder cannot be read.
        damage: the message without the remedy, if a file is missing or damaged; otherwise empty.
    """

    table: str = ""
    damage: str = ""


Value = str | int | float | bool | None
"""Value of a parameter of a query."""


class Row:
    """A row of an answer, or a struct in it: its values are attributes, and also items, for names that Python reserves.

    >>> Row(("epoch", "from"), (3, "c1")).epoch, Row(("epoch", "from"), (3, "c1"))["from"]
    (3, 'c1')
    """

    __slots__ = ("_names", "_values")

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        """Make a row; there must be as many names as values."""
        self._names = names
        self._values = values

    def __getattr__(self, name: str) -> Any:
        """Return the value of a column.

        Raises:
            AttributeError: the row has no such column.
        """
        try:
            return self._values[self._names.index(name)]
        except ValueError:
            raise AttributeError(f"the row has no column {name!r}; it has {', '.join(self._names)}") from None

    __getitem__ = __getattr__

    @property
    def names(self) -> Sequence[str]:
        """Names of the columns; a column that is itself called `names` is available as an item only."""
        return self._names

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the values."""
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        """Compare names and values."""
        return isinstance(other, Row) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        """Return a hash of the values, which must have hashes themselves."""
        return hash(tuple(self._values))

    def __repr__(self) -> str:
        """Return the row as ``Row(epoch=3)``."""
        return f"Row({', '.join(f'{name}={value!r}' for name, value in zip(self._names, self._values, strict=True))})"

    def as_dict(self) -> dict[str, Any]:
        """Return name -> value, also of the structs and lists in the row."""
        return {name: _plain(value) for name, value in zip(self._names, self._values, strict=True)}


def row_of(value: Any) -> Any:
    """Return a value of an answer with a `Row` in place of each dict, also within lists."""
    match value:
        case dict():
            return Row(tuple(value), tuple(map(row_of, value.values())))
        case list():
            return [row_of(one) for one in value]
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return value


def _plain(value: Any) -> Any:
    match value:
        case Row():
            return value.as_dict()
        case list():
            return [_plain(one) for one in value]
        case _:
            return value


class Ledger(Protocol):
    """The tables and views of a home.

    The views are those of `wakeroll_pipeline.ledger.view_queries`; the tables with one row per decision have the column
    `era` too.  The queries of this project are written in the SQL that Spark and DuckDB share.
    """

    @property
    def engine(self) -> Engine:
        """Program that runs the SQL."""

    @property
    def versions(self) -> Mapping[str, int]:
        """Table -> the Delta version that is read."""

    def rows(self, sql: str, /, **values: Value) -> list[Row]:
        """Return the rows of a query.

        Args:
            sql: the query; ``$name`` stands for a value.
            values: the values by name.
        """

    def stream(self, sql: str, /, **values: Value) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one, as plain tuples; the memory does not grow with their number.

        The arguments are those of `rows`.
        """


def one_row(ledger: Ledger, sql: str, /, **values: Value) -> Row | None:
    """Return the first row of a query; None if it has none."""
    found = ledger.rows(f"{sql} limit 1", **values)
    return found[0] if found else None


def any_of(columns: Sequence[str], wanted: Sequence[Sequence[Value]]) -> tuple[str, Mapping[str, Value]]:
    """Return the SQL condition that columns have one of several combinations of values, and its parameters.

    >>> any_of(["topic", "queue_id"], [("orders", 3)])
    ('((topic = $any_0_0 and queue_id = $any_0_1))', {'any_0_0': 'orders', 'any_0_1': 3})
    """
    values: dict[str, Value] = {}
    alternatives = []
    for number, one in enumerate(wanted):
        parts = []
        for place, (column, value) in enumerate(zip(columns, one, strict=True)):
            values[f"any_{number}_{place}"] = value
            parts.append(f"{column} = $any_{number}_{place}")
        alternatives.append(f"({' and '.join(parts)})")
    return (f"({' or '.join(alternatives)})" if alternatives else "false"), values
