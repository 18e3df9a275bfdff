"""The committed offsets of a clustering group: one per queue, independent of its owner.

They are kept when the owner changes, and when the group changes its mode.
"""

from collections.abc import Iterable

from wakeroll_model import doubtful_commits, leader_epochs, learning, offsets_by_filter, slicing
from wakeroll_model.decisions import Start
from wakeroll_model.events import Ahead
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue
from wakeroll_model.retry_topics import is_retry_topic
from wakeroll_model.target import Target
from wakeroll_model.turn import Turn


def start(group: Group, client_id: str, queue: Queue) -> Start:
    """Return where a member starts a queue: at the committed offset, else by its consume_from.

    The retry topic starts at its first message, as with RocketMQ.
    """
    if queue in group.offsets:
        return Start(
            offset=group.offsets[queue],
            leader_epoch=group.leader_epochs.get(queue),
            ahead=offsets_by_filter.of(group, queue),
            done=group.done.get(queue, ()),
        )
    # A message of the retry topic must not be skipped, even if it is older than the first consumer of its queue.
    from_first = queue in group.added or is_retry_topic(queue.topic, group.group_id)
    from_first = from_first or any(other in group.added for other in slicing.overlapping(group, queue))
    by_policy = Start(policy="first") if from_first else group.members[client_id].first_start
    return slicing.start(group, queue, by_policy) if queue.topic in group.sliced else by_policy


def note_added(group: Group, target: Target) -> None:
    """Remember queues that a new target adds to a topic that was consumed before: they start at their first message."""
    topics = {queue.topic for queue in target.owners}
    consumed = frozenset(group.consumed)
    for queue in target.owners:
        known = _is_known(group, queue)
        if queue.topic in group.sliced:
            known = known or any(_is_known(group, other) for other in slicing.overlapping(group, queue))
        if queue.topic in consumed and not known:
            group.added[queue] = group.epoch
    group.consumed = sorted(consumed | topics)


def _is_known(group: Group, queue: Queue) -> bool:
    """Return whether a queue has had a next owner, an owner or an offset."""
    known = queue in group.target or queue in group.freed or queue in group.owners or queue in group.offsets
    return known or queue in group.reset_epochs  # its offset was deleted


def start_at_first(group: Group, topic: str, queues: Iterable[Queue]) -> None:
    """Start the queues of a topic that was created after the group subscribed it at their first messages."""
    group.consumed = sorted({*group.consumed, topic})
    group.added |= {queue: group.epoch for queue in queues if queue not in group.offsets}


def commit(turn: Turn, queue: Queue, offset: int, leader_epoch: int | None, ahead: tuple[Ahead, ...]) -> None:
    """Store a commit of the queue's owner; `ahead`: all offsets by filter that the queue has from now on."""
    if offset < turn.group.offsets.get(queue, -1):
        turn.group.doubts.pop(queue, None)  # it was about the offset that the log has lost
        turn.group.done.pop(queue, None)
    doubtful_commits.note_commit(turn, queue, offset)
    if ahead or queue in turn.group.ahead:
        offsets_by_filter.store(turn.group, queue, ahead)
    turn.group.offsets[queue] = offset
    slicing.prune(turn.group, queue, offset)
    leader_epochs.note(turn.group.leader_epochs, queue, leader_epoch)
    if added := turn.group.added:
        added.pop(queue, None)
        for other in slicing.overlapping(turn.group, queue):
            if other.slices > queue.slices:  # all its messages are in the queue
                added.pop(other, None)


def reset(turn: Turn, queue: Queue, offset: int, why: str, by: str, leader_epoch: int | None = None) -> frozenset[str]:
    """Set the offset of a queue, and assign the queue to its owner again, unless it is revoked.

    `leader_epoch`: of the offset; None if not known.

    Returns:
        The owner, if it must be sent its assignment.
    """
    group = turn.group
    slicing.note(group, queue)  # a part of a queue, of which others have other parts, may have a number of its own
    if queue.topic in group.sliced:
        slicing.drop(turn, [other for other in slicing.overlapping(group, queue) if other in group.offsets], why, by)
        group.done.pop(queue, None)
    group.offsets[queue] = offset
    leader_epochs.note(group.leader_epochs, queue, leader_epoch)
    group.reset_epochs[queue] = group.epoch
    learning.note_reset(turn, queue)
    offsets_by_filter.forget(group, (queue,))
    group.added.pop(queue, None)
    group.doubts.pop(queue, None)
    owner = group.owners.get(queue)
    starts_again = owner is not None and queue not in group.members[owner].revoking
    if owner is not None:
        member = group.members[owner]
        if starts_again:
            member.owned[queue] = group.epoch
            member.reset[queue] = group.epoch
        else:
            member.revoking[queue].was_reset = True
    turn.emit_reset(queue, offset, owner or "", "clustering", why, by, leader_epoch)
    return frozenset((owner,)) if owner is not None and starts_again else frozenset()


def delete(turn: Turn, queue: Queue, why: str, by: str) -> None:
    """Delete the offset of a queue without an owner, if it has one: its next owner starts by its consume_from."""
    group = turn.group
    offset = group.offsets.pop(queue, None)
    if offset is None:
        return
    group.leader_epochs.pop(queue, None)
    group.done.pop(queue, None)
    group.reset_epochs[queue] = group.epoch
    offsets_by_filter.forget(group, (queue,))
    group.doubts.pop(queue, None)
    turn.emit_reset(queue, offset, "", "clustering", why, by, is_deleted=True)
