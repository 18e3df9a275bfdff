"""Decisions: the output of the coordinator, as JSON objects whose field `kind` names the kind of decision.

A machine makes a decision. The shard that runs the machine fills in the header (the fields of `Decision`), which
identifies the decision by (shard, seq). A reader keeps the highest seq of each shard and skips decisions that are not
above it.
"""

from collections.abc import Collection
from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from wakeroll_model import config
from wakeroll_model.events import About, Ahead, FilterType, LeaderEpoch, Mode, Policy
from wakeroll_model.queue import ClientId, GroupId, InstanceId, Queue, Slice, Slices, TopicName

Epoch = Annotated[int, Meta(description="epoch of the group; never decreases")]
ShardName = Annotated[str, Meta(description="shard that made the decision: topic-partition.era, such as groups-3.1")]
Committer = Annotated[
    str, Meta(description="client that committed, or that owned the queue at a reset; empty if nobody owned it")
]
CommittedOffset = Annotated[int, Meta(description="offset of the next message to consume")]
CommitEpoch = Annotated[int, Meta(description="epoch in which the client committed")]
StrategyOrNone = Annotated[str, Meta(description="strategy that assigned the queues; empty if none has")]
Members = Annotated[int, Meta(description="number of members, without those that were kicked")]
PullAgainFrom = Annotated[int, Meta(description="offset from which to pull again if the client finds nothing to read")]
HeldMs = Annotated[int, Meta(description="time that the pull was held, by the shard's clock (ms)")]

Kind = Literal[
    "assignment", "fenced", "membership", "rebalance", "handover", "offset", "lock", "failed", "wake", "rejected"
]
How = Literal["first", "released", "unregistered", "died", "expired", "timeout", "eager", "removed", "gone", "cut"]
ORDERLY: Collection[How] = ("first", "released", "unregistered", "removed", "cut")
"""Values of `how` for which no owner lost the queue abruptly: it had none, its owner released it or left, or the queue
is gone. After any other way, the next owner may read messages again that the previous one has processed and not
committed."""
Trigger = Literal[
    "join",
    "leave",
    "expire",
    "subscription",
    "route",
    "timer",
    "config",
    "reset",
    "kick",
    "pause",
    "gone",
    "returned",
    "expression",
    "released",
    "leader",
    "unknown",
]
"""Kind of the change that required a new target. The last six occur for Kafka's own groups only: gone: a member left or
was lost; returned: a static member is back; expression: a regular expression was resolved; released: partitions are
assigned that members had to release; leader: the leader changed the assignment without a change of the group; unknown:
the records show no reason."""
WITHOUT_TARGET: Final = ("reset", "pause")
"""Triggers of epochs for which no target is computed."""
FencedReason = Literal["expired", "left", "refused", "duplicate", "deaf", "epoch", "kicked"]
Change = Literal[
    "joined",
    "left",
    "died",
    "expired",
    "gone",
    "kicked",
    "leaving",
    "readmitted",
    "resubscribed",
    "matched",
    "described",
    "conflict",
    "agreed",
    "emptied",
    "forgotten",
    "paused",
    "resumed",
    "inspected",
    "reported",
]
WakeReason = Literal["arrival", "skipped", "timeout", "superseded", "cancelled", "overflow", "truncated", "unknown"]
WokenBy = Annotated[
    WakeReason, Meta(description="why: arrival, skipped, timeout, superseded, cancelled, overflow, truncated, unknown")
]
FailedOutcome = Literal["retry", "dead"]
LockOutcome = Literal["granted", "refused", "expired", "unlocked"]


class Cause(Struct, frozen=True):
    """The record that led to a decision."""

    topic: Annotated[str, Meta(description="name of the control topic")]
    partition: Annotated[int, Meta(description="Kafka partition of the control topic")]
    offset: Annotated[int, Meta(description="offset of the record in its Kafka partition")]


class Decision(Struct, kw_only=True, tag_field="kind"):
    """The header of every decision."""

    shard: ShardName = ""
    seq: Annotated[int, Meta(description="number of the decision in its shard, from 1")] = 0
    at_ms: Annotated[int, Meta(description="log time of the cause (epoch ms)")] = 0
    cause: Cause = Cause("", 0, 0)


class Done(Struct, frozen=True, omit_defaults=True):
    """Progress of a former slice of a partition, beyond the start of the queue that has its messages now."""

    slices: Annotated[Slices, Meta(description="number of slices that the partition was cut into; 1 if it was not")]
    slice: Slice
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1, description="every message of that slice below it is processed")]
    leader_epoch: LeaderEpoch | None = None


