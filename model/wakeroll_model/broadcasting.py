"""Broadcasting groups: every member has every queue of its topics, and nobody owns one.

There is no target and no hand-over. Joins and leaves do not concern other members (since its #8483, RocketMQ fires no
CHANGE event for them either). Each client has its own offsets. This module implements `modes.Sharing`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice

from wakeroll_model import assignment_limits, broadcast_offsets, config
from wakeroll_model.assignment_limits import held
from wakeroll_model.decisions import How, Start, Trigger
from wakeroll_model.events import Ahead, Heartbeat, Reset
from wakeroll_model.group import BroadcastOffsets, Group, Member
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import is_retry_topic
from wakeroll_model.target import Target
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined, sending

STRATEGY = "BROADCASTING"
"""Strategy that the `rebalance` decision of a broadcasting group names."""

# --- members ---


def no_room(turn: Turn, topics: Collection[str]) -> str:
    """Return why a client with these topics cannot join; empty if it can."""
    count, room = _count(topics, turn.routes), turn.broadcast_room.left
    if count <= room:
        return ""
    return (
        f"the topics of the client have {count} queues, and the members have {held(turn.group)} already; "
        f"expected at most {turn.limits.max_broadcast} in a broadcasting group"
    )


def concerned(trigger: Trigger) -> Outcome:
    """Request no new target: a member that joins or leaves concerns no other member."""
    return NOTHING


def join(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Assign all queues of its topics to a new member, or to a new instance of a known client.

    After a loss of state, the queues that the client already reads count as assigned in epoch 0, before all others, and
    it continues to read them. A queue whose offset was reset after the epoch that the client shows must be started
    again instead.
    """
    group, client_id = turn.group, beat.client_id
    group.target = {}  # if the group was empty, it may have the target of a clustering group, which does not apply
    group.epoch = max(group.epoch, 1)  # no assignment is made in epoch 0; it means "claimed"
    group.broadcast_offsets.setdefault(client_id, BroadcastOffsets()).left_ms = -1
    if group.loss is not None:
        claimed = sorted({queue for queue in beat.owned if queue.topic in member.subscriptions})
        reset_epochs = group.broadcast_offsets[client_id].reset_epochs
        for queue in islice(assignment_limits.fitting(claimed), max(0, turn.broadcast_room.left)):
            member.owned[queue] = group.epoch if reset_epochs.get(queue, -1) > member.shown_epoch else 0
        broadcast_offsets.note_assigned(group.broadcast_offsets[client_id], member.owned)
        turn.broadcast_room.take(len(member.owned))
    _give(turn, client_id)
    return sending((client_id,))


def resubscribe(turn: Turn, client_id: str, left: Collection[str]) -> Outcome:
    """Assign a member the queues of its new topics; keep the offsets of topics that nobody subscribes for a week."""
    group, now_ms = turn.group, turn.moment.now_ms
    if unused := set(left).difference(group.topics):
        group.idle_topics |= dict.fromkeys(sorted(unused), now_ms)
        group.remind(now_ms + turn.forget_ms)
    return _give(turn, client_id)


def receive(turn: Turn, beat: Heartbeat, member: Member, *, target_stands: bool) -> Outcome:
    """Do nothing: no queue is revoked, and a member that lists other queues is sent its assignment again."""
    return NOTHING


def leave(turn: Turn, client_id: str, how: How) -> Outcome:
    """Remove the queues of a member that leaves; keep its offsets for a week, or until too many others have left."""
    group = turn.group
    turn.broadcast_room.take(-len(group.members[client_id].owned))
    group.members[client_id].owned.clear()
    own = group.broadcast_offsets.get(client_id)
    if own is None:
        return NOTHING
    own.left_ms = turn.moment.now_ms
    if not own.offsets and not own.awaited and not (turn.level >= 5 and own.added):
        del group.broadcast_offsets[client_id]
    group.remind(turn.moment.now_ms + turn.forget_ms)
    return NOTHING


# --- the target ---


def target(turn: Turn) -> tuple[Target, bool]:
    """Describe the queues of all members together. It is not a plan, because queues have no owners here.

    Returns:
        The description, and whether any member should have other queues than it has.
    """
    group, routes = turn.group, turn.routes
    found, differs = Target(STRATEGY, {}, [], []), False
    for member in group.members.values():
        wanted, is_limited = _share(turn, member)
        found.looks_again |= is_limited
        differs |= wanted != member.owned.keys()
    for topic in group.topics:
        queues = routes.queues(topic)
        found.queues += len(queues or ())
        if queues is None and not is_retry_topic(topic, group.group_id):
            found.notes.append(f"{topic}: no route received yet")
    count = sum(_count(member.subscriptions, routes) for member in group.members.values())
    if count > turn.limits.max_broadcast:
        found.notes.append(f"the members subscribe {count} queues; older members get theirs first; {_limits(turn)}")
    return found, differs


def follow_target(turn: Turn) -> Outcome:
    """Assign each member the queues of its topics."""
    return combined(*[_give(turn, client_id) for client_id in turn.group.members])


# --- offsets ---


def start(group: Group, client_id: str, queue: Queue) -> Start:
    """Return where a member starts a queue: at its own committed offset, else by its consume_from."""
    return broadcast_offsets.start(group, client_id, queue)


def committer(group: Group, client_id: str, queue: Queue) -> str | None:
    """Return the client itself: each client has its own offsets."""
    return client_id


def is_known(group: Group, client_id: str) -> bool:
    """Return whether the client is a member, or left offsets when it left."""
    return client_id in group.broadcast_offsets


def committed(group: Group, client_id: str) -> Mapping[Queue, int]:
    """Return the offsets of the client."""
    own = group.broadcast_offsets.get(client_id)
    return {} if own is None else own.offsets


