"""The records of `__consumer_offsets`, and the data of classic consumers inside them, by Kafka's schemas.

The source is Kafka's `common/message` of its group coordinator and clients: all versions that brokers 3.9 to 4.4 write.
A test compares each declaration with the schemas in the JARs of those brokers. The version of a record's key is the
type of the record.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, NamedTuple

from msgspec import field

from wakeroll_model.coordinator_log.message_format import (
    INFLEXIBLE,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Since,
    Tag,
    Text,
    UInt16,
    Uuid,
)

# --- keys ---


class KeyMessage(Message, frozen=True, kw_only=True):
    """The key of a record."""

    FLEXIBLE: ClassVar[int] = INFLEXIBLE


class CommitKey(KeyMessage, frozen=True, kw_only=True):
    """A committed offset of a group."""

    group: Text
    topic: Text
    partition: Int32


class ClassicGroupKey(KeyMessage, frozen=True, kw_only=True):
    """A classic group."""

    group: Text


class GroupKey(KeyMessage, frozen=True, kw_only=True):
    """A group of a later protocol."""

    group_id: Text


class MemberKey(KeyMessage, frozen=True, kw_only=True):
    """A member of a group of a later protocol."""

    group_id: Text
    member_id: Text


class ExpressionKey(KeyMessage, frozen=True, kw_only=True):
    """A regular expression that members of a group subscribe."""

    group_id: Text
    regular_expression: Text


# --- values: commits and classic groups ---


class CommitValue(Message, frozen=True, kw_only=True):
    """A committed offset."""

    VERSIONS: ClassVar[range] = range(5)
    FLEXIBLE: ClassVar[int] = 4
    offset: Int64
    leader_epoch: Annotated[Int32, Since(3)] = -1
    metadata: Text
    commit_timestamp: Int64
    expire_timestamp: Annotated[Int64, Since(1, 1)] = -1
    topic_id: Annotated[Uuid, Since(4), Tag(0)] = ""


class ClassicMember(Message, frozen=True, kw_only=True):
    """A member of a classic group."""

    member_id: Text
    group_instance_id: Annotated[Text | None, Since(3)] = None
    client_id: Text
    client_host: Text
    rebalance_timeout: Annotated[Int32, Since(1)] = -1
    session_timeout: Int32
    subscription: Bytes
    assignment: Bytes


class ClassicGroupValue(Message, frozen=True, kw_only=True):
    """A generation of a classic group, when it is stable or empty."""

    VERSIONS: ClassVar[range] = range(5)
    FLEXIBLE: ClassVar[int] = 4
    protocol_type: Text
    generation: Int32
    protocol: Text | None
    leader: Text | None
    current_state_timestamp: Annotated[Int64, Since(2)] = -1
    members: list[ClassicMember]


# --- values: groups of KIP-848 ---


class IdPartitions(Message, frozen=True, kw_only=True):
    """Partitions of a topic, which is named by its id."""

    topic_id: Uuid
    partitions: list[Int32]


class OwnedPartitions(IdPartitions, frozen=True, kw_only=True):
    """Partitions that a member has or must release; from 4.3 on, with the epoch of each assignment."""

    assignment_epochs: Annotated[list[Int32] | None, Tag(0)] = None


class ConsumerGroupValue(Message, frozen=True, kw_only=True):
    """The epoch of a group."""

    epoch: Int32
    metadata_hash: Annotated[Int64, Tag(0)] = 0


class RackPartition(Message, frozen=True, kw_only=True):
    """The racks of a partition; up to 3.9."""

    partition: Int32
    racks: list[Text]


class KnownTopic(Message, frozen=True, kw_only=True):
    """A topic that members of a group subscribe."""

    topic_id: Uuid
    topic_name: Text
    num_partitions: Int32
    partition_metadata: list[RackPartition]


class KnownTopicsValue(Message, frozen=True, kw_only=True):
    """The topics that members of a group subscribe; up to 4.0."""

    topics: list[KnownTopic]


class ClassicProtocol(Message, frozen=True, kw_only=True):
    """An assignor that a classic member of a KIP-848 group supports, and its subscription for it."""

    name: Text
    metadata: Bytes


class ClassicMetadata(Message, frozen=True, kw_only=True):
    """A member of a KIP-848 group whose client uses the classic protocol."""

    session_timeout_ms: Int32
    supported_protocols: list[ClassicProtocol]


class ConsumerMemberValue(Message, frozen=True, kw_only=True):
    """A member of a group, as it describes itself."""

    instance_id: Text | None
    rack_id: Text | None
    client_id: Text
    client_host: Text
    subscribed_topic_names: list[Text]
    subscribed_topic_regex: Text | None
    rebalance_timeout_ms: Int32
    server_assignor: Text | None
    classic_member_metadata: Annotated[ClassicMetadata | None, Tag(0)] = None


class TargetEpochValue(Message, frozen=True, kw_only=True):
    """The group epoch for which the target assignment was computed."""

    assignment_epoch: Int32
    assignment_timestamp: Annotated[Int64, Tag(0)] = 0


class TargetValue(Message, frozen=True, kw_only=True):
    """The partitions that a member should have."""

    topic_partitions: list[IdPartitions]


class CurrentValue(Message, frozen=True, kw_only=True):
    """The partitions that a member has, and those that it must release."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[OwnedPartitions]
    partitions_pending_revocation: list[OwnedPartitions]


