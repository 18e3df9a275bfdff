"""Spark sessions for the commands that read the Delta tables.

PySpark is imported in the functions that need it: a help text does not wait one second for it.
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
    """Provide a Spark session: the active one of this process, or a new one that is stopped at the end.

    Args:
        settings: of the deployment.
        out: shows a spinner while a new session starts and works.  Spark's own output goes to a log file.
        for_minutes: passed to `start_brief_session`.
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
    """Provide a Spark session that has the tables and views of a home.

    Args:
        settings: of the deployment; they name the home.
        out: shows a spinner while Spark works.
        version: a table and its Delta version; the other tables are read as of the same moment.  None: the newest.
        at_ms: moment as of which all tables are read (epoch ms); None: the newest versions.

    Raises:
        InvalidUsage: the home has no tables, or no versions of that moment.
    """
    from pipeline.ledger.tables import open_views
    from pipeline.ledger.time_travel import versions_when

    warehouse = warehouse_of(settings)
    with session(settings, out) as spark:
        open_views(spark, warehouse, versions_when(spark, warehouse, version, at_ms))
        yield spark


def warehouse_of(settings: Settings) -> Path:
    """Return the folder of the tables; check that it exists before Spark starts.

    Raises:
        InvalidUsage: the folder does not exist.
    """
    if not settings.warehouse.is_dir():
        raise InvalidUsage(f"no tables in {settings.warehouse}; start `wakeroll up` there, or name another --home")
    return settings.warehouse
