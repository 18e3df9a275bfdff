"""Questions about all rows of a large ledger, which the commands answer in this process."""

import re

import pytest

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.ledgers import a_day
from wakeroll_model.rows import DECISIONS, EVENTS
from wakeroll_pipeline.cli import open_ledger
from wakeroll_pipeline.ledger import duck_ledger as duck_module
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.delta_files import number_of_rows
from wakeroll_pipeline.ledger.duck_ledger import delta_table, duck_ledger


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    create_tables(home / "warehouse")
    story, chains = a_day(), Chains(home / "warehouse")
    append(home / "warehouse", story, chains)
    append_snapshots(home / "warehouse", story, chains)
    return home


@pytest.mark.parametrize("words", [("check", "--no-docs"), ("replay",)])
def test_bounded_questions_need_no_spark_and_say_how_long_they_take(home, wakeroll, monkeypatch, words):
    """A nightly `check` of a ledger of years is no surprise, and needs no cluster."""
    monkeypatch.setattr(open_ledger, "LARGEST_BYTES", 1_000)
    monkeypatch.setattr(open_ledger, "find_spec", lambda _name: None)
    code, _, quick = wakeroll(*words, "--home", str(home))
    monkeypatch.setattr(open_ledger, "_LONG_S", 0)
    again, _, slow = wakeroll(*words, "--home", str(home))

    assert code == again == 0
    assert quick == ""
    assert re.fullmatch(r"wakeroll: the question reads [\d,]+ rows, which takes about 1 min on .*cores?\n", slow)


def test_the_number_of_rows_is_known_without_reading_them(home):
    """It is in the statistics of the Delta log, so the time that a question takes is known at once."""
    with duck_ledger(home / "warehouse") as ledger:
        [count] = ledger.rows("select count(*) as rows from events")

        assert ledger.opened.rows_of(EVENTS) == count.rows > 0
        assert number_of_rows(delta_table(home / "warehouse", DECISIONS)) < ledger.opened.rows


def test_a_question_that_needs_more_memory_is_answered_all_the_same(home, wakeroll, monkeypatch):
    """A bound on memory must not make a check fail that worked without it."""
    limits = []
    usual = wakeroll("check", "--no-docs", "--home", str(home))
    monkeypatch.setattr(duck_module, "_BOUND_MIB", 1)
    with duck_ledger(home / "warehouse") as ledger:

        def question():
            limits.extend(ledger.rows("select current_setting('memory_limit') as bytes"))
            return ledger.rows("select count(*) as rows from (select * from range(1000000) order by hash(range))")

        [count] = ledger.in_bounded_memory(question)

    assert count.rows == 1_000_000
    assert len(limits) == 2
    assert wakeroll("check", "--no-docs", "--home", str(home)) == usual
    assert usual[0] == 0
