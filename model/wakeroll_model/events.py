"""Events: the records of the control topics, as JSON objects whose field `type` names the event type.

The declarations contain the bounds. Unknown fields are ignored, so that newer clients may send more. Times and
durations are milliseconds.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import UNSET, Meta, MsgspecError, Struct, UnsetType

from wakeroll_model import config
from wakeroll_model.queue import BrokerName, ClientId, GroupId, InstanceId, Queue, QueueId, Room, Slices, TopicName
from wakeroll_model.retry_topics import DELAYS_S

Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Epoch = Annotated[
    int, Meta(ge=-1, le=2**53, description="epoch of the newest assignment that the client received; -1 if none")
]
Millis = Annotated[int, Meta(ge=0, le=2**53)]
Duration = Annotated[int, Meta(ge=100, le=24 * 3_600_000)]
Session = Annotated[int, Meta(ge=config.MIN_SESSION_MS, le=config.MAX_SESSION_MS)]
KeyId = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,32}\Z")]
StrategyName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
Policy = Literal["last", "first", "timestamp"]
# A strategy's parameter. Depth and size are bounded, because an accepted parameter is stored and must be readable
# again.
Plain = Annotated[str, Meta(max_length=4_096)] | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float | bool | None
Flat = Plain | list[Plain] | dict[str, Plain]
StrategyParams = Annotated[dict[str, Plain | list[Flat] | dict[str, Flat]], Meta(max_length=config.MAX_PARAMS)]
Queues = Annotated[list[Queue], Meta(max_length=config.MAX_QUEUES)]
Mode = Literal["clustering", "broadcasting"]
FilterType = Literal["TAG", "SQL92"]
Filter = tuple[str, FilterType]
"""An expression and its type: the messages of a topic that a member wants."""
UNREADABLE = (MsgspecError, UnicodeError, RecursionError)
"""Errors that the decoder may raise for arbitrary bytes."""


class Event(Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    """An input of the coordinator."""


Expression = Annotated[str, Meta(max_length=4_096, description="filter for messages: tags or SQL92; * accepts all")]


class Subscription(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One topic that a client subscribes, and the filter for its messages."""

    topic: TopicName
    expression: Expression = "*"
    expression_type: FilterType = "TAG"
    version: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="number of the change of the subscription, counted per instance")
    ] = 0


