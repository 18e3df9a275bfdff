"""The machines behind one interface: the functions that a shard calls on its entities, groups or queues."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from wakeroll_model import feature_levels, group_machine, pull_machine
from wakeroll_model.config import NEVER_MS, Limits
from wakeroll_model.coordinator_log import kafka_events, kafka_group, kafka_machine
from wakeroll_model.decisions import AnyDecision, Cause
from wakeroll_model.group import Group, GroupSettings, Loss
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.known_routes import Routes
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_load import NOTHING, Load

Entity = Group | HeldQueue


class Around(NamedTuple):
    """Inputs of a machine that belong to the whole shard."""

    routes: Routes
    load: Load
    """Load of the whole shard, with the entity."""
    limits: Limits
    """Limits of the deployment."""
    level: int = feature_levels.FIRST
    """Feature level of the shard at the event."""


class Machine(Struct, frozen=True):
    """The functions that a shard runs on one kind of entity."""

    new: Callable[[str, int, Loss | None], Entity]
    """Return a new entity, from its name, the lowest epoch, and the loss of state that may concern it."""
    step: Callable[[Any, Any, Moment, Cause, Around], list[AnyDecision]]
    """Apply one event to an entity, in place."""
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Entity]
    topics: Callable[[Any], list[str]]
    """Return the topics whose routes the entity must receive, sorted."""
    watched: Callable[[Any], list[str]]
    """Return the topics of which the entity must receive every route, even one that changes nothing; sorted."""
    load: Callable[[Any], Load]
    """Return the load of an entity."""
    epoch: Callable[[Any], int]
    """Return the highest epoch or round that an entity has used; 0 if it has none."""
    recover: Callable[[Any, int, Loss, int], Loss]
    """Recover an entity after a loss of state, with the era's lowest epoch and the shard's clock; return the loss as it
    applies to this entity."""


def _new_group(name: str, epoch: int, loss: Loss | None) -> Group:
    due_ms = NEVER_MS if loss is None else loss.ends_ms
    return Group(group_id=name, settings=GroupSettings(), epoch=epoch, loss=loss, due_ms=due_ms, round=epoch)


def _recover_queue(queue: HeldQueue, _epoch: int, loss: Loss, _now_ms: int) -> Loss:
    """Forget the state of a queue: a pull ends by itself at its deadline, and the client sends the next one."""
    fresh = HeldQueue(key=queue.key)
    queue.__dict__.clear()  # the cached properties
    for name in queue.__struct_fields__:
        setattr(queue, name, getattr(fresh, name))
    return loss


MACHINES: Mapping[str, Machine] = {
    "groups": Machine(
        new=_new_group,
        step=lambda group, event, moment, cause, around: group_machine.step(
            group, event, moment, cause, around.routes, around.load, around.limits, around.level
        ),
        encode=msgspec.msgpack.Encoder().encode,
        decode=msgspec.msgpack.Decoder(Group).decode,
        topics=lambda group: group.followed_topics,
        watched=lambda group: group.watched,
        load=lambda group: group.load,
        epoch=lambda group: max(group.epoch, group.round),
        recover=lambda group, epoch, loss, now_ms: group.recover(epoch, loss, now_ms),
    ),
    "queues": Machine(
        new=lambda name, _epoch, _loss: HeldQueue(key=name),
        step=lambda queue, event, moment, _, around: pull_machine.step(
            queue, event, moment, around.load, around.limits
        ),
        encode=msgspec.msgpack.Encoder().encode,
        decode=msgspec.msgpack.Decoder(HeldQueue).decode,
        topics=lambda _: [],
        watched=lambda _: [],
        load=lambda queue: queue.load,
        epoch=lambda _: 0,
        recover=_recover_queue,
    ),
    kafka_events.KIND: Machine(
        new=lambda name, _epoch, _loss: kafka_group.new_group(name),
        step=lambda group, event, moment, cause, around: kafka_machine.step(group, event, moment, cause, around.routes),
        encode=msgspec.msgpack.Encoder().encode,
        decode=msgspec.msgpack.Decoder(kafka_group.KafkaGroup).decode,
        topics=lambda group: group.followed_topics,
        watched=lambda _: [],
        load=lambda _: NOTHING,
        epoch=lambda _: 0,
        recover=lambda _group, _epoch, loss, _now_ms: loss,
    ),
}
"""Last part of a control topic's name -> the machine that its shards run."""
