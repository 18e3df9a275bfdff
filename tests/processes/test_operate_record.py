"""The record of the `operate` tests: which CI runs next, and what it prints of those that have ended."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.operate_record import LastRuns, place, updated
from tests.support.running_processes import ROOT, run_process

TESTS = {
    "test_a.py": "def test_holds(): pass\ndef test_holds_too(): pass\n",
    "test_b.py": "def test_holds(): pass\ndef test_breaks(): assert 2 > 3\n",
    "test_c.py": "import pytest\ndef test_cannot_run(): pytest.skip('no such program')\n",
}
RULE = """
import pytest
from tests.support.operate_record import OperateRuns
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(OperateRuns(config))
"""
GREEN: LastRuns = {"green": "aaaa1111", "on": "2026-11-20", "seconds": 30, "red_at": []}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., str]:
    """Run the three files with options of pytest, and return what it prints."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "conftest.py").write_text(RULE)
    for name, text in TESTS.items():
        (tmp_path / "tests" / name).write_text(text)

    def run(*options: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "--rootdir", tmp_path, *options]
        return run_process([*command, tmp_path], patience_s=300, PYTHONPATH=str(ROOT)).stdout

    return run


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_prints_a_line_for_each_file_that_has_ended(run: Callable[..., str], processes: str) -> None:
    """Also for a run of several processes; a file whose tests are all skipped has no line."""
    printed = run("--numprocesses", processes, "--dist", "loadfile")

    lines = [line.split() for line in printed.splitlines() if line.startswith("operate: ")]
    assert sorted((line[-1], line[-2]) for line in lines) == [("tests/test_a.py", "green"), ("tests/test_b.py", "red")]
    assert printed.index("test_breaks failed:") < printed.index("red tests/test_b.py")


@pytest.mark.parametrize(
    "selection", [("-k", "holds"), ("--deselect", "tests/test_a.py::test_holds")], ids=["k", "not"]
)
def test_a_run_of_some_tests_says_nothing_about_their_files(run: Callable[..., str], selection: Sequence[str]) -> None:
    """Otherwise a file would count as green of which one test has run."""
    printed = run(*selection)

    assert " passed" in printed
    assert "operate: " not in printed


def test_the_lines_of_a_log_are_copied_into_the_record() -> None:
    """A green run ends the list of red ones; two runs of one commit are one."""
    log = """
> ...operate: 2026-11-29 bbbb2222 31 s green tests/e2e/test_a.py
> operate: 2026-11-29 bbbb2222 8 s red tests/e2e/test_b.py
> operate: 2026-11-29 bbbb2222 9 s red tests/e2e/test_b.py
> operate: 2026-11-29 bbbb2222 70 s green tests/sql/test_c.py
"""
    record = updated({"tests/e2e/test_b.py": GREEN, "tests/sql/test_c.py": {**GREEN, "red_at": ["cccc3333"]}}, log)
    assert record == {
        "tests/e2e/test_a.py": {"green": "bbbb2222", "on": "2026-11-29", "seconds": 31, "red_at": []},
        "tests/e2e/test_b.py": {**GREEN, "red_at": ["bbbb2222"]},
        "tests/sql/test_c.py": {"green": "bbbb2222", "on": "2026-11-29", "seconds": 70, "red_at": []},
    }


def test_red_files_come_first_then_those_that_were_never_green_then_the_oldest() -> None:
    """So the time that CI has goes to what is known least."""
    record: dict[str, LastRuns] = {
        "tests/old.py": GREEN,
        "tests/new.py": {**GREEN, "on": "2026-11-28"},
        "tests/red.py": {**GREEN, "on": "2026-11-29", "red_at": ["bbbb2222"]},
    }
    files = ["tests/new.py", "tests/never.py", "tests/old.py", "tests/red.py"]
    assert sorted(files, key=lambda file: place(file, record)) == [
        "tests/red.py",
        "tests/never.py",
        "tests/old.py",
        "tests/new.py",
    ]
