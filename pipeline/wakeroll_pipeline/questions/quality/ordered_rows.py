"""Conversion of table rows for Python functions: ordered by stream and position, and back to rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from wakeroll_model.rows import Table
from wakeroll_pipeline.ledger.column_types import columns_of

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

Frames: TypeAlias = "Iterator[pd.DataFrame]"
Ask: TypeAlias = Callable[[Iterable[Any]], Iterator[Struct]]
"""Function that derives rows from rows, which have their columns as attributes."""


SKIPPED = ":skipped"
"""Suffix of the rule in a row that is not a violation: `found` names the rows that the rule has left out at `at`, and
the reason."""


class Broken(Struct, frozen=True):
    """A row that breaks a rule."""

    rule: str
    """Name of the rule."""
    at: str
    """Key of the row."""
    found: str | None
    """Value found."""
    expected: str | None
    """Value expected; None if `found` includes it."""


def never_null(table: Table) -> list[str]:
    """Return the columns of a table that are never null.

    A row with a null in one of them breaks the rule of that column; functions that need all columns do not receive such
    rows.
    """
    return [column.name for column in columns_of(table.row) if not column.is_nullable]


def in_order(rows: "DataFrame", stream: Sequence[str], position: str) -> "DataFrame":
    """Put the rows of each stream into one partition, sorted; Spark passes them on in several frames."""
    return rows.repartition(*stream).sortWithinPartitions(*stream, position)


def found_by(ask: Ask, rows: "DataFrame", declared: type[Struct]) -> "DataFrame":
    """Return the rows that a function derives from other rows, in Spark.

    Args:
        ask: the function.
        rows: input rows of the function.
        declared: declaration of the derived rows.
    """
    from wakeroll_pipeline.ledger.schemas import schema_of

    return rows.mapInPandas(partial(found_in_frames, ask, declared), schema_of(declared))


def found_in_frames(ask: Ask, declared: type[Struct], frames: Frames) -> Frames:
    """Yield frames of the rows that a function derives from the rows of other frames."""
    yield from frames_of(ask(rows_of(frames)), declared)


def rows_of(frames: Frames) -> Iterator[Any]:
    """Yield the rows of frames, each with its columns as attributes."""
    return (row for frame in frames for row in frame.itertuples(index=False))


def frames_of(rows: Iterable[Struct], declared: type[Struct]) -> Frames:
    """Yield rows as pandas frames with the declared columns; at least one frame."""
    import pandas as pd  # the check in DuckDB does not wait for it

    rest = iter(rows)
    columns = list(declared.__struct_fields__)
    yield pd.DataFrame([msgspec.structs.astuple(row) for row in islice(rest, _FRAME)], columns=columns)
    while some := [msgspec.structs.astuple(row) for row in islice(rest, _FRAME)]:
        yield pd.DataFrame(some, columns=columns)


_FRAME = 10_000
"""Maximum number of rows of a frame."""
