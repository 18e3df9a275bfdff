"""The conversion of records of `__consumer_offsets` to wakeroll's events."""

from collections.abc import Callable, Iterable

from wakeroll_model.coordinator_log import message_schemas as m
from wakeroll_model.coordinator_log.coordinator_records import CoordinatorRecord, read_assignment, read_subscription
from wakeroll_model.coordinator_log.kafka_events import (
    AnyKafkaEvent,
    AssignedMember,
    Committed,
    CurrentSeen,
    ExpressionSeen,
    Generation,
    GroupEpoch,
    MemberSeen,
    Protocol,
    SeenMember,
    Shares,
    Source,
    TargetEpoch,
    TargetSeen,
    TopicsSeen,
    Topology,
    Vanished,
)
from wakeroll_model.coordinator_log.kafka_names import client_name, group_name, topic_name
from wakeroll_model.coordinator_log.message_format import Message
from wakeroll_model.events import CommittedOffset
from wakeroll_model.queue import Queue

TopicOf = Callable[[str], str]
"""Returns the name of a topic by its id; the id itself if the topic is not known, for example because it is deleted."""

_LATER: dict[int, Protocol] = {
    **dict.fromkeys((3, 4, 5, 6, 7, 8, 16), "consumer"),
    **dict.fromkeys(range(9, 16), "share"),
    **dict.fromkeys(range(17, 24), "streams"),
}
"""Type of a record -> the protocol of its group; classic groups and commits are not among them."""
_LAST_ID = 2**31 - 1
_LONGEST_METADATA = 4_096


def kafka_group_of(record: CoordinatorRecord) -> str:
    """Return Kafka's name of the group that a record is about."""
    key = record.key
    if isinstance(key, m.CommitKey | m.ClassicGroupKey):
        return key.group
    assert isinstance(key, m.GroupKey | m.MemberKey | m.ExpressionKey), "all keys name a group"
    return key.group_id


def event_of(record: CoordinatorRecord, source: Source, topic_of: TopicOf) -> AnyKafkaEvent | None:
    """Return the event of a record; None if it is not about members, assignments or offsets.

    Args:
        record: the record.
        source: partition and offset of the record.
        topic_of: returns the name of a topic by its id.
    """
    key, value = record.key, record.value
    kafka_group = kafka_group_of(record)
    name = group_name(kafka_group)
    raw = "" if name == kafka_group else kafka_group
    match key:
        case m.CommitKey():
            return _commit(key, value, name, source)
        case m.ClassicGroupKey():
            if not isinstance(value, m.ClassicGroupValue):
                return Vanished(group_id=name, source=source, protocol="classic")
            return _generation(value, name, raw, source)
        case m.ExpressionKey():
            topics = _topics(value.topics) if isinstance(value, m.ExpressionValue) else None
            return ExpressionSeen(group_id=name, source=source, expression=key.regular_expression, topics=topics)
        case m.MemberKey():
            return _of_member(record, key.member_id, name, source, topic_of)
        case _:
            return _of_group(record, name, raw, source)


def ids_of(record: CoordinatorRecord) -> dict[str, str]:
    """Return the topics that a record names both by id and by name: id -> name."""
    value = record.value
    if isinstance(value, m.KnownTopicsValue):
        return {one.topic_id: one.topic_name for one in value.topics}
    if isinstance(value, m.ShareStateValue):
        return {one.topic_id: one.topic_name for one in (*value.initializing_topics, *value.initialized_topics)}
    if isinstance(value, m.CommitValue) and isinstance(record.key, m.CommitKey) and value.topic_id:
        return {value.topic_id: record.key.topic}
    return {}


def _commit(key: m.CommitKey, value: Message | None, name: str, source: Source) -> Committed | None:
    if not 0 <= key.partition <= _LAST_ID:
        return None
    queue = Queue(topic_name(key.topic), "", key.partition)
    if not isinstance(value, m.CommitValue):
        return Committed(group_id=name, source=source, deleted=[queue])
    if value.offset < 0:
        return None
    offset = CommittedOffset(
        queue=queue,
        offset=value.offset,
        metadata=value.metadata[:_LONGEST_METADATA],
        leader_epoch=value.leader_epoch if value.leader_epoch >= 0 else None,
    )
    return Committed(group_id=name, source=source, offsets=[offset])


def _generation(value: m.ClassicGroupValue, name: str, raw: str, source: Source) -> Generation:
    return Generation(
        group_id=name,
        source=source,
        kafka_group=raw,
        generation=value.generation,
        protocol_type=value.protocol_type,
        assignor=value.protocol or "",
        leader=value.leader or "",
        members=[_classic_member(one) for one in value.members],
    )


def _classic_member(one: m.ClassicMember) -> AssignedMember:
    subscription, assignment = read_subscription(one.subscription), read_assignment(one.assignment)
    queues: Shares = {}
    for at in assignment.assigned_partitions if assignment is not None else ():
        _add(queues, topic_name(at.topic), at.partitions)
    return AssignedMember(
        member=SeenMember(
            client_id=client_name(one.member_id, one.client_id, one.group_instance_id),
            member_id=one.member_id,
            kafka_client_id=one.client_id,
            host=one.client_host.lstrip("/"),
            static=bool(one.group_instance_id),
            topics=[] if subscription is None else _topics(subscription.topics),
            rack="" if subscription is None else subscription.rack_id or "",
            session_ms=max(one.session_timeout, 0),
            cooperative=subscription is not None and bool(subscription.owned_partitions),
            readable=subscription is not None and assignment is not None,
        ),
        queues=queues,
    )


