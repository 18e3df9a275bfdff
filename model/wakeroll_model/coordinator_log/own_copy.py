"""A copy of one of Kafka's own groups as if wakeroll coordinated it, for what-if."""

from collections.abc import Mapping

import msgspec
from msgspec import structs

from wakeroll_model.coordinator_log.kafka_events import KIND
from wakeroll_model.coordinator_log.kafka_group import KafkaGroup
from wakeroll_model.group import Group, Member
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import ShardState, decode_state, encode_state

ASSIGNORS: Mapping[str, str] = {"range": "AVG", "roundrobin": "AVG_BY_CIRCLE"}
"""Kafka's assignor -> the strategy with the same assignments."""
OTHERWISE = "BALANCED"
"""Strategy for sticky, cooperative-sticky, uniform and unknown assignors: it is as even, and moves as few queues."""

_encode = msgspec.msgpack.Encoder().encode


def own_copy(shard: Shard, group_id: str) -> Shard:
    """Return a copy of a shard on which a change can be played; for Kafka's own groups, with this group alone."""
    group = shard.group(group_id)
    if not isinstance(group, KafkaGroup):
        return shard.copy()
    before = decode_state(shard.copy().body())
    own = Group(**{name: getattr(group, name) for name in Group.__struct_fields__})
    own.members = {name: _own_member(one, group.epoch) for name, one in group.members.items()}
    state = ShardState(
        before.partitions,
        offset=before.offset,
        clock=before.clock,
        routes=before.routes,
        entities={group_id: _encode(own)},
        readers={topic: [group_id] for topic in own.followed_topics},
        level=before.level,
    )
    topic = f"{shard.topic.removesuffix(KIND)}groups"
    return Shard(topic, shard.partition, before.partitions, encode_state(state))


def _own_member(member: Member, epoch: int) -> Member:
    strategy = ASSIGNORS.get(member.strategy, OTHERWISE)
    return structs.replace(member, strategy=strategy, shown_epoch=epoch, sent_epoch=epoch, revoking={})
