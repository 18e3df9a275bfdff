"""Damaged tables in Spark: the same sentences and exit codes as in DuckDB (`tests/unit/test_unreadable_tables.py`)."""

import json
import shutil

import pytest

from tests.support.damaged_tables import DAMAGES
from tests.support.engines import ENGINES

pytestmark = pytest.mark.spark

_KINDS = [
    "lose a file",
    "cut a file",
    "lose a commit",
    "flip a commit",
    "lose the table",
    "change a type",
    "flip the pages",
]
"""Kinds of damage; the last one is found when the rows are read."""


@pytest.fixture
def home(day, tmp_path):
    """A copy of the tables of a day, to be damaged."""
    shutil.copytree(day, tmp_path / "warehouse")
    return tmp_path


@pytest.mark.operate
@pytest.mark.parametrize("what", _KINDS)
def test_spark_names_the_table_and_the_file(engine, wakeroll, home, what):
    assert engine
    named = DAMAGES[what](home / "warehouse" / "decisions")

    code, said, complaint = wakeroll("sql", "select * from decisions", "--engine", "spark", "--home", str(home))

    assert (code, said) == (3, ""), complaint
    assert f"wakeroll: cannot read table 'decisions': {named}" in complaint


@pytest.mark.operate
@pytest.mark.parametrize("words", ["check --table decisions", "replay", "marts"])
@pytest.mark.parametrize("what", ["lose a file", "flip the pages"])
def test_every_command_in_spark_ends_with_the_sentence(engine, wakeroll, home, words, what):
    """Some errors of Spark arrive as broken rules of Great Expectations, or as failed models of dbt."""
    assert engine
    named = DAMAGES[what](home / "warehouse" / "decisions")

    code, said, complaint = wakeroll(*words.split(), "--engine", "spark", "--home", str(home))

    assert code == 3, said + complaint
    assert f"wakeroll: cannot read table 'decisions': {named}" in complaint


@pytest.mark.operate
@pytest.mark.parametrize("what", ["lose a file", "flip the pages"])
def test_the_check_of_the_other_tables_is_the_same_in_both_engines(engine, wakeroll, home, what):
    """One unreadable table must not hide whether the others keep their rules."""
    assert engine
    DAMAGES[what](home / "warehouse" / "offsets")

    answers = {}
    for name in ("duckdb", "spark"):
        code, said, _ = wakeroll("check", "--json", "--no-docs", "--engine", name, "--home", str(home))
        assert code == 3, said
        answers[name] = {rule["name"]: rule["status"] for rule in json.loads(said)["rules"]}

    assert answers["spark"] == answers["duckdb"]
    assert answers["duckdb"]["offsets.decided"] == "not_checked"
    assert answers["duckdb"]["assignments.decided"] == "ok"


@pytest.mark.parametrize("engine_name", ENGINES)
def test_a_damaged_mart_names_its_own_remedy(engine, wakeroll, home, engine_name):
    """A mart can be built again from the ledger."""
    assert engine
    where = ["--home", str(home), "--engine", engine_name]
    only = ("--select", "+rebalance_cost")
    assert wakeroll("marts", *only, *where)[0] == 0
    mart = home / "warehouse" / "marts" / "rebalance_cost"
    named = DAMAGES["lose a file"](mart)

    for words in (["sql", "select * from rebalance_cost"], ["marts", *only]):
        code, said, complaint = wakeroll(*words, *where)
        assert code == 3, said + complaint
        assert (
            f"cannot read table 'rebalance_cost': {named}; put it back from a copy of the tables, or delete"
            in complaint
        )

    shutil.rmtree(mart)
    assert wakeroll("marts", *only, *where)[0] == 0
