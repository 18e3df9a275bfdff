"""The proof of a snapshot: its hash, whether a state without one can be decoded, and the comparison with a replay."""

from collections.abc import Iterator
from hashlib import sha256

import msgspec
from msgspec import structs

from wakeroll_model import routine_beats
from wakeroll_model.entity_machines import MACHINES, Entity, Machine
from wakeroll_model.events import UNREADABLE, Route
from wakeroll_model.group import Group
from wakeroll_model.records import kind_of_topic
from wakeroll_model.routine_beats import RoutineBeats
from wakeroll_model.rows import SnapshotRow
from wakeroll_model.shard_state import READABLE, ShardState, decode_state

_decode_route = msgspec.msgpack.Decoder(Route).decode
_decode_beats = msgspec.msgpack.Decoder(RoutineBeats).decode


def hash_of(row: SnapshotRow) -> str:
    """Return the SHA-256 of all columns of a snapshot in hexadecimal, so that a change of any column is detected.

    The hashed bytes are topic, partition, era, offset, version and at_ms, each followed by a line feed, and body.
    """
    head = (row.topic, row.partition, row.era, row.offset, row.version, row.at_ms)
    return sha256("".join(f"{value}\n" for value in head).encode() + row.body).hexdigest()


def proven(row: SnapshotRow) -> SnapshotRow:
    """Return a snapshot with its hash."""
    return structs.replace(row, row_hash=hash_of(row))


def problem_in(row: SnapshotRow) -> str:
    """Return why a snapshot must not be used, as a part of a sentence; empty if it may be used.

    A snapshot of an earlier release has no hash. It is refused only if its state, or a part of it, cannot be decoded,
    or is of another era; an accepted one may still be wrong. The state of a version that this release does not read is
    not decoded.
    """
    if row.row_hash is not None:
        found = hash_of(row)
        return "" if found == row.row_hash else f"its columns have the SHA-256 {found}, its hash is {row.row_hash}"
    if row.version not in READABLE:
        return ""
    machine = MACHINES.get(kind_of_topic(row.topic), MACHINES["groups"])
    try:
        state = decode_state(row.body)
        for encoded in state.entities.values():
            machine.decode(encoded)
        for route in state.routes.values():
            _decode_route(route)
        for beats in state.routine.values():
            _decode_beats(beats)
    except UNREADABLE as error:
        return f"its state cannot be decoded ({error}), and it has no hash"
    if state.era != row.era:
        return f"its state is of era {state.era}, and it has no hash"
    return ""


def differences(topic: str, recorded: bytes, replayed: bytes) -> list[str]:
    """Return the parts in which two encoded states differ, sorted: fields of `ShardState`, or ``group or queue NAME``.

    Equal bytes are equal states. Otherwise the decoded values are compared, because the order in which a shard has
    stored its entities depends on where its batches ended. A replay has no keys of clients: it skips the machine for
    routine heartbeats that the coordinator has verified, so it stores the times of these heartbeats elsewhere. This is
    not reported as a difference.

    Args:
        topic: the control topic of the shard.
        recorded: the body of a snapshot, which may be damaged.
        replayed: the state of a replay after the same record.
    """
    if recorded == replayed:
        return []
    machine = MACHINES.get(kind_of_topic(topic), MACHINES["groups"])
    try:
        one, other = decode_state(recorded), decode_state(replayed)
        return sorted(_differences(machine, one, other))
    except UNREADABLE as error:
        return [f"the state cannot be decoded ({error})"]


_BY_ENTITY = ("entities", "deadlines", "next_due_ms", "routine")
"""Fields that depend on where the times of routine heartbeats are stored."""


def _differences(machine: Machine, one: ShardState, other: ShardState) -> Iterator[str]:
    for name in ShardState.__struct_fields__:
        if name == "signers" and not one.signers:
            continue  # a coordinator that verified no signatures, as in earlier releases, knows no signers
        if name not in _BY_ENTITY and getattr(one, name) != getattr(other, name):
            yield name
    verified = {
        key.decode(errors="replace")
        for key in one.routine.keys() | other.routine.keys()
        if _listed(one, key) != _listed(other, key)
    }
    if not verified and one.next_due_ms != other.next_due_ms:
        yield "next_due_ms"
    for name in one.entities.keys() | other.entities.keys():
        is_verified = name in verified
        if one.entities.get(name) == other.entities.get(name) and not is_verified:
            pass
        elif _are_different(_entity(machine, one, name, is_verified), _entity(machine, other, name, is_verified)):
            yield f"{'group' if machine is MACHINES['groups'] else 'queue'} {name}"
            continue
        if not is_verified and one.deadlines.get(name) != other.deadlines.get(name):
            yield "deadlines"
            return
    if any(
        _decode_beats(beats) != _decode_beats(other.routine[key])
        for key, beats in one.routine.items()
        if key.decode(errors="replace") not in verified
    ):
        yield "routine"


def _are_different(one: Entity | None, other: Entity | None) -> bool:
    """Return whether two entities differ; a fact that only one of them has is not a difference.

    A state of an earlier release lacks the facts that only commands and pages read, and so do the states that continue
    it.
    """
    if isinstance(one, Group) and isinstance(other, Group):
        _forget_unknown(one, other)
    return one != other


def _forget_unknown(one: Group, other: Group) -> None:
    """Leave out the facts for commands and pages that only one of two states of a group has."""
    if one.rebalanced is None or other.rebalanced is None:
        one.rebalanced = other.rebalanced = None
    known = one.received.keys() & other.received.keys()
    for group in (one, other):
        group.received = {queue: received for queue, received in group.received.items() if queue in known}
    for client_id in one.members.keys() & other.members.keys():
        members = one.members[client_id], other.members[client_id]
        if min(member.joined_ms for member in members) < 0:
            for member in members:
                member.joined_ms = -1
    for queue in one.freed.keys() & other.freed.keys():
        places = one.freed[queue], other.freed[queue]
        if min(freed.epoch for freed in places) < 0:
            for freed in places:
                freed.epoch = -1


def _listed(state: ShardState, key: bytes) -> RoutineBeats | None:
    """Return the routine heartbeats that are listed for a group, without their times; None if there are none."""
    found = state.routine.get(key)
    return None if found is None else structs.replace(_decode_beats(found), seen_ms={})


def _entity(machine: Machine, state: ShardState, name: str, is_verified: bool) -> Entity | None:
    """Return an entity of a state; if `is_verified`, with the times of its routine heartbeats in the group's state."""
    encoded = state.entities.get(name)
    if encoded is None:
        return None
    entity = machine.decode(encoded)
    if not is_verified or not isinstance(entity, Group):
        return entity
    beats = state.routine.get(name.encode())
    if beats is not None:
        seen_ms = _decode_beats(beats).seen_ms
        routine_beats.enter({name: at_ms for name, at_ms in seen_ms.items() if name in entity.members}, entity)
    entity.due_ms = 0  # a deadline that has moved is looked at again when it has come
    for member in entity.members.values():
        member.routine_beat = b""
    return entity
