"""Conversion of table rows for Python functions in Spark: ordered by stream and position, and back to rows."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pandas as pd
from msgspec import Struct
from pyspark.sql import DataFrame

Frames = Iterator[pd.DataFrame]


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


def in_order(rows: DataFrame, stream: Sequence[str], position: str) -> DataFrame:
    """Put the rows of each stream into one partition, sorted; Spark passes them on in several frames."""
    return rows.repartition(*stream).sortWithinPartitions(*stream, position)


def rows_of(frames: Frames) -> Iterator[Any]:
    """Yield the rows of frames, each with its columns as attributes."""
    return (row for frame in frames for row in frame.itertuples(index=False))


def frame_of(rows: Iterable[Struct], declared: type[Struct]) -> pd.DataFrame:
    """Return rows as a pandas frame with the declared columns."""
    return pd.DataFrame([msgspec.structs.astuple(row) for row in rows], columns=list(declared.__struct_fields__))
