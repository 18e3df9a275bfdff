"""Rows are sorted in windows, so that a ledger of any length is read in bounded memory."""

import duckdb
import pytest

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.ledgers import PARTITIONS, a_long_life
from wakeroll_pipeline.ledger import archived_log
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.questions.quality.row_windows import rows_in_order
from wakeroll_pipeline.questions.replay_check import check_stretch, plan_replay

ROWS = """
    select shard, seq, 2 * seq as other
    from (values ('a', 1), ('a', 2), ('a', 2), ('a', 40), ('a', null), ('b', 3), (null, 7), (null, null), ('c', null))
        as rows (shard, seq)
"""
"""Rows with two of one position, gaps, and nulls where damage has left them."""


@pytest.mark.parametrize("width", [1, 2, 3, 8, 9, 1_000])
def test_rows_come_in_the_same_order_in_windows_of_any_width(width):
    """A rule sees each row once, also a damaged one, whether the ledger is read at once or in a thousand windows."""
    with duckdb.connect(config={"default_null_order": "nulls_first_on_asc_last_on_desc"}) as connection:
        expected = connection.execute(f"{ROWS} order by shard, seq").fetchall()

        found = list(rows_in_order(connection, ROWS, ("shard",), "seq", width))

    assert [tuple(row) for row in found] == expected
    assert found[-2].other == 6


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    """A ledger with two eras of each shard, and a reshard."""
    warehouse = tmp_path_factory.mktemp("warehouse")
    create_tables(warehouse)
    story, chains = a_long_life(), Chains(warehouse)
    append(warehouse, story, chains)
    append_snapshots(warehouse, story, chains)
    return warehouse


def test_a_replay_in_windows_compares_what_a_replay_at_once_compares(warehouse, monkeypatch):
    """No record and no decision at the edge of a window is left out, or read twice."""

    def replayed():
        with duck_ledger(warehouse) as ledger:
            found = plan_replay(ledger, 2 * PARTITIONS, Period())
            return [check_stretch(ledger, one, 2 * PARTITIONS, Period()) for one in found.stretches]

    at_once = replayed()
    monkeypatch.setattr(archived_log, "SORTED_POSITIONS", 7)

    assert sum(one.compared for one in at_once) > 90
    assert sum(one.differences for one in at_once) == 0
    assert replayed() == at_once
