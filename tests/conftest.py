"""What tests of several folders share."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipeline.jars import ensure_jars
from pipeline.local.broker import EmbeddedBroker
from pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# `ledgers` is used by other folders too; in importlib mode nothing else makes it importable.
sys.path.insert(0, str(Path(__file__).parent / "spark"))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A running broker for the whole session; tests share it, so each names its own topics and groups."""
    ensure_jars()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A running Spark: one for all tests of a process, for a JVM costs more than any of them."""
    from pipeline.session import start_session

    session = start_session(Settings(home=str(tmp_path_factory.mktemp("engine"))), "tests")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def spark(engine: "SparkSession") -> Iterator["SparkSession"]:
    """A session of one module: its views and queries are its own."""
    session = engine.newSession()
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture(scope="session")
def day(engine: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of `ledgers.a_day`, for questions: nobody writes to it."""
    from ledgers import a_day, write_ledger

    warehouse = tmp_path_factory.mktemp("day") / "warehouse"
    write_ledger(engine.newSession(), warehouse, a_day())
    return warehouse