class About(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A client's description of itself, for the record: no decision depends on it.

    At most `config.MAX_ABOUT_BYTES` bytes as JSON. Texts are printable ASCII.
    """

    host: Annotated[
        str, Meta(pattern=r"\A[ -~]{0,253}\Z", description="host or pod that the client runs on; empty if not told")
    ] = ""
    sdk: Annotated[
        str,
        Meta(pattern=r"\A[ -~]{0,64}\Z", description="library of the client and its version; empty if not told"),
    ] = ""
    app_version: Annotated[
        str, Meta(pattern=r"\A[ -~]{0,64}\Z", description="version of the application; empty if not told")
    ] = ""
    labels: Annotated[
        dict[
            Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._/-]{1,63}\Z")], Annotated[str, Meta(pattern=r"\A[ -~]{0,63}\Z")]
        ],
        Meta(max_length=config.MAX_LABELS, description="labels that the application chose, as a JSON object"),
    ] = {}

    @property
    def words(self) -> str:
        """Version and host in words; empty if neither is known."""
        version = f"version {self.app_version}" if self.app_version else ""
        return f"{version} on {self.host}".strip() if self.host else version


class LongCall(Struct, frozen=True, kw_only=True):
    """A call of a client's application with messages of one queue that has lasted long."""

    queue: Annotated[Queue, Meta(description="queue of the messages")]
    first_offset: Annotated[Offset, Meta(description="lowest offset of the messages")]
    last_offset: Annotated[Offset, Meta(description="highest offset of the messages")]
    since_ms: Annotated[Millis, Meta(description="when the call began, by the clock of the client (epoch ms)")]


class Heartbeat(Event, frozen=True, kw_only=True, tag="heartbeat"):
    """A client is alive: its preferences, the newest epoch that it received, and the queues that it still has."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    epoch: Epoch = -1
    session_timeout_ms: Annotated[
        Session, Meta(description="session timeout of the newest assignment that the client received (ms)")
    ] = config.SESSION_TIMEOUT_MS
    owned: Annotated[
        Queues, Meta(description="all queues that the client still has, including those that it drains")
    ] = []
    mode: Annotated[
        Mode, Meta(description="clustering: each queue has one owner; broadcasting: each member has all queues")
    ] = "clustering"
    consume_from: Annotated[Policy, Meta(description="policy for the start of a queue without a committed offset")] = (
        "last"
    )
    consume_from_ms: Annotated[
        Millis, Meta(description="time of the first message to consume (epoch ms), if consume_from is timestamp")
    ] = 0
    subscriptions: Annotated[list[Subscription], Meta(max_length=config.MAX_TOPICS)] = []
    strategy: StrategyName = "AVG"
    strategy_params: StrategyParams = {}
    orderly: Annotated[bool, Meta(description="whether the messages of a queue must be consumed in order")] = False
    room: Room = ""
    weight: Annotated[
        float, Meta(gt=0, le=1_000_000, description="share of the work, relative to the weights of the other members")
    ] = 1.0
    pattern: Annotated[
        str,
        Meta(
            max_length=config.MAX_PATTERN,
            description="regular expression of RE2: topics whose whole names match it are subscribed too; empty if "
            "there is none",
        ),
    ] = ""
    """Read from feature level 4 on."""
    pattern_expression: Annotated[
        Expression, Meta(description="filter for messages of the topics that match `pattern`: tags or SQL92")
    ] = "*"
    """Read from feature level 5 on; below it, these topics have no filter."""
    pattern_expression_type: FilterType = "TAG"
    """Read from feature level 5 on."""
    round: Annotated[
        int,
        Meta(
            ge=-1,
            le=2**53,
            description="round of the newest assignment that the client received; -1 if none, or if it had no round",
        ),
    ] = -1
    about: (
        Annotated[About, Meta(description="description of the client; absent if it is that of the heartbeat before")]
        | None
    ) = None
    """Read from feature level 4 on."""
    handling: Annotated[
        list[LongCall],
        Meta(max_length=config.MAX_LONG_CALLS, description="calls of its application that have lasted long"),
    ] = []
    """Read from feature level 4 on. No decision depends on it."""
    strategy_by_default: Annotated[
        bool,
        Meta(
            description="whether the application has not chosen the strategy: then that of the running group is agreed"
        ),
    ] = False
    """Read from feature level 4 on."""
    slice_by: (
        Annotated[
            str,
            Meta(
                pattern=r"\A(|(header|function):[ -~]{1,240})\Z",
                description="by what the client cuts partitions into slices: empty: by the key; header:NAME: by that "
                "header; function:NAME: by a function of the application; absent: as in the heartbeat before of this "
                "instance, and if it has never told it, the client does not know slices",
            ),
        ]
        | None
    ) = None
    """Read from feature level 5 on."""


class Unregister(Event, frozen=True, kw_only=True, tag="unregister"):
    """A client leaves by itself, or its process has ended: all its queues are free."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    secret: Annotated[
        str,
        Meta(
            max_length=64, description="secret that the instance_id was made from, if that begins with h:; else empty"
        ),
    ] = ""
    died: (
        Annotated[
            str,
            Meta(
                max_length=64,
                description="how its process has ended, such as SIGKILL or exit code 3, or empty if that is not known; "
                "absent if it leaves in good order",
            ),
        ]
        | None
    ) = None
    """Read from feature level 4 on."""


LeaderEpoch = Annotated[
    int,
    Meta(
        ge=0,
        le=2**31 - 1,
        description="Kafka's leader epoch of the message before the offset: messages of a later one are other "
        "messages, in a log that has lost its tail; absent if not known",
    ),
]


