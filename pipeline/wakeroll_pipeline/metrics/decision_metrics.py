"""Decisions counted as Prometheus metrics, by any process that follows the decisions topic."""

from typing import assert_never, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram

from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.decisions import (
    RULES,
    AnyDecision,
    Assignment,
    FailedMessages,
    FailedOutcome,
    Fenced,
    Handover,
    Kind,
    LockAnswer,
    Membership,
    Offset,
    Rebalance,
    Rejected,
    Wake,
    WakeReason,
)
from wakeroll_pipeline.metrics.group_choice import GroupChoice

_DELAYS_S = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 300)
"""Bounds for delays of the coordinator (s): it needs a fraction of a second, or minutes while it catches up."""
_HANDOVERS_S = (0.1, 0.25, 0.5, 1, 2, 3, 5, 10, 20, 30, 45, 60, 120, 300)
"""Bounds for hand-overs (s); by default a member has 30 s to release a queue."""


class DecisionMetrics:
    """Counters and histograms of decisions. Each decision is counted once, although delivery is at least once.

    The series of a group are removed when the coordinator forgets it, or when it is not chosen any more. For one
    thread.
    """

    def __init__(self, registry: CollectorRegistry, choice: GroupChoice) -> None:
        """Register the metrics.

        Args:
            registry: receives the metrics.
            choice: the groups that have series of their own.
        """
        self._choice = choice
        self._newest: dict[tuple[int, str], tuple[int, int]] = {}
        """Partition and shard without its era -> place of the newest decision; see `wakeroll_model.decision_order`."""
        self._decisions = Counter("wakeroll_decisions", "Decisions of the coordinator.", ["kind"], registry=registry)
        self._delays = Histogram(
            "wakeroll_decision_delay_seconds",
            "Time from the append of the cause to the append of the decision, by the brokers' clocks.",
            buckets=_DELAYS_S,
            registry=registry,
        )
        self._rebalances = Counter(
            "wakeroll_rebalances",
            "New targets of a group, by the first change that required them.",
            ["group", "trigger"],
            registry=registry,
        )
        self._moved = Counter(
            "wakeroll_queues_moved",
            "Queues that a new target moved from an owner to another one.",
            ["group"],
            registry=registry,
        )
        self._handovers = Histogram(
            "wakeroll_handover_seconds",
            "Time from the revocation of a queue (or from its release, if it was not revoked) to its next assignment.",
            ["how"],
            buckets=_HANDOVERS_S,
            registry=registry,
        )
        self._wakes = Counter("wakeroll_wakes", "Answers to pulls, by their reason.", ["reason"], registry=registry)
        self._wake_delays = Histogram(
            "wakeroll_wake_delay_seconds",
            "Time from the append of an arrival (or of a pull that need not be held) to the append of its wake.",
            buckets=_DELAYS_S,
            registry=registry,
        )
        self._rejections = Counter(
            "wakeroll_rejections", "Rejected records, by the rule that they break.", ["rule"], registry=registry
        )
        self._failed = Counter(
            "wakeroll_failed_messages",
            "Messages that a handler failed to process: they are retried later, or dead letters.",
            ["group", "outcome"],
            registry=registry,
        )
        # A series that begins with its first decisions has no growth then.
        for rule in RULES:
            self._rejections.labels(rule)
        for kind in get_args(Kind):
            self._decisions.labels(kind)
        for reason in get_args(WakeReason):
            self._wakes.labels(reason)

    def count(self, decision: AnyDecision, partition: int, published_ms: int) -> bool:
        """Count a decision, unless it was counted before, or comes from an older era of its shard.

        Args:
            decision: the decision.
            partition: partition of the decisions topic from which it was read.
            published_ms: timestamp of its record, epoch milliseconds.

        Returns:
            Whether it was counted.
        """
        shard, place = (partition, without_era(decision.shard)), order_of(decision.shard, decision.seq)
        if place <= self._newest.get(shard, (0, 0)):
            return False
        self._newest[shard] = place
        for group_id in self._choice.take_dropped():
            self._remove(group_id)
        # Brokers' clocks may differ.
        delay_s = max(published_ms - decision.at_ms, 0) / 1_000
        self._decisions.labels(str(decision.__struct_config__.tag)).inc()
        self._delays.observe(delay_s)
        self._count_details(decision, delay_s)
        return True

    def _count_details(self, decision: AnyDecision, delay_s: float) -> None:
        match decision:
            case Rebalance(group_id=group_id, trigger=trigger, moved=moved):
                group = self._begin(group_id)
                self._rebalances.labels(group, trigger).inc()
                self._moved.labels(group).inc(moved)
            case Handover():
                self._count_handover(decision)
            case Wake(reason=reason):
                self._wakes.labels(reason).inc()
                if reason == "arrival":
                    self._wake_delays.observe(delay_s)
            case Rejected(rule=rule):
                self._rejections.labels(rule).inc()
            case FailedMessages(group_id=group_id, outcome=outcome, messages=messages):
                self._failed.labels(self._begin(group_id), outcome).inc(messages)
            case Membership(group_id=group_id, change="forgotten"):
                self._forget(group_id)
            case Membership() | Assignment() | Fenced() | Offset() | LockAnswer():
                pass
            case _:
                assert_never(decision)

    def _count_handover(self, handover: Handover) -> None:
        """Observe the time of a hand-over; a queue without an owner before or after it was not handed over."""
        begin_ms = handover.released_ms if handover.revoked_ms is None else handover.revoked_ms
        if begin_ms is not None and handover.assigned_ms is not None:
            self._handovers.labels(handover.how).observe(max(handover.assigned_ms - begin_ms, 0) / 1_000)

    def _begin(self, group_id: str) -> str:
        """Return the label of a group; its dead letters begin with 0, so that the first increase is visible."""
        group = self._choice.value(group_id)
        for outcome in get_args(FailedOutcome):
            self._failed.labels(group, outcome)
        return group

    def _forget(self, group_id: str) -> None:
        self._remove(group_id)
        self._choice.forget(group_id)

    def _remove(self, group_id: str) -> None:
        for metric in (self._rebalances, self._moved, self._failed):
            metric.remove_by_labels({"group": group_id})
