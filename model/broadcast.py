"""Broadcasting groups: every member has every queue of its topics, and nobody owns one.

There is no target and no hand-over. Joins and leaves do not concern other members (RocketMQ fires no CHANGE event for
them either since its #8483). Each client has offsets of its own, as RocketMQ's clients have in their local files.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice

from model import assignment_limits, config
from model.decisions import Start
from model.group import Group, Member, OwnOffsets, Turn
from model.known_routes import Routes
from model.queue import Queue
from model.target import RETRY_PREFIX, Target

STRATEGY = "BROADCASTING"
"""Strategy that the `rebalance` decision of a broadcasting group names."""


def _limits(turn: Turn) -> str:
    return (
        f"limits: {turn.limits.max_broadcast} queues of all members of a broadcasting group together, "
        f"{config.MAX_SHARE_BYTES} bytes per assignment"
    )


def welcome(turn: Turn, client_id: str, claims: list[Queue]) -> None:
    """Assign all queues of its topics to a new member, or to a new instance of a known client.

    After a loss of state, the queues that the client already reads count as assigned in epoch 0, before all others, and
    it reads on. A queue whose offset was reset after the epoch that the client shows must be started again instead.
    """
    group = turn.group
    member = group.members[client_id]
    group.epoch = max(group.epoch, 1)  # no assignment is made in epoch 0; it means "claimed"
    group.own_offsets.setdefault(client_id, OwnOffsets()).left_ms = -1
    if group.loss is not None:
        claimed = sorted({queue for queue in claims if queue.topic in member.subscriptions})
        reset_epochs = group.own_offsets[client_id].reset_epochs
        for queue in islice(assignment_limits.fitting(claimed), max(0, _room(turn))):
            member.owned[queue] = group.epoch if reset_epochs.get(queue, -1) > member.shown_epoch else 0
        _note_given(group.own_offsets[client_id], member.owned)
        turn.broadcast_room = None
    give(turn, client_id)
    turn.tell.add(client_id)


def refusal(turn: Turn, topics: Iterable[str]) -> str:
    """Return why a client with these topics cannot join; empty if it can."""
    count, room = _count(topics, turn.routes), _room(turn)
    if count <= room:
        return ""
    return (
        f"the topics of the client have {count} queues, and the members have {_held(turn)} already; "
        f"expected at most {turn.limits.max_broadcast} in a broadcasting group"
    )


def give(turn: Turn, client_id: str) -> None:
    """Assign a member the queues that it should have now and no others; send its assignment if they changed."""
    group = turn.group
    member = group.members[client_id]
    wanted, is_limited = _share(turn, member)
    if is_limited:
        # A member that leaves makes room and triggers no new target: the timer assigns the missing queues to the
        # others.
        group.stale = True
        group.remind(group.checked_ms + group.settings.rebalance_interval_ms)
    if wanted == member.owned.keys():
        return
    turn.broadcast_room = _room(turn) - len(wanted) + len(member.owned)
    own = group.own_offsets[client_id]
    # Not only the queues that it has now: when a queue was added, the client may have been away, or the topic deleted.
    consumed = set(map(_topic_of, own.given)) | {queue.topic for queue in own.offsets}
    for queue in member.owned.keys() - wanted:
        del member.owned[queue]
    for queue in sorted(wanted - member.owned.keys()):
        member.owned[queue] = group.epoch
        if queue.topic in consumed and not was_given(own, queue) and queue not in own.offsets:
            own.added[queue] = group.epoch
    _note_given(own, wanted)
    turn.tell.add(client_id)
    if is_limited:
        detail = f"has {len(member.owned)} queues; further queues of its topics are not assigned; {_limits(turn)}"
        turn.note(client_id, member, "conflict", detail)


def was_given(own: OwnOffsets, queue: Queue) -> bool:
    """Return whether a queue was ever assigned to a client; a topic only gets new queues with higher numbers."""
    return queue.queue_id < own.given.get(_name(queue), 0)


def start_anew(own: OwnOffsets, topic: str, queues: Iterable[Queue]) -> None:
    """Treat the queues of a recreated topic as if they had been assigned to the client before."""
    if topic in map(_topic_of, own.given):
        _forget_given(own, (topic,))
        _note_given(own, queues)


def _note_given(own: OwnOffsets, queues: Iterable[Queue]) -> None:
    for queue in queues:
        name = _name(queue)
        own.given[name] = max(own.given.get(name, 0), queue.queue_id + 1)


def _forget_given(own: OwnOffsets, topics: Collection[str]) -> None:
    own.given = {name: count for name, count in own.given.items() if _topic_of(name) not in topics}


def _name(queue: Queue) -> str:
    return f"{queue.topic}@{queue.broker}"


def _topic_of(name: str) -> str:
    return name.partition("@")[0]


def target(turn: Turn) -> tuple[Target, bool]:
    """Describe what all members have together; it is no plan, since nobody owns a queue.

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
        if queues is None and not topic.startswith(RETRY_PREFIX):
            found.notes.append(f"{topic}: no route received yet")
    count = sum(_count(member.subscriptions, routes) for member in group.members.values())
    if count > turn.limits.max_broadcast:
        found.notes.append(f"the members subscribe {count} queues; older members get theirs first; {_limits(turn)}")
    return found, differs