class Ahead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Progress of a queue for one filter, beyond its committed offset."""

    expression: Annotated[str, Meta(max_length=4_096, description="the filter: tags or SQL92; * accepts all")] = "*"
    expression_type: FilterType = "TAG"
    offset: Annotated[
        int, Meta(ge=0, le=2**63 - 1, description="every message below it that matches the filter is processed")
    ]
    leader_epoch: LeaderEpoch | None = None

    @property
    def filter(self) -> Filter:
        """The expression and its type."""
        return self.expression, self.expression_type


class CommittedOffset(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The committed offset of one queue."""

    queue: Queue
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1, description="offset of the next message to consume")]
    metadata: Annotated[str, Meta(max_length=4_096, description="text that the application stores with the offset")] = (
        ""
    )
    leader_epoch: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=2**31 - 1,
                description="Kafka's leader epoch of the message before the offset; absent if not known",
            ),
        ]
        | None
    ) = None
    ahead: Annotated[
        tuple[Ahead, ...],
        Meta(
            max_length=config.MAX_FILTERS,
            description="progress beyond the offset, by filter, while members of the group have different filters",
        ),
    ] = ()


class Commit(Event, frozen=True, kw_only=True, tag="commit"):
    """A client commits offsets; accepted only from the owner of a queue."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    epoch: Epoch = -1
    offsets: Annotated[list[CommittedOffset], Meta(min_length=1, max_length=config.MAX_QUEUES)]


class Lock(Event, frozen=True, kw_only=True, tag="lock"):
    """A client requests exclusive locks on queues for a minute, by RocketMQ's protocol for ordered groups."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    queues: Annotated[Queues, Meta(min_length=1)]


