"""The contents of the pages and of the JSON endpoints; the live model and the ledger produce the same structs.

Times are log times (epoch ms). Names come from records that anybody may append: they are text, never markup.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from wakeroll_model.queue import Queue
from wakeroll_pipeline.live.queue_lag import Trend
from wakeroll_pipeline.live.verdicts import Finding, Kind

Level = Literal["info", "warning", "error"]


class Notice(Struct, frozen=True, kw_only=True):
    """A fact about the whole system that a reader of any page must know."""

    kind: str
    """Name of the state, such as ``no-ticks``."""
    level: Level
    text: str
    remedy: str = ""
    """Advice for an operator; empty if there is none."""


class Health(Struct, frozen=True, kw_only=True):
    """Whether the pages show the present state, and the reason if not."""

    source: Literal["live", "ledger"]
    state: Literal["starting", "live", "stale", "ledger", "past"]
    """starting: the log is being read; stale: a notice with level warning or error has the reason; ledger: the end of
    the archived log; past: an earlier moment, `as_of_ms`."""
    as_of_ms: int
    """Log time that the pages show; 0 before the first record."""
    read: int = 0
    """Number of records that were read, of those that existed at the start."""
    to_read: int = 0
    tick_age_ms: dict[str, int] = {}
    """Shard, like ``groups-3`` -> time since its last tick was received (ms)."""
    notices: list[Notice] = []


class GroupSummary(Struct, frozen=True, kw_only=True):
    """One group in the list of groups."""

    group_id: str
    verdict: Kind
    reason: str
    findings: list[Finding]
    mode: str
    strategy: str
    epoch: int
    topics: list[str]
    members: int
    queues: int
    unowned: int
    moving: int
    """Number of queues that their owners must release."""
    lag_messages: int | None
    """Sum of the known lags of its partitions; None if none is known. For a partition that is cut, it is the largest
    lag of its slices."""
    lag_queues: int
    """Number of queues that have lag."""
    behind_since_ms: int | None
    """Since when the oldest message waits; None if none waits."""
    lag_unknown: int = 0
    """Number of queues whose lag is not known: no offset was ever committed, or the end is not known."""
    behind_is_longer: bool = False
    """Whether the oldest message has waited for longer than `behind_since_ms` shows."""
    rebalanced_ms: int | None = None
    """Log time of the last rebalance; None if none is known."""
    trigger: str = ""
    moved: int = 0
    owned: int = 0
    """Number of queues that have an owner; 0 in a broadcasting group."""
    max_lag_messages: int | None = None
    """Largest known lag of a queue; None if none is known."""
    arriving_per_s: float | None = None
    """Messages that arrive per second, over the last minute or two; None if that is not known."""
    consumed_per_s: float | None = None
    catch_up_ms: int | None = None
    """Time until all messages are consumed, if the rates stay the same (ms); None if that is not known, or the lag does
    not fall."""


class GroupsView(Struct, frozen=True, kw_only=True):
    """All groups at a moment."""

    health: Health
    groups: list[GroupSummary]


class SubscriptionRow(Struct, frozen=True, kw_only=True):
    """One subscription of a member."""

    topic: str
    expression: str
    expression_type: str


class LongCallRow(Struct, frozen=True, kw_only=True):
    """A call of a member's application that has lasted long."""

    queue: str
    first_offset: int
    last_offset: int
    since_ms: int
    """When it began, by the member's clock (epoch ms)."""


