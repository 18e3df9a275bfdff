"""Events about Kafka's own groups: the contents of records of `__consumer_offsets`, with wakeroll's names.

They are the input of the machine `wakeroll_model.coordinator_log.kafka_machine`, in a log of their own. No control
topic accepts them, so only records of Kafka become events.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from wakeroll_model.events import CommittedOffset, Epoch, Event, Route, Tick
from wakeroll_model.queue import ClientId, GroupId, Queue, QueueId, TopicName

KIND = "kafka"
"""Last part of the name of a log of these events."""
Protocol = Literal["classic", "consumer", "share", "streams"]
"""classic; consumer: KIP-848; share: KIP-932; streams: KIP-1071."""
Shares = dict[TopicName, list[QueueId]]
"""Topic -> the numbers of some of its partitions; in a streams group: part of the topology -> numbers of tasks."""
AnyText = Annotated[str, Meta(max_length=32_767)]


class Source(Struct, frozen=True, array_like=True):
    """The record of `__consumer_offsets` that an event was read from."""

    partition: Annotated[int, Meta(ge=0, description="partition of `__consumer_offsets`")]
    offset: Annotated[int, Meta(ge=0, description="offset of the record in that partition")]


class SeenMember(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of a group, as Kafka records it."""

    client_id: Annotated[ClientId, Meta(description="name of the member here; unique in its group")]
    member_id: Annotated[AnyText, Meta(description="Kafka's id of the member")]
    kafka_client_id: Annotated[AnyText, Meta(description="the client.id of the consumer")] = ""
    host: Annotated[AnyText, Meta(description="host of the consumer")] = ""
    static: Annotated[bool, Meta(description="whether it has a group.instance.id")] = False
    topics: Annotated[list[TopicName], Meta(description="topics that it subscribes by name, sorted")] = []
    expression: Annotated[AnyText, Meta(description="regular expression that it subscribes; empty if none")] = ""
    assignor: Annotated[AnyText, Meta(description="assignor that it asks for; empty if none")] = ""
    rack: Annotated[AnyText, Meta(description="its rack; empty if none")] = ""
    session_ms: Annotated[int, Meta(description="its session timeout (ms); 0 if not recorded")] = 0
    cooperative: Annotated[
        bool, Meta(description="whether it keeps its partitions during a rebalance, as it says itself")
    ] = False
    readable: Annotated[bool, Meta(description="whether its subscription could be read")] = True


class KafkaEvent(Event, frozen=True, kw_only=True):
    """The content of a record about one group."""

    group_id: GroupId
    source: Annotated[Source | None, Meta(description="the record; null if the broker described the group")] = None


