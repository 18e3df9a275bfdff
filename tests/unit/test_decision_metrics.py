"""Decisions as Prometheus metrics: each is counted once, and the number of series has a bound."""

from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from wakeroll_model.decisions import (
    AnyDecision,
    Cause,
    FailedMessages,
    Handover,
    Membership,
    Rebalance,
    Rejected,
    Wake,
)
from wakeroll_model.queue import Queue
from wakeroll_pipeline.metrics.decision_metrics import DecisionMetrics
from wakeroll_pipeline.metrics.group_choice import OTHER, GroupChoice

QUEUE = Queue("orders", "", 3)


class Counted:
    """Metrics that are fed decisions of one shard, and what they show."""

    def __init__(self, most: int = 10) -> None:
        self.registry = CollectorRegistry()
        self.choice = GroupChoice(self.registry, most)
        self.metrics = DecisionMetrics(self.registry, self.choice)
        self._seqs = count(1)

    def say(self, decision: AnyDecision, *, delay_ms: int = 0, shard: str = "groups-1.1") -> None:
        decision.shard, decision.seq, decision.at_ms = shard, next(self._seqs), 1_000_000
        assert self.metrics.count(decision, 0, decision.at_ms + delay_ms)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


def rebalance(group_id: str = "billing", *, trigger: str = "join", moved: int = 0) -> Rebalance:
    return Rebalance(
        group_id=group_id,
        epoch=1,
        trigger=trigger,
        causes=[Cause("groups", 1, 0)],
        strategy="AVG",
        clients=1,
        queues=8,
        moved=moved,
        unassigned=[],
        spread=0,
        notes=[],
    )


def handover(**fields) -> Handover:
    return Handover(group_id="billing", queue=QUEUE, from_="a", to="b", epoch=2, **fields)


def wake(reason: str) -> Wake:
    return Wake(
        request_id="i:1", group_id="billing", client_id="a", queue=QUEUE, reason=reason, next_offset=1, held_ms=0
    )


def failed(group_id: str, outcome: str, messages: int) -> FailedMessages:
    return FailedMessages(
        group_id=group_id,
        client_id="a",
        queue=QUEUE,
        first_offset=0,
        last_offset=9,
        messages=messages,
        attempt=1,
        outcome=outcome,
        level=3,
    )


def at(shard: str, seq: int) -> Membership:
    return Membership(shard=shard, seq=seq, group_id="billing", client_id="a", change="joined", epoch=1)


@pytest.mark.parametrize(
    ("places", "counted"),
    [
        ([("groups-1.1", 1), ("groups-1.1", 2), ("groups-1.1", 1), ("groups-1.1", 2)], 2),
        ([("groups-1.9", 700), ("groups-1.10", 1), ("groups-1.9", 701)], 2),
        ([("groups-1.1", 1), ("queues-1.1", 1)], 2),
    ],
)
def test_a_decision_is_counted_once(places, counted):
    """The Kafka sink repeats a batch after a crash, and an older era may still append."""
    shown = Counted()
    for shard, seq in places:
        shown.metrics.count(at(shard, seq), 0, 0)

    assert shown.value("wakeroll_decisions_total", kind="membership") == counted


def test_shards_of_one_name_in_two_partitions_are_counted_apart():
    """A repeat is in the partition of the first; readers know a shard by its partition too."""
    shown = Counted()
    assert [shown.metrics.count(at("groups-1.1", 1), partition, 0) for partition in (0, 1, 1)] == [True, True, False]


def test_rebalances_count_by_group_and_trigger():
    shown = Counted()
    shown.say(rebalance(trigger="join", moved=3))
    shown.say(rebalance(trigger="expire", moved=2))
    shown.say(rebalance("audit", trigger="join"))

    assert shown.value("wakeroll_rebalances_total", group="billing", trigger="join") == 1
    assert shown.value("wakeroll_rebalances_total", group="billing", trigger="expire") == 1
    assert shown.value("wakeroll_queues_moved_total", group="billing") == 5
    assert shown.value("wakeroll_queues_moved_total", group="audit") == 0


