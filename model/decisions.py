"""Decisions: the output of the coordinator, as JSON objects whose field `kind` names the kind of decision.

A machine makes a decision. The shard that runs the machine fills in the header (the fields of `Decision`), which
identifies the decision by (shard, seq). A reader keeps the highest seq of each shard and skips decisions that are not
above it.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from model.events import Mode, Policy
from model.queue import ClientId, GroupId, InstanceId, Queue

Epoch = Annotated[int, Meta(description="epoch of the group; only grows")]

Kind = Literal["assignment", "fenced", "membership", "rebalance", "handover", "offset", "lock", "wake", "rejected"]
How = Literal["first", "released", "unregistered", "expired", "timeout", "eager", "removed"]
Trigger = Literal["join", "leave", "expire", "subscription", "route", "timer", "config", "reset"]
FencedReason = Literal["expired", "left", "refused", "duplicate", "deaf", "epoch"]
Change = Literal["joined", "left", "expired", "resubscribed", "conflict", "agreed", "emptied", "forgotten"]
WakeReason = Literal["arrival", "skipped", "timeout", "superseded", "cancelled", "overflow", "truncated", "unknown"]
LockOutcome = Literal["granted", "refused", "expired", "unlocked"]


class Cause(Struct, frozen=True):
    """The record that led to a decision."""

    topic: Annotated[str, Meta(description="control topic")]
    partition: Annotated[int, Meta(description="its Kafka partition")]
    offset: Annotated[int, Meta(description="offset of the record")]


class Decision(Struct, kw_only=True, tag_field="kind"):
    """The header of every decision."""

    shard: Annotated[str, Meta(description="topic-partition.era of the shard that decided, like groups-3.1")] = ""
    seq: Annotated[int, Meta(description="counts up per shard, from 1")] = 0
    at_ms: Annotated[int, Meta(description="log time of the cause, epoch ms")] = 0
    cause: Cause = Cause("", 0, 0)


class Start(Struct, frozen=True, omit_defaults=True):
    """Where to start reading a queue: an offset, or a policy to resolve."""

    offset: Annotated[int | None, Meta(description="the next message to read")] = None
    policy: Annotated[Policy | None, Meta(description="without an offset")] = None
    ms: Annotated[int | None, Meta(description="for the policy timestamp: epoch ms")] = None


class AssignedQueue(Struct, frozen=True):
    """A queue that an instance owns, the epoch of its assignment, and where to start."""

    queue: Queue
    given: Annotated[int, Meta(description="epoch the queue was given in; a start is obeyed only when this is newer")]
    start: Start


class Assignment(Decision, kw_only=True, tag="assignment"):
    """To one instance: all queues that it owns (complete, idempotent), and those that it must release."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    epoch: Epoch
    queues: list[AssignedQueue]
    revoke: list[Queue]
    state: Annotated[
        Literal["stable", "unrevoked", "unreleased"],
        Meta(description="unrevoked: it must give something up; unreleased: something of its is still elsewhere"),
    ]
    heartbeat_ms: int
    session_timeout_ms: int
    revoke_timeout_ms: int
    mode: Annotated[Mode, Meta(description="broadcasting: every member has every queue, nobody owns one")] = (
        "clustering"
    )


