"""Sliced topics of a group: overlapping queues, the start of a new slice, and the effects of a new number of slices.

A committed offset is a fact: all messages of its queue below it are processed. An entry of `Group.done` is such a fact
too. The queues with committed offsets never overlap. When the number of slices changes, the offsets of the former
slices stay, until one of the new ones is assigned (`adopt`): then those that overlap it are replaced. A new slice
starts at the lowest offset of the slices that it was made from, and `done` has the progress beyond it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import structs

from wakeroll_model import config, doubtful_commits, leader_epochs, offsets_by_filter, slices
from wakeroll_model.decisions import BY_THE_SLICES, Done, Start
from wakeroll_model.events import Ahead
from wakeroll_model.group import Doubt, Group, Member
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import is_retry_topic
from wakeroll_model.slices import MOST, container, cut
from wakeroll_model.turn import Turn

NOTE = "slices: "
"""Prefix of the note of a target with the topics that are cut."""

_encode = msgspec.json.Encoder().encode

# --- settings ---


def wrong_numbers(group: Group, numbers: Mapping[str, int]) -> str:
    """Return why topics cannot be cut into these numbers of slices; empty if they can."""
    for topic, number in sorted(numbers.items()):
        if number > 1 and is_retry_topic(topic, group.group_id):
            return f"slices: {topic} is a retry topic, which cannot be cut: it has a queue for each delay of a retry"
    topics = len(with_numbers(group, numbers))
    if topics > config.MAX_SLICED_TOPICS:
        return f"slices would cut {topics} topics; expected at most {config.MAX_SLICED_TOPICS}"
    return ""


def with_numbers(group: Group, numbers: Mapping[str, int]) -> dict[str, int]:
    """Return topic -> number of slices, with new numbers; a topic with one slice is not cut, and left out."""
    return {topic: number for topic, number in sorted({**group.settings.slices, **numbers}.items()) if number > 1}


def notes_of(group: Group) -> list[str]:
    """Return the notes of a target about the topics that are cut."""
    numbers, topics = group.settings.slices, group.topics if group.members else group.settings.slices
    named = NOTE + ", ".join(f"{topic} {number}" for topic, number in numbers.items())
    unused = [topic for topic in numbers if topic not in topics]
    return [named, *(f"{topic}: cut into slices, but no member subscribes it" for topic in unused)]


def told(group: Group, routes: Routes, member: Member) -> dict[str, int]:
    """Return topic -> number of slices, for a member's cut topics, sorted; only one if it has many queues."""
    topics = sorted(group.settings.slices.keys() & member.subscriptions.keys())
    most = len(topics) if len(member.owned) <= config.FEW_QUEUES else 1
    return {topic: number_of(group, routes, topic) for topic in topics[:most]}


# --- members ---


def knowing(group: Group) -> frozenset[str]:
    """Return the members that get slices: those with the same key as the oldest member that supports slices."""
    by = slice_by(group)
    return frozenset(name for name, member in group.members.items() if by is not None and member.slice_by == by)


def slice_by(group: Group) -> str | None:
    """Return the key by which the group cuts partitions: that of its oldest member with slices; None if none."""
    return next((member.slice_by for member in group.members.values() if member.slice_by is not None), None)


# --- queues that overlap ---


def number_of(group: Group, routes: Routes, topic: str) -> int:
    """Return the number of slices of each partition of a topic: the configured one, or fewer if too many."""
    number = group.settings.slices.get(topic, 1)
    while number > 1 and number * len(routes.queues(topic) or ()) > config.MAX_QUEUES:
        number //= 2
    return number


def expanded(group: Group, routes: Routes, topic: str) -> Sequence[Queue] | None:
    """Return the queues of a topic that the group assigns, in order: its slices if it is cut; None if not routed."""
    queues = routes.queues(topic)
    if not queues or topic not in group.settings.slices:
        return queues
    number = number_of(group, routes, topic)
    return [piece for queue in queues for piece in cut(queue, number)]


def overlapping(group: Group, queue: Queue) -> Iterator[Queue]:
    """Return the other queues that may have messages in common with a queue, for all numbers of slices of its topic."""
    return slices.overlapping(queue, group.sliced.get(queue.topic, (1,) if queue.slices > 1 else ()))


def owned_in_part(group: Group, queue: Queue) -> Queue | None:
    """Return another queue that has an owner and overlaps a queue; None if there is none."""
    return next((other for other in overlapping(group, queue) if other in group.owners), None)


def is_wanted(group: Group, queue: Queue) -> bool:
    """Return whether the target has an owner for a queue, or for one that overlaps it."""
    return queue in group.target or any(other in group.target for other in overlapping(group, queue))


def next_owners(group: Group) -> Mapping[Queue, str]:
    """Return the previous owners for a strategy, by which it moves few queues: new slices have those of former ones.

    The result is `group.target` itself if no topic is cut.
    """
    if not group.sliced:
        return group.target
    owners = dict(group.target)
    for topic, number in group.settings.slices.items():
        for queue, client_id in group.target.items():
            if queue.topic == topic and queue.slices != number:
                new = cut(queue, number) if queue.slices < number else [container(queue, number)]
                for piece in new:
                    owners.setdefault(piece, client_id)
    for queue, client_id in group.target.items():
        if queue.slices > 1 and queue.topic not in group.settings.slices:
            owners.setdefault(queue.whole, client_id)
    return owners


