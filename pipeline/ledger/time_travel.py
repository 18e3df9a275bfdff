"""Delta versions of the tables at a moment in the past."""

from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from model.rows import TABLES
from pipeline.ledger.tables import path_of
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage


def versions_when(
    spark: SparkSession, warehouse: Path, version: tuple[str, int] | None, at_ms: int | None
) -> dict[str, int] | None:
    """Return table -> Delta version, for a version of one table or for a moment; None: the newest of each.

    Raises:
        InvalidUsage: as in `versions_with` and `versions_at`.
    """
    if version is not None:
        return versions_with(spark, warehouse, *version)
    return None if at_ms is None else versions_at(spark, warehouse, at_ms)


def versions_at(spark: SparkSession, warehouse: Path, at_ms: int) -> dict[str, int]:
    """Return table -> its newest version at a moment (epoch ms, by the clock of the process that wrote it).

    Raises:
        InvalidUsage: a table did not exist yet, or that version is deleted; the message names the oldest version.
    """
    found: dict[str, int] = {}
    for name in TABLES:
        commits = _commits(spark, warehouse, name)
        before = [version for version, committed_ms in commits.items() if committed_ms <= at_ms]
        if not before:
            oldest = EpochMs(commits[min(commits)])
            raise InvalidUsage(
                f"table {name!r} has no version of {EpochMs(at_ms)}; the oldest kept version is of {oldest}"
            )
        found[name] = max(before)
    return found


def versions_with(spark: SparkSession, warehouse: Path, table: str, version: int) -> dict[str, int]:
    """Return table -> version: the requested one of this table, and those of the others at the same moment.

    Raises:
        InvalidUsage: the table has no such version; the message names the existing ones.
    """
    commits = _commits(spark, warehouse, table)
    if version not in commits:
        raise InvalidUsage(f"table {table!r} has no version {version}; it has {min(commits)} to {max(commits)}")
    # A batch commits its tables in parallel; all of its commits precede the next version of this table.
    ends_ms = commits.get(version + 1, commits[max(commits)] + _LAST_BATCH_MS)
    return versions_at(spark, warehouse, ends_ms - 1) | {table: version}


_LAST_BATCH_MS = 60_000
"""Upper bound (ms) of the time between the commits of one batch."""


def _commits(spark: SparkSession, warehouse: Path, table: str) -> dict[int, int]:
    """Return version -> time of its commit (epoch ms), for the versions that can still be read."""
    history = DeltaTable.forPath(spark, str(path_of(warehouse, TABLES[table]))).history()
    rows = history.select("version", f.unix_millis("timestamp").alias("at_ms")).collect()
    return {row.version: row.at_ms for row in rows}
