"""Changes of topics: committed offsets after a topic was deleted, recreated or truncated, or after a wrong commit.

A route may be late or repeated, so a single one is no proof of an end offset; two in a row are. A correction is
recorded as a reset by the route.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from wakeroll_model import broadcast_offsets, clustering_offsets, config, offsets_by_filter, slicing
from wakeroll_model.commits import begin_epoch
from wakeroll_model.events import Route, RoutedQueue
from wakeroll_model.group import Doubt, Group
from wakeroll_model.queue import Queue
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined, sending

BY = "route"
"""Value of `reset_by` for the resets of this module."""


def follow(turn: Turn, route: Route) -> Outcome:
    """Compare a topic's committed offsets with its newest route, and correct those that cannot be right."""
    group, topic = turn.group, route.topic
    if not route.queues:
        _note_absence(turn, topic)
        return NOTHING
    if route.is_new and turn.level >= 3 and not _is_known(group, topic):
        _note_absence(turn, topic)
    known_id = group.topic_ids.get(topic, "")
    if _was_gone(group, route, known_id) or _is_another(group, route, known_id):
        group.topic_ids[topic] = route.topic_id
        return _start_over(turn, route)
    if route.topic_id and not known_id:
        group.topic_ids[topic] = route.topic_id
    wrong: list[tuple[Queue, int]] = []
    for routed, queue in _with_queues(group, route):
        committed = group.offsets.get(queue, -1)
        if routed.max_offset is None:
            continue
        is_beyond = committed > routed.max_offset
        if not is_beyond and not slicing.is_done_beyond(group, queue, routed.max_offset):
            group.doubts.pop(queue, None)
            continue
        doubt = group.doubts.setdefault(queue, Doubt(committed))
        doubt.routes += 1
        if turn.level >= 3:
            end = routed.max_offset
            doubt.smallest = end if doubt.smallest < 0 else min(doubt.smallest, end)
        if doubt.routes > 1:
            wrong.append((queue, _sure(doubt, routed, bool(route.topic_id)) if is_beyond else committed))
    if not wrong:
        return NOTHING
    # A client that knows the leader epoch of the lost offset finds where the new log begins, even below this offset.
    kept = {queue: group.leader_epochs[queue] for queue, _ in wrong if queue in group.leader_epochs}
    wrong = slicing.corrected(turn, wrong) if group.sliced else wrong
    return _set_right(turn, wrong, f"{topic} ends below committed offsets", kept)


def review(turn: Turn, topics: Iterable[str]) -> Outcome:
    """Compare committed offsets with the known routes of topics that no member subscribed until now."""
    group = turn.group
    outcomes: list[Outcome] = []
    for topic in sorted(topics):
        route = turn.routes.get(topic)
        if route is None:  # it may exist: the observer queries a topic only after a subscription
            continue
        if not route.queues:
            if turn.level >= 3:
                _note_absence(turn, topic)
            continue
        known_id = group.topic_ids.get(topic, "")
        is_another = bool(known_id and route.topic_id) and known_id != route.topic_id
        if _was_gone(group, route, known_id) or is_another:
            group.topic_ids[topic] = route.topic_id
            outcomes.append(_start_over(turn, route))
            continue
        if route.topic_id and not known_id:
            group.topic_ids[topic] = route.topic_id
        for routed, queue in _with_queues(group, route):
            committed = group.offsets.get(queue, -1)
            end = committed if routed.max_offset is None else routed.max_offset
            if committed > end and queue not in group.doubts:
                group.doubts[queue] = Doubt(committed)
    return combined(*outcomes)


def _with_queues(group: Group, route: Route) -> Iterator[tuple[RoutedQueue, Queue]]:
    """Yield the queues of a route, each with the queues of the group for it: the whole queue, or its slices."""
    is_cut = route.topic in group.sliced
    for routed in route.queues:
        yield routed, routed.queue
        if is_cut:
            yield from ((routed, one) for one in slicing.with_offsets(group, routed.queue) if one.slices > 1)


def forget(turn: Turn) -> None:
    """Forget the state of topics that were deleted long ago, and of topics that the group has not used for long."""
    group, now_ms = turn.group, turn.moment.now_ms
    gone = [name for name, at_ms in group.gone_topics.items() if now_ms - at_ms >= config.GONE_TOPIC_MS]
    idle = [name for name, at_ms in group.idle_topics.items() if now_ms - at_ms >= turn.forget_ms]
    topics = {*gone, *idle} - set(group.topics)
    if topics:
        _forget(group, topics)


def note_idle(turn: Turn) -> None:
    """Note since when the group has offsets of topics that no member subscribes."""
    group, now_ms = turn.group, turn.moment.now_ms
    used = set(group.topics)
    kept = {queue.topic for queue in group.offsets} | {queue.topic for queue in group.freed} | set(group.consumed)
    group.idle_topics = {name: group.idle_topics.get(name, now_ms) for name in sorted(kept - used)}
    if group.idle_topics:
        group.remind(min(group.idle_topics.values()) + turn.forget_ms)


def next_due_ms(turn: Turn) -> int:
    """Return when `forget` next has work to do, by the shard's clock."""
    group = turn.group
    due = [at_ms + turn.forget_ms for at_ms in group.idle_topics.values()]
    due += [at_ms + config.GONE_TOPIC_MS for name, at_ms in group.gone_topics.items() if name in group.idle_topics]
    return min(due, default=config.NEVER_MS)


def note_new(turn: Turn, topic: str) -> None:
    """Note that a topic of the group was created just now, so that it is consumed from its first message."""
    if not _is_known(turn.group, topic):
        _note_absence(turn, topic)


