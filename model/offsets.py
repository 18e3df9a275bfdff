"""Committed offsets: commits, which only the owner of a queue can make and which never go back, and resets."""

from model import assignment_limits, broadcast, config, doubtful_commits, learning
from model.decisions import Offset, Rebalance, Rejected
from model.events import Commit, CommittedOffset, Mode, Reset
from model.group import Group, Turn
from model.queue import Queue
from model.target import Target, spread, strategy_of


def commit(turn: Turn, event: Commit) -> None:
    """Accept commits for queues that the client owns, with revoked ones, if the commit's epoch is not too low.

    It must not be below the epoch of the queue's assignment. Kafka has the same rule, one epoch per partition: a commit
    for a queue that its owner kept stays valid in later epochs. Invalid commits are rejected, queue by queue, in one
    decision. An offset that is not above the committed one is ignored.
    """
    group = turn.group
    bad = []
    learnt = learning.counted(turn, event) if group.is_learning else None
    own = group.own_offsets.get(event.client_id) if group.is_broadcasting else None
    committed, added = (own.offsets, own.added) if own else (group.offsets, group.added)
    for entry in event.offsets:
        wrong = _wrong(turn, event, entry, learnt)
        if wrong:
            bad.append(f"{entry.queue}: {wrong}")
        elif entry.offset > committed.get(entry.queue, -1):
            if own is None:
                doubtful_commits.note_commit(turn, entry.queue, entry.offset)
            committed[entry.queue] = entry.offset
            added.pop(entry.queue, None)
            turn.say(
                Offset(
                    group_id=group.group_id,
                    queue=entry.queue,
                    client_id=event.client_id,
                    offset=entry.offset,
                    epoch=event.epoch,
                    metadata=entry.metadata,
                    mode=group.mode,
                )
            )
    if bad:
        detail = f"commit of {event.client_id!r} rejected: {'; '.join(bad)}"[: config.MAX_DETAIL]
        turn.say(Rejected(rule="commit", detail=detail, group_id=group.group_id, client_id=event.client_id))


def reset(turn: Turn, event: Reset) -> None:
    """Set committed offsets, back or forth, in an epoch of their own.

    A queue is assigned to its owner again, so that a commit in flight is too old. The next owner of a free queue starts
    at the offset. In a broadcasting group the offset is set for each known client.
    """
    group = turn.group
    if event.request_id in group.resets:
        return
    broadcasts = _broadcasts(group)
    wrong = _unknown(turn, event) or (_too_many(turn, event) if broadcasts else "")
    if wrong:
        turn.say(Rejected(rule="reset", detail=assignment_limits.shortened(wrong), group_id=group.group_id))
        return
    group.resets = [*group.resets, event.request_id][-config.LAST_RESETS :]
    begin_reset(
        turn,
        len(event.offsets),
        f"{event.by!r} reset offsets, queues: {len(event.offsets)}{event.asked and '; requested: '}{event.asked}",
    )
    for entry in event.offsets:
        if broadcasts:
            for client_id in sorted(group.own_offsets):
                set_own(turn, entry.queue, entry.offset, client_id, event.asked, event.by)
        else:
            set_offset(turn, entry.queue, entry.offset, event.asked, event.by)


def begin_reset(turn: Turn, queues: int, note: str) -> None:
    """Begin a new epoch for offsets that are set, so that a commit in flight is too old."""
    group = turn.group
    broadcasts = _broadcasts(group)
    group.epoch += 1
    if not group.members:  # an empty group is forgotten a week after the last change by an operator
        group.emptied_ms = turn.moment.now_ms
        group.remind(group.emptied_ms + config.FORGET_MS)
    turn.say(
        Rebalance(
            group_id=group.group_id,
            epoch=group.epoch,
            trigger="reset",
            causes=[turn.cause],
            strategy=broadcast.STRATEGY if broadcasts else strategy_of(group)[0],
            clients=len(group.members),
            queues=queues if broadcasts else len(group.target),
            moved=0,
            unassigned=[],
            spread=spread(group.members, group.target),
            notes=assignment_limits.first_notes([note]),
        )
    )


def _broadcasts(group: Group) -> bool:
    """Return whether each client has offsets of its own; an empty group keeps the mode of its members."""
    return group.is_broadcasting if group.members else group.mode_before == "broadcasting"


def _unknown(turn: Turn, event: Reset) -> str:
    """Return which queue of a reset does not exist; empty if all exist."""
    for entry in event.offsets:
        if turn.routes.lacks(entry.queue):
            count = len(turn.routes.queues(entry.queue.topic) or ())
            return f"there is no queue {entry.queue}; {entry.queue.topic} has {count} queues"
    return ""


