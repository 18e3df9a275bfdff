"""Upkeep of the tables: small files are made few, what is old goes, and so do versions that nobody reads any more.

`record` does a step of it behind a batch, in the thread that appends: two processes that write one local table lose
each other's commits; where nothing is appended meanwhile, nothing is contested.  Each step is a commit of Delta's, or
deletes what no version needs; so it may end anywhere, and what is left over is found again by the next round.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from model.rows import SNAPSHOTS, TABLES, Table
from pipeline.ledger.retention import DAY_MS, Past, forget, past_of
from pipeline.ledger.tables import path_of
from pipeline.runtime.run_status import now_ms
from pipeline.settings import Settings

APPENDING = Lock()
"""Lock of the `snapshots` table: one thread of a process takes snapshots, another one maintains the tables."""

log = logging.getLogger("wakeroll.upkeep")

_CONFS = {
    # A file of this size is left as it is: a round costs as much as has come since the last one, not as all there is.
    "spark.databricks.delta.optimize.minFileSize": str(8 * 1024 * 1024),
    "spark.databricks.delta.optimize.maxFileSize": str(32 * 1024 * 1024),
    # Appends have none: they cost more than they spare.  Of a file of some minutes they tell whether it has old rows.
    "spark.databricks.delta.stats.collect": "true",
    # Else a folder is listed by thousands of tasks: 80 s instead of 2.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
}

Step = Callable[[], None]


class Upkeep:
    """The upkeep of a warehouse by the one process that writes it."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = session_for_upkeep(spark)
        self._settings = settings
        self._steps: deque[tuple[str, Step]] = deque()
        begin_s = time.monotonic() + settings.upkeep_interval_ms / 1_000
        # After a start all is done in the first round: nobody knows when it was done last.
        self._round_s = self._clean_s = self._forget_s = begin_s

    def step(self) -> None:
        """Do one step, if any is due: one table, seconds at most.  A step that fails is a warning, and due again."""
        now_s = time.monotonic()
        if not self._steps and now_s >= self._round_s:
            self._plan(now_s)
        if not self._steps:
            return
        what, do = self._steps.popleft()
        try:
            do()
        except Exception as error:  # whatever it is: the record of decisions must go on
            log.warning("upkeep could not %s, and will try again: %s", what, str(error).partition("\n")[0])
        else:
            log.debug("upkeep: %s in %.1f s", what, time.monotonic() - now_s)

    def _plan(self, now_s: float) -> None:
        settings = self._settings
        self._round_s = now_s + settings.upkeep_interval_ms / 1_000
        if now_s >= self._forget_s:
            self._steps.append(("find what is old", self._find_old))
        self._steps += self._of_each_table("compact", compact)
        if now_s >= self._clean_s:
            self._clean_s = now_s + settings.keep_versions_ms / 1_000
            self._steps += self._of_each_table("clean", clean)

    def _of_each_table(self, what: str, do: Callable[[SparkSession, Path], None]) -> list[tuple[str, Step]]:
        def look_after(table: Table) -> None:
            with _alone_with(table):
                do(self._spark, path_of(self._settings.warehouse, table))

        return [(f"{what} {table.name}", partial(look_after, table)) for table in TABLES.values()]

    def _find_old(self) -> None:
        settings = self._settings
        past = past_of(self._spark, settings.warehouse, now_ms(), settings.keep_events_ms, settings.keep_decisions_ms)
        self._forget_next(past, tuple(TABLES.values()))

    def _forget_next(self, past: Past, tables: tuple[Table, ...]) -> None:
        """Let these tables be next, one after the other: where one fails, those behind it wait for the next round."""
        if not tables:
            self._forget_s = time.monotonic() + DAY_MS / 1_000
            return

        def forget_first() -> None:
            with _alone_with(tables[0]):
                forget(self._spark, self._settings.warehouse, tables[0], past)
            self._forget_next(past, tables[1:])

        self._steps.appendleft((f"forget what is old of {tables[0].name}", forget_first))


def session_for_upkeep(spark: SparkSession) -> SparkSession:
    """Make a session of the same engine that writes and lists files as upkeep should."""
    session = spark.newSession()
    for name, value in _CONFS.items():
        session.conf.set(name, value)
    return session


def _alone_with(table: Table) -> AbstractContextManager[object]:
    """Let nobody append: only snapshots are taken by another thread than the one that looks after them."""
    return APPENDING if table is SNAPSHOTS else nullcontext()


def compact(spark: SparkSession, path: Path) -> None:
    """Make one file of the small ones; rows and their number stay."""
    DeltaTable.forPath(spark, str(path)).optimize().executeCompaction()


def clean(spark: SparkSession, path: Path) -> None:
    """Delete the files and the log of versions that were followed by another one longer ago than the table keeps them.

    Delta cleans the log by itself, but by whole days, and at a commit every five seconds a day is too long a log: each
    append looks through all its names.  So its cleaner is asked by the minute.
    """
    DeltaTable.forPath(spark, str(path)).vacuum()
    delta = spark._jvm.org.apache.spark.sql.delta  # type: ignore[union-attr]
    its_log = delta.DeltaLog.forTable(spark._jsparkSession, str(path))
    nothing = spark._jvm.scala.Option.empty()  # type: ignore[union-attr]
    minute = getattr(delta, "TruncationGranularity$").__getattr__("MODULE$").MINUTE()
    its_log.cleanUpExpiredLogs(its_log.unsafeVolatileSnapshot(), nothing, nothing, minute)