class Fenced(Decision, kw_only=True, tag="fenced"):
    """To one instance: it is no member any more and must drop all its queues."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    reason: FencedReason
    by: Annotated[str, Meta(description="of a duplicate: the instance that has the client_id; else empty")] = ""


class Membership(Decision, kw_only=True, tag="membership"):
    """A member joined, left, expired, changed its topics or conflicts with others; or the whole group changed."""

    group_id: GroupId
    client_id: Annotated[str, Meta(description="empty when the whole group is meant")]
    instance_id: str = ""
    change: Change
    epoch: Annotated[int, Meta(description="epoch of the group when it happened")]
    detail: str = ""


class Unassigned(Struct, frozen=True):
    """A queue that the target assigns to nobody, and the reason."""

    queue: Queue
    reason: str


class Rebalance(Decision, kw_only=True, tag="rebalance"):
    """A new target: its triggers, its size and its cost."""

    group_id: GroupId
    epoch: Epoch
    trigger: Annotated[Trigger, Meta(description="the first of what asked for it")]
    causes: Annotated[list[Cause], Meta(description="the records that asked for it, the first 16")]
    strategy: str
    clients: Annotated[int, Meta(description="members")]
    queues: Annotated[int, Meta(description="queues of their topics")]
    moved: Annotated[int, Meta(description="queues that had an owner and get another")]
    unassigned: Annotated[list[Unassigned], Meta(description="queues that nobody gets, the first 256")]
    unassigned_count: Annotated[int, Meta(description="number of queues that nobody gets, listed or not")] = 0
    spread: Annotated[int, Meta(description="largest minus smallest number of queues of a member")]
    notes: Annotated[list[str], Meta(description="what the operator should know")]


class Handover(Decision, kw_only=True, tag="handover"):
    """A change of a queue's owner.

    `from` is the last owner, `to` the new one; `to` is null if nobody owns the queue for now.
    """

    group_id: GroupId
    queue: Queue
    from_: Annotated[str | None, Meta(description="last owner; null: never owned")] = field(name="from")
    to: Annotated[str | None, Meta(description="new owner; null: nobody for now")]
    epoch: Annotated[int, Meta(description="epoch of the group when it changed hands")]
    revoked_ms: Annotated[int | None, Meta(description="when its owner was asked to give it up, epoch ms")] = None
    released_ms: Annotated[int | None, Meta(description="when it came free, epoch ms")] = None
    assigned_ms: Annotated[int | None, Meta(description="when it was given, epoch ms")] = None
    how: Annotated[How, Meta(description="how it came free")]


class Offset(Decision, kw_only=True, tag="offset"):
    """A committed offset that advanced, or was reset."""

    group_id: GroupId
    queue: Queue
    client_id: Annotated[str, Meta(description="who committed")]
    offset: Annotated[int, Meta(description="the next message to consume")]
    epoch: Annotated[int, Meta(description="epoch that the commit was made in")]
    metadata: Annotated[str, Meta(description="the application's own words")] = ""
    reset_by: Annotated[str | None, Meta(description="who reset it; null: a commit")] = None
    mode: Annotated[Mode, Meta(description="broadcasting: the offset is this client's own")] = "clustering"


class Lock(Decision, kw_only=True, tag="lock"):
    """The answer to a `lock` or `unlock` event, one per queue; or the end of a lock that expired or lost its queue."""

    group_id: GroupId
    client_id: Annotated[str, Meta(description="who asked, or held it")]
    queue: Queue
    outcome: Annotated[LockOutcome, Meta(description="unlocked: given back, or the queue came free")]
    until_ms: Annotated[int | None, Meta(description="by the shard's clock, epoch ms; null unless granted")] = None


class Wake(Decision, kw_only=True, tag="wake"):
    """The one answer to a pull: the client must read again."""

    request_id: Annotated[str, Meta(description="of the pull")]
    group_id: GroupId
    client_id: ClientId
    queue: Queue
    reason: WakeReason
    next_offset: Annotated[int, Meta(description="if reading from where it asked finds nothing, ask from here next")]
    held_ms: Annotated[int, Meta(description="how long it was held, by the shard's clock")]


class Rejected(Decision, kw_only=True, tag="rejected"):
    """An event that was rejected: the broken rule and the first bytes of the record."""

    rule: Annotated[
        str,
        Meta(
            description="json, type, bounds, key, partition, signature, stale, mode, limit, in-use, epoch, secret, "
            "commit, reset, settings, pull, internal"
        ),
    ]
    detail: Annotated[str, Meta(description="what was found and what would have been right")]
    raw: Annotated[str, Meta(description="the record's value in base64, the first 4 KiB of it")] = ""
    group_id: Annotated[str | None, Meta(description="where known")] = None
    client_id: Annotated[str | None, Meta(description="where known")] = None


AnyDecision = Assignment | Fenced | Membership | Rebalance | Handover | Offset | Lock | Wake | Rejected

TO_A_CLIENT = (Assignment, Fenced, Lock, Wake, Rejected)
"""Kinds that also go to a client's inbox, if the client is known."""