def _too_many(turn: Turn, event: Reset) -> str:
    """Return why a reset sets too many offsets, one per queue and client; empty if it does not."""
    clients, queues, most = len(turn.group.own_offsets), len(event.offsets), turn.limits.max_broadcast
    if clients * queues <= most:
        return ""
    return f"{queues} queues of {clients} clients have {clients * queues} offsets; expected at most {most} in one reset"


def set_offset(turn: Turn, queue: Queue, offset: int, why: str, by: str) -> None:
    """Set one offset of a clustering group, and assign the queue to its owner again, unless it is revoked."""
    group = turn.group
    group.offsets[queue] = offset
    group.reset_epochs[queue] = group.epoch
    learning.note_reset(turn, queue)
    group.added.pop(queue, None)
    group.doubts.pop(queue, None)
    owner = group.owners.get(queue)
    if owner is not None:
        member = group.members[owner]
        if queue in member.revoking:
            member.revoking[queue].was_reset = True
        else:
            member.owned[queue] = group.epoch
            member.reset[queue] = group.epoch
            turn.tell.add(owner)
    _say_reset(turn, queue, offset, owner or "", "clustering", why, by)


def set_own(turn: Turn, queue: Queue, offset: int, client_id: str, why: str, by: str) -> None:
    """Set one offset of one client of a broadcasting group."""
    group = turn.group
    own = group.own_offsets[client_id]
    own.offsets[queue] = offset
    own.reset_epochs[queue] = group.epoch
    learning.note_reset(turn, queue)
    own.added.pop(queue, None)
    member = group.members.get(client_id)
    if member is not None and queue in member.owned:
        member.owned[queue] = group.epoch
        turn.tell.add(client_id)
    _say_reset(turn, queue, offset, client_id, "broadcasting", why, by)


def _say_reset(turn: Turn, queue: Queue, offset: int, client_id: str, mode: Mode, why: str, by: str) -> None:
    turn.say(
        Offset(
            group_id=turn.group.group_id,
            queue=queue,
            client_id=client_id,
            offset=offset,
            epoch=turn.group.epoch,
            metadata=why,
            reset_by=by,
            mode=mode,
        )
    )


def note_added(group: Group, target: Target) -> None:
    """Remember queues that a new target adds to a topic consumed before: they start at their first message."""
    topics = {queue.topic for queue in target.owners}
    consumed = frozenset(group.consumed)
    for queue in target.owners:
        known = queue in group.target or queue in group.freed or queue in group.owners or queue in group.offsets
        if queue.topic in consumed and not known:
            group.added[queue] = group.epoch
    group.consumed = sorted(consumed | topics)


def _wrong_of_left(turn: Turn, event: Commit, queue: Queue) -> str:
    """Return why a broadcasting client's commit for a queue that it drains is invalid; empty if it is valid."""
    own = turn.group.own_offsets[event.client_id]
    if not broadcast.was_given(own, queue):
        return "never assigned to this client"
    since = own.reset_epochs.get(queue, -1)
    return f"reset in epoch {since}; the commit has epoch {event.epoch}" if event.epoch < since else ""


def _wrong(turn: Turn, event: Commit, entry: CommittedOffset, learnt: set[Queue] | None) -> str:
    """Return why a commit for a queue is invalid; empty if it is valid.

    `learnt`: the queues whose commits count while the group only learns from a log; else None.
    """
    group, queue = turn.group, entry.queue
    if doubtful_commits.is_too_far(turn, queue, entry.offset):
        return f"offset {entry.offset} is more than {turn.limits.max_growth} messages beyond the end of the queue"
    if learnt is not None:
        return "" if queue in learnt else "not in the last heartbeat of the instance, or reset since then"
    member = group.members.get(event.client_id)
    owner = event.client_id if group.is_broadcasting else group.owners.get(queue)
    if member is None or owner != event.client_id:
        return "not assigned to this client" if owner in (None, event.client_id) else f"owned by {owner!r}"
    if event.instance_id != member.instance_id:
        return f"owned by instance {member.instance_id!r}; the commit is from instance {event.instance_id!r}"
    if group.is_broadcasting and queue not in member.owned:
        return _wrong_of_left(turn, event, queue)
    if queue in member.revoking and member.revoking[queue].was_reset:
        return "reset while it is being revoked"
    given = member.owned[queue]
    return f"assigned in epoch {given}; the commit has epoch {event.epoch}" if event.epoch < given else ""