@pytest.mark.parametrize(
    ("fields", "how", "seconds"),
    [
        ({"revoked_ms": 1_000, "released_ms": 3_000, "assigned_ms": 3_500}, "released", 2.5),
        ({"released_ms": 3_000, "assigned_ms": 3_500}, "expired", 0.5),
        ({"released_ms": 3_500, "assigned_ms": 3_000}, "expired", 0),
        ({"assigned_ms": 3_500}, "first", None),
        ({"released_ms": 3_000}, "unregistered", None),
    ],
)
def test_a_handover_takes_from_the_revocation_to_the_next_assignment(fields, how, seconds):
    shown = Counted()
    shown.say(handover(how=how, **fields))

    assert shown.value("wakeroll_handover_seconds_sum", how=how) == seconds


def test_only_wakes_for_messages_have_a_delay():
    """A timeout is late by no message's fault."""
    shown = Counted()
    shown.say(wake("arrival"), delay_ms=400)
    shown.say(wake("timeout"), delay_ms=900)

    assert shown.value("wakeroll_wakes_total", reason="arrival") == 1
    assert shown.value("wakeroll_wakes_total", reason="timeout") == 1
    assert shown.value("wakeroll_wakes_total", reason="overflow") == 0
    assert shown.value("wakeroll_wake_delay_seconds_count") == 1
    assert shown.value("wakeroll_wake_delay_seconds_sum") == 0.4
    assert shown.value("wakeroll_decision_delay_seconds_sum") == 1.3


def test_a_delay_is_never_negative():
    """Two brokers' clocks differ: a histogram whose sum falls looks like a restart."""
    shown = Counted()
    shown.say(wake("arrival"), delay_ms=-50)

    assert shown.value("wakeroll_decision_delay_seconds_sum") == 0


def test_rejections_count_by_rule():
    shown = Counted()
    for rule in ("bounds", "internal", "bounds"):
        shown.say(Rejected(rule=rule, detail="found x, expected y"))

    assert shown.value("wakeroll_rejections_total", rule="bounds") == 2
    assert shown.value("wakeroll_rejections_total", rule="limit") == 0, "so its first one is growth"
    assert shown.value("wakeroll_rejections_total", rule="internal") == 1


def test_failed_messages_count_messages_not_reports():
    shown = Counted()
    shown.say(failed("billing", "retry", 5))
    shown.say(failed("billing", "retry", 2))

    assert shown.value("wakeroll_failed_messages_total", group="billing", outcome="retry") == 7
    assert shown.value("wakeroll_failed_messages_total", group="billing", outcome="dead") == 0


def test_groups_above_the_limit_share_one_series():
    """Anybody may append a heartbeat with a new group; sums over all groups stay right."""
    shown = Counted(most=2)
    for group_id in ("a", "b", "c", "d", "a", "c"):
        shown.say(rebalance(group_id))

    groups = {
        sample.labels["group"]
        for metric in shown.registry.collect()
        for sample in metric.samples
        if sample.name == "wakeroll_rebalances_total"
    }
    assert groups == {"a", "b", OTHER}
    assert shown.value("wakeroll_rebalances_total", group=OTHER, trigger="join") == 3
    assert shown.value("wakeroll_rebalances_total", group="a", trigger="join") == 2
    assert shown.value("wakeroll_metrics_capped_updates_total", label="group") == 3
    assert shown.value("wakeroll_metrics_label_values", label="group") == 2


def test_a_forgotten_group_makes_room_for_another():
    shown = Counted(most=1)
    shown.say(rebalance("a"))
    shown.say(Membership(group_id="a", client_id="", change="forgotten", epoch=3))
    shown.say(rebalance("b"))

    assert shown.value("wakeroll_rebalances_total", group="a", trigger="join") is None
    assert shown.value("wakeroll_failed_messages_total", group="a", outcome="dead") is None
    assert shown.value("wakeroll_rebalances_total", group="b", trigger="join") == 1
    assert shown.value("wakeroll_metrics_capped_updates_total", label="group") == 0


def test_a_group_that_matters_more_takes_the_series_of_another():
    """A thousand invented names came first; the ranking of the next scrape gives the real group its series."""
    shown = Counted(most=1)
    shown.say(rebalance("invented"))
    shown.say(rebalance("real"))
    shown.choice.rank(["real", "invented"])
    shown.say(rebalance("real"))
    shown.say(rebalance("invented"))

    assert shown.value("wakeroll_rebalances_total", group="invented", trigger="join") is None
    assert shown.value("wakeroll_rebalances_total", group="real", trigger="join") == 1
    assert shown.value("wakeroll_rebalances_total", group=OTHER, trigger="join") == 2
    assert shown.value("wakeroll_metrics_label_values", label="group") == 1
