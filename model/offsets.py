"""How far a group has consumed: commits that only a queue's owner can make, and that never go back."""

from model import config
from model.decisions import Offset, Rejected
from model.events import Commit
from model.group import Group, Turn
from model.queue import Queue
from model.target import Target


def commit(turn: Turn, event: Commit) -> None:
    """Take the offsets of the queues that the client owns, or must still give up, in the epoch it was given them in.

    What is not good is rejected, queue by queue, in one decision; an offset that is not above the committed one says
    nothing new.  Kafka's rule for one epoch a partition: a commit for a queue held all along stays good across epochs.
    """
    group = turn.group
    bad = []
    for entry in event.offsets:
        wrong = _wrong(group, event, entry.queue)
        if wrong:
            bad.append(f"{entry.queue} {wrong}")
        elif entry.offset > group.offsets.get(entry.queue, -1):
            group.offsets[entry.queue] = entry.offset
            group.added.pop(entry.queue, None)
            turn.say(
                Offset(
                    group_id=group.group_id,
                    queue=entry.queue,
                    client_id=event.client_id,
                    offset=entry.offset,
                    epoch=event.epoch,
                    metadata=entry.metadata,
                )
            )
    if bad:
        detail = f"{event.client_id} may not commit: {'; '.join(bad)}"[: config.MAX_DETAIL]
        turn.say(Rejected(rule="commit", detail=detail, group_id=group.group_id, client_id=event.client_id))


def note_added(group: Group, target: Target) -> None:
    """Remember queues that a new target, in a new epoch, adds to a topic consumed already: they start at first."""
    topics = {queue.topic for queue in target.owners}
    consumed = frozenset(group.consumed)
    for queue in target.owners:
        known = queue in group.target or queue in group.freed or queue in group.owners or queue in group.offsets
        if queue.topic in consumed and not known:
            group.added[queue] = group.epoch
    group.consumed = sorted(consumed | topics)


def _wrong(group: Group, event: Commit, queue: Queue) -> str:
    """Return what is wrong with a commit for a queue; empty if it is good."""
    owner = group.owners.get(queue)
    if owner != event.client_id:
        return f"is owned by {owner or 'nobody'}"
    member = group.members[owner]
    if event.instance_id not in ("", member.instance_id):
        return f"is owned by instance {member.instance_id}, not {event.instance_id}"
    given = member.owned[queue]
    return f"was given in epoch {given}, the commit is of epoch {event.epoch}" if event.epoch < given else ""
