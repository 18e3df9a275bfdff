"""The order of the ledger is (era, seq): through views, `explain`, retention, rules, marts and the queries of the docs.

The ledger here has eras 9 and 10, of which 9 is the later text, and its log's clock steps back by 700 ms before the
last hand-over.  What the answers must be is taken from the decisions as they were made.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ledgers import Story, forget_the_first_day, members_of, offsets_of, owners_of, two_eras
from wakeroll.epoch_ms import EpochMs
from wakeroll_model.decision_order import era_of
from wakeroll_model.decisions import Handover
from wakeroll_model.queue import Queue
from wakeroll_model.rows import RECORDED
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.local.story_queries import WHO_OWNED
from wakeroll_pipeline.questions import marts
from wakeroll_pipeline.questions.explain import explain
from wakeroll_pipeline.questions.quality.comparison_rules import broken_rows

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

Rows = Callable[[str], list[tuple[Any, ...]]]

OWNERS = "select group_id, topic, queue_id, client_id from current_assignments"
OFFSETS = "select group_id, topic, queue_id, committed_offset from current_offsets"
MEMBERS = "select group_id, client_id from current_members"


@pytest.fixture(scope="module")
def story() -> Story:
    """What was decided, in the order in which it was."""
    return two_eras()


@pytest.fixture(scope="module")
def asked(open_in: Callable[[Path], Ledger], eras: Path) -> Rows:
    """Ask the ledger, in each engine."""
    ledger = open_in(eras)
    return lambda sql: [*ledger.stream(sql)]


def check_views(story: Story, rows: Rows) -> None:
    """Compare the views of the present with what was decided last."""
    assert {tuple(where): owner for *where, owner in rows(OWNERS)} == owners_of(story)
    assert {tuple(where): offset for *where, offset in rows(OFFSETS)} == offsets_of(story)
    assert set(rows(MEMBERS)) == members_of(story)


def handovers_of(story: Story, group_id: str, queue_id: int) -> list[Handover]:
    decided = (one for one in story.decisions if isinstance(one, Handover))
    return [one for one in decided if (one.group_id, one.queue.queue_id) == (group_id, queue_id)]


def test_the_story_has_what_the_tests_are_about(story):
    """Else they would show nothing: log times and names of shards must not be in the order of the decisions."""
    given, back = handovers_of(story, "billing", 3)[-2:]
    of_mail = handovers_of(story, "mail", 1)

    assert (given.to, back.from_, back.at_ms - given.at_ms) == ("c3", "c3", -700)
    assert [era_of(one.shard) for one in of_mail] == sorted(era_of(one.shard) for one in of_mail)
    assert {era_of(one.shard) for one in of_mail} == {9, 10}
    assert of_mail[-1].at_ms == max(one.at_ms for one in of_mail if era_of(one.shard) == 9)
    assert [one.to for one in of_mail[-2:]] == ["m2", "m1"]


# --- views ---


def test_the_views_say_what_was_decided_last(asked, story):
    """Before, `current_assignments` named c3, who had left."""
    check_views(story, asked)


def test_an_era_begins_without_the_members_and_owners_of_the_one_before(asked, story):
    """x1 died with the state of era 9: era 10 never heard of it, and says nothing about it."""
    of_ads = [one for one in story.decisions if getattr(one, "group_id", "") == "ads"]

    assert {era_of(one.shard) for one in of_ads} == {9}
    assert asked("select * from current_members where group_id = 'ads'") == []
    assert asked("select * from current_assignments where group_id = 'ads'") == []
    [ads] = asked("select members, owned, unowned from groups where group_id = 'ads'")
    assert ads == (0, 0, 0)


def test_the_groups_view_shows_the_last_rebalance(asked, story):
    """By its order too, not by its epoch or its time."""
    last = {one.group_id: one for one in story.decisions if type(one).__name__ == "Rebalance"}

    rows = asked("select group_id, epoch, last_trigger, last_rebalance_ms from groups")

    assert {group_id: rest for group_id, *rest in rows} == {
        group_id: [one.epoch, one.trigger, one.at_ms] for group_id, one in last.items()
    }


# --- explain ---


@pytest.fixture(scope="module")
def opened(open_in, eras):
    """The ledger in each engine."""
    return open_in(eras)


def test_a_hand_over_at_an_earlier_log_time_is_explained(opened, story):
    """The newest one, with its steps in the order of the log, whatever their times."""
    given, back = handovers_of(story, "billing", 3)[-2:]

    explanation = explain(opened, "billing", Queue("orders", "", 3))

    assert explanation.answer.startswith(f"orders-3 of billing is owned by c2 since {EpochMs(back.at_ms)} ")
    assert [step.what.partition(":")[0] for step in explanation.steps] == [
        "unregister of c3, c3 left",
        f"rebalance to epoch {back.epoch} by leave",
        "c3 left the group",
        "the queue was assigned to c2, from offset 30",
    ]
    before = explain(opened, "billing", Queue("orders", "", 3), back.at_ms - 1)
    assert before.answer.startswith("orders-3 of billing is owned by c2 since ")
    assert explain(opened, "billing", Queue("orders", "", 3), given.at_ms).answer.startswith(
        f"orders-3 of billing is owned by c2 since {EpochMs(back.at_ms)} "
    )


def test_a_hand_over_of_era_10_is_newer_than_one_of_era_9(opened, story):
    """At the same log time."""
    back = handovers_of(story, "mail", 1)[-1]

    explanation = explain(opened, "mail", Queue("mails", "", 1))

    assert explanation.answer.startswith(
        f"mails-1 of mail is owned by m1 since {EpochMs(back.at_ms)} (epoch {back.epoch})"
    )
    assert explanation.steps[-1].what == "the queue was assigned to m1, from offset 20"


def test_a_queue_that_a_new_era_never_heard_of_is_nobodys(opened, story):
    """And the owner of before is named."""
    last = handovers_of(story, "ads", 0)[-1]

    explanation = explain(opened, "ads", Queue("orders", "", 0))

    assert explanation.answer == (
        "orders-0 of ads has no owner since era 10 began: the coordinator lost its state, and no member has claimed "
        f"the queue; the owner after the last recorded hand-over, at {EpochMs(last.at_ms)} (epoch {last.epoch}), was x1"
    )


# --- retention ---


@pytest.mark.operate
def test_retention_keeps_what_was_decided_last(spark, eras, story, tmp_path):
    """Before, it deleted the true last row of a queue, and kept one that names an owner who had left."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(eras, warehouse)
    session = spark.newSession()
    open_views(session, eras)
    before = {table.name: session.table(table.name).count() for table in RECORDED}

    forget_the_first_day(warehouse, story)

    open_views(session, warehouse)
    check_views(story, lambda sql: [tuple(row) for row in session.sql(sql).collect()])
    for table in RECORDED:
        assert 0 < session.table(table.name).count() < before[table.name], table.name
    with broken_rows(session) as broken:
        assert broken.collect() == []


