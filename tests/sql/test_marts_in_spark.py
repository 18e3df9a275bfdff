"""Marts that dbt builds in Spark, of decisions that no machine of this version makes."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.ledgers import told_by_hand, write_ledger
from wakeroll_model.decisions import FailedMessages, FailedOutcome, Fenced, Handover, Membership
from wakeroll_model.queue import Queue
from wakeroll_pipeline.questions import marts

pytestmark = pytest.mark.spark

Ask = Callable[[str], list[tuple[Any, ...]]]


def changed(client_id: str, instance_id: str, change: str, detail: str = "") -> Membership:
    names = {"group_id": "odd", "client_id": client_id, "instance_id": instance_id}
    return Membership(**names, change=change, epoch=1, detail=detail)


def fenced(client_id: str, instance_id: str, reason: str, by: str = "") -> Fenced:
    return Fenced(group_id="odd", client_id=client_id, instance_id=instance_id, reason=reason, by=by)


def handed_over(client_id: str, before: str | None, how: str) -> Handover:
    return Handover(group_id="odd", queue=Queue("orders", "", 0), from_=before, to=client_id, epoch=1, how=how)


def failed(offset: int, *, attempt: int, outcome: FailedOutcome, level: int) -> FailedMessages:
    return FailedMessages(
        group_id="odd",
        client_id="picky",
        queue=Queue("orders", "", 0),
        first_offset=offset,
        last_offset=offset,
        messages=1,
        attempt=attempt,
        outcome=outcome,
        level=level,
        error="ValueError: no amount",
    )


@pytest.fixture(scope="module")
def odd(engine: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Ask the marts of a group that an earlier version decided about in era 1, and this one in eras 2 and 3."""
    duplicate_id = "duplicate id: instance 'life-6' uses the client_id of live instance 'life-5'"
    story = told_by_hand(
        (1, changed("old", "life-1", "joined")),
        (1, handed_over("old", None, "first")),
        (1, fenced("old", "life-1", "replaced", by="life-2")),
        (1, handed_over("old", "old", "replaced")),
        (1, changed("old", "life-2", "replaced", "instance life-1 by life-2")),
        (1, changed("old", "life-2", "conflict", "duplicate id: replaced 3 times in 9 s")),
        (2, changed("twin", "life-3", "joined")),
        (2, fenced("twin", "life-4", "duplicate", by="life-3")),
        (2, fenced("twin", "life-4", "duplicate", by="life-3")),
        (2, changed("named", "life-5", "joined")),
        (2, changed("named", "life-5", "conflict", duplicate_id)),
        (2, changed("picky", "life-7", "joined")),
        (2, changed("picky", "life-7", "conflict", "strategy SPREAD differs from AVG of old")),
        (2, changed("deaf", "life-8", "joined")),
        (2, changed("deaf", "life-8", "expired", "deaf: its heartbeats show epoch 1; expected at least 3")),
        (2, fenced("deaf", "life-8", "deaf")),
        (2, fenced("late", "life-9", "epoch")),
        (2, fenced("many", "life-10", "refused")),
        (3, changed("picky", "life-7", "joined")),
        (3, failed(7, attempt=1, outcome="retry", level=3)),
        (3, failed(7, attempt=2, outcome="dead", level=0)),
    )
    home = tmp_path_factory.mktemp("odd")
    write_ledger(home / "warehouse", story, batches=1)
    staging = ("stg_memberships", "stg_handovers", "stg_fencings", "stg_failed_messages")
    models = (*staging, "duplicate_clients", "subscription_conflicts")
    done = marts.build(
        home / "warehouse", home / "logs", "--select", *models, "--indirect-selection", "cautious", engine="spark"
    )
    assert [outcome for outcome in done if not outcome.is_good] == []
    words = {outcome.name.partition("__")[0] for outcome in done if outcome.name.startswith("accepted_values")}
    columns = ("stg_fencings_reason", "stg_handovers_how", "stg_memberships_change", "stg_failed_messages_outcome")
    assert words == {f"accepted_values_{name}" for name in columns}
    return lambda sql: [tuple(row) for row in engine.sql(sql).collect()]


def test_a_name_that_two_processes_use_is_listed(odd: Ask):
    """Whether a conflict says so, or an instance was fenced as a duplicate, however often it was told."""
    found = odd(
        "select client_id, reports, fenced_instances, instances, last_detail from marts.duplicate_clients order by 1"
    )

    assert found == [
        ("named", 1, 0, 1, "duplicate id: instance 'life-6' uses the client_id of live instance 'life-5'"),
        ("old", 1, 1, 2, "duplicate id: replaced 3 times in 9 s"),
        ("twin", 1, 1, 2, "duplicate id: instance life-4 was fenced, life-3 lives"),
    ]


def test_a_conflict_ends_when_its_client_joins_anew(odd: Ask):
    """A new era knows nothing of the conflicts of the one before it."""
    assert odd("select client_id, ended_by, is_open from marts.subscription_conflicts") == [("picky", "joined", False)]


def test_the_words_of_an_earlier_version_are_understood(odd: Ask):
    """Its ledgers stay readable."""
    assert odd("select how, is_abrupt from marts.stg_handovers order by era, seq") == [
        ("first", False),
        ("replaced", True),
    ]


def test_failed_messages_show_the_way_to_the_dead_letter(odd: Ask):
    """Which message of which queue failed, how often, and why."""
    failures = odd(
        "select client_id, topic, queue_id, first_offset, messages, attempt, outcome, level, error "
        "from marts.stg_failed_messages order by era, seq"
    )

    assert failures == [
        ("picky", "orders", 0, 7, 1, 1, "retry", 3, "ValueError: no amount"),
        ("picky", "orders", 0, 7, 1, 2, "dead", 0, "ValueError: no amount"),
    ]