class Start(Struct, frozen=True, omit_defaults=True):
    """Where to start reading a queue: an offset, or a policy to resolve.

    If both are set, the lower one counts, because a part of the queue has no committed offset.
    """

    offset: Annotated[int | None, Meta(description="offset of the next message to read; null if a policy applies")] = (
        None
    )
    policy: Annotated[
        Policy | None, Meta(description="rule by which the client finds the offset; null if the offset is set")
    ] = None
    ms: Annotated[
        int | None,
        Meta(description="time of the first message to read (epoch ms); null unless the policy is timestamp"),
    ] = None
    leader_epoch: Annotated[
        int | None,
        Meta(description="leader epoch that was committed with the offset; null if none was, or below feature level 3"),
    ] = None
    ahead: Annotated[
        tuple[Ahead, ...],
        Meta(description="messages from the offset on that are processed: those below each of these that match it"),
    ] = ()
    done: Annotated[
        tuple[Done, ...],
        Meta(
            description="messages from the start on that are processed: those of these former slices, below its offset"
        ),
    ] = ()
    """Empty below feature level 5."""


class OtherFilter(Struct, frozen=True, omit_defaults=True):
    """A filter of other members of the group, which differs from the one of this member."""

    topic: Annotated[str, Meta(max_length=255, description="its topic; empty: all topics of the member")] = ""
    expression: Annotated[str, Meta(max_length=4_096)] = "*"
    expression_type: FilterType = "TAG"


class AssignedQueue(Struct, frozen=True):
    """A queue that an instance owns, the epoch of its assignment, and where to start."""

    queue: Queue
    assigned_epoch: Annotated[
        int,
        Meta(
            description="epoch in which the queue was assigned; the client uses `start` only if this epoch is newer "
            "than the one that it knows"
        ),
    ] = field(name="given")
    start: Start


class Assignment(Decision, kw_only=True, tag="assignment"):
    """The message to one instance with all queues that it owns (complete, idempotent) and that it must release."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    epoch: Epoch
    queues: list[AssignedQueue]
    revoke: list[Queue]
    state: Annotated[
        Literal["stable", "unrevoked", "unreleased"],
        Meta(
            description="stable; unrevoked: the member must release queues; unreleased: queues of its target still "
            "have other owners"
        ),
    ]
    heartbeat_ms: int
    session_timeout_ms: int
    revoke_timeout_ms: int
    mode: Annotated[
        Mode, Meta(description="clustering; or broadcasting: every member has every queue, and no queue has an owner")
    ] = "clustering"
    round: Annotated[
        int | UnsetType | None,
        Meta(description="round of the group in which the assignment was sent; absent below feature level 3"),
    ] = UNSET
    """Present from feature level 3 on; heartbeats show it. It proves to the coordinator that an assignment was
    published."""
    others: Annotated[
        list[OtherFilter] | UnsetType,
        Meta(description="other filters that members of the group have for topics of this member; absent if none"),
    ] = UNSET
    """Present from feature level 3 on."""
    paused: Annotated[
        bool | UnsetType | None,
        Meta(description="true if the group is paused: no message is handed out; absent otherwise"),
    ] = UNSET
    """Present from feature level 4 on."""
    slices: Annotated[
        Annotated[dict[TopicName, Slices], Meta(max_length=config.MAX_SLICED_TOPICS)] | UnsetType,
        Meta(description="number of slices of each topic of this member that is cut into slices; absent if none is"),
    ] = UNSET
    """Present from feature level 5 on. Each heartbeat of the member has `slice_by` while it is present."""


class Fenced(Decision, kw_only=True, tag="fenced"):
    """The message to one instance that it is no member any more and must drop all its queues."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    reason: Annotated[
        FencedReason,
        Meta(
            description="expired: no heartbeat for a session; left: unregistered; refused: no room, or another mode; "
            "duplicate: another live instance has the client_id; deaf: did not receive its assignments; epoch: showed "
            "an epoch that was never assigned; kicked: by an operator"
        ),
    ]
    by: Annotated[
        str,
        Meta(
            description="instance that has the client_id, if the reason is duplicate; operator, if it is kicked; else "
            "empty"
        ),
    ] = ""