def leave(turn: Turn, client_id: str) -> None:
    """Remove the queues of a member that leaves; keep its offsets for a week, or until too many others have left."""
    group = turn.group
    turn.broadcast_room = _room(turn) + len(group.members[client_id].owned)
    group.members[client_id].owned.clear()
    own = group.own_offsets.get(client_id)
    if own is None:
        return
    own.left_ms = turn.moment.now_ms
    if not own.offsets:
        del group.own_offsets[client_id]
    group.remind(turn.moment.now_ms + config.FORGET_MS)


def forget(turn: Turn) -> None:
    """Forget the offsets of clients that left more than a week ago."""
    group, now_ms = turn.group, turn.moment.now_ms
    for name in [name for name, own in group.own_offsets.items() if 0 <= own.left_ms <= now_ms - config.FORGET_MS]:
        del group.own_offsets[name]


def forget_surplus(turn: Turn) -> None:
    """Forget the oldest offsets of clients that left, if there are too many; called once per event."""
    group, most = turn.group, turn.limits.max_gone_offsets
    if group.loss is not None:  # a client that has sent no heartbeat yet has not left
        return
    if len(group.own_offsets) <= len(group.members) + most:
        return
    gone = [name for name, own in group.own_offsets.items() if own.left_ms >= 0]
    for name in sorted(gone, key=lambda name: group.own_offsets[name].left_ms)[:-most]:
        del group.own_offsets[name]


def forget_topics(group: Group, topics: Collection[str]) -> None:
    """Forget the offsets of deleted topics."""
    for own in group.own_offsets.values():
        _forget_given(own, topics)
        for kept in (own.added, own.offsets, own.reset_epochs):
            for queue in [queue for queue in kept if queue.topic in topics]:
                del kept[queue]


def start(group: Group, client_id: str, queue: Queue) -> Start:
    """Return where a member starts a queue: at its own committed offset, else by its consume_from."""
    own, member = group.own_offsets[client_id], group.members[client_id]
    if queue in own.offsets:
        return Start(offset=own.offsets[queue])
    return Start(policy="first") if queue in own.added else member.first_start


def _count(topics: Iterable[str], routes: Routes) -> int:
    return sum(len(routes.queues(topic) or ()) for topic in topics)


def _room(turn: Turn) -> int:
    """Return how many more queues the members may have together."""
    if turn.broadcast_room is None:
        most = turn.limits.max_broadcast * turn.group.limit_times
        turn.broadcast_room = most - _held(turn)
    return turn.broadcast_room


def _held(turn: Turn) -> int:
    return sum(len(member.owned) for member in turn.group.members.values())


def _share(turn: Turn, member: Member) -> tuple[set[Queue], bool]:
    """Return the queues that a member should have, and whether it lacks others of its topics.

    It keeps the queues that it has of its topics, and gets the others as far as the limits of the group and of an
    assignment allow. Of a topic that was never routed it keeps the queues that it has.
    """
    routes, wants = turn.routes, member.subscriptions
    kept = {queue for queue in member.owned if queue.topic in wants and not routes.lacks(queue)}
    room = _room(turn) + len(member.owned) - len(kept)
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
