"""Rows of a table for Python to look at: stream by stream, in order, and what comes of them as rows again."""

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
    """Which row: the values of its key."""
    found: str | None
    """What it says."""
    expected: str | None
    """What would be right; None: `found` says that, too."""


def in_order(rows: DataFrame, stream: Sequence[str], position: str) -> DataFrame:
    """Bring the rows of each stream together, in order; Spark hands them over piece by piece."""
    return rows.repartition(*stream).sortWithinPartitions(*stream, position)


def rows_of(frames: Frames) -> Iterator[Any]:
    """Yield the rows of frames, each with its columns as attributes."""
    return (row for frame in frames for row in frame.itertuples(index=False))


def frame_of(rows: Iterable[Struct], declared: type[Struct]) -> pd.DataFrame:
    """Return rows as the frame that Spark takes."""
    return pd.DataFrame([msgspec.structs.astuple(row) for row in rows], columns=list(declared.__struct_fields__))
