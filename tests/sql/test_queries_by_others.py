"""docs/sql.md: each program that asks the tables there is run as it stands, and all of them answer the same."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_processes import run_process

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")

Rows = list[tuple[Any, ...]]
SINCE = [datetime(2023, 11, 14, 22, *at) for at in ((13, 20), (13, 31), (14, 36))]
OWNERS: Rows = [
    ("c1", SINCE[0], 11.0, "first", None),
    ("c2", SINCE[1], 65.0, "released", 1_000),
    ("c3", SINCE[2], None, "expired", None),
]
"""Whose orders-3 of billing was: c1 came first, gave it to c2 within a second of being asked, and c2 crashed."""
BEFORE: Rows = [("c1",), ("c2",)]
"""The same when only the first half of the day was written."""


@pytest.fixture(scope="module")
def checkout(day: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which everything is where the page says, with the day's tables as those of the demo."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(day, folder / ".wakeroll" / "demo" / "warehouse")
    (folder / "deploy" / "jars").mkdir(parents=True)
    (folder / "deploy" / "jars" / "spark").symlink_to(ROOT / "deploy" / "jars" / "spark")
    return folder


def blocks(language: str, word: str) -> list[str]:
    """Return the page's blocks of a language in which a word stands."""
    found = re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)
    return [block for block in found if word in block]


def test_the_page_shows_the_answer_that_it_promises():
    lines = re.findall(r"^\| (c\d) \|(.*)\|(.*)\|(.*)\|(.*)\|$", PAGE, flags=re.MULTILINE)

    assert [typed([cell.strip() for cell in line]) for line in lines] == OWNERS


def typed(cells: list[str]) -> tuple[Any, ...]:
    """Return a row of the question as its columns mean it."""
    owner, since, owned_s, how, handover_ms = cells
    at = datetime.fromisoformat(since).astimezone(UTC).replace(tzinfo=None)
    return owner, at, float(owned_s) if owned_s else None, how, int(handover_ms) if handover_ms else None


@pytest.fixture
def ask(engine, checkout, wakeroll, monkeypatch) -> Callable[[str], list[list[str]]]:
    """A command line of the page, on the Spark of this process; it returns the rows that it prints."""
    assert engine
    monkeypatch.chdir(checkout)

    def ask(line: str) -> list[list[str]]:
        program, *words = shlex.split(line)
        assert program == "wakeroll"
        code, said, complaint = wakeroll(*words, "--format", "csv")
        assert (code, complaint) == (0, "")
        return list(csv.reader(io.StringIO(said)))[1:]

    return ask


def test_wakeroll_sql_answers(ask):
    [question, then] = blocks("sh", "wakeroll sql --home .wakeroll/demo")

    assert [typed(row) for row in ask(question)] == OWNERS
    assert [tuple(row) for row in ask(then)] == BEFORE


@pytest.mark.operate
def test_spark_answers_with_the_confs_that_the_page_names(checkout):
    """In a process of its own: this one has all of ours."""
    [question, then] = blocks("python", "spark.")
    keep = "kept.append([list(row) for row in answer.collect()])\n"
    program = f"import json\nkept = []\n{question}{keep}{then}{keep}print(json.dumps(kept, default=str))"
    ours = [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_")) and name != "SPARK_SUBMIT_OPTS"]

    done = run_process(
        [sys.executable, "-c", program], folder=checkout, without=ours, TZ="UTC", SPARK_LOCAL_IP="127.0.0.1"
    )

    assert done.returncode == 0, done.stderr
    owners, before = json.loads(done.stdout.splitlines()[-1])
    assert [(owner, datetime.fromisoformat(since), *others) for owner, since, *others in owners] == OWNERS
    assert [tuple(row) for row in before] == BEFORE


def test_duckdb_answers(checkout, monkeypatch):
    """And the version of before, by `deltalake`."""
    monkeypatch.chdir(checkout)
    [question, then] = blocks("python", "duckdb.sql")

    assert run(question).fetchall() == OWNERS
    assert run(then).fetchall() == BEFORE


def test_polars_answers(checkout, monkeypatch):
    monkeypatch.chdir(checkout)
    [question] = blocks("python", "import polars")

    assert run(question).rows() == OWNERS


def run(program: str) -> Any:
    """Run a program of the page; return its `answer`."""
    names: dict[str, Any] = {}
    exec(program, names)
    return names["answer"]


def test_every_program_of_the_page_is_run_here():
    """One that is added to the page must be added here; `test_own_models` runs the one that asks an own mart."""
    assert len(blocks("python", "")) == 5
    assert len(blocks("sh", "wakeroll sql")) == 2 + len(blocks("sh", "from team_rebalances"))