class Membership(Decision, kw_only=True, tag="membership"):
    """A member joined, left, changed its topics or description, or conflicts; or the whole group changed."""

    group_id: GroupId
    client_id: Annotated[str, Meta(description="client that changed; empty if the change concerns the whole group")]
    instance_id: Annotated[
        str, Meta(description="instance of the client; empty if the change concerns the whole group")
    ] = ""
    change: Annotated[
        Change,
        Meta(
            description="joined, left, died (its process ended), expired, gone (of a Kafka group: left or lost), "
            "kicked (by an operator), leaving (kicked, and still a member), readmitted (not kept out any more), "
            "resubscribed, described, conflict, agreed, inspected (an operator asked what it does), "
            "reported (its answer); of a whole group: matched (the topics of a pattern changed), emptied, forgotten, "
            "paused, resumed"
        ),
    ]
    epoch: Annotated[int, Meta(description="epoch of the group at the change")]
    detail: Annotated[str, Meta(description="detail of the change, in words; empty if there is none")] = ""
    about: Annotated[
        About | UnsetType | None,
        Meta(description="description of the client, if the change is joined or described; absent if it told none"),
    ] = UNSET
    """Present from feature level 4 on."""
    pattern: Annotated[
        str | UnsetType | None,
        Meta(
            description="regular expression of topics that the client subscribes, if the change is joined or "
            "resubscribed, or whose topics changed, if it is matched; absent if there is none"
        ),
    ] = UNSET
    """Present from feature level 4 on."""


class Unassigned(Struct, frozen=True):
    """A queue that the target assigns to nobody, and the reason."""

    queue: Queue
    reason: Annotated[str, Meta(description="why no member gets the queue, in words")]


class Rebalance(Decision, kw_only=True, tag="rebalance"):
    """A new target: its triggers, its size and its cost."""

    group_id: GroupId
    epoch: Epoch
    trigger: Annotated[Trigger, Meta(description="kind of the first change that required a new target")]
    causes: Annotated[list[Cause], Meta(description="records that required a new target, at most the first 16")]
    strategy: StrategyOrNone
    clients: Members
    queues: Annotated[int, Meta(description="number of queues of the subscribed topics")]
    moved: Annotated[int, Meta(description="number of queues that had an owner and get another one")]
    unassigned: Annotated[
        list[Unassigned], Meta(description="queues that are assigned to no member, at most the first 256")
    ]
    unassigned_count: Annotated[
        int, Meta(description="number of queues that are assigned to no member, listed or not")
    ] = 0
    spread: Annotated[int, Meta(description="largest minus smallest number of queues per member")]
    notes: Annotated[list[str], Meta(description="notes for the operator, such as a strategy that failed")]


class Handover(Decision, kw_only=True, tag="handover"):
    """A change of a queue's owner.

    `from` is the last owner, `to` the new one; `to` is null if nobody owns the queue for now.
    """

    group_id: GroupId
    queue: Queue
    from_: Annotated[str | None, Meta(description="previous owner; null if the queue never had one")] = field(
        name="from"
    )
    to: Annotated[str | None, Meta(description="new owner; null if nobody owns the queue")]
    epoch: Annotated[int, Meta(description="epoch of the group at the hand-over")]
    revoked_ms: Annotated[
        int | None, Meta(description="log time of the revocation (epoch ms); null if the queue was not revoked")
    ] = None
    released_ms: Annotated[
        int | None, Meta(description="log time at which the queue became free (epoch ms); null if it had no owner")
    ] = None
    assigned_ms: Annotated[
        int | None, Meta(description="log time of the assignment to the new owner (epoch ms); null if there is none")
    ] = None
    how: Annotated[How, Meta(description="how the queue became free")]


class Offset(Decision, kw_only=True, tag="offset"):
    """A committed offset that advanced, was reset, or was deleted."""

    group_id: GroupId
    queue: Queue
    client_id: Committer
    offset: CommittedOffset
    epoch: CommitEpoch
    metadata: Annotated[str, Meta(description="text that the application stored with the offset")] = ""
    reset_by: Annotated[
        str | None,
        Meta(
            description="operator or `route` that reset the offset; `log` if its owner went back because the log lost "
            "its tail; `slices` if the number of slices changed; null for any other commit"
        ),
    ] = None
    mode: Annotated[
        Mode, Meta(description="clustering: the offset of the group; broadcasting: the offset of this client alone")
    ] = "clustering"
    leader_epoch: Annotated[
        int | UnsetType | None,
        Meta(description="leader epoch that was committed with the offset; absent if none was"),
    ] = UNSET
    """Present from feature level 3 on, if it is known."""
    ahead: Annotated[
        tuple[Ahead, ...] | UnsetType,
        Meta(description="progress beyond the offset, by filter; absent if there is none"),
    ] = UNSET
    """Present from feature level 3 on."""
    deleted: Annotated[
        bool | UnsetType | None,
        Meta(description="true if the offset was deleted: the queue has none any more; absent otherwise"),
    ] = UNSET
    """Present from feature level 4 on."""