def note(group: Group, queue: Queue) -> None:
    """Note the number of slices of a queue in a heartbeat or a commit."""
    if queue.slices > 1:
        group.sliced[queue.topic] = sorted({1, *group.sliced.get(queue.topic, ()), queue.slices})


def note_numbers(group: Group, topics: Iterable[str]) -> None:
    """Note the numbers of slices of these topics after the settings changed."""
    for topic in topics:
        known = {
            queue.slices
            for queues in (group.owners, group.target, group.offsets, group.done, group.added)
            for queue in queues
            if queue.topic == topic
        }
        numbers = sorted({1, *known, group.settings.slices.get(topic, 1)})
        group.sliced.pop(topic, None)
        if len(numbers) > 1:
            group.sliced[topic] = numbers


def with_offsets(group: Group, queue: Queue) -> list[Queue]:
    """Return the queues that have a committed offset among a queue and the slices that it contains, sorted."""
    if queue.topic not in group.sliced:
        return [queue] if queue in group.offsets else []
    parts = (one for one in overlapping(group, queue) if one.slices > queue.slices)
    return sorted(one for one in (queue, *parts) if one in group.offsets)


def pieces(group: Group, routes: Routes, queue: Queue) -> list[Queue]:
    """Return the parts of a queue: the queues with owners, and the slices of the present number.

    They do not overlap, and together have all messages of the queue. No larger queue that contains it has an owner.
    """
    if queue.topic not in group.sliced:
        return [queue]
    return list(_pieces(group, queue, number_of(group, routes, queue.topic)))


def _pieces(group: Group, queue: Queue, number: int) -> Iterator[Queue]:
    if queue not in group.owners and (
        queue.slices < number
        or any(other in group.owners for other in overlapping(group, queue) if other.slices > queue.slices)
    ):
        for half in cut(queue, 2 * queue.slices):
            yield from _pieces(group, half, number)
    else:
        yield queue


# --- what is processed ---


def facts(group: Group, queue: Queue) -> dict[Queue, Done]:
    """Return the known facts about the progress in a queue, from former slices and its own offset."""
    known: dict[Queue, Done] = {}
    for other in (queue, *overlapping(group, queue)):
        offset = group.offsets.get(other)
        own = [] if offset is None else [Done(other.slices, other.slice, offset, group.leader_epochs.get(other))]
        for one in (*own, *group.done.get(other, ())):
            of = structs.replace(queue.whole, slices=one.slices, slice=one.slice)
            known[of] = _later(known.get(of), one) or one
    return known


def start(group: Group, queue: Queue, unknown: Start) -> Start:
    """Return where a queue starts by the progress of its parts; `unknown`: the start of parts without any progress.

    If a part of it has no committed offset, the start has an offset and a policy, of which the lower one counts.
    """
    offset, is_all, done = progress(queue, facts(group, queue))
    if offset is None:
        return unknown
    begin = structs.replace(
        unknown if not is_all else Start(),
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        ahead=_ahead(group, queue),
        done=done,
    )
    return begin if is_all or begin.policy != "first" else structs.replace(begin, offset=None, leader_epoch=None)


