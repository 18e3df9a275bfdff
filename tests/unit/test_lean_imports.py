"""Packages that a command does not need are not imported: the Kafka client, and some of Great Expectations."""

import sys
from ast import literal_eval
from pathlib import Path

from tests.support.delta_tables import write_assignments, write_tables
from tests.support.ledgers import a_day
from tests.support.running_processes import run_process

_CHECK = """
import sys
from wakeroll_pipeline.cli.app import run_app
try:
    run_app(["check", "--home", sys.argv[1]])
except SystemExit as end:
    print("exit code", end.code)
for name in ("altair.vegalite", "scipy.stats._stats_py", "pyspark", "botocore"):
    assert name not in sys.modules, name
import altair
from scipy import stats
print("entropy", stats.entropy([0.5, 0.5], base=2), altair.Chart.__name__)
import pyspark
"""


def test_a_check_with_data_docs_does_not_wait_for_them(tmp_path):
    """They take longer than the check. They are imported later, when they are used."""
    story = a_day()
    write_tables(tmp_path / "warehouse", story)
    write_assignments(tmp_path / "warehouse", story)

    done = run_process([sys.executable, "-c", _CHECK, str(tmp_path)])

    assert done.returncode == 0, done.stderr
    assert "exit code 0" in done.stdout
    assert "entropy 1.0 Chart" in done.stdout
    assert [*Path(tmp_path / "quality").rglob("local_site/index.html")] != []


_NAMES = """
import sys, wakeroll
import wakeroll.errors, wakeroll_pipeline.cli.app
assert "confluent_kafka" not in sys.modules, "the Kafka client is imported"
assert set(wakeroll.__all__) <= set(dir(wakeroll))
for name in wakeroll.__all__:
    found = getattr(wakeroll, name)
    assert found is getattr(sys.modules[found.__module__], name) and vars(wakeroll)[name] is found, name
try:
    wakeroll.Consumr
except AttributeError as error:
    print(error)
"""


def test_a_public_name_is_imported_when_it_is_used():
    done = run_process([sys.executable, "-c", _NAMES])

    assert done.stderr == ""
    assert done.stdout == "module 'wakeroll' has no attribute 'Consumr'\n"


_HEAVY = {"asyncio", "concurrent.futures", "confluent_kafka", "json", "logging", "msgspec", "ssl", "typing_extensions"}
"""Modules that take longer to import than all of Python's start."""


def test_the_package_alone_imports_nothing_that_is_heavy():
    """A module that only names a type of ours, or a command that only fails, must not pay for a Kafka client."""
    imported = _imported_by("import wakeroll")

    assert not imported & _HEAVY
    assert {one for one in imported if one.startswith(("wakeroll.", "wakeroll_"))} == set()


_FOR_FEW = {
    "_hashlib",
    "difflib",
    "hmac",
    "importlib.metadata",
    "ipaddress",
    "pathlib",
    "tomllib",
    "urllib.parse",
    "wakeroll.admin",
    "wakeroll.decision_log",
    "wakeroll.keys",
    "wakeroll.last_will.executor_link",
    "wakeroll.operator_requests",
    "wakeroll.push.push_loop",
    "wakeroll.reset",
    "wakeroll_model.group_machine",
    "wakeroll_model.records",
    "wakeroll_model.signing",
    "wakeroll_model.strategies",
}
"""Parts of the SDK and of Python that a consumer which polls does not need."""


def test_a_consumer_that_polls_does_not_wait_for_what_it_does_not_use():
    """They took a third of the time and half of our memory: a function that starts often pays for each of them."""
    imported = _imported_by("from wakeroll import Consumer")

    assert "wakeroll.consumer" in imported
    assert not imported & _FOR_FEW


def _imported_by(statement: str) -> set[str]:
    """Return the modules that a new interpreter has after this statement, and had not before it."""
    before = "import sys; before = set(sys.modules)"
    done = run_process([sys.executable, "-c", f"{before}; {statement}; print(sorted(set(sys.modules) - before))"])
    assert done.stderr == ""
    return set(literal_eval(done.stdout))