class LockAnswer(Decision, kw_only=True, tag="lock"):
    """The answer to a `lock` or `unlock` event for one queue; or the end of a lock, by time or with its queue."""

    group_id: GroupId
    client_id: Annotated[str, Meta(description="client that requested the lock, or had it")]
    queue: Queue
    outcome: Annotated[
        LockOutcome,
        Meta(
            description="granted, refused; expired: not renewed in time; unlocked: returned, or the queue became free"
        ),
    ]
    until_ms: Annotated[
        int | None, Meta(description="end of the lock by the shard's clock (epoch ms); null unless granted")
    ] = None


class FailedMessages(Decision, kw_only=True, tag="failed"):
    """Messages of one queue that a client's handler failed to process, as the client reports: retried later, or dead.

    They are stored in the group's retry topic or dead letter topic already, or wait in the client if the group consumes
    in order or broadcasts.
    """

    group_id: GroupId
    client_id: ClientId
    queue: Annotated[Queue, Meta(description="queue from which the messages were first delivered")]
    first_offset: Annotated[int, Meta(description="lowest offset of the messages")]
    last_offset: Annotated[int, Meta(description="highest offset of the messages")]
    messages: Annotated[int, Meta(description="number of messages, not all between those offsets")]
    attempt: Annotated[int, Meta(description="number of the failed attempt, from 1")]
    outcome: Annotated[FailedOutcome, Meta(description="retry: processed again later; dead: in the dead letter topic")]
    level: Annotated[int, Meta(description="delay level of the next attempt; 0 if there is none")]
    error: Annotated[str, Meta(description="error of the last of these messages; empty if none is known")] = ""


class Wake(Decision, kw_only=True, tag="wake"):
    """The one answer to a pull: the client must read again."""

    request_id: Annotated[str, Meta(description="request_id of the pull")]
    group_id: GroupId
    client_id: ClientId
    queue: Queue
    reason: WokenBy
    next_offset: PullAgainFrom
    held_ms: HeldMs


RULES: Final = (
    *("json", "type", "bounds", "key", "partition", "signature", "stale", "mode", "limit", "in-use", "epoch", "kicked"),
    *("secret", "commit", "failures", "reset", "kick", "delete", "pause", "inspect", "pattern"),
    *("settings", "keys", "pull", "internal"),
)
"""The rules whose violation rejects a record. A ledger of another version may have other rules."""


class Rejected(Decision, kw_only=True, tag="rejected"):
    """An event that was rejected: the broken rule and the first bytes of the record."""

    rule: Annotated[
        str,
        Meta(description=f"broken rule: {', '.join(RULES)}"),
    ]
    detail: Annotated[str, Meta(description="what was found and what was expected")]
    raw: Annotated[str, Meta(description="first 4 KiB of the record's value, in base64")] = ""
    group_id: Annotated[str | None, Meta(description="group of the record; null if not known")] = None
    client_id: Annotated[str | None, Meta(description="client of the record; null if not known")] = None
    partition: Annotated[
        int | UnsetType | None,
        Meta(description="partition to which the group or queue belongs; absent unless the rule is partition"),
    ] = UNSET
    """Present from feature level 2 on."""
    partitions: Annotated[
        int | UnsetType | None,
        Meta(description="number of partitions of the control topic; absent unless the rule is partition"),
    ] = UNSET
    """Present from feature level 2 on."""


AnyDecision = (
    Assignment | Fenced | Membership | Rebalance | Handover | Offset | LockAnswer | FailedMessages | Wake | Rejected
)

BY_THE_LOG = "log"
"""Value of `reset_by` for the commit of an owner that moved back because the log lost its tail."""

BY_THE_SLICES = "slices"
"""Value of `reset_by` for offsets that replace those of former slices after a change of the number of slices."""

TO_A_CLIENT = (Assignment, Fenced, LockAnswer, Wake, Rejected)
"""Kinds of decisions on which a client acts; they are also sent to its inbox, if the client is known."""


def recipient_of(decision: AnyDecision) -> str:
    """Return the client that also receives a decision in its inbox, to act on it or to log it; empty if none."""
    if isinstance(decision, TO_A_CLIENT) or (
        isinstance(decision, Membership) and decision.change in ("conflict", "inspected")
    ):
        return decision.client_id or ""
    return ""
