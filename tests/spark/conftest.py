"""What the Spark tests share: one engine, for a JVM costs more than any test, and modules of their own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.session import start_session
from pipeline.settings import Settings

# In importlib mode nothing else makes them importable.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "planted")]


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A running Spark."""
    session = start_session(Settings(home=str(tmp_path_factory.mktemp("engine"))), "tests")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def spark(engine: SparkSession) -> Iterator[SparkSession]:
    """A session of one module: its views and queries are its own."""
    session = engine.newSession()
    yield session
    for query in session.streams.active:
        query.stop()
