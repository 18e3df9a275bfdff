"""What tests of several folders share."""

import gc
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.engines import ENGINES
from tests.support.shared_folders import written_once
from wakeroll_pipeline.cli.app import run_app
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jars import ensure_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.support.ledgers import Story
    from wakeroll_pipeline.ledger.ledger import Ledger


CALM = {
    "metadata.max.idle.interval.ms": 0,
    "broker.heartbeat.interval.ms": 4_000,
    "broker.session.timeout.ms": 20_000,
}
"""Settings of a broker that nobody restarts: while nobody uses it, it takes half as much of a core."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A running broker for the whole session; tests share it, so each names its own topics and groups."""
    ensure_jars()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings=CALM) as running:
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


@pytest.fixture(scope="module", params=ENGINES)
def open_in(request: pytest.FixtureRequest) -> Iterator[Callable[[Path], "Ledger"]]:
    """Open a warehouse in each engine: a test that uses this runs twice, in Spark by `make test-operate` only."""
    from wakeroll_pipeline.ledger.duck_ledger import open_ledger
    from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
    from wakeroll_pipeline.ledger.tables import open_views

    opened = []

    def open_in(warehouse: Path) -> "Ledger":
        if request.param == "spark":
            spark = request.getfixturevalue("spark")
            open_views(spark, warehouse)
            return SparkLedger(spark)
        opened.append(open_ledger(warehouse))
        return opened[-1]

    yield open_in
    for ledger in opened:
        ledger.close()


def _written(folders: pytest.TempPathFactory, name: str, story: Callable[[], "Story"]) -> Path:
    """Return the warehouse of a story, in a folder of its own; it is written once for all processes of a run."""
    from tests.support.ledgers import write_ledger

    def write(home: Path) -> None:
        write_ledger(home / "warehouse", story())

    return written_once(folders, name, write) / "warehouse"


@pytest.fixture(scope="session")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.a_day`, for questions: nobody writes to it."""
    from tests.support.ledgers import a_day

    return _written(tmp_path_factory, "day", a_day)


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.three_days`: nobody writes to it."""
    from tests.support.ledgers import three_days

    return _written(tmp_path_factory, "days", three_days)


@pytest.fixture(scope="session")
def eras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.two_eras`: nobody writes to it."""
    from tests.support.ledgers import two_eras

    return _written(tmp_path_factory, "eras", two_eras)


@pytest.fixture(scope="session")
def cut(tmp_path_factory: pytest.TempPathFactory, days: Path) -> Path:
    """The same as `days`, of which upkeep has deleted the first day: nobody writes to it."""
    from tests.support.ledgers import forget_the_first_day, three_days

    def write(home: Path) -> None:
        shutil.copytree(days, home / "warehouse")
        forget_the_first_day(home / "warehouse", three_days())

    return written_once(tmp_path_factory, "cut", write) / "warehouse"


@pytest.fixture(scope="session")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.a_sliced_day`, with its chains, written without Spark: nobody writes to it."""
    from tests.support.chained_ledgers import append, append_snapshots, create_tables
    from tests.support.ledgers import a_sliced_day
    from wakeroll_pipeline.ledger.chains import Chains

    def write(home: Path) -> None:
        warehouse, story = home / "warehouse", a_sliced_day()
        create_tables(warehouse)
        chains = Chains(warehouse)
        append(warehouse, story, chains)
        append_snapshots(warehouse, story, chains)

    return written_once(tmp_path_factory, "sliced", write) / "warehouse"


@pytest.fixture
def wakeroll(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """The command, run in this process, and on its Spark if there is one: a process of its own would have to start one.

    It returns the exit code, and what stands on standard output and on standard error.
    """
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    gc.collect()  # ends the admin clients of earlier tests, which complain here about brokers that have been stopped

    def wakeroll(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        try:
            code = run_app(arguments)
        except SystemExit as end:  # how Typer ends
            code = int(end.code or 0)
        said = capfd.readouterr()
        return code, said.out, said.err

    yield wakeroll
    for number, handler in handlers.items():
        signal.signal(number, handler)
