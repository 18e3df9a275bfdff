"""What pytest must know before it collects: our options, and which tests share a process."""

import os
import sys
from collections.abc import Callable

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.support.operate_record import OperateRuns, load, place

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

TOGETHER = (
    # The whole system, and what asks its tables and made-up ones the same: the second time costs a third less.
    ("tests/e2e/test_readme.py", "tests/sql/test_check.py", "tests/sql/test_marts.py", "tests/sql/test_plain_dbt.py"),
    # The jobs come last, when those of the others have ended: two systems at once take each other's time.
    (
        "tests/sql/",
        "tests/spark/test_upkeep.py",
        "tests/spark/",
        "tests/e2e/test_outages.py",
        "tests/observability/test_prometheus.py",
    ),
)
"""What needs a Spark, in the order in which one process runs it."""


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
        items.sort(key=lambda item: place(item.nodeid.partition("::")[0], record))
    else:
        items.sort(key=lambda item: _place(item.nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """Let two processes run what needs a Spark, with one for each of them, and others the rest, file by file."""
    return SparkTogether(config, log)


class SparkTogether(LoadFileScheduling):
    """Tests of a file stay together, and so do all that share a Spark."""

    def _split_scope(self, nodeid: str) -> str:
        number, _ = _place(nodeid)
        return f"Spark {number}" if number < len(TOGETHER) else super()._split_scope(nodeid)


def _place(nodeid: str) -> tuple[int, int]:
    """Return which of `TOGETHER` a test belongs to, and where in it; if to none, the number of them."""
    places = (
        (number, place)
        for number, files in enumerate(TOGETHER)
        for place, file in enumerate(files)
        if nodeid.startswith(file)
    )
    return next(places, (len(TOGETHER), 0))


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
