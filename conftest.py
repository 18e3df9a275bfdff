"""What pytest must know before it collects: our options, and where the tests' own helpers are."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# `control_log` and `story` are used by other folders too; in importlib mode nothing else makes them importable.
sys.path.insert(0, str(Path(__file__).parent / "tests" / "scenarios"))

# Every run tries the same examples, so that a red build is red again; `HYPOTHESIS_PROFILE=search` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None, database=None, max_examples=60)
settings.register_profile("search", deadline=None, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rewrite``: what the stories in tests/scenarios/*.txt say is replaced by what happens."""
    parser.addoption("--rewrite", action="store_true", help="write the answers of tests/scenarios/*.txt anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let one process run all that starts a Spark, and begin with it; another one runs the rest, file by file.

    Two engines at once would take each other's time on two cores, and what waits for them would give up.
    """
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)
    for item in items:
        alone = "spark" if item.get_closest_marker("spark") else item.path.name
        item.add_marker(pytest.mark.xdist_group(alone))


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
