"""Rows that are lost on record: Spark says of them what DuckDB says."""

import json

import pytest

from tests.unit.test_losses import home, lose_decisions, run, sound

pytestmark = [pytest.mark.spark, pytest.mark.operate]
__all__ = ("home", "sound")


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_the_tests_of_the_marts_leave_out_what_is_lost_on_record(home, engine):
    """Before an operator has accepted the loss, they find it."""
    lose_decisions(home)
    words = ("marts", "--home", str(home), "--engine", engine)
    assert run(*words) == 1
    assert run("repair", "--home", str(home), "--accept-losses") == 0

    assert run(*words) == 0


def test_both_engines_leave_the_same_rows_out(home, capsys):
    lose_decisions(home)
    assert run("repair", "--home", str(home), "--accept-losses") == 0

    found = {}
    for engine in ("duckdb", "spark"):
        capsys.readouterr()
        assert run("check", "--json", "--home", str(home), "--engine", engine) == 0
        rules = json.loads(capsys.readouterr().out)["rules"]
        found[engine] = {one["name"]: (one["status"], one["reason"]) for one in rules}
        capsys.readouterr()
        assert run("replay", "--json", "--home", str(home), "--engine", engine) == 0
        found[engine] |= {"replay": json.loads(capsys.readouterr().out)["shards"]}

    assert found["spark"] == found["duckdb"]
    assert found["duckdb"]["decisions.numbering"][0] == "skipped"
