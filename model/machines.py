"""The machines behind one face: what a shard must know of the entities that it keeps, groups or queues."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from model import group_machine, queue_machine
from model.clock import Moment
from model.decisions import AnyDecision, Cause
from model.group import Group, Settings
from model.held_queue import HeldQueue
from model.routes import Routes

Entity = Group | HeldQueue


class Around(NamedTuple):
    """What the shard as a whole knows, and a machine may need."""

    routes: Routes
    places: int
    """How many more pulls may be held."""


class Machine(Struct, frozen=True):
    """What runs on one kind of entity."""

    new: Callable[[str], Entity]
    """Name -> an entity that nothing has happened to."""
    step: Callable[[Any, Any, Moment, Cause, Around], list[AnyDecision]]
    """Apply one event to an entity, in place."""
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Entity]
    topics: Callable[[Any], list[str]]
    """The topics whose routes an entity must hear of, sorted."""
    held: Callable[[Any], int]
    """How many pulls an entity holds."""


MACHINES: Mapping[str, Machine] = {
    "groups": Machine(
        new=lambda name: Group(group_id=name, settings=Settings()),
        step=lambda group, event, moment, cause, around: group_machine.step(group, event, moment, cause, around.routes),
        encode=msgspec.msgpack.Encoder().encode,
        decode=msgspec.msgpack.Decoder(Group).decode,
        topics=lambda group: group.topics,
        held=lambda _: 0,
    ),
    "queues": Machine(
        new=lambda name: HeldQueue(key=name),
        step=lambda queue, event, moment, _, around: queue_machine.step(queue, event, moment, around.places),
        encode=msgspec.msgpack.Encoder().encode,
        decode=msgspec.msgpack.Decoder(HeldQueue).decode,
        topics=lambda _: [],
        held=lambda queue: len(queue.holds),
    ),
}
"""Last part of a control topic's name -> what its shards run."""