# --- rules ---


@pytest.mark.operate
def test_no_rule_of_the_history_is_broken(spark, eras):
    """Before, c2 was said to own what a member that is gone had."""
    open_views(spark, eras)
    with broken_rows(spark) as broken:
        assert [tuple(row) for row in broken.collect()] == []


@pytest.mark.operate
def test_an_owner_that_left_is_found_though_it_joined_later_by_the_clock(spark, eras):
    """The rule knows that a2 is gone; by log times, it had joined after it left."""
    session = spark.newSession()
    open_views(session, eras)
    theft = "case when group_id = 'audit' then 'a2' else client_id end as client_id"
    session.sql(f"select * except (client_id), {theft} from assignments").createOrReplaceTempView("stolen")
    session.sql("select * from stolen").createOrReplaceTempView("assignments")

    with broken_rows(session) as broken:
        rows = broken.where("rule = 'current_assignments.owners'").collect()

    assert {row.at for row in rows} == {f"audit/orders//{number}" for number in range(4)}
    assert all(row.found.startswith("owner a2, which left in groups-2.10/") for row in rows)


# --- marts ---


@pytest.fixture(scope="module")
def mart(eras: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    """Build the marts of the ledger, ask every test, and return how to ask them."""
    home = tmp_path_factory.mktemp("marts of eras")
    shutil.copytree(eras, home / "warehouse")
    built = marts.build(home / "warehouse", home / "logs")
    assert [outcome for outcome in built if not outcome.is_good] == []
    with duck_ledger(home / "warehouse") as ledger:
        ledger.open_marts()
        yield lambda sql: [*ledger.stream(sql)]


def test_the_marts_say_what_was_decided_last(mart, story):
    owners = mart("select group_id, topic, queue_id, client_id from current_ownership")
    lag = mart("select group_id, topic, queue_id, committed_offset from consumer_lag")

    assert {tuple(where): owner for *where, owner in owners} == owners_of(story)
    committed = {tuple(where): offset for *where, offset in lag if offset is not None}
    assert committed == offsets_of(story)
    assert len(lag) > len(committed), "also the queues that are owned, and have no committed offset"


def test_periods_of_ownership_follow_each_other_though_the_clock_steps_back(mart, story):
    """None lasts less than no time, and none begins before the one before it has ended."""
    periods = mart(
        "select client_id, owned_from, owned_to, owned_s from ownership_timeline "
        "where group_id = 'billing' and queue_id = 3 order by era, seq"
    )

    assert [client_id for client_id, *_ in periods] == [one.to for one in handovers_of(story, "billing", 3)]
    assert [ended for _, _, ended, _ in periods] == [begun for _, begun, *_ in periods[1:]] + [None]
    assert [owned_s for *_, owned_s in periods[-2:]] == [0.0, None]
    assert all(owned_s >= 0 for *_, owned_s in periods[:-1])


def test_no_duration_is_negative_and_no_offset_is_said_to_fall(mart):
    """What a rebalance cost, and how healthy a queue is, are told from the log, not from its clock."""
    assert mart("select count(*) from rebalance_cost where handover_s < 0 or total_pause_s < 0") == [(0,)]
    assert mart("select distinct status from queue_health where group_id = 'billing'") != [("REWIND",)]


# --- queries for people ---


def queries_of(path: str) -> list[str]:
    """Return the SQL of a page."""
    return re.findall(r"```sql\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_query_of_the_tutorial_answers_in_the_order_of_decisions(asked, story):
    [query] = [query for query in queries_of("docs/tutorial-data.md") if "from assignments" in query]

    owners = [client_id for client_id, *_ in asked(query)]

    assert owners == [one.to for one in handovers_of(story, "billing", 3)]


def test_the_demo_answers_in_the_order_of_decisions(eras, story):
    with duck_ledger(eras) as opened:
        rows = opened.rows(WHO_OWNED, group_id="billing", queue="orders-3")

    assert [row.owner for row in rows] == [one.to for one in handovers_of(story, "billing", 3)]
    assert [row.until for row in rows] == [row.since for row in rows[1:]] + [None]
