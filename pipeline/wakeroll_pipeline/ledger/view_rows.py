"""The rows of the views in the folder `views`, and of `end_offsets`: columns, types, meaning and key.

The comments of the views in both engines, dbt's sources and docs/data_dictionary.md all come from these declarations.
"""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from msgspec import Meta, Struct

from wakeroll_model.decisions import (
    CommitEpoch,
    CommittedOffset,
    Committer,
    HeldMs,
    Members,
    PullAgainFrom,
    ShardName,
    StrategyOrNone,
    WokenBy,
)
from wakeroll_model.queue import BrokerName, ClientId, GroupId, QueueId, SliceText, TopicName
from wakeroll_model.rows import (
    ChangeEpoch,
    Freed,
    OffsetMode,
    OwnedFromMs,
    PreviousOwner,
    PublishedMs,
    ResetBy,
    Seq,
)

Era = Annotated[
    int, Meta(le=2**31 - 1, description="era of the shard, as a number; (era, seq) is the order of decisions")
]


class EndOffset(Struct):
    """One report of the first and end offset of a queue, by the observer or a producer."""

    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    end_offset: Annotated[int, Meta(description="offset after the newest message of the queue")]
    first_offset: Annotated[
        int | None,
        Meta(description="offset of the first message that is not deleted; null if only the end was reported"),
    ]
    at_ms: Annotated[int, Meta(description="log time of the report (epoch ms)")]


class CurrentAssignment(Struct):
    """A queue of a group, and its present owner."""

    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slice: SliceText
    client_id: Annotated[ClientId | None, Meta(description="owner; null if no member owns the queue")]
    epoch: ChangeEpoch
    from_ms: OwnedFromMs
    previous_client_id: PreviousOwner
    how: Freed
    shard: ShardName
    era: Era
    seq: Seq


class CurrentOffset(Struct):
    """A queue of a group, and its committed offset now; in a broadcasting group, one row per client."""

    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slice: SliceText
    client_id: Committer
    committed_offset: CommittedOffset
    epoch: CommitEpoch
    at_ms: Annotated[int, Meta(description="log time of the commit (epoch ms)")]
    reset_by: ResetBy
    mode: OffsetMode
    shard: ShardName
    era: Era
    seq: Seq


class CurrentMember(Struct):
    """A member of a group now."""

    group_id: GroupId
    client_id: ClientId
    instance_id: Annotated[str, Meta(description="identifies one instance of a client; never reused")]
    joined_ms: Annotated[int, Meta(description="log time at which the instance joined (epoch ms)")]
    queues: Annotated[int, Meta(description="number of queues that the member owns")]
    host: Annotated[str | None, Meta(description="host or pod that the client runs on; null if it did not tell")]
    sdk: Annotated[str | None, Meta(description="library of the client and its version; null if it did not tell")]
    app_version: Annotated[str | None, Meta(description="version of the application; null if it did not tell")]
    labels: Annotated[
        str | None, Meta(description="labels that the application chose, as a JSON object; null if there are none")
    ]
    pattern: Annotated[
        str | None, Meta(description="regular expression of topics that the client subscribes; null if there is none")
    ]
    shard: ShardName
    era: Era
    seq: Annotated[int, Meta(description="number of the decision by which the instance joined")]


class GroupState(Struct):
    """A group, and its state now."""

    group_id: GroupId
    epoch: Annotated[int, Meta(description="epoch of the group; 0 before its first rebalance")]
    strategy: StrategyOrNone
    members: Members
    owned: Annotated[int, Meta(description="number of queues that have an owner")]
    unowned: Annotated[int, Meta(description="number of queues that no member owns")]
    last_trigger: Annotated[str, Meta(description="trigger of the last rebalance; empty before the first one")]
    last_rebalance_ms: Annotated[
        int | None, Meta(description="log time of the last rebalance (epoch ms); null before the first one")
    ]


class PullAnswer(Struct):
    """A pull: how long it was held, and which event ended the wait."""

    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    group_id: GroupId
    client_id: ClientId
    request_id: Annotated[str, Meta(description="identifier of the pull: <instance_id>:<number>")]
    reason: WokenBy
    next_offset: PullAgainFrom
    held_ms: HeldMs
    at_ms: Annotated[int, Meta(description="log time of the event that ended the wait (epoch ms)")]
    published_ms: PublishedMs
    arrival_to_wake_ms: Annotated[
        int | None,
        Meta(description="time from the arrival of a message to the wake (ms); null if no arrival ended the wait"),
    ]
    shard: ShardName
    era: Era
    seq: Seq


