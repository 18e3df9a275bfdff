"""How far a group has consumed: commits that only a queue's owner can make, and that never go back."""

from model import broadcast, config
from model.decisions import Offset, Rebalance, Rejected
from model.events import Commit, Mode, Reset, ResetOffset
from model.group import Group, Turn
from model.queue import Queue
from model.target import Target, spread, strategy_of


def commit(turn: Turn, event: Commit) -> None:
    """Take the offsets of the queues that the client owns, or must still give up, in the epoch it was given them in.

    What is not good is rejected, queue by queue, in one decision; an offset that is not above the committed one says
    nothing new.  Kafka's rule for one epoch a partition: a commit for a queue held all along stays good across epochs.
    """
    group = turn.group
    bad = []
    own = group.own_offsets.get(event.client_id) if group.is_broadcasting else None
    committed = own.offsets if own else group.offsets
    for entry in event.offsets:
        wrong = _wrong(group, event, entry.queue)
        if wrong:
            bad.append(f"{entry.queue} {wrong}")
        elif entry.offset > committed.get(entry.queue, -1):
            committed[entry.queue] = entry.offset
            if own is None:
                group.added.pop(entry.queue, None)
            elif entry.queue in own.added:
                own.added.remove(entry.queue)
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
        detail = f"{event.client_id} may not commit: {'; '.join(bad)}"[: config.MAX_DETAIL]
        turn.say(Rejected(rule="commit", detail=detail, group_id=group.group_id, client_id=event.client_id))


def reset(turn: Turn, event: Reset) -> None:
    """Set committed offsets, back or forth, in an epoch of their own.

    A queue's owner is given it anew, so that a commit that is under way is too old; without an owner it is where the
    next one starts.  In a broadcasting group each client that is known has its own set.
    """
    group = turn.group
    if event.request_id in group.resets:
        return
    unknown = _unknown(turn, event)
    if unknown:
        turn.say(Rejected(rule="reset", detail=unknown[: config.MAX_DETAIL], group_id=group.group_id))
        return
    broadcasts = group.is_broadcasting if group.members else bool(group.own_offsets)
    group.resets = [*group.resets, event.request_id][-config.LAST_RESETS :]
    group.epoch += 1
    if not group.members and group.emptied_ms < 0:
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
            queues=len(event.offsets) if broadcasts else len(group.target),
            moved=0,
            unassigned=[],
            spread=spread(group.members, group.target),
            notes=[f"{event.by} set offsets, queues: {len(event.offsets)}" + (event.asked and f"; {event.asked}")],
        )
    )
    for entry in event.offsets:
        if broadcasts:
            for client_id in sorted(group.own_offsets):
                _set_own(turn, event, entry, client_id)
        else:
            _set(turn, event, entry)


def _unknown(turn: Turn, event: Reset) -> str:
    """Return what a reset names that is not there; empty if all is."""
    for entry in event.offsets:
        queues = turn.routes.queues(entry.queue.topic)
        if queues is not None and entry.queue not in queues:
            return f"there is no queue {entry.queue}; {entry.queue.topic} has {len(queues)} queues"
    return ""


def _set(turn: Turn, event: Reset, entry: ResetOffset) -> None:
    """Set one offset of a clustering group, and give the queue to its owner anew - or have it given up as it is."""
    group, queue = turn.group, entry.queue
    group.offsets[queue] = entry.offset
    group.added.pop(queue, None)
    owner = group.owners.get(queue)
    if owner is not None:
        member = group.members[owner]
        if queue in member.revoking:
            member.revoking[queue].was_reset = True
        else:
            member.owned[queue] = group.epoch
            member.reset = [*(one for one in member.reset if one != queue), queue]
            turn.tell.add(owner)
    _say_reset(turn, event, entry, owner or "", "clustering")


def _set_own(turn: Turn, event: Reset, entry: ResetOffset, client_id: str) -> None:
    """Set one offset of one client of a broadcasting group."""
    group = turn.group
    own = group.own_offsets[client_id]
    own.offsets[entry.queue] = entry.offset
    if entry.queue in own.added:
        own.added.remove(entry.queue)
    member = group.members.get(client_id)
    if member is not None and entry.queue in member.owned:
        member.owned[entry.queue] = group.epoch
        turn.tell.add(client_id)
    _say_reset(turn, event, entry, client_id, "broadcasting")


def _say_reset(turn: Turn, event: Reset, entry: ResetOffset, client_id: str, mode: Mode) -> None:
    turn.say(
        Offset(
            group_id=turn.group.group_id,
            queue=entry.queue,
            client_id=client_id,
            offset=entry.offset,
            epoch=turn.group.epoch,
            metadata=event.asked,
            reset_by=event.by,
            mode=mode,
        )
    )


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
    member = group.members.get(event.client_id)
    if group.is_broadcasting and (member is None or queue not in member.owned):
        return "is not among what it was given"
    owner = event.client_id if group.is_broadcasting else group.owners.get(queue)
    if member is None or owner != event.client_id:
        return f"is owned by {owner or 'nobody'}"
    if event.instance_id not in ("", member.instance_id):
        return f"is owned by instance {member.instance_id}, not {event.instance_id}"
    if queue in member.revoking and member.revoking[queue].was_reset:
        return "was reset while it is given up"
    given = member.owned[queue]
    return f"was given in epoch {given}, the commit is of epoch {event.epoch}" if event.epoch < given else ""
