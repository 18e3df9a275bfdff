"""What pytest must know before it collects: our options, and which tests share a process."""

import gc
import os
import sys
from collections.abc import Callable

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

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

FIRST = (
    *("tests/e2e/test_readme.py", "tests/e2e/test_consumer.py", "tests/unit/test_losses.py"),
    *("tests/e2e/test_replaced_topics.py", "tests/unit/test_daily_facts.py", "tests/e2e/test_wake.py"),
    *("tests/observability/test_prometheus.py", "tests/exhaustive/test_exhaustive.py", "tests/e2e/test_watch_kafka.py"),
)
"""The files that take longest, in the order in which they begin, so that none is left alone at the end."""

SLOW = frozenset(
    """
    acls_command calls_at_work chains ci_reports client_settings closed_event_loop completion connection_limits
    consumer_usage daily_facts deployments_page described_clients forged_rows groups_command hanging_applications
    happened_command history interrupted_consumer json_schemas keys ledger_reader long_questions losses
    losses_of_the_log maintain memory_broker metrics_server notifications oidc_login one_view opened_files
    page_login published_lines pull_machine push_loop push_retries push_simulation repair repair_plan
    rolling_filters rounds routine_beats rules_find_damage sliced_reader snapshot_proof state_command
    suspended_writers time_options unreadable_tables users_command wake_simulation watched_ledger web_app
    worker_starters wrong_inputs
    """.split()  # noqa: SIM905 - a list would be 55 lines
)
"""The files of tests/unit of which each takes more than 6 s: `make check` leaves them to `make test`."""

WAITING = ("tests/e2e/", "tests/browser/", "tests/observability/", "tests/peers/", "tests/processes/")
"""The folders of files that mostly wait; all others compute."""


WITH_SPARK = (
    "tests/spark/",
    *(f"tests/sql/test_{name}.py" for name in ("check", "damaged_tables", "engines", "groups", "marts_in_spark")),
    *(f"tests/sql/test_{name}.py" for name in ("queries_by_others", "sql")),
)
"""The files that use the fixture `engine`: one process runs them one after another, from the start, with one Spark."""


class FilesAndSpark(LoadFileScheduling):
    """Hands out files to the processes of a run, and those that use Spark as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        return WITH_SPARK[0] if nodeid.startswith(WITH_SPARK) else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Replace `--dist loadfile`."""
    return FilesAndSpark(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--rewrite``: what the stories in tests/scenarios/*.txt say is replaced by what happens."""
    parser.addoption("--rewrite", action="store_true", help="write the answers of tests/scenarios/*.txt anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, and spread each kind of file over the run: some wait while others compute."""
    of_kind: dict[object, list[str]] = {}
    for file in dict.fromkeys(map(_file_of, items)):
        of_kind.setdefault(WITH_SPARK if file.startswith(WITH_SPARK) else file.startswith(WAITING), []).append(file)
    places = {file: (at + 0.5) / len(files) for files in of_kind.values() for at, file in enumerate(files)}
    places |= {file: at - len(FIRST) for at, file in enumerate(FIRST)}
    places |= {file: places[file] - 2 * len(FIRST) for file in of_kind.get(WITH_SPARK, ())}
    items.sort(key=lambda item: places[_file_of(item)])
    for item in items:
        if item.path.parent.name == "unit" and item.path.stem.removeprefix("test_") in SLOW:
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what lives for the whole run: 700,000 objects, a third of a second each time.

    The fixture `wakeroll` alone asks for it seven hundred times.
    """
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let it end what is left, or DuckDB's binding names it as leaked."""
    gc.unfreeze()


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


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