class AssignedMember(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A member of a generation, with what it was assigned."""

    member: SeenMember
    queues: Annotated[Shares, Meta(description="topic -> numbers of the partitions assigned to it")] = field(
        default_factory=dict
    )


class Generation(KafkaEvent, frozen=True, kw_only=True, tag="generation"):
    """A classic group has become stable or empty: a generation, all its members and their assignments."""

    kafka_group: Annotated[AnyText, Meta(description="Kafka's name of the group; empty if it is the same as here")] = ""
    generation: int
    protocol_type: AnyText = ""
    assignor: Annotated[AnyText, Meta(description="assignor that its members agreed on; empty if none")] = ""
    leader: Annotated[AnyText, Meta(description="member id of the leader; empty if none")] = ""
    members: list[AssignedMember] = field(default_factory=list)


class Described(KafkaEvent, frozen=True, kw_only=True, tag="described"):
    """A broker has described a group: its members and what they have now, without what happened before."""

    kafka_group: AnyText = ""
    assignor: AnyText = ""
    members: list[AssignedMember] = field(default_factory=list)


class Vanished(KafkaEvent, frozen=True, kw_only=True, tag="vanished"):
    """A group was deleted, or has changed to another protocol."""

    protocol: Protocol


class GroupEpoch(KafkaEvent, frozen=True, kw_only=True, tag="epoch"):
    """The group has a new epoch, because of a change that may lead to another assignment."""

    kafka_group: AnyText = ""
    protocol: Protocol
    epoch: Epoch
    topics_hash: Annotated[int, Meta(description="hash of the topics and their partitions; 0 if not recorded")] = 0


class MemberSeen(KafkaEvent, frozen=True, kw_only=True, tag="member"):
    """A member has joined, has changed, or is gone."""

    protocol: Protocol
    member_id: AnyText
    member: Annotated[SeenMember | None, Meta(description="the member as of now; null if it is gone")] = None


class TargetSeen(KafkaEvent, frozen=True, kw_only=True, tag="target"):
    """The partitions that a member should have from the next target epoch on."""

    protocol: Protocol
    member_id: AnyText
    queues: Annotated[Shares | None, Meta(description="null if the member is gone")] = None


class TargetEpoch(KafkaEvent, frozen=True, kw_only=True, tag="target_epoch"):
    """The target assignment of a group epoch is complete."""

    protocol: Protocol
    epoch: Epoch


class CurrentSeen(KafkaEvent, frozen=True, kw_only=True, tag="current"):
    """The partitions that a member has, and those of them that it must release."""

    protocol: Protocol
    member_id: AnyText
    epoch: Annotated[int, Meta(description="epoch that the member has reached; -2: a static member is away")] = -1
    queues: Annotated[Shares | None, Meta(description="null if the member is gone")] = None
    revoking: Annotated[Shares, Meta(description="partitions that it must release")] = field(default_factory=dict)


class ExpressionSeen(KafkaEvent, frozen=True, kw_only=True, tag="expression"):
    """A regular expression was resolved."""

    expression: AnyText
    topics: Annotated[list[TopicName] | None, Meta(description="matching topics; null if nobody subscribes it")] = None


class TopicsSeen(KafkaEvent, frozen=True, kw_only=True, tag="topics"):
    """The topics of a group have changed: their number of partitions, up to Kafka 4.0."""

    topics: Annotated[dict[TopicName, int], Meta(description="topic -> number of its partitions")]


class Topology(KafkaEvent, frozen=True, kw_only=True, tag="topology"):
    """The topology of a streams group."""

    parts: Annotated[dict[AnyText, list[TopicName]], Meta(description="part -> the topics that its tasks read")]


class Committed(KafkaEvent, frozen=True, kw_only=True, tag="committed"):
    """Offsets of a group were committed or deleted."""

    offsets: list[CommittedOffset] = field(default_factory=list)
    deleted: Annotated[list[Queue], Meta(description="queues that have no committed offset any more")] = field(
        default_factory=list
    )


class Progress(Event, frozen=True, kw_only=True, tag="progress"):
    """Progress of reading `__consumer_offsets`, of all shards: all records below these offsets are in the log."""

    next_offsets: Annotated[dict[str, int], Meta(description="partition of `__consumer_offsets` -> its next offset")]
    read_offsets: Annotated[
        dict[str, int],
        Meta(description="partition -> offset up to which all is on record except commits since its next offset"),
    ] = field(default_factory=dict)


AnyKafkaEvent = (
    Generation
    | Described
    | Vanished
    | GroupEpoch
    | MemberSeen
    | TargetSeen
    | TargetEpoch
    | CurrentSeen
    | ExpressionSeen
    | TopicsSeen
    | Topology
    | Committed
)
"""An event about one group."""
LogEvent = AnyKafkaEvent | Progress | Route | Tick
"""An event of the log."""

_decoder: msgspec.json.Decoder[LogEvent] = msgspec.json.Decoder(LogEvent)
encode_event = msgspec.json.Encoder().encode


def read_log_event(value: bytes | None) -> LogEvent:
    """Decode an event of the log.

    Raises:
        msgspec.MsgspecError: the bytes are not an event. Only a damaged table has such bytes.
    """
    return _decoder.decode(value or b"")


def queues_of(shares: Mapping[str, list[int]]) -> list[Queue]:
    """Return the queues of shares, sorted."""
    return sorted(Queue(topic, "", number) for topic, numbers in shares.items() for number in numbers)