class ExpressionValue(Message, frozen=True, kw_only=True):
    """The topics that match a regular expression."""

    topics: list[Text]
    version: Int64
    timestamp: Int64


# --- values: share groups (KIP-932) ---


class ShareMemberValue(Message, frozen=True, kw_only=True):
    """A member of a share group, as it describes itself."""

    rack_id: Text | None
    client_id: Text
    client_host: Text
    subscribed_topic_names: list[Text]


class ShareGroupValue(Message, frozen=True, kw_only=True):
    """The epoch of a share group."""

    epoch: Int32
    metadata_hash: Int64


class ShareCurrentValue(Message, frozen=True, kw_only=True):
    """The partitions that a member of a share group reads; others may read them too."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    assigned_partitions: list[IdPartitions]


class NamedTopic(Message, frozen=True, kw_only=True):
    """A topic."""

    topic_id: Uuid
    topic_name: Text


class NamedPartitions(Message, frozen=True, kw_only=True):
    """Partitions of a topic."""

    topic_id: Uuid
    topic_name: Text
    partitions: list[Int32]


class ShareStateValue(Message, frozen=True, kw_only=True):
    """The partitions for which the broker keeps the state of a share group."""

    initializing_topics: list[NamedPartitions]
    initialized_topics: list[NamedPartitions]
    deleting_topics: list[NamedTopic]


# --- values: streams groups (KIP-1071) ---


class Tasks(Message, frozen=True, kw_only=True):
    """Tasks of a part of a topology."""

    subtopology_id: Text
    partitions: list[Int32]


class OwnedTasks(Tasks, frozen=True, kw_only=True):
    """Tasks that a member has or must release; from 4.3 on, with the epoch of each assignment."""

    assignment_epochs: Annotated[list[Int32] | None, Tag(0)] = None


class KeyValue(Message, frozen=True, kw_only=True):
    """A setting."""

    key: Text
    value: Text


class StreamsGroupValue(Message, frozen=True, kw_only=True):
    """The epoch of a streams group."""

    epoch: Int32
    metadata_hash: Int64
    validated_topology_epoch: Annotated[Int32, Tag(0)] = -1
    last_assignment_configs: Annotated[list[KeyValue] | None, Tag(1)] = None
    stored_description_topology_epoch: Annotated[Int32, Tag(2)] = -1
    failed_description_topology_epoch: Annotated[Int32, Tag(3)] = -1


class Endpoint(Message, frozen=True, kw_only=True):
    """The address of an instance of an application."""

    host: Text
    port: UInt16


class StreamsMemberValue(Message, frozen=True, kw_only=True):
    """A member of a streams group, as it describes itself."""

    instance_id: Text | None
    rack_id: Text | None
    client_id: Text
    client_host: Text
    rebalance_timeout_ms: Int32
    topology_epoch: Int32
    process_id: Text
    user_endpoint: Endpoint | None
    client_tags: list[KeyValue]


class StreamsTargetValue(Message, frozen=True, kw_only=True):
    """The tasks that a member should have."""

    active_tasks: list[Tasks]
    standby_tasks: list[Tasks]
    warmup_tasks: list[Tasks]


class StreamsCurrentValue(Message, frozen=True, kw_only=True):
    """The tasks that a member has, and those that it must release."""

    member_epoch: Int32
    previous_member_epoch: Int32
    state: Int8
    active_tasks: list[OwnedTasks]
    standby_tasks: list[OwnedTasks]
    warmup_tasks: list[OwnedTasks]
    active_tasks_pending_revocation: list[OwnedTasks]
    standby_tasks_pending_revocation: list[OwnedTasks]
    warmup_tasks_pending_revocation: list[OwnedTasks]


class InternalTopic(Message, frozen=True, kw_only=True):
    """A topic that a topology needs."""

    name: Text
    partitions: Int32
    replication_factor: Int16
    topic_configs: list[KeyValue]


class CopartitionGroup(Message, frozen=True, kw_only=True):
    """Topics of a subtopology that must have the same number of partitions, as indexes into its lists."""

    source_topics: list[Int16]
    source_topic_regex: list[Int16]
    repartition_source_topics: list[Int16]


class Subtopology(Message, frozen=True, kw_only=True):
    """A part of a topology."""

    subtopology_id: Text
    source_topics: list[Text]
    source_topic_regex: list[Text]
    state_changelog_topics: list[InternalTopic]
    repartition_sink_topics: list[Text]
    repartition_source_topics: list[InternalTopic]
    copartition_groups: list[CopartitionGroup]


class TopologyValue(Message, frozen=True, kw_only=True):
    """The topology of a streams group."""

    epoch: Int32
    subtopologies: list[Subtopology]


# --- what classic consumers write inside ---


class TopicPartitions(Message, frozen=True, kw_only=True):
    """Partitions of a topic."""

    topic: Text
    partitions: list[Int32]


class ConsumerSubscription(Message, frozen=True, kw_only=True):
    """The subscription of a classic consumer. A later version is read as the newest one, as Kafka's clients do."""

    VERSIONS: ClassVar[range] = range(4)
    FLEXIBLE: ClassVar[int] = INFLEXIBLE
    topics: list[Text]
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[TopicPartitions], Since(1)] = field(default_factory=list)
    generation_id: Annotated[Int32, Since(2)] = -1
    rack_id: Annotated[Text | None, Since(3)] = None


