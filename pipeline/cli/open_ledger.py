"""The Spark that a question is put to, and the tables it is about.

Spark is imported when it is needed only: its second of start-up is not for a help text.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from pipeline.settings import Settings
from wakeroll.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def session(settings: Settings, out: Console, *, for_minutes: bool = False) -> Iterator["SparkSession"]:
    """Have a Spark: the one that this process runs already, else one of its own.

    That is started quietly and stopped again; its own words go to a log, a spinner says why one waits.  `for_minutes`
    is `start_brief_session`'s.
    """
    from pyspark.sql import SparkSession

    from pipeline.spark.session import start_brief_session

    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    with out.status("starting Spark (some seconds)"):
        spark = start_brief_session(settings, "wakeroll ask", for_minutes=for_minutes)
    try:
        with out.status("reading"):
            yield spark
    finally:
        spark.stop()


@contextmanager
def ledger(
    settings: Settings, out: Console, version: tuple[str, int] | None = None, at_ms: int | None = None
) -> Iterator["SparkSession"]:
    """Have a Spark that knows the tables and views of this home.

    Args:
        settings: name the home.
        out: says why one waits.
        version: a table and its Delta version, and the others as they were with it; None: the newest.
        at_ms: all of them as they were then, epoch ms; None: the newest.

    Raises:
        InvalidUsage: there are no tables, or not as they were then.
    """
    from pipeline.ledger.tables import open_views
    from pipeline.ledger.time_travel import versions_when

    warehouse = warehouse_of(settings)
    with session(settings, out) as spark:
        open_views(spark, warehouse, versions_when(spark, warehouse, version, at_ms))
        yield spark


def warehouse_of(settings: Settings) -> Path:
    """Return the folder of the tables, before a Spark is started for nothing.

    Raises:
        InvalidUsage: it is not there.
    """
    if not settings.warehouse.is_dir():
        raise InvalidUsage(f"no tables in {settings.warehouse}; start `wakeroll up` there, or name another --home")
    return settings.warehouse
