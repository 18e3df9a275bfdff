"""Marts and rules of SQL, while a topic is cut into slices: each slice is a queue, and sums take a partition once."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.questions import marts

LEDGER = "sliced"


@pytest.fixture(scope="module")
def ledger(home: Path, built: list[marts.BuildResult]) -> Iterator[DuckLedger]:
    assert built
    with duck_ledger(home / "warehouse") as opened:
        opened.open_marts()
        yield opened


def test_no_rule_is_broken(built):
    assert [one for one in built if not one.is_good] == []
    assert "owned_slices_never_overlap" in {one.name for one in built}


def test_a_slice_has_a_history_of_its_own(ledger):
    """It ends when the slices of another number are assigned, and no later one begins before."""
    rows = ledger.rows(
        "select slice, client_id, how, owned_s from ownership_timeline where group_id = 'billing' and queue_id = 0 "
        "and coalesce(slice, '3/8') in ('3/8', '1/4') order by era, seq"
    )

    assert [tuple(row) for row in rows] == [
        (None, "c1", "first", 11),
        (None, None, "released", 0),
        (None, None, "cut", None),
        ("3/8", "c1", "first", 14),
        ("3/8", "c2", "unregistered", 51),
        ("3/8", "c3", "expired", 30),
        ("3/8", None, "released", 0),
        ("3/8", None, "cut", None),
        ("1/4", "c3", "first", None),
    ]


def test_the_present_slices_have_owners_offsets_and_health(ledger):
    """A group that does not cut the topic has its partitions, as ever."""
    joined = (
        "select owned.group_id, owned.slice, owned.client_id, lag.committed_offset, lag.lag_messages, health.status "
        "from current_ownership as owned "
        "join consumer_lag as lag on owned.group_id = lag.group_id and owned.queue_id = lag.queue_id "
        "and owned.slice is not distinct from lag.slice "
        "join queue_health as health on owned.group_id = health.group_id and owned.queue_id = health.queue_id "
        "and owned.slice is not distinct from health.slice "
        "where owned.queue_id = 1 order by owned.group_id, owned.slice"
    )

    assert [tuple(row) for row in ledger.rows(joined)] == [
        *(("billing", f"{number}/4", "c4", 600 + number, 400 - number, "OK") for number in range(4)),
        ("plain", None, "p1", 500, 500, "STOP"),
    ]


def test_sums_take_each_partition_once(ledger):
    health = ledger.rows("select group_id, queues, lag_messages, max_lag_messages from group_health order by group_id")
    [expired] = ledger.rows(
        "select handed_over_abruptly, repeats_possible, longest_pause_s from rebalance_cost "
        "where group_id = 'billing' and trigger = 'expire'"
    )

    assert [tuple(row) for row in health] == [("billing", 8, 800, 400), ("plain", 2, 1000, 500)]
    assert tuple(expired) == (8, 700, 46)


PLANTED = {
    "nothing": "slice",
    "an owner of the whole partition": "null",
    "an owner of a slice that contains the other": "'1/4'",
    "an owner of a slice that the other contains": "'6/16'",
}
OTHER = "queue_id = 1 and slice = '3/8' and how = 'first'"


@pytest.mark.parametrize("name", PLANTED)
def test_owners_of_overlapping_slices_are_found(home, ledger, name):
    """The first owner of a slice of orders-1 gets one of orders-0 instead, which overlaps 3/8 of it."""
    compiled = home / "logs" / "dbt" / "compiled" / "wakeroll" / "tests" / "owned_slices_never_overlap.sql"
    rule = re.sub(r'"\w+"\."\w+"\.', "", compiled.read_text(encoding="utf-8"))
    rule = rule.replace('"ownership_timeline"', "planted").replace('"stg_losses"', "no_losses")
    moved, its_slice = f"group_id = 'billing' and {OTHER}", PLANTED[name]
    ledger.connection.execute(
        "create or replace temp table no_losses as select '' as table_name, '' as shard where false; "
        "create or replace temp table planted as select * replace ("
        f"case when {moved} then {0 if name != 'nothing' else 1} else queue_id end as queue_id, "
        f"case when {moved} then {its_slice} else slice end as slice) from ownership_timeline"
    )

    found = ledger.connection.execute(f"select queue_id, slice, client_id from ({rule}) order by seq").fetchall()

    planted = [] if name == "nothing" else [(0, None if its_slice == "null" else its_slice.strip("'"), "c2")]
    assert found[: len(planted)] == planted
    assert bool(found) == bool(planted)