def progress(queue: Queue, known: Mapping[Queue, Done]) -> tuple[Done | None, bool, tuple[Done, ...]]:
    """Return how far a queue is processed.

    Returns:
        The lowest offset of its parts, or None if no part has one; whether all parts have one; and the former slices
        that are processed beyond the lowest one, sorted, or all of them if a part has none.
    """
    inherited = None
    for of, one in known.items():
        if of.slices < queue.slices and container(queue, of.slices) == of:
            inherited = _later(inherited, one)
    parts = _parts(queue, inherited, known)
    offsets = [one for one in parts if one is not None]
    if not offsets:
        return None, False, ()
    lowest = min(offsets, key=lambda one: (one.offset, -1 if one.leader_epoch is None else one.leader_epoch))
    is_all = len(offsets) == len(parts)
    done = [one for one in offsets if one.offset > lowest.offset or not is_all]
    return lowest, is_all, tuple(sorted(done, key=lambda one: one.slice * MOST // one.slices))


def _parts(queue: Queue, inherited: Done | None, known: Mapping[Queue, Done]) -> list[Done | None]:
    """Return the progress of the parts of a queue, None for a part without known progress."""
    best = _later(inherited, known.get(queue))
    if any(of.slices > queue.slices and container(of, queue.slices) == queue for of in known):
        left, right = (_parts(half, best, known) for half in cut(queue, 2 * queue.slices))
        if not (len(left) == len(right) == 1 and _equal(left[0], right[0])):
            return left + right
        [best] = left
    return [None if best is None else structs.replace(best, slices=queue.slices, slice=queue.slice)]


def _equal(one: Done | None, other: Done | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.offset, one.leader_epoch) == (other.offset, other.leader_epoch)


def _later(one: Done | None, other: Done | None) -> Done | None:
    """Return which of two facts about the same messages counts."""
    if one is None or other is None:
        return other if one is None else one
    is_news = leader_epochs.is_news(other.offset, other.leader_epoch, one.offset, one.leader_epoch)
    return other if is_news else one


def _ahead(group: Group, queue: Queue) -> tuple[Ahead, ...]:
    """Return the progress by filter of a queue, or of the queue that contains it."""
    for number in (queue.slices, *reversed(group.sliced.get(queue.topic, ()))):
        if number <= queue.slices and (found := offsets_by_filter.of(group, container(queue, number))):
            return found
    return ()


def bytes_of(done: tuple[Done, ...]) -> int:
    """Return the size of the progress of former slices as JSON, in bytes."""
    return len(_encode(done)) if done else 0


# --- new slices instead of former ones ---


def adopt(turn: Turn, queue: Queue, *, commits: bool = False) -> None:
    """Replace the offsets of former slices that overlap a queue by offsets of present slices.

    If a part of the queue has no offset, nothing changes before the first commit (`commits`), which is for the whole
    queue: until then, the owner starts by its policy.
    """
    group = turn.group
    if queue.topic not in group.sliced or queue in group.offsets:
        return
    former = [other for other in overlapping(group, queue) if other in group.offsets]
    if not former:
        return
    pieces = cut(former[0], queue.slices) if former[0].slices < queue.slices else [queue]
    found = {piece: progress(piece, facts(group, piece)) for piece in pieces}
    if not commits and not all(is_all for _, is_all, _ in found.values()):
        return
    doubts = [group.doubts[other] for other in former if other in group.doubts]
    ahead = {piece: _ahead(group, piece) for piece in pieces}
    for piece, (lowest, is_all, done) in found.items():
        if done:
            group.done[piece] = done
        if lowest is None or not is_all:
            continue
        group.offsets[piece] = lowest.offset
        leader_epochs.note(group.leader_epochs, piece, lowest.leader_epoch)
        furthest = max(one.offset for one in (lowest, *done))
        if doubts and doubtful_commits.is_beyond(turn, piece, furthest):
            first = min(doubts, key=lambda doubt: doubt.offset)
            group.doubts[piece] = Doubt(first.offset, first.routes, first.smallest)
        turn.emit_reset(piece, lowest.offset, "", "clustering", _why(queue), BY_THE_SLICES, lowest.leader_epoch)
    drop(turn, former, _why(queue), BY_THE_SLICES)
    for piece, more in ahead.items():
        if more:
            offsets_by_filter.store(group, piece, offsets_by_filter.merged(more, (), group.offsets.get(piece, -1)))


def _why(queue: Queue) -> str:
    number = "not cut into slices any more" if queue.slices == 1 else f"cut into {queue.slices} slices"
    return f"{queue.whole} is {number}"


def corrected(turn: Turn, wrong: Sequence[tuple[Queue, int]]) -> list[tuple[Queue, int]]:
    """Return the corrected offsets of queues, given wrong offsets and the correction of each.

    A queue may have started at the wrong offset of a former slice. Its corrected start is the lowest of the corrected
    offsets.
    """
    group = turn.group
    found = [(queue, offset) for queue, offset in wrong if queue.topic not in group.sliced]
    for whole in sorted({queue.whole for queue, _ in wrong if queue.topic in group.sliced}):
        right = {queue: offset for queue, offset in wrong if queue.whole == whole}
        most = max(right.values())
        known = {
            queue: structs.replace(one, offset=right.get(queue, one.offset))
            if queue in group.offsets
            else structs.replace(one, offset=min(one.offset, most))
            for queue, one in facts(group, whole).items()
        }
        for piece in pieces(group, turn.routes, whole):
            lowest, _, _ = progress(piece, known)
            if lowest is not None and (piece in right or any(other in right for other in overlapping(group, piece))):
                found.append((piece, lowest.offset))
    return sorted(found)


def drop(turn: Turn, queues: Iterable[Queue], why: str, by: str) -> None:
    """Forget the offsets of queues that other queues replace, and record that."""
    group = turn.group
    for queue in queues:
        group.done.pop(queue, None)
        group.doubts.pop(queue, None)
        group.added.pop(queue, None)
        group.leader_epochs.pop(queue, None)
        offsets_by_filter.forget(group, (queue,))
        offset = group.offsets.pop(queue, None)
        if offset is not None:
            turn.emit_reset(queue, offset, "", "clustering", why, by, is_deleted=True)


def is_done_beyond(group: Group, queue: Queue, end: int) -> bool:
    """Return whether a former slice of a queue with a committed offset has progress beyond the queue's end."""
    return queue in group.offsets and any(one.offset > end for one in group.done.get(queue, ()))


def prune(group: Group, queue: Queue, offset: int) -> None:
    """Forget the progress of former slices below the committed offset of a queue."""
    known = group.done.get(queue)
    if known is None:
        return
    group.done.pop(queue)
    if left := tuple(one for one in known if one.offset > offset):
        group.done[queue] = left