class MemberRow(Struct, frozen=True, kw_only=True):
    """One member of a group."""

    client_id: str
    instance_id: str
    queues: int
    """Number of queues that it owns, including those that it must release."""
    releasing: int
    waiting: int
    """Number of queues that the target assigns to it and that another member still owns."""
    shown_epoch: int
    """Epoch of the newest assignment that a heartbeat shows as received; -1 if none."""
    sent_epoch: int
    seen_ms: int
    """Time of its last heartbeat, by the shard's clock."""
    session_ends_ms: int
    room: str
    weight: float
    strategy: str
    consume_from: str
    subscriptions: list[SubscriptionRow]
    pattern: str = ""
    """Regular expression by which it subscribes topics that it does not name; empty if there is none. `subscriptions`
    has the topics that match."""
    host: str = ""
    """Host or pod from the client's description; this and the next three are empty if the description lacks them."""
    sdk: str = ""
    app_version: str = ""
    labels: dict[str, str] = {}
    conflict: str = ""
    rival: str = ""
    """Another instance that wants its client_id; empty if there is none."""
    leaving: str = ""
    """The operator who kicked it and the reason, in words; empty if it need not leave."""
    lag_messages: int | None = None
    """Sum of the known lags of the queues that it owns; for slices of one partition, only the largest. In a
    broadcasting group, it is the lag of all queues that it reads, by its own offsets. None if none is known."""
    lag_unknown: int = 0
    """Number of these queues whose lag is not known."""
    catch_up_ms: int | None = None
    """Time until it has consumed all messages, if the rates stay the same (ms); None if that is not known, the lag does
    not fall, or the group broadcasts."""
    joined_ms: int | None = None
    """Log time at which its instance joined; None if it joined before a release that notes it, and earlier than the
    known decisions."""
    handling: list[LongCallRow] = []
    """Calls of its application that have lasted 30 s or longer, as of its last heartbeat; the oldest first."""


class GroupState(Struct, frozen=True, kw_only=True):
    """The members of one group in the coordinator's state."""

    shard: str
    group_id: str
    epoch: int
    members: list[MemberRow]


class KeptOutRow(Struct, frozen=True, kw_only=True):
    """A client that an operator keeps out for a time."""

    client_id: str
    by: str
    """Name of the operator."""
    reason: str
    """Reason in the operator's words; empty if there is none."""
    until_ms: int
    """When it may join again, by the shard's clock (epoch ms)."""


class HoldRow(Struct, frozen=True, kw_only=True):
    """One held pull."""

    queue: str
    client_id: str
    from_offset: int
    since_ms: int
    until_ms: int


class QueueRow(Struct, frozen=True, kw_only=True):
    """One queue of a group."""

    name: str
    topic: str
    broker: str
    queue_id: int
    owner: str
    """Client that owns the queue; empty if there is none."""
    releasing: bool
    """Whether its owner must release it."""
    next_owner: str
    """Client that waits for the queue; empty if there is none."""
    given_epoch: int | None
    committed_offset: int | None
    end_offset: int | None
    """Newest known end; or the committed offset, if that is higher or no end is known."""
    lag_messages: int | None
    behind_since_ms: int | None
    behind_is_longer: bool
    trend: Trend
    samples: list[int]
    committed_ms: int | None
    """Time at which the committed offset last changed; None if that was before the model's start."""
    is_held: bool
    """Whether its owner waits in a held pull."""
    note: str = ""
    """Reason why the queue has no owner, or the filters for which it is ahead of its committed offset; otherwise
    empty."""
    from_ms: int | None = None
    """Log time of the last change of its owner; None if that is not known, as for `MemberRow.joined_ms`, or if it never
    had an owner."""
    epoch: int | None = None
    """Epoch of the group at that change; None if it is not known."""
    previous_client_id: str | None = None
    """Owner before that change; None if there was none, or it is not known."""
    how: str = ""
    """How the queue had become free before that change; empty if that is not known."""
    slice: str | None = None
    """Slice of the partition, as in the tables: 5/8 is slice 5 of 8; None if the partition is not cut. The end and the
    lag of a slice count the messages of all slices."""
    arriving_per_s: float | None = None
    """Messages that arrive per second, over the last minute or two; None if that is not known."""
    consumed_per_s: float | None = None
    catch_up_ms: int | None = None
    """Time until all messages are consumed, if the rates stay the same (ms); None if that is not known, or the lag does
    not fall."""

    @property
    def queue(self) -> Queue:
        """The queue itself."""
        return Queue.of_columns(self.topic, self.broker, self.queue_id, self.slice)


class PartitionRow(Struct, frozen=True, kw_only=True):
    """One partition that is cut into slices for a group."""

    name: str
    topic: str
    broker: str
    queue_id: int
    slices: int
    """Number of its queues: slices, or former ones that still have owners."""
    committed_offset: int | None
    """Lowest committed offset of its slices; None if one of them has none."""
    end_offset: int | None
    lag_messages: int | None
    """Largest lag of its slices; None if none is known."""


