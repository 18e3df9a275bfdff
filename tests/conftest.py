"""What tests of several folders share."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from wakeroll_pipeline.cli.app import run_app
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jars import ensure_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wakeroll_pipeline.ledger.ledger import Ledger


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A running broker for the whole session; tests share it, so each names its own topics and groups."""
    ensure_jars()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A running Spark: one for all tests of a process, for a JVM costs more than any of them."""
    from wakeroll_pipeline.spark.session import start_session

    # Room enough, or a tenth of its work would be to look for what is garbage.
    settings = Settings(home=str(tmp_path_factory.mktemp("engine")), driver_memory="3g")
    session = start_session(settings, "tests")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def spark(engine: "SparkSession") -> Iterator["SparkSession"]:
    """A session of one module: its views and queries are its own."""
    session = engine.newSession()
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture(scope="module", params=["duckdb", "spark"])
def open_in(request: pytest.FixtureRequest, spark: "SparkSession") -> Iterator[Callable[[Path], "Ledger"]]:
    """Open a warehouse in each engine: a test that uses this runs twice."""
    from wakeroll_pipeline.ledger.duck_ledger import open_ledger
    from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
    from wakeroll_pipeline.ledger.tables import open_views

    opened = []

    def open_in(warehouse: Path) -> "Ledger":
        if request.param == "spark":
            open_views(spark, warehouse)
            return SparkLedger(spark)
        opened.append(open_ledger(warehouse))
        return opened[-1]

    yield open_in
    for ledger in opened:
        ledger.close()


@pytest.fixture(scope="session")
def day(engine: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.a_day`, for questions: nobody writes to it."""
    from tests.support.ledgers import a_day, write_ledger

    warehouse = tmp_path_factory.mktemp("day") / "warehouse"
    write_ledger(engine.newSession(), warehouse, a_day())
    return warehouse


@pytest.fixture(scope="session")
def days(engine: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.three_days`: nobody writes to it."""
    from tests.support.ledgers import three_days, write_ledger

    warehouse = tmp_path_factory.mktemp("days") / "warehouse"
    write_ledger(engine.newSession(), warehouse, three_days())
    return warehouse


@pytest.fixture(scope="session")
def eras(engine: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.two_eras`: nobody writes to it."""
    from tests.support.ledgers import two_eras, write_ledger

    warehouse = tmp_path_factory.mktemp("eras") / "warehouse"
    write_ledger(engine.newSession(), warehouse, two_eras())
    return warehouse


@pytest.fixture(scope="session")
def cut(engine: "SparkSession", days: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, of which upkeep has deleted the first day: nobody writes to it."""
    from tests.support.ledgers import forget_the_first_day, three_days

    warehouse = tmp_path_factory.mktemp("cut") / "warehouse"
    shutil.copytree(days, warehouse)
    forget_the_first_day(engine.newSession(), warehouse, three_days())
    return warehouse


@pytest.fixture
def wakeroll(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The command, run in this process, and on its Spark if there is one: a process of its own would have to start one.

    It returns the exit code, and what stands on standard output and on standard error.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def wakeroll(*arguments: str) -> tuple[int, str, str]:
        try:
            code = run_app(arguments)
        except SystemExit as end:  # how Typer ends
            code = int(end.code or 0)
        said = capfd.readouterr()
        return code, said.out, said.err

    yield wakeroll
    for number, handler in handlers.items():
        signal.signal(number, handler)