def _of_member(
    record: CoordinatorRecord, member_id: str, name: str, source: Source, topic_of: TopicOf
) -> AnyKafkaEvent | None:
    protocol, value = _LATER[record.type], record.value
    if record.type in (5, 10, 19):
        member = _later_member(value, member_id)
        return MemberSeen(group_id=name, source=source, protocol=protocol, member_id=member_id, member=member)
    if record.type in (7, 13, 21):
        queues = None if value is None else _wanted(value, topic_of)
        return TargetSeen(group_id=name, source=source, protocol=protocol, member_id=member_id, queues=queues)
    epoch = getattr(value, "member_epoch", -1)
    has, revoking = (None, {}) if value is None else _has(value, topic_of)
    return CurrentSeen(
        group_id=name,
        source=source,
        protocol=protocol,
        member_id=member_id,
        epoch=epoch,
        queues=has,
        revoking=revoking,
    )


def _later_member(value: Message | None, member_id: str) -> SeenMember | None:
    if not isinstance(value, m.ConsumerMemberValue | m.ShareMemberValue | m.StreamsMemberValue):
        return None
    instance = None if isinstance(value, m.ShareMemberValue) else value.instance_id
    expression, assignor = "", ""
    if isinstance(value, m.ConsumerMemberValue):
        expression, assignor = value.subscribed_topic_regex or "", value.server_assignor or ""
    return SeenMember(
        client_id=client_name(member_id, value.client_id, instance),
        member_id=member_id,
        kafka_client_id=value.client_id,
        host=value.client_host.lstrip("/"),
        static=bool(instance),
        topics=[] if isinstance(value, m.StreamsMemberValue) else _topics(value.subscribed_topic_names),
        expression=expression,
        assignor=assignor,
        rack=value.rack_id or "",
        cooperative=True,
    )


def _wanted(value: Message, topic_of: TopicOf) -> Shares:
    if isinstance(value, m.StreamsTargetValue):
        return _tasks(value.active_tasks)
    assert isinstance(value, m.TargetValue), "the types with a target"
    return _by_name(value.topic_partitions, topic_of)


def _has(value: Message, topic_of: TopicOf) -> tuple[Shares, Shares]:
    if isinstance(value, m.StreamsCurrentValue):
        return _tasks(value.active_tasks), _tasks(value.active_tasks_pending_revocation)
    if isinstance(value, m.ShareCurrentValue):
        return _by_name(value.assigned_partitions, topic_of), {}
    assert isinstance(value, m.CurrentValue), "the types with a current assignment"
    return _by_name(value.assigned_partitions, topic_of), _by_name(value.partitions_pending_revocation, topic_of)


def _of_group(record: CoordinatorRecord, name: str, raw: str, source: Source) -> AnyKafkaEvent | None:
    protocol, value = _LATER[record.type], record.value
    if record.type in (3, 11, 17):
        if not isinstance(value, m.ConsumerGroupValue | m.ShareGroupValue | m.StreamsGroupValue):
            return Vanished(group_id=name, source=source, protocol=protocol)
        return GroupEpoch(
            group_id=name,
            source=source,
            kafka_group=raw,
            protocol=protocol,
            epoch=max(value.epoch, -1),
            topics_hash=value.metadata_hash,
        )
    if isinstance(value, m.TargetEpochValue):
        return TargetEpoch(group_id=name, source=source, protocol=protocol, epoch=max(value.assignment_epoch, -1))
    if isinstance(value, m.KnownTopicsValue):
        found = {topic_name(one.topic_name): one.num_partitions for one in value.topics}
        return TopicsSeen(group_id=name, source=source, topics=found)
    if isinstance(value, m.TopologyValue):
        parts = {
            one.subtopology_id: _topics([*one.source_topics, *(at.name for at in one.repartition_source_topics)])
            for one in value.subtopologies
        }
        return Topology(group_id=name, source=source, parts=parts)
    return None


def _topics(names: Iterable[str]) -> list[str]:
    return sorted({topic_name(name) for name in names})


def _by_name(shares: Iterable[m.IdPartitions], topic_of: TopicOf) -> Shares:
    found: Shares = {}
    for one in shares:
        _add(found, topic_name(topic_of(one.topic_id)), one.partitions)
    return found


def _tasks(shares: Iterable[m.Tasks]) -> Shares:
    found: Shares = {}
    for one in shares:
        _add(found, topic_name(one.subtopology_id), one.partitions)
    return found


def _add(shares: Shares, topic: str, numbers: Iterable[int]) -> None:
    legal = {number for number in numbers if 0 <= number <= _LAST_ID}
    if legal:
        shares[topic] = sorted(legal.union(shares.get(topic, ())))