class ConsumerAssignment(Message, frozen=True, kw_only=True):
    """The assignment of a classic consumer. A later version is read as the newest one, as Kafka's clients do."""

    VERSIONS: ClassVar[range] = range(4)
    FLEXIBLE: ClassVar[int] = INFLEXIBLE
    assigned_partitions: list[TopicPartitions]
    user_data: Bytes | None = None


class RecordType(NamedTuple):
    """A type of record."""

    key: type[KeyMessage]
    value: type[Message]
    name: str
    """Kafka's name of the schemas, without `Key` and `Value`."""


RECORD_TYPES: Mapping[int, RecordType] = {
    0: RecordType(CommitKey, CommitValue, "LegacyOffsetCommit"),
    1: RecordType(CommitKey, CommitValue, "OffsetCommit"),
    2: RecordType(ClassicGroupKey, ClassicGroupValue, "GroupMetadata"),
    3: RecordType(GroupKey, ConsumerGroupValue, "ConsumerGroupMetadata"),
    4: RecordType(GroupKey, KnownTopicsValue, "ConsumerGroupPartitionMetadata"),
    5: RecordType(MemberKey, ConsumerMemberValue, "ConsumerGroupMemberMetadata"),
    6: RecordType(GroupKey, TargetEpochValue, "ConsumerGroupTargetAssignmentMetadata"),
    7: RecordType(MemberKey, TargetValue, "ConsumerGroupTargetAssignmentMember"),
    8: RecordType(MemberKey, CurrentValue, "ConsumerGroupCurrentMemberAssignment"),
    9: RecordType(GroupKey, KnownTopicsValue, "ShareGroupPartitionMetadata"),
    10: RecordType(MemberKey, ShareMemberValue, "ShareGroupMemberMetadata"),
    11: RecordType(GroupKey, ShareGroupValue, "ShareGroupMetadata"),
    12: RecordType(GroupKey, TargetEpochValue, "ShareGroupTargetAssignmentMetadata"),
    13: RecordType(MemberKey, TargetValue, "ShareGroupTargetAssignmentMember"),
    14: RecordType(MemberKey, ShareCurrentValue, "ShareGroupCurrentMemberAssignment"),
    15: RecordType(GroupKey, ShareStateValue, "ShareGroupStatePartitionMetadata"),
    16: RecordType(ExpressionKey, ExpressionValue, "ConsumerGroupRegularExpression"),
    17: RecordType(GroupKey, StreamsGroupValue, "StreamsGroupMetadata"),
    19: RecordType(MemberKey, StreamsMemberValue, "StreamsGroupMemberMetadata"),
    20: RecordType(GroupKey, TargetEpochValue, "StreamsGroupTargetAssignmentMetadata"),
    21: RecordType(MemberKey, StreamsTargetValue, "StreamsGroupTargetAssignmentMember"),
    22: RecordType(MemberKey, StreamsCurrentValue, "StreamsGroupCurrentMemberAssignment"),
    23: RecordType(GroupKey, TopologyValue, "StreamsGroupTopology"),
}
"""Version of a key -> the type of its record."""
