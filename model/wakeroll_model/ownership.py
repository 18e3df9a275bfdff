"""Ownership: the map of owners, and the record of each hand-over.

`grant` and `free` are the only functions that change the owner of a queue.
"""

from collections.abc import Iterable, Mapping

from wakeroll_model import locks, slicing
from wakeroll_model.decisions import Handover, How
from wakeroll_model.group import Freed, Received, Revocation
from wakeroll_model.queue import Queue
from wakeroll_model.turn import NOTHING, Outcome, Turn, sending


def grant(turn: Turn, queue: Queue, client_id: str, assigned_epoch: int) -> None:
    """Make a client the owner of a free queue; `assigned_epoch` is the epoch of the assignment."""
    group = turn.group
    assert queue not in group.owners, f"{queue} would have two owners, {group.owners[queue]} and {client_id}"
    if group.sliced:
        _end_former(turn, queue)
    freed = group.freed.pop(queue, None)
    if freed is not None and freed.how == "cut":
        freed = None
    group.owners[queue] = client_id
    group.members[client_id].owned[queue] = assigned_epoch
    how, before = (freed.how, freed.client_id) if freed else ("first", None)
    group.received[queue] = Received(group.epoch, turn.moment.at_ms, how, before)
    record(turn, queue, freed, client_id)


def _end_former(turn: Turn, queue: Queue) -> None:
    """Record that free queues which overlap a queue do not exist any more, before its own hand-over is recorded.

    If one of them exists again later, its ownership begins again, and the time in between does not count as a pause.
    """
    group = turn.group
    for other in slicing.overlapping(group, queue):
        freed = group.freed.get(other)
        if freed is None or freed.how == "cut":
            continue
        if other in turn.unrecorded:
            record(turn, other, freed, None)
        group.freed[other] = Freed(freed.client_id, "cut", turn.moment.at_ms, None)
        record(turn, other, group.freed[other], None)


def revoke(turn: Turn, queues: Iterable[Queue]) -> Outcome:
    """Request the release of queues; one that its owner should have again meanwhile must still be released first."""
    group = turn.group
    owners: set[str] = set()
    for queue in queues:
        client_id = group.owners[queue]
        member = group.members[client_id]
        if queue not in member.revoking:
            missed = queue in member.reset and member.shown_epoch < member.owned[queue]  # its owner may have missed it
            timeout_ms = group.settings.revoke_timeout_ms
            member.revoking[queue] = Revocation(group.epoch, turn.moment.at_ms, timeout_ms, was_reset=missed)
            owners.add(client_id)
    return sending(owners)


def free(turn: Turn, queues: Mapping[Queue, How]) -> Outcome:
    """Free queues of their owners, in this order. `queues`: queue -> how it is freed."""
    if not queues:
        return NOTHING
    group = turn.group
    owners: set[str] = set()
    for queue, how in queues.items():
        client_id = group.owners.pop(queue)
        member = group.members[client_id]
        del member.owned[queue]
        revocation = member.revoking.pop(queue, None)
        member.reset.pop(queue, None)
        group.received.pop(queue, None)
        group.freed[queue] = Freed(client_id, how, turn.moment.at_ms, revocation.at_ms if revocation else None)
        turn.unrecorded.add(queue)
        owners.add(client_id)
        locks.end(turn, queue)
    return Outcome(freed=tuple(queues), send=frozenset(owners))


def record(turn: Turn, queue: Queue, freed: Freed | None, to: str | None) -> None:
    """Record a hand-over: the last owner and how the queue was freed, if it ever had an owner, and the new owner."""
    turn.unrecorded.discard(queue)
    if freed is not None:
        freed.epoch = turn.group.epoch
    turn.emit(
        Handover(
            group_id=turn.group.group_id,
            queue=queue,
            from_=freed.client_id if freed else None,
            to=to,
            epoch=turn.group.epoch,
            revoked_ms=freed.revoked_ms if freed else None,
            released_ms=freed.at_ms if freed else None,
            assigned_ms=turn.moment.at_ms if to is not None else None,
            how=freed.how if freed else "first",
        )
    )