class Silence(Struct):
    """A queue whose owner expired: how long nobody had read it before it was handed over."""

    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slice: SliceText
    client_id: Annotated[ClientId, Meta(description="owner that expired")]
    instance_id: Annotated[str, Meta(description="its instance")]
    to_client_id: Annotated[ClientId | None, Meta(description="new owner; null if there is none")]
    silent_ms: Annotated[
        int | None,
        Meta(description="time from the last heartbeat of the owner to its expiration, by the shard's clock (ms)"),
    ]
    heard_ms: Annotated[
        int | None,
        Meta(description="log time of that heartbeat (epoch ms); later if the shard's clock stood still meanwhile"),
    ]
    returned_ms: Annotated[
        int | None,
        Meta(description="log time at which the instance sent another record (epoch ms); null if it never did"),
    ]
    at_ms: Annotated[int, Meta(description="log time of the hand-over (epoch ms)")]
    shard: ShardName
    era: Era
    seq: Annotated[int, Meta(description="number of the hand-over in its shard")]


class MemberChange(Struct):
    """A member joined, left or expired: whether it came back, and as which version."""

    group_id: GroupId
    client_id: Annotated[ClientId, Meta(description="client that changed")]
    instance_id: Annotated[str, Meta(description="its instance")]
    change: Annotated[str, Meta(description="joined, left, expired")]
    is_join: Annotated[bool, Meta(description="whether it joined")]
    is_return: Annotated[bool, Meta(description="whether it joined, and its last change before was its end")]
    host: Annotated[str | None, Meta(description="host or pod that the instance runs on; null if it never told")]
    app_version: Annotated[str, Meta(description="version of its application; empty if it never told")]
    version_before: Annotated[
        str | None, Meta(description="version at the last change of the client before; null if there was none")
    ]
    at_ms: Annotated[int, Meta(description="log time of the change (epoch ms)")]
    shard: ShardName
    era: Era
    seq: Annotated[int, Meta(description="number of the decision in its shard")]


class Repeat(Struct):
    """A hand-over of a queue whose owner had not released it, and how many messages the new owner may read again."""

    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slice: SliceText
    client_id: Annotated[ClientId, Meta(description="owner before")]
    to_client_id: Annotated[ClientId, Meta(description="new owner")]
    epoch: ChangeEpoch
    how: Freed
    until_ms: Annotated[
        int,
        Meta(
            description="log time until which the owner before may have read the queue (epoch ms): an interval of "
            "heartbeats after the last one of an owner that was killed, otherwise the hand-over"
        ),
    ]
    committed_offset: Annotated[
        int | None, Meta(description="committed offset at the hand-over; null if none was committed")
    ]
    end_offset: Annotated[
        int | None, Meta(description="offset after the newest message at that time; null if it was not reported")
    ]
    repeats_possible: Annotated[
        int,
        Meta(description="upper bound of the messages that are read again; 0 if one of the two offsets is not known"),
    ]
    at_ms: Annotated[int, Meta(description="log time of the hand-over (epoch ms)")]
    shard: ShardName
    era: Era
    seq: Annotated[int, Meta(description="number of the hand-over in its shard")]


class QueueLag(Struct):
    """A queue of a group, and how far the group is behind; in a broadcasting group, one row per client."""

    group_id: GroupId
    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    slice: SliceText
    client_id: Annotated[
        str | None, Meta(description="client of a broadcasting group; null in a clustering group, which shares offsets")
    ]
    committed_offset: Annotated[
        int | None, Meta(description="offset of the next message to consume; null if none was ever committed")
    ]
    end_offset: Annotated[int, Meta(description="offset after the newest message of the queue, in the newest report")]
    lag_messages: Annotated[
        int | None, Meta(description="messages that exist and are not consumed; null if that is not known")
    ]
    lag_ms: Annotated[
        int | None,
        Meta(description="age of the oldest message that is not consumed (ms); 0 if there is none, null if not known"),
    ]
    committed_ms: Annotated[
        int | None, Meta(description="log time of the last commit (epoch ms); null if there was none")
    ]
    as_of_ms: Annotated[int, Meta(description="newest log time in the tables (epoch ms)")]


class ViewRows(NamedTuple):
    """The rows of a view."""

    row: type[Struct]
    key: tuple[str, ...]
    """Columns that identify a row."""


_PARTITION = ("topic", "broker", "queue_id")
_QUEUE = (*_PARTITION, "slice")

VIEW_ROWS: Mapping[str, ViewRows] = {
    "end_offsets": ViewRows(EndOffset, (*_PARTITION, "at_ms")),
    "current_assignments": ViewRows(CurrentAssignment, ("group_id", *_QUEUE)),
    "current_offsets": ViewRows(CurrentOffset, ("group_id", *_QUEUE, "client_id")),
    "current_members": ViewRows(CurrentMember, ("group_id", "client_id")),
    "groups": ViewRows(GroupState, ("group_id",)),
    "wakes": ViewRows(PullAnswer, ("shard", "seq")),
    "silences": ViewRows(Silence, ("shard", "seq")),
    "repeats": ViewRows(Repeat, ("shard", "seq")),
    "member_changes": ViewRows(MemberChange, ("shard", "seq")),
    "lag": ViewRows(QueueLag, ("group_id", *_QUEUE, "client_id")),
}
"""View -> its rows; each may read the views before it."""