def partition_rows(queues: Iterable[QueueRow]) -> list[PartitionRow]:
    """Return the partitions among queues that are cut, in the order of their first slices."""
    cut: dict[Queue, list[QueueRow]] = {}
    for one in queues:
        if one.slice is not None:
            cut.setdefault(one.queue.whole, []).append(one)
    rows = []
    for whole, slices in cut.items():
        offsets = [one.committed_offset for one in slices if one.committed_offset is not None]
        rows.append(
            PartitionRow(
                name=str(whole),
                topic=whole.topic,
                broker=whole.broker,
                queue_id=whole.queue_id,
                slices=len(slices),
                committed_offset=min(offsets) if len(offsets) == len(slices) else None,
                end_offset=max((one.end_offset for one in slices if one.end_offset is not None), default=None),
                lag_messages=max((one.lag_messages for one in slices if one.lag_messages is not None), default=None),
            )
        )
    return rows


class MoveRow(Struct, frozen=True, kw_only=True):
    """One change of a queue's owner."""

    queue: str
    before: str
    after: str
    how: str
    at_ms: int
    took_ms: int | None
    """Time from the revocation, or else from the release, to the assignment."""
    silent_ms: int | None
    """Time from the last heartbeat of an owner that expired to its expiration; None for other hand-overs."""


class RebalanceRow(Struct, frozen=True, kw_only=True):
    """One rebalance."""

    epoch: int
    at_ms: int
    published_ms: int
    trigger: str
    cause: str
    """The records that required the rebalance, in words."""
    by: str = ""
    """Operators who requested it; empty if there are none, or if the model began after the request."""
    strategy: str
    clients: int
    queues: int
    moved: int
    unassigned: int
    notes: list[str]
    moves: list[MoveRow]
    spread: int = 0
    """Largest minus smallest number of queues per member."""


class PeriodRow(Struct, frozen=True, kw_only=True):
    """One period in which a queue had the same owner, or none."""

    client_id: str
    """Client that owned the queue; empty if there was none."""
    from_ms: int
    to_ms: int
    how: str
    is_open: bool
    """Whether the period still lasts."""


class LaneRow(Struct, frozen=True, kw_only=True):
    """The owners of one queue over time."""

    queue: str
    periods: list[PeriodRow]


class RejectionRow(Struct, frozen=True, kw_only=True):
    """One rejected record."""

    at_ms: int
    rule: str
    detail: str
    client_id: str
    record: str
    """The record, as ``topic-partition@offset``."""


class FailureRow(Struct, frozen=True, kw_only=True):
    """Messages of one queue that a member's handler failed to process."""

    at_ms: int
    client_id: str
    queue: str
    first_offset: int
    last_offset: int
    messages: int
    """Number of messages, not all between those offsets."""
    attempt: int
    """Number of the failed attempt, from 1."""
    outcome: str
    """retry: processed again later; dead: in the dead letter topic."""
    error: str
    """Error of the last of these messages; empty if none is known."""


class ReportRow(Struct, frozen=True, kw_only=True):
    """A member's report that an operator had requested."""

    at_ms: int
    client_id: str
    instance_id: str
    text: str
    """The running calls of its handler, with their messages and, unless the application forbids that, their stacks."""


class SettingRow(Struct, frozen=True, kw_only=True):
    """One setting of a group."""

    name: str
    value: str
    is_default: bool


class GroupView(Struct, frozen=True, kw_only=True):
    """One group at a moment."""

    health: Health
    summary: GroupSummary
    members: list[MemberRow]
    queues: list[QueueRow]
    lanes: list[LaneRow]
    lanes_from_ms: int
    lanes_to_ms: int
    rebalances: list[RebalanceRow]
    """The newest one comes first."""
    holds: list[HoldRow]
    rejections: list[RejectionRow]
    """The newest one comes first."""
    settings: list[SettingRow]
    lag_series: list[tuple[int, int]]
    """Log time and lag of the whole group in messages, oldest first."""
    rebalances_from_ms: int = 0
    """Log time from which on `rebalances` is complete; there may be earlier rebalances."""
    kept_out: list[KeptOutRow] = []
    failures: list[FailureRow] = []
    """The newest one comes first."""
    reports: list[ReportRow] = []
    """The newest one comes first."""
