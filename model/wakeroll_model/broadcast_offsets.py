"""The committed offsets of a broadcasting group: each client has its own, as RocketMQ's clients have in local files.

They are kept when the client leaves, and when the group changes its mode.
"""

from collections.abc import Collection, Iterable

from wakeroll_model import leader_epochs, learning
from wakeroll_model.decisions import Start
from wakeroll_model.group import BroadcastOffsets, Group, Member
from wakeroll_model.queue import Queue
from wakeroll_model.turn import Turn

UNTIL_ASSIGNED = 2**62
"""Value of `BroadcastOffsets.reset_epochs` for a queue that a member has left: no commit counts before it is assigned
again, because its client cannot know the reset."""

# --- where a client starts ---


def start(group: Group, client_id: str, queue: Queue) -> Start:
    """Return where a member starts a queue: at its own committed offset, else by its consume_from."""
    own, member = group.broadcast_offsets[client_id], group.members[client_id]
    if queue in own.offsets:
        return Start(offset=own.offsets[queue], leader_epoch=own.leader_epochs.get(queue))
    return Start(policy="first") if queue in own.added else member.first_start


def consumed_topics(own: BroadcastOffsets) -> set[str]:
    """Return the topics that a client has consumed; a queue that is added to one starts at its first message."""
    # Not only the queues that it has now: when a queue was added, the client may have been away, or the topic deleted.
    return set(map(_topic_of, own.assigned_below)) | {queue.topic for queue in own.offsets}


def was_assigned(own: BroadcastOffsets, queue: Queue) -> bool:
    """Return whether a queue was ever assigned to a client; a topic only gets new queues with higher numbers."""
    return queue.queue_id < own.assigned_below.get(_name(queue), 0)


def note_assigned(own: BroadcastOffsets, queues: Iterable[Queue]) -> None:
    """Note that these queues were assigned to a client."""
    for queue in queues:
        name = _name(queue)
        own.assigned_below[name] = max(own.assigned_below.get(name, 0), queue.queue_id + 1)


def start_over(own: BroadcastOffsets, topic: str, queues: Iterable[Queue]) -> None:
    """Treat the queues of a recreated topic as assigned to the client before."""
    if topic in map(_topic_of, own.assigned_below):
        _forget_assigned(own, (topic,))
        note_assigned(own, queues)


def start_at_first(group: Group, own: BroadcastOffsets, topic: str, queues: Iterable[Queue]) -> None:
    """Start the queues of a topic at their first messages: it was created again after the client consumed it."""
    if topic in map(_topic_of, own.assigned_below):
        for queue in queues:
            if queue not in own.offsets:
                own.added[queue] = group.epoch


def note_absence(own: BroadcastOffsets, topic: str) -> None:
    """Note that a topic of the client does not exist now."""
    own.awaited = sorted({*own.awaited, topic})


# --- commits and resets ---


def commit(own: BroadcastOffsets, queue: Queue, offset: int, leader_epoch: int | None = None) -> None:
    """Store a commit of the client."""
    own.offsets[queue] = offset
    leader_epochs.note(own.leader_epochs, queue, leader_epoch)
    own.added.pop(queue, None)


def reset(turn: Turn, queue: Queue, offset: int, client_id: str, why: str, by: str) -> frozenset[str]:
    """Set one offset of one client, in the group's epoch.

    Returns:
        The client, if it must be sent its assignment.
    """
    group = turn.group
    own = group.broadcast_offsets[client_id]
    own.offsets[queue] = offset
    own.leader_epochs.pop(queue, None)
    member = group.members.get(client_id)
    has_it = member is not None and queue in member.owned
    _note_reset(turn, own, queue, member)
    learning.note_reset(turn, queue)
    own.added.pop(queue, None)
    if member is not None and has_it:
        member.owned[queue] = group.epoch
    turn.emit_reset(queue, offset, client_id, "broadcasting", why, by)
    return frozenset((client_id,)) if has_it else frozenset()


def delete(turn: Turn, queue: Queue, client_id: str, why: str, by: str) -> None:
    """Delete the offset of one client in a queue that no member subscribes."""
    own = turn.group.broadcast_offsets[client_id]
    offset = own.offsets.pop(queue)
    own.leader_epochs.pop(queue, None)
    _note_reset(turn, own, queue, turn.group.members.get(client_id))
    turn.emit_reset(queue, offset, client_id, "broadcasting", why, by, is_deleted=True)


def note_left(turn: Turn, own: BroadcastOffsets, queue: Queue, member: Member) -> None:
    """Note that a member is not assigned a queue any more; it may still drain it, and commit.

    If its offset was reset, and no heartbeat has shown that the member received that, its commits may be older. Without
    an offset they count from the assignment on: one may be of the first offset, which ``last`` would find later only.
    """
    if turn.level >= 5 and queue in own.reset_epochs:
        assigned, since = member.owned[queue], own.reset_epochs[queue]
        known = assigned if since == UNTIL_ASSIGNED else max(assigned, since)
        is_missed = assigned > member.shown_epoch and queue in own.offsets
        own.reset_epochs[queue] = UNTIL_ASSIGNED if is_missed else known


def _note_reset(turn: Turn, own: BroadcastOffsets, queue: Queue, member: Member | None) -> None:
    is_left = turn.level >= 5 and member is not None and queue not in member.owned
    own.reset_epochs[queue] = UNTIL_ASSIGNED if is_left else turn.group.epoch


# --- what is forgotten ---


def forget_old(turn: Turn) -> None:
    """Forget the offsets of clients that left more than a week ago."""
    group, now_ms = turn.group, turn.moment.now_ms
    for name in [name for name, own in group.broadcast_offsets.items() if 0 <= own.left_ms <= now_ms - turn.forget_ms]:
        del group.broadcast_offsets[name]


def forget_surplus(turn: Turn) -> None:
    """Forget the oldest offsets of clients that left, if there are too many; called once per event."""
    group, most = turn.group, turn.limits.max_gone_offsets
    if group.loss is not None:  # a client that has sent no heartbeat yet has not left
        return
    if len(group.broadcast_offsets) <= len(group.members) + most:
        return
    gone = [name for name, own in group.broadcast_offsets.items() if own.left_ms >= 0]
    for name in sorted(gone, key=lambda name: group.broadcast_offsets[name].left_ms)[:-most]:
        del group.broadcast_offsets[name]


def forget_topics(group: Group, topics: Collection[str]) -> None:
    """Forget the offsets of deleted topics."""
    for own in group.broadcast_offsets.values():
        _forget_assigned(own, topics)
        own.awaited = [topic for topic in own.awaited if topic not in topics]
        for kept in (own.added, own.offsets, own.reset_epochs, own.leader_epochs):
            for queue in [queue for queue in kept if queue.topic in topics]:
                del kept[queue]


def _forget_assigned(own: BroadcastOffsets, topics: Collection[str]) -> None:
    own.assigned_below = {name: count for name, count in own.assigned_below.items() if _topic_of(name) not in topics}


def _name(queue: Queue) -> str:
    return f"{queue.topic}@{queue.broker}"


def _topic_of(name: str) -> str:
    return name.partition("@")[0]
