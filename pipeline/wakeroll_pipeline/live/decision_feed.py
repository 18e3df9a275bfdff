"""The published decisions of the last hour, by group: rebalances, hand-overs, memberships, failures, rejections."""

from collections import deque
from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from wakeroll_model.decision_order import order_of, without_era
from wakeroll_model.decisions import AnyDecision, FailedMessages, Fenced, Handover, Membership, Rebalance, Rejected

HISTORY_MS = 3_600_000
"""Length of the past whose decisions are read at the start (ms)."""
MOST_DECISIONS = 50_000
"""Maximum number of decisions of all groups that are read at the start, the newest ones: 5 to 7 us each."""
SHOWN = (Rebalance, Handover, Membership, Fenced, Rejected, FailedMessages)
"""Kinds of decisions whose content the feed keeps."""
MOST_REBALANCES = 50
MOST_HANDOVERS = 4_000
"""Maximum number of hand-overs that are kept per group: two rebalances of a group with 2,000 queues."""
MOST_REJECTIONS = 50
MOST_FAILURES = 50
MOST_REPORTS = 10


_One = TypeVar("_One")


class Published(NamedTuple, Generic[_One]):
    """A decision, and the log time (epoch ms) at which the broker appended it."""

    decision: _One
    published_ms: int


class GroupHistory:
    """The newest decisions about one group, oldest first."""

    __slots__ = ("changes", "failures", "fencings", "handovers", "operators", "rebalances", "rejections", "reports")

    def __init__(self) -> None:
        self.rebalances: deque[Published[Rebalance]] = deque(maxlen=MOST_REBALANCES)
        self.handovers: deque[Handover] = deque(maxlen=MOST_HANDOVERS)
        self.rejections: deque[Published[Rejected]] = deque(maxlen=MOST_REJECTIONS)
        self.changes: deque[Membership] = deque(maxlen=MOST_REJECTIONS)
        self.fencings: deque[Fenced] = deque(maxlen=MOST_REJECTIONS)
        self.failures: deque[FailedMessages] = deque(maxlen=MOST_FAILURES)
        self.reports: deque[Membership] = deque(maxlen=MOST_REPORTS)
        """Reports of members that operators have requested."""
        self.operators: dict[tuple[str, int, int], str] = {}
        """Topic, partition and offset of an operator's request -> name of the operator."""

    def note_operator(self, place: tuple[str, int, int], by: str) -> None:
        """Remember the operator of a request."""
        self.operators[place] = by
        if len(self.operators) > MOST_REBALANCES:
            del self.operators[next(iter(self.operators))]


class DecisionFeed:
    """Collects decisions that are read from the decisions topic, each once, although delivery is at least once."""

    def __init__(self) -> None:
        self._newest: dict[tuple[int, str], tuple[int, int]] = {}
        """Partition and shard without its era -> place of the newest decision; see `wakeroll_model.decision_order`."""
        self._groups: dict[str, GroupHistory] = {}
        self.rejections: deque[Published[Rejected]] = deque(maxlen=MOST_REJECTIONS)
        """The newest rejections of all groups, including those without a known group."""
        self.last_ms: int | None = None
        """Log time of the newest append; None before the first decision."""
        self.since_ms: int | None = None
        """Log time (epoch ms) from which on decisions were read; None before the first."""

    def note(self, partition: int, decision: AnyDecision, published_ms: int) -> bool:
        """Add a decision that was read from this partition; return False if it is a repetition."""
        shard, place = (partition, without_era(decision.shard)), order_of(decision.shard, decision.seq)
        if place <= self._newest.get(shard, (0, 0)):
            return False
        self._newest[shard] = place
        self.last_ms = published_ms if self.last_ms is None else max(self.last_ms, published_ms)
        self.since_ms = published_ms if self.since_ms is None else min(self.since_ms, published_ms)
        match decision:
            case Rebalance():
                self.of(decision.group_id).rebalances.append(Published(decision, published_ms))
            case Handover():
                self.of(decision.group_id).handovers.append(decision)
            case Membership(change="reported"):
                self.of(decision.group_id).reports.append(decision)
            case FailedMessages():
                self.of(decision.group_id).failures.append(decision)
            case Membership():
                self.of(decision.group_id).changes.append(decision)
            case Fenced():
                self.of(decision.group_id).fencings.append(decision)
            case Rejected():
                self.rejections.append(Published(decision, published_ms))
                if decision.group_id:
                    self.of(decision.group_id).rejections.append(Published(decision, published_ms))
            case _:
                pass
        return True

    def forget_order(self) -> None:
        """Accept the next decisions with any eras and numbers, because the topic has another log than before."""
        self._newest.clear()

    def of(self, group_id: str) -> GroupHistory:
        """Return the decisions about a group; empty if there are none."""
        if group_id not in self._groups:
            self._groups[group_id] = GroupHistory()
        return self._groups[group_id]

    def forget(self, known: Iterable[str]) -> None:
        """Forget all groups except the known ones, because a rejected record may name any group."""
        kept = set(known)
        for group_id in [name for name in self._groups if name not in kept]:
            del self._groups[group_id]