class Unlock(Event, frozen=True, kw_only=True, tag="unlock"):
    """The owner of locks returns them."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    queues: Annotated[Queues, Meta(min_length=1)]


OperatorRequestId = Annotated[
    str,
    Meta(pattern=r"\A[A-Za-z0-9._@#:-]{1,64}\Z", description="identifies the request; a repeated request is ignored"),
]
OperatorName = Annotated[str, Meta(min_length=1, max_length=255, description="name of the operator")]
Reason = Annotated[str, Meta(max_length=255, description="why, as the operator worded it; empty if not told")]


class ResetOffset(Struct, frozen=True, kw_only=True):
    """The offset to which a queue is reset."""

    queue: Queue
    offset: Annotated[Offset, Meta(description="offset of the next message to consume")]


class Reset(Event, frozen=True, kw_only=True, tag="reset"):
    """An operator sets committed offsets, back or forth; a policy or a time was resolved to offsets before."""

    request_id: OperatorRequestId
    group_id: GroupId
    offsets: Annotated[list[ResetOffset], Meta(min_length=1, max_length=config.MAX_QUEUES)]
    asked: Annotated[str, Meta(max_length=255, description="requested position as the operator worded it")] = ""
    by: OperatorName


TopicSlices = Annotated[
    dict[TopicName, Slices],
    Meta(
        min_length=1,
        max_length=config.MAX_SLICED_TOPICS,
        description="topic -> number of slices of each of its partitions; unnamed topics keep theirs",
    ),
]


class Configure(Event, frozen=True, kw_only=True, tag="configure"):
    """An operator changes settings of a group; settings that the event does not name stay as they are."""

    group_id: GroupId
    profile: Annotated[
        Literal["wakeroll", "rocketmq"] | UnsetType,
        Meta(description="name of a set of settings; settings that the event names take precedence"),
    ] = UNSET
    strategy: StrategyName | UnsetType = UNSET
    strategy_params: StrategyParams | UnsetType = UNSET
    handover: Literal["cooperative", "eager"] | UnsetType = UNSET
    heartbeat_ms: Duration | UnsetType = UNSET
    session_timeout_ms: Session | UnsetType = UNSET
    rebalance_interval_ms: Duration | UnsetType = UNSET
    settle_ms: Annotated[int, Meta(ge=0, le=3_600_000)] | UnsetType = UNSET
    revoke_timeout_ms: Duration | UnsetType = UNSET
    max_members: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType = UNSET
    slices: TopicSlices | UnsetType = UNSET
    """Read from feature level 5 on."""
    by: Annotated[str, Meta(max_length=255, description="name of the operator, for the record")] = ""


class Kick(Event, frozen=True, kw_only=True, tag="kick"):
    """An operator makes a member leave its group, or lets a client join again. Read from feature level 4 on."""

    request_id: OperatorRequestId
    group_id: GroupId
    client_id: ClientId
    keep_out_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=config.MAX_KEEP_OUT_MS,
            description="how long other instances of the client may not join (ms); 0: they may join at once",
        ),
    ] = 0
    readmit: Annotated[
        bool, Meta(description="whether the client is let in again before its time is over, instead of kicked")
    ] = False
    reason: Reason = ""
    by: OperatorName


class Delete(Event, frozen=True, kw_only=True, tag="delete"):
    """An operator deletes a group without members, or committed offsets of it. Read from feature level 4 on."""

    request_id: OperatorRequestId
    group_id: GroupId
    what: Annotated[
        Literal["group", "offsets"], Meta(description="group: all of it; offsets: the committed offsets of `queues`")
    ]
    queues: Annotated[Queues, Meta(description="queues whose offsets are deleted; empty if the group is deleted")] = []
    reason: Reason = ""
    by: OperatorName


class Pause(Event, frozen=True, kw_only=True, tag="pause"):
    """An operator pauses a group: its members keep their queues, and deliver no message until it is resumed.

    Read from feature level 4 on.
    """

    request_id: OperatorRequestId
    group_id: GroupId
    resume: Annotated[bool, Meta(description="whether the group is resumed, instead of paused")] = False
    reason: Reason = ""
    by: OperatorName


class Inspect(Event, frozen=True, kw_only=True, tag="inspect"):
    """An operator requests a `report` from a member's process. Read from feature level 4 on."""

    request_id: OperatorRequestId
    group_id: GroupId
    client_id: ClientId
    reason: Reason = ""
    by: OperatorName


class RoutedQueue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A queue that exists, the room of its leader, and the range of its offsets."""

    topic: TopicName
    broker: BrokerName
    queue_id: QueueId
    room: Room = ""
    min_offset: Offset = 0
    max_offset: Annotated[Offset, Meta(description="offset of the next message; null if not known")] | None = None

    @property
    def queue(self) -> Queue:
        """The queue, without room and offsets."""
        return Queue(self.topic, self.broker, self.queue_id)


RequestId = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9._@#:-]{1,64}:[0-9]{1,18}\Z",
        description="<instance_id>:<n>; n increases within an instance",
    ),
]


class Pull(Event, frozen=True, kw_only=True, tag="pull"):
    """A client found nothing to read in a queue, and waits for a wake."""

    request_id: RequestId
    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    queue: Queue
    from_offset: Annotated[Offset, Meta(description="offset of the first message that the client has not read")]
    timeout_ms: Annotated[int, Meta(ge=1, le=config.MAX_PULL_TIMEOUT_MS)] = config.PULL_TIMEOUT_MS
    expression: Annotated[
        str, Meta(max_length=4_096, description="filter for messages: tags or SQL92; * accepts all")
    ] = "*"
    expression_type: Literal["TAG", "SQL92"] = "TAG"


class Cancel(Event, frozen=True, kw_only=True, tag="cancel"):
    """A client cancels its pull."""

    request_id: RequestId
    group_id: GroupId
    client_id: ClientId
    queue: Queue


ObserverId = Annotated[
    str,
    Meta(
        pattern=r"\A[A-Za-z0-9._@#:-]{0,64}\Z",
        description="observer that reports next_offset as the end of the queue; empty if a producer gives a hint",
    ),
]


class Arrival(Event, frozen=True, kw_only=True, tag="arrival"):
    """A queue has grown; with tags and properties of its newest message if known, or with an observer's end offset."""

    queue: Queue
    next_offset: Annotated[Offset, Meta(description="offset of the message after this one")]
    tags: (
        Annotated[
            str, Meta(max_length=4_096, description="tag of the message; empty if it has none, null if not known")
        ]
        | None
    ) = None
    tags_code: (
        Annotated[
            int,
            Meta(
                ge=-(2**63),
                le=2**63 - 1,
                description="hash code of the tag, as in RocketMQ's consume queue; null if not known",
            ),
        ]
        | None
    ) = None
    properties: (
        Annotated[
            dict[Annotated[str, Meta(max_length=255)], Annotated[str, Meta(max_length=4_096)]],
            Meta(max_length=config.MAX_PROPERTIES),
        ]
        | None
    ) = None
    stored_ms: (
        Annotated[Millis, Meta(description="time at which the broker stored the message (epoch ms); null if not known")]
        | None
    ) = None
    observer: ObserverId = ""


