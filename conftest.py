"""What pytest must know before it collects: our options, and which tests share a process."""

import os
import sys
from collections.abc import Callable

import pytest
from hypothesis import settings

from tests.support.operate_record import OperateRuns, file_of, load, place

# A worker of xdist has no main file; PySpark takes such a process for one that runs its own doctests, and ends it when
# Great Expectations looks whether there is a Spark Connect.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = __file__

# Python's readline tells every process below it of a terminal of 80 columns, and a console that is made keeps them.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)

# No Spark of a test lives long enough to win back what thorough compilation takes, half of all its work; nor has one
# enough on its heap to be worth the threads of G1, a tenth.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC")

# Every run tries the same examples, so that a red build is red again; `HYPOTHESIS_PROFILE=search` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, database=None, max_examples=60)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

FIRST = ("tests/e2e/test_readme.py", "tests/spark/", "tests/sql/", "tests/e2e/", "tests/browser/", "tests/simulation/")
"""The folders and files that take longest, in the order in which they begin, so that none is left alone at the end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rewrite``: what the stories in tests/scenarios/*.txt say is replaced by what happens."""
    parser.addoption("--rewrite", action="store_true", help="write the answers of tests/scenarios/*.txt anew")


def pytest_configure(config: pytest.Config) -> None:
    """Let `make test-operate` show what has ended as soon as it has."""
    if config.option.markexpr == "operate" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(OperateRuns(config))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest; of the `operate` tests, with those that were green longest ago."""
    if config.option.markexpr == "operate":
        record = load()
        items.sort(key=lambda item: place(file_of(item.nodeid), record))
    else:
        items.sort(key=lambda item: _place(item.nodeid))


def _place(nodeid: str) -> int:
    """Return the place of a test in `FIRST`, behind them for the others."""
    return next((place for place, start in enumerate(FIRST) if nodeid.startswith(start)), len(FIRST))


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say something that stands in the summary of a green run too, whichever process ran the test."""
    return lambda text: record_property("tells", text)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests had to tell."""
    for report in (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")):
        for name, text in report.user_properties:
            if name == "tells":
                terminalreporter.write_line(f"{report.nodeid.rpartition('/')[2]}: {text}")
