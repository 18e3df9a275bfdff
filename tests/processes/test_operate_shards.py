"""The `operate` tests in shards: which CI runs next, what it prints of each, and which are red or old."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.operate_record import LastRuns, Record, load, save
from tests.support.operate_shards import UNKNOWN_S, next_shard, run_shards, shards_of
from tests.support.running_processes import ROOT

TESTS = {
    "test_a.py": "def test_holds(): pass\ndef test_holds_too(): pass\n",
    "test_b.py": "def test_holds(): pass\ndef test_breaks(): assert 2 > 3\n",
    "test_c.py": "import pytest\ndef test_cannot_run(): pytest.skip('no such program')\n",
    "test_d.py": "import time\ndef test_is_quick(): pass\ndef test_hangs(): time.sleep(600)\n",
}
GREEN = LastRuns(green="aaaa1111", on="2026-11-20", seconds=30)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[set[str], str]]:
    """Run shards of the four files; return their outcomes, and what is printed."""
    for name, text in TESTS.items():
        (tmp_path / name).write_text(f"import pytest\npytestmark = pytest.mark.operate\n{text}")
    monkeypatch.chdir(ROOT)

    def run(seconds: float, record: Record, *names: str) -> tuple[set[str], str]:
        printed: list[str] = []
        shards = {f"tests/{name}": [str(tmp_path / name)] for name in names}
        outcomes = run_shards(shards, record, seconds, ("--rootdir", str(ROOT), "--timeout", "300"), printed.append)
        return outcomes, "\n".join(printed)

    return run


def outcomes_in(printed: str) -> list[tuple[str, str]]:
    lines = [line.split() for line in printed.splitlines() if line.startswith("operate: ")]
    return sorted((line[-1], line[-2]) for line in lines)


def test_each_shard_that_has_ended_has_a_line_and_a_failure_is_shown(run):
    outcomes, printed = run(900, Record(), "test_a.py", "test_b.py", "test_c.py")

    assert outcomes == {"green", "red", "skipped"}
    assert outcomes_in(printed) == [
        ("tests/test_a.py", "green"),
        ("tests/test_b.py", "red"),
        ("tests/test_c.py", "skipped"),
    ]
    assert "assert 2 > 3" in printed
    assert "1 green, 1 red, 0 cut, 1 skipped; 0 left" in printed


def test_what_runs_when_the_time_is_over_is_stopped_and_has_a_line(run):
    """The record learns how long it takes at least."""
    record = Record((), {"tests/test_d.py": LastRuns(seconds=1)})
    outcomes, printed = run(6, record, "test_d.py")

    assert outcomes == {"cut"}
    assert outcomes_in(printed) == [("tests/test_d.py", "cut")]
    assert record.updated(printed).shards["tests/test_d.py"].seconds >= 6


def test_what_does_not_fit_in_the_time_is_not_begun(run):
    """It would be cut, and its time lost for the others."""
    record = Record((), {"tests/test_a.py": GREEN, "tests/test_d.py": LastRuns("aaaa1111", "2026-11-20", 4_000)})

    outcomes, printed = run(900, record, "test_a.py", "test_d.py")

    assert outcomes == {"green"}
    assert outcomes_in(printed) == [("tests/test_a.py", "green")]
    assert "1 left for the next run" in printed


def test_a_long_file_is_divided_and_each_test_has_one_shard():
    nodeids = ["tests/a.py::test_1", "tests/b.py::test_1", "tests/b.py::test_2[x y]", "tests/b.py::test_3"]

    assert shards_of(nodeids, {"tests/b.py": 2}) == {
        "tests/a.py": ["tests/a.py"],
        "tests/b.py::test_1": ["tests/b.py::test_1", "tests/b.py::test_2[x y]"],
        "tests/b.py::test_3": ["tests/b.py::test_3"],
    }


def test_the_shard_that_was_green_longest_ago_comes_first_if_it_fits():
    """One that never ran counts as one of five minutes."""
    record = Record(
        ("aaaa1111", "bbbb2222", "cccc3333"),
        {
            "tests/new.py": LastRuns("cccc3333", "2026-11-22", 30),
            "tests/old.py": LastRuns("aaaa1111", "2026-11-20", 900),
            "tests/red.py": LastRuns("bbbb2222", "2026-11-21", 400, ("cccc3333",)),
        },
    )
    waiting = ["tests/new.py", "tests/never.py", "tests/old.py", "tests/red.py"]
    order = []
    for left_s in (1_000, 1_000, 500, UNKNOWN_S - 1, 20):
        order.append(next_shard([one for one in waiting if one not in order], record, left_s))

    assert order == ["tests/never.py", "tests/old.py", "tests/red.py", "tests/new.py", None]


LOG = """
> ...operate: 2026-11-29 bbbb2222 31 s green tests/e2e/test_a.py
> operate: 2026-11-29 bbbb2222 8 s red tests/e2e/test_b.py
> operate: 2026-11-29 bbbb2222 9 s red tests/e2e/test_b.py
> operate: 2026-11-29 bbbb2222 70 s green tests/sql/test_c.py
> operate: 2026-11-29 bbbb2222 99 s cut tests/sql/test_d.py::test_x[y z]
> operate: 2026-11-29 bbbb2222 3 s skipped tests/sql/test_e.py
"""


def test_the_lines_of_a_log_are_copied_into_the_record(tmp_path):
    """A green run ends the list of red ones; two runs of one commit are one."""
    before = Record(
        ("aaaa1111",),
        {
            "tests/e2e/test_b.py": GREEN,
            "tests/sql/test_c.py": LastRuns("aaaa1111", "2026-11-20", 30, ("cccc3333",)),
            "tests/sql/test_d.py::test_x[y z]": GREEN,
        },
    )

    after = before.updated(LOG)

    assert after == Record(
        ("aaaa1111", "bbbb2222"),
        {
            "tests/e2e/test_a.py": LastRuns("bbbb2222", "2026-11-29", 31),
            "tests/e2e/test_b.py": LastRuns("aaaa1111", "2026-11-20", 9, ("bbbb2222",)),
            "tests/sql/test_c.py": LastRuns("bbbb2222", "2026-11-29", 70),
            "tests/sql/test_d.py::test_x[y z]": LastRuns("aaaa1111", "2026-11-20", 99),
            "tests/sql/test_e.py": LastRuns(seconds=3, skipped_at="bbbb2222"),
        },
    )
    save(after, tmp_path / "record.json")
    assert load(tmp_path / "record.json") == after


def test_a_shard_that_is_red_or_was_not_green_in_four_runs_is_a_problem():
    runs = tuple(f"{number}" * 8 for number in range(1, 7))
    record = Record(
        runs,
        {
            "tests/fresh.py": LastRuns(runs[2], "2026-11-20", 30),
            "tests/old.py": LastRuns(runs[1], "2026-11-19", 30),
            "tests/red.py": LastRuns(runs[4], "2026-11-22", 30, (runs[5],)),
            "tests/skipped.py": LastRuns(seconds=3, skipped_at=runs[5]),
            "tests/gone.py": LastRuns(runs[0], "2026-11-18", 30),
        },
    )
    shards = ["tests/fresh.py", "tests/old.py", "tests/red.py", "tests/skipped.py", "tests/never.py"]

    found = record.problems(shards)

    assert sorted(line.split(":")[0].split()[-1] for line in found) == [
        "tests/never.py",
        "tests/old.py",
        "tests/red.py",
        "tests/skipped.py",
    ]
    assert record.problems(["tests/fresh.py"]) == []