def leader_epochs(group: Group, client_id: str) -> Mapping[Queue, int]:
    """Return the leader epochs of the client's offsets."""
    own = group.broadcast_offsets.get(client_id)
    return {} if own is None else own.leader_epochs


def is_doubted(turn: Turn, queue: Queue) -> bool:
    """Return False: routes are not compared with the offsets of single clients."""
    return False


def ahead(group: Group, queue: Queue) -> tuple[Ahead, ...]:
    """Return nothing: no other client's filter matters for the offsets of a client."""
    return ()


def commit(
    turn: Turn, client_id: str, queue: Queue, offset: int, leader_epoch: int | None, ahead: tuple[Ahead, ...]
) -> None:
    """Store a commit as the offset of its client."""
    broadcast_offsets.commit(turn.group.broadcast_offsets[client_id], queue, offset, leader_epoch)


def wrong_reset(turn: Turn, event: Reset) -> str:
    """Return why a reset sets too many offsets, one per queue and client; empty if it does not."""
    clients, queues, most = len(turn.group.broadcast_offsets), len(event.offsets), turn.limits.max_broadcast
    if clients * queues <= most:
        return ""
    return f"{queues} queues of {clients} clients have {clients * queues} offsets; expected at most {most} in one reset"


def describe_reset(group: Group, queues: int) -> tuple[str, int]:
    """Return the name of this mode, and the number of queues that are reset."""
    return STRATEGY, queues


def has_offset(group: Group, queue: Queue) -> bool:
    """Return whether any client has a committed offset of a queue."""
    return any(queue in own.offsets for own in group.broadcast_offsets.values())


def delete_offset(turn: Turn, queue: Queue, why: str, by: str) -> None:
    """Delete the offset of each client that has one."""
    for client_id in [name for name, own in turn.group.broadcast_offsets.items() if queue in own.offsets]:
        broadcast_offsets.delete(turn, queue, client_id, why, by)


def reset(turn: Turn, queue: Queue, offset: int, why: str, by: str) -> frozenset[str]:
    """Set the offset of each known client; return the clients that must be sent their assignment."""
    clients = sorted(turn.group.broadcast_offsets)
    return frozenset().union(*[broadcast_offsets.reset(turn, queue, offset, name, why, by) for name in clients])


# --- the queues of a member ---


def _give(turn: Turn, client_id: str) -> Outcome:
    """Assign a member the queues that it should have now and no others; send its assignment if they changed."""
    group = turn.group
    member = group.members[client_id]
    wanted, is_limited = _share(turn, member)
    if is_limited:
        # A member that leaves makes room and triggers no new target: the timer assigns the missing queues to the
        # others.
        group.stale = True
        group.remind(group.checked_ms + group.settings.rebalance_interval_ms)
    own = group.broadcast_offsets[client_id]
    if turn.level >= 3:
        _note_awaited(turn, own, member)
    if wanted == member.owned.keys():
        return NOTHING
    turn.broadcast_room.take(len(wanted) - len(member.owned))
    consumed = broadcast_offsets.consumed_topics(own).union(own.awaited)
    for queue in member.owned.keys() - wanted:
        broadcast_offsets.note_left(turn, own, queue, member)
        del member.owned[queue]
    for queue in sorted(wanted - member.owned.keys()):
        member.owned[queue] = group.epoch
        if queue.topic in consumed and not broadcast_offsets.was_assigned(own, queue) and queue not in own.offsets:
            own.added[queue] = group.epoch
    broadcast_offsets.note_assigned(own, member.owned)
    if own.awaited:
        own.awaited = sorted(set(own.awaited) - {queue.topic for queue in member.owned})
    if is_limited:
        detail = f"has {len(member.owned)} queues; further queues of its topics are not assigned; {_limits(turn)}"
        turn.note(client_id, member, "conflict", detail)
    return sending((client_id,))


def _note_awaited(turn: Turn, own: BroadcastOffsets, member: Member) -> None:
    """Note the topics of a member that do not exist now; forget noted topics that it does not subscribe any more."""
    awaited = {topic for topic in member.subscriptions if topic in own.awaited or turn.routes.queues(topic) == ()}
    own.awaited = sorted(awaited)


def _share(turn: Turn, member: Member) -> tuple[set[Queue], bool]:
    """Return the queues that a member should have, and whether it lacks others of its topics.

    It keeps the queues that it has of its topics, and gets the others as far as the limits of the group and of an
    assignment allow. Of a topic that was never routed it keeps the queues that it has.
    """
    routes, wants = turn.routes, member.subscriptions
    kept = {queue for queue in member.owned if queue.topic in wants and not routes.lacks(queue)}
    room = turn.broadcast_room.left + len(member.owned) - len(kept)
    share = assignment_limits.Share(kept) if len(kept) + room > assignment_limits.ALWAYS_FIT else None
    for queue in _missing(member, routes):
        if room <= 0 or (share is not None and not share.take(queue)):
            return kept, True
        kept.add(queue)
        room -= 1
    return kept, False


def _missing(member: Member, routes: Routes) -> Iterator[Queue]:
    """Yield the queues of a member's topics that it does not have, sorted."""
    for topic in sorted(member.subscriptions):
        for queue in routes.queues(topic) or ():
            if queue not in member.owned:
                yield queue


def _limits(turn: Turn) -> str:
    return (
        f"limits: {turn.limits.max_broadcast} queues of all members of a broadcasting group together, "
        f"{config.MAX_SHARE_BYTES} bytes per assignment"
    )


def _count(topics: Iterable[str], routes: Routes) -> int:
    return sum(len(routes.queues(topic) or ()) for topic in topics)