class Route(Event, frozen=True, kw_only=True, tag="route"):
    """The queues of a topic, sent to every partition; an empty list: the topic does not exist."""

    topic: TopicName
    queues: Annotated[list[RoutedQueue], Meta(max_length=config.MAX_QUEUES)] = []
    version: Annotated[str, Meta(max_length=64, description="fingerprint of the queues and rooms")]
    topic_id: Annotated[
        str,
        Meta(
            max_length=64,
            description="identity of the topic, which changes if it is deleted and recreated; empty if not known",
        ),
    ] = ""
    is_new: Annotated[
        bool, Meta(description="whether the topic did not exist when the observer first queried it, for a subscription")
    ] = False


class Matches(Event, frozen=True, kw_only=True, tag="matches"):
    """The topics of the cluster that match a pattern of a group's members. Read from feature level 4 on."""

    group_id: GroupId
    pattern: Annotated[
        str, Meta(min_length=1, max_length=config.MAX_PATTERN, description="regular expression, as the members have it")
    ]
    topics: Annotated[
        list[TopicName],
        Meta(max_length=config.MAX_TOPICS, description="topics that exist and whose whole names match it, sorted"),
    ] = []
    problem: Annotated[
        str,
        Meta(
            max_length=config.MAX_DETAIL,
            description="why the pattern cannot be evaluated, or which topics are left out; empty if all is well",
        ),
    ] = ""


class Tick(Event, frozen=True, kw_only=True, tag="tick"):
    """A second has passed; sent to every partition."""

    observer: Annotated[
        str,
        Meta(pattern=r"\A[A-Za-z0-9._-]{0,64}\Z", description="name of one process of the observer; never reused"),
    ] = ""
    uptime_ms: (
        Annotated[Millis, Meta(description="monotonic clock of the observer's process (ms); null if not known")] | None
    ) = None
    limits: (
        Annotated[
            config.Limits,
            Meta(
                description="limits of this deployment that differ from the defaults; null to keep the current limits"
            ),
        ]
        | None
    ) = None


class Level(Event, frozen=True, kw_only=True, tag="level"):
    """An operator raises the feature level of a shard; sent to every partition.

    A level that is not above the shard's has no effect.
    """

    level: Annotated[int, Meta(ge=1, le=2**31 - 1, description="level at which the shard decides from here on")]
    by: Annotated[str, Meta(max_length=255, description="name of the operator, for the record")] = ""


class ValidKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key with which records are signed, without its secret."""

    key_id: Annotated[KeyId, Meta(description="name of the key; part of each signature")]
    role: Annotated[Literal["operator", "observer", "client"], Meta(description="who signs with it")]
    fingerprint: Annotated[
        str,
        Meta(
            pattern=r"\A[0-9a-f]{32}\Z",
            description="shows which secret is meant: the first 16 bytes, in hex, of HMAC-SHA256 with the secret, or "
            "with the public key of Ed25519, of `wakeroll key`, the role and `groups`, separated by newlines",
        ),
    ]
    groups: Annotated[
        str,
        Meta(
            pattern=r"\A[A-Za-z0-9._-]{0,255}\Z",
            description="of a client key: beginning of the names of the groups whose clients must sign with it",
        ),
    ] = ""
    public_key: Annotated[
        str,
        Meta(
            pattern=r"\A([0-9a-f]{64})?\Z",
            description="the public key of Ed25519, 32 bytes in hex, by which everybody verifies; empty for an HMAC, "
            "whose secret no record contains",
        ),
    ] = ""


class KeyChange(Event, frozen=True, kw_only=True, tag="keys"):
    """An operator adds and removes keys that are valid from the next record on; sent to every partition.

    Until the first of these records, each process accepts the keys of its own key file.
    """

    added: Annotated[
        list[ValidKey], Meta(max_length=config.MAX_KEYS, description="keys that are valid from here on")
    ] = []
    removed: Annotated[
        list[KeyId], Meta(max_length=config.MAX_KEYS, description="names of keys that are not valid any more")
    ] = []
    by: Annotated[str, Meta(max_length=255, description="name of the operator, for the record")] = ""


class Failure(Struct, frozen=True, kw_only=True):
    """Messages of one queue that a handler failed to process, at the same attempt and with the same outcome."""

    queue: Annotated[Queue, Meta(description="queue from which the messages were first delivered")]
    first_offset: Annotated[Offset, Meta(description="lowest offset of the messages")]
    last_offset: Annotated[Offset, Meta(description="highest offset of the messages")]
    messages: Annotated[int, Meta(ge=1, le=2**53, description="number of messages, not all between those offsets")]
    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1, description="number of the failed attempt, from 1")]
    level: Annotated[
        int, Meta(ge=0, le=len(DELAYS_S), description="delay level of the next attempt; 0: dead letters, there is none")
    ]
    error: Annotated[
        str,
        Meta(max_length=config.MAX_ERROR, description="error of the last of these messages; empty if none is known"),
    ] = ""


class Failures(Event, frozen=True, kw_only=True, tag="failures"):
    """A client reports messages that its handler failed to process; they are stored for a retry or as dead letters."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    failures: Annotated[list[Failure], Meta(min_length=1, max_length=config.MAX_FAILURES)]


class Report(Event, frozen=True, kw_only=True, tag="report"):
    """A client's answer to `inspect`: what it does now. Read from feature level 4 on."""

    group_id: GroupId
    client_id: ClientId
    instance_id: InstanceId
    text: Annotated[
        str,
        Meta(
            max_length=config.MAX_REPORT,
            description="its calls at work, with their messages and, if the application allows that, their stacks",
        ),
    ]


Request = Configure | Reset | Kick | Delete | Pause | Inspect
"""An event of an operator about one group."""
GroupEvent = Heartbeat | Unregister | Commit | Failures | Report | Lock | Unlock | Request | Matches | Route | Tick
QueueEvent = Pull | Cancel | Arrival | Tick
AnyEvent = GroupEvent | QueueEvent | Level | KeyChange

ON_EVERY_PARTITION = (Route, Tick, Level, KeyChange)
"""Events that belong to a shard as a whole; their records have no key."""

ABOUT_A_QUEUE = (Pull, Cancel, Arrival)
"""Events whose records are keyed by their queue; all others are keyed by their group."""

ACCEPTED: Mapping[str, tuple[type[Event], ...]] = {
    "groups": (
        *(Heartbeat, Unregister, Commit, Failures, Report, Lock, Unlock),
        *(Configure, Reset, Kick, Delete, Pause, Inspect, Matches, Route, Tick, Level, KeyChange),
    ),
    "queues": (Pull, Cancel, Arrival, Tick, Level, KeyChange),
}
"""Last part of a control topic's name -> the event types that it accepts."""