def _note_absence(turn: Turn, topic: str) -> None:
    """Note that a topic of the group does not exist now: if it is created, it is consumed from its first message."""
    group = turn.group
    group.gone_topics.setdefault(topic, turn.moment.now_ms)
    group.remind(turn.moment.now_ms + config.GONE_TOPIC_MS)
    if turn.level >= 3:
        for client_id, member in group.members.items():
            if topic in member.subscriptions and member.mode == "broadcasting" and client_id in group.broadcast_offsets:
                broadcast_offsets.note_absence(group.broadcast_offsets[client_id], topic)


def _is_known(group: Group, topic: str) -> bool:
    """Return whether the group has consumed a topic, or has offsets of it."""
    if topic in group.consumed or any(queue.topic == topic for queue in group.offsets):
        return True
    return any(topic in broadcast_offsets.consumed_topics(own) for own in group.broadcast_offsets.values())


def _was_gone(group: Group, route: Route, known_id: str) -> bool:
    """Return whether a topic was deleted and is not known to be the same one; from now on it counts as existing."""
    was_gone = group.gone_topics.pop(route.topic, -1) >= 0
    if not known_id:
        return was_gone and not group.is_learning  # its id may have been in a route before this part of the log
    return was_gone and known_id != route.topic_id


def _is_another(group: Group, route: Route, known_id: str) -> bool:
    """Return whether two routes in a row show that the topic was recreated under the same name."""
    if not (known_id and route.topic_id) or known_id == route.topic_id:
        group.suspected_ids.pop(route.topic, None)
        return False
    if group.suspected_ids.get(route.topic) == route.topic_id:
        del group.suspected_ids[route.topic]
        return True
    group.suspected_ids[route.topic] = route.topic_id
    return False


def _sure(doubt: Doubt, routed: RoutedQueue, is_same_topic: bool) -> int:
    """Return the offset to continue from: the last certain commit if the queue has it, else one that skips no message.

    The queue may have grown again since it was truncated, so the smallest end offset in the routes since then counts.
    """
    end = (routed.max_offset or 0) if doubt.smallest < 0 else doubt.smallest
    if routed.min_offset <= doubt.offset <= end:
        return doubt.offset
    return end if is_same_topic and doubt.offset > end else routed.min_offset


def _start_over(turn: Turn, route: Route) -> Outcome:
    """Restart the group at the first message of each queue of a topic that was deleted and recreated.

    Queues that the new topic does not have (yet) are reset too, so that the log shows that the old offset is invalid.
    """
    group, why = turn.group, f"{route.topic} was deleted and recreated"
    group.suspected_ids.pop(route.topic, None)
    routed = {one.queue: one for one in route.queues}
    known = {queue for queue in group.offsets if queue.topic == route.topic}
    own = {
        name: {queue for queue in own.offsets if queue.topic == route.topic}
        for name, own in group.broadcast_offsets.items()
    }
    if turn.level >= 3:  # an owner that has committed nothing yet reads the former topic
        known |= {queue for queue in group.owners if queue.topic == route.topic}
        for name in own.keys() & group.members.keys():
            own[name] |= {queue for queue in group.members[name].owned if queue.topic == route.topic}
    if route.topic in group.sliced:
        wholes = {queue.whole for queue in known}
        known = {piece for whole in wholes for piece in slicing.pieces(group, turn.routes, whole)}
    wrong = [(queue, routed[queue.whole].min_offset if queue.whole in routed else 0) for queue in sorted(known)]
    outcomes = [_set_right(turn, wrong, why)] if wrong else []
    for one in group.broadcast_offsets.values():
        broadcast_offsets.start_over(one, route.topic, routed)
    if turn.level >= 3:
        if (group.mode if group.members else group.mode_before) == "clustering":
            clustering_offsets.start_at_first(group, route.topic, routed)
        for one in group.broadcast_offsets.values():
            broadcast_offsets.start_at_first(group, one, route.topic, routed)
    if count := sum(map(len, own.values())):
        begin_epoch(turn, "reset", count, f"{why}; offsets set: {count}")
        clients: set[str] = set()
        for client_id, queues in sorted(own.items()):
            for queue in sorted(queues):
                offset = routed[queue].min_offset if queue in routed else 0
                clients |= broadcast_offsets.reset(turn, queue, offset, client_id, why, BY)
        outcomes.append(sending(clients))
    return combined(*outcomes)


def _set_right(
    turn: Turn, offsets: list[tuple[Queue, int]], why: str, kept: Mapping[Queue, int] | None = None
) -> Outcome:
    begin_epoch(turn, "reset", len(offsets), f"{why}; offsets set: {len(offsets)}")
    clients: set[str] = set()
    for queue, offset in offsets:
        clients |= clustering_offsets.reset(turn, queue, offset, why, BY, (kept or {}).get(queue))
    return sending(clients)


def _forget(group: Group, topics: Collection[str]) -> None:
    """Forget all state of these topics."""
    offsets = (group.offsets, group.leader_epochs, group.doubts, group.done)
    for kept in (*offsets, group.freed, group.added, group.reset_epochs):
        for queue in [queue for queue in kept if queue.topic in topics]:
            del kept[queue]
    offsets_by_filter.forget(group, [queue for queue in group.ahead if queue.topic in topics])
    slicing.note_numbers(group, topics)
    broadcast_offsets.forget_topics(group, topics)
    group.consumed = [name for name in group.consumed if name not in topics]
    for names in (group.gone_topics, group.idle_topics, group.topic_ids, group.suspected_ids):
        for topic in topics:
            names.pop(topic, None)
