"""The tables as they were: which Delta version of each was the newest at a time."""

from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from model.rows import TABLES
from pipeline.ledger.tables import path_of
from wakeroll.errors import InvalidUsage
from wakeroll.reset import EpochMs


def versions_when(
    spark: SparkSession, warehouse: Path, version: tuple[str, int] | None, at_ms: int | None
) -> dict[str, int] | None:
    """Return table -> version as one asks for it: with a version of one table, or at a time; None: the newest of each.

    Raises:
        InvalidUsage: as `versions_with` and `versions_at`.
    """
    if version is not None:
        return versions_with(spark, warehouse, *version)
    return None if at_ms is None else versions_at(spark, warehouse, at_ms)


def versions_at(spark: SparkSession, warehouse: Path, at_ms: int) -> dict[str, int]:
    """Return table -> the version that was its newest then (epoch ms, the clock of who wrote them).

    Raises:
        InvalidUsage: a table was not there yet, or is not any more as it was then; the message says since when it is.
    """
    found: dict[str, int] = {}
    for name in TABLES:
        commits = _commits(spark, warehouse, name)
        before = [version for version, committed_ms in commits.items() if committed_ms <= at_ms]
        if not before:
            oldest = EpochMs(commits[min(commits)])
            raise InvalidUsage(f"no table {name!r} at {EpochMs(at_ms)}; the oldest version that is kept is of {oldest}")
        found[name] = max(before)
    return found


def versions_with(spark: SparkSession, warehouse: Path, table: str, version: int) -> dict[str, int]:
    """Return table -> version: this one of this table, and of the others those that were the newest with it.

    Raises:
        InvalidUsage: the table has no such version; the message says which it has.
    """
    commits = _commits(spark, warehouse, table)
    if version not in commits:
        raise InvalidUsage(f"no version {version} of {table!r}; there are {min(commits)} to {max(commits)}")
    # A batch commits its tables one beside the other: what belongs to this version is there when the next one comes.
    ends_ms = commits.get(version + 1, commits[max(commits)] + _LAST_BATCH_MS)
    return versions_at(spark, warehouse, ends_ms - 1) | {table: version}


_LAST_BATCH_MS = 60_000
"""Longer than the commits of one batch are apart."""


def _commits(spark: SparkSession, warehouse: Path, table: str) -> dict[int, int]:
    """Return version -> when it was committed, epoch ms; those that can still be read."""
    history = DeltaTable.forPath(spark, str(path_of(warehouse, TABLES[table]))).history()
    rows = history.select("version", f.unix_millis("timestamp").alias("at_ms")).collect()
    return {row.version: row.at_ms for row in rows}
