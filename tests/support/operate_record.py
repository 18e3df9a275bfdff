"""Which `operate` tests have run, at which commit, and which CI runs next: tests/operate_record.json.

CI has no time for all of them, so it begins with the files that were green longest ago, and prints one line per file
that has ended. `python -m tests.support.operate_record LOG...` copies these lines into the record, to be committed.
"""

import datetime
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import pytest

RECORD = Path("tests/operate_record.json")

_LINE = re.compile(
    r"operate: (?P<on>\S+) (?P<commit>\w+) (?P<seconds>\d+) s (?P<outcome>green|red) (?P<file>tests/\S+)"
)


class LastRuns(TypedDict):
    """The last runs of the `operate` tests of one file."""

    green: str | None
    """Commit of the last green run, None: never."""
    on: str | None
    """Date of that run."""
    seconds: int | None
    """Duration of that run, fixtures included."""
    red_at: list[str]
    """Commits of the red runs since then."""


def load(path: Path = RECORD) -> dict[str, LastRuns]:
    """Return the record by file name, empty without a record."""
    return json.loads(path.read_text()) if path.exists() else {}


def place(file: str, record: dict[str, LastRuns]) -> tuple[bool, str, str]:
    """Return by what the files are sorted: red ones first, then those never green, then the date of the green run."""
    runs = record.get(file)
    return (not (runs and runs["red_at"]), (runs and runs["on"]) or "", file)


def updated(record: dict[str, LastRuns], log: str) -> dict[str, LastRuns]:
    """Return the record with the runs that stand in a log."""
    changed = dict(record)
    for run in _LINE.finditer(log):
        file, commit = run["file"], run["commit"]
        if run["outcome"] == "green":
            changed[file] = {"green": commit, "on": run["on"], "seconds": int(run["seconds"]), "red_at": []}
            continue
        before = changed.get(file) or {"green": None, "on": None, "seconds": None, "red_at": []}
        if commit not in before["red_at"]:
            changed[file] = {**before, "red_at": [*before["red_at"], commit]}
    return dict(sorted(changed.items()))


class OperateRuns:
    """Shows each failure at once, and a line for each file that has ended: CI may stop the run before its summary.

    A run of selected tests prints no such line, for it says nothing about the others of a file.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        git = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False)
        self._commit = git.stdout.strip() or "unknown"
        selects = any(config.getoption(name, None) for name in ("keyword", "lf", "deselect"))
        self._has_selection = selects or any("::" in argument for argument in config.args)
        self._left: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._outcomes: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count the tests of each file, in a run of one process."""
        self._count(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Iterable[str]) -> None:  # noqa: ARG002
        """Count the tests of each file, in a run of several processes."""
        self._count(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Show a failure, and the end of a file."""
        file = file_of(report.nodeid)
        self._seconds[file] += report.duration
        if report.when == "call" or report.outcome != "passed":
            self._outcomes[file].add(report.outcome)
        if report.failed:
            self._write(f"{report.nodeid} failed:\n{report.longreprtext}")
        if report.when != "teardown" or self._has_selection:
            return
        self._left[file] -= 1
        # A file of which each test is skipped is neither: what it needs is not on this machine.
        if not self._left[file] and (outcomes := self._outcomes[file] - {"skipped"}):
            outcome = "red" if "failed" in outcomes else "green"
            today = datetime.datetime.now(tz=datetime.UTC).date()
            self._write(f"operate: {today} {self._commit} {self._seconds[file]:.0f} s {outcome} {file}")

    def _count(self, nodeids: Iterable[str]) -> None:
        self._left = Counter(map(file_of, nodeids))

    def _write(self, text: str) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None:
            terminal.write_line(f"\n{text}")


def file_of(nodeid: str) -> str:
    """Return the file of a test."""
    return nodeid.partition("::")[0]


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m tests.support.operate_record LOG...")
    logs = "\n".join(Path(log).read_text() for log in sys.argv[1:])
    RECORD.write_text(json.dumps(updated(load(), logs), indent=1) + "\n")
