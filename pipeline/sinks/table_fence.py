"""Fences on Delta tables: the process that raised the newest fence may append, and no earlier one.

A process that is suspended between the check of its lease and its append appends after it wakes up, when another
process has the lease already. So the storage itself must refuse it. Delta keeps one number per application
(`txnAppId`) in its log, and drops an append whose number (`txnVersion`) is not above it. A fence is such a number, a
multiple of `_STEP`; the appends behind it count up from there. If two appends meet, the second one to commit fails.

This holds where a commit of Delta is atomic: on object storage with conditional writes, on HDFS, and among the threads
of one process. On NFS two commits at the same instant can both succeed.
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import SparkSession

from pipeline.sinks.delta_sink import append
from pipeline.storage.place import Place
from wakeroll.errors import WakerollError

_APPLICATION = "wakeroll.record"
_STEP = 2**32
"""Distance of two fences: more appends than a process ever makes."""


class Fenced(WakerollError):
    """Another process raised a fence at the same time; the message names the table."""


class TableFence:
    """The fence of one process on some tables. For any thread."""

    def __init__(self, spark: SparkSession, tables: Iterable[Place]) -> None:
        """Raise the fence on each table: after this call, appends of earlier processes have no effect.

        A later read of the tables includes all appends of earlier processes.

        Raises:
            Fenced: another process raised a fence at the same time.
        """
        self._lock = threading.Lock()
        paths = list(tables)
        with ThreadPoolExecutor(len(paths)) as threads:
            self._numbers = dict(zip(paths, threads.map(partial(_raise, spark), paths), strict=True))

    def options(self, table: Place) -> Mapping[str, str]:
        """Return the options of the next append to a table."""
        with self._lock:
            self._numbers[table] += 1
            return _options(self._numbers[table])


def _raise(spark: SparkSession, path: Place) -> int:
    """Append no rows with the next fence as number; return it."""
    fence = (_number(spark, path) // _STEP + 1) * _STEP
    append(spark.read.format("delta").load(path.for_spark()).limit(0), path, _options(fence))
    if (found := _number(spark, path)) != fence:
        raise Fenced(f"another process writes {path}: its fence is {found}, that of this process {fence}")
    return fence


def _number(spark: SparkSession, path: Place) -> int:
    """Return the number of the last append, as the newest version of the table has it; 0 if there is none."""
    log = spark._jvm.org.apache.spark.sql.delta.DeltaLog  # type: ignore[union-attr]
    found = log.forTableWithSnapshot(spark._jsparkSession, path.for_spark())._2().transactions().get(_APPLICATION)
    return int(found.get()) if found.isDefined() else 0


def _options(number: int) -> Mapping[str, str]:
    return {"txnAppId": _APPLICATION, "txnVersion": str(number)}
