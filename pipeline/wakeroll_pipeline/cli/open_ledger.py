"""The ledger of a home, and Spark sessions, for the commands that need them.

DuckDB, deltalake and PySpark are imported in the functions that need them, so that a help text is shown at once.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.console import Console

from wakeroll.errors import InvalidUsage, WakerollError, missing_extra
from wakeroll_model.rows import Table
from wakeroll_pipeline.cli.process_logs import complain
from wakeroll_pipeline.ledger.ledger import Ledger, UnreadableTable
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.small_files import StorageFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wakeroll_pipeline.ledger.duck_ledger import DuckLedger


@contextmanager
def session(settings: Settings, out: Console, *, for_minutes: bool = False) -> Iterator["SparkSession"]:
    """Provide a Spark session: the active one of this process, or a new one that is stopped at the end.

    Args:
        settings: of the deployment.
        out: shows a spinner while a new session starts and works.  Spark's own output goes to a log file.
        for_minutes: passed to `start_brief_session`.

    Raises:
        InvalidUsage: PySpark is not installed.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as missing:
        raise missing_extra("--engine spark", "spark", missing) from None
    from wakeroll_pipeline.spark.session import start_brief_session

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
    settings: Settings,
    out: Console,
    engine: Engine | None = None,
    version: tuple[str, int] | None = None,
    at_ms: int | None = None,
    only: Table | None = None,
    needs: Callable[["DuckLedger"], int] | None = None,
) -> Iterator[Ledger]:
    """Open the ledger of a home.

    Args:
        settings: of the deployment; they name the home.
        out: shows a spinner while the engine works.
        engine: program that reads the tables; None: that of `engine_for`.
        version: a table and its Delta version; the other tables are read as of the same moment.  None: the newest.
        at_ms: moment as of which all tables are read (epoch ms); None: the newest versions.
        only: as for `wakeroll_pipeline.ledger.duck_ledger.open_ledger`. Then DuckDB is the engine unless one is named,
            because the query reads a part of the tables.
        needs: returns the size of the files that the query reads (bytes); None: it reads all. It is called if all files
            together are so large that Spark would read them.

    Raises:
        InvalidUsage: the home has no tables, or no versions of that moment; the engine is not installed.
        UnreadableTable: a table that is read meanwhile cannot be read.
    """
    warehouse = warehouse_of(settings)
    if engine != "spark":
        try:
            from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
            from wakeroll_pipeline.ledger.time_travel import versions_when
        except ModuleNotFoundError as missing:
            raise missing_extra("reading the tables", "ask", missing) from None
        with out.status("reading"), reading(warehouse):
            then = versions_when(warehouse, version, at_ms)
            with duck_ledger(warehouse, then, at_one_moment=then is None, only=only) as opened:
                is_asked = engine is not None or only is not None
                if is_asked or _engine_of(opened.opened.size, warehouse, needs and partial(needs, opened)) == "duckdb":
                    yield opened
                    return
    with session(settings, out) as spark, reading(warehouse):
        from wakeroll_pipeline.ledger import tables
        from wakeroll_pipeline.ledger.duck_ledger import whole_versions
        from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
        from wakeroll_pipeline.ledger.time_travel import versions_when

        versions = versions_when(warehouse, version, at_ms) or whole_versions(warehouse)
        tables.open_views(spark, warehouse, versions)
        yield SparkLedger(spark, versions)


LARGEST_BYTES = 8 * 2**30
"""Largest size of the tables' files (bytes) that DuckDB reads if no engine is named. Measured with 94 MB, the files of
1,000,000 events: `groups` takes 1.8 s of CPU and 210 MB of memory. So 8 GiB take a minute or two on two cores."""
_SECONDS_PER_GIB = 40
"""Time in which one core reads a GiB of files (s): an estimate, which was not measured with large tables."""


def announce(rows: int, us_per_row: float, processes: int = 1) -> None:
    """Print on standard error how long a query of all rows will take, if that is a minute or more.

    Args:
        rows: number of rows that the query reads.
        us_per_row: its CPU time per row (µs).
        processes: number of processes that share the work.
    """
    seconds = rows * us_per_row / 1e6 / processes
    if seconds >= _LONG_S:
        minutes = max(1, round(seconds / 60))
        cores = f"{processes} idle cores" if processes > 1 else "an idle core"
        complain(f"the question reads {rows:,} rows, which takes about {minutes} min on {cores}")


_LONG_S = 60


def engine_for(settings: Settings) -> Engine:
    """Return the engine for the tables of a home: Spark if they are large; then print that, with an estimated time.

    It is for `marts`, which needs the engine before dbt opens the tables; `ledger` chooses it by itself. `check` and
    `replay` have bounded memory in DuckDB, so they use Spark only if it is named.

    Raises:
        InvalidUsage: there are no tables; or they are large, and Spark is not installed.
    """
    warehouse = warehouse_of(settings)
    try:
        from wakeroll_pipeline.ledger.duck_ledger import bytes_of
    except ModuleNotFoundError as missing:
        raise missing_extra("reading the tables", "ask", missing) from None
    try:
        with reading(warehouse):
            size = bytes_of(warehouse)
    except UnreadableTable:  # the question reports it
        return "duckdb"
    return _engine_of(size, warehouse)


def _engine_of(size: int, warehouse: Place, needs: Callable[[], int] | None = None) -> Engine:
    """Return the engine for tables with files of this size, of which a query needs some: see `engine_for`."""
    if size <= LARGEST_BYTES or (needs is not None and needs() <= LARGEST_BYTES):
        return "duckdb"
    gib = size / 2**30
    large = f"the tables in {warehouse} have {gib:.1f} GiB of files"
    if find_spec("pyspark") is None:
        raise InvalidUsage(
            f"{large}, and Spark, which would read them, is not installed: pip install 'wakeroll[spark]'; or read them "
            "in this process with --engine duckdb, which takes longer"
        )
    minutes = max(1, round(gib * _SECONDS_PER_GIB / 60 / (os.cpu_count() or 1)))
    complain(f"{large}, so Spark reads them: up to {minutes} min if the question needs all; --engine duckdb does not")
    return "spark"


@contextmanager
def reading(warehouse: Place) -> Iterator[None]:
    """Report tables that cannot be read in one sentence, in place of the engine's own error.

    Raises:
        UnreadableTable: the block failed because a table, or the store that has it, cannot be read.
    """
    try:
        yield
    except StorageFailed as error:
        raise UnreadableTable(str(error)) from error
    except Exception as error:
        if isinstance(error, WakerollError) or not _is_of_an_engine(error):
            raise
        from wakeroll_pipeline.ledger.table_damage import damage_behind, denied

        damage = denied(error) if isinstance(error, PermissionError) else damage_behind(error, warehouse)
        if damage is not None:
            raise damage from error
        raise


def _is_of_an_engine(error: Exception) -> bool:
    """Return whether an engine or the file system raised an error; `duck_ledger` reports those of its own queries."""
    package = type(error).__module__.partition(".")[0]
    return package in ("pyspark", "py4j", "_internal", "deltalake", "duckdb", "_duckdb") or isinstance(error, OSError)


def warehouse_of(settings: Settings) -> Place:
    """Return the folder of the tables; check that it exists before an engine starts.

    Raises:
        InvalidUsage: the folder does not exist.
        UnreadableTable: the store of a remote folder did not answer, or this user may not look into the home.
    """
    with reading(settings.warehouse):
        is_there = small_files.exists(settings.warehouse)
    if not is_there:
        raise InvalidUsage(f"no tables in {settings.warehouse}; start `wakeroll up` there, or name another --home")
    return settings.warehouse
