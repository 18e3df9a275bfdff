"""Hand-over: how ownership follows the target.

Cooperative hand-over works as Kafka's `CurrentAssignmentBuilder`: a queue is assigned only when nobody owns it, so two
clients never read it, and a client continues to read the queues that it keeps. Eager hand-over works as RocketMQ: the
map of owners changes at once, and the old owner may read until it receives its new assignment.
"""

from collections.abc import Iterable

from wakeroll_model import assignment_limits, slicing
from wakeroll_model.ownership import free, grant, record, revoke
from wakeroll_model.queue import Queue
from wakeroll_model.turn import NOBODY, NOTHING, Outcome, Turn, sending


def follow_target(turn: Turn) -> Outcome:
    """Follow a new target: revoke queues that have another owner in it, and assign free queues."""
    group = turn.group
    moving = sorted(queue for queue, client_id in group.owners.items() if group.target.get(queue) != client_id)
    if group.settings.handover == "eager":
        left = free(turn, {queue: "eager" if slicing.is_wanted(group, queue) else "removed" for queue in moving})
    else:
        left = revoke(turn, moving)
    return Outcome(freed=left.freed, send=left.send | assign_free(turn, group.target))


def assign_free(turn: Turn, queues: Iterable[Queue]) -> frozenset[str]:
    """Assign each of these queues that has no owner to its client in the target; ignore the settle interval.

    After a loss of state nothing is assigned for a session, not even a queue that was freed since. A late heartbeat of
    an ended instance may have claimed it, while its real owner is alive and has sent no heartbeat yet.

    Returns:
        The clients that were assigned a queue.
    """
    group = turn.group
    if group.loss is not None:
        return NOBODY
    room = assignment_limits.AssignmentRoom(group.members)
    clients: set[str] = set()
    for queue in queues:
        client_id = group.target.get(queue)
        member = group.members.get(client_id) if client_id is not None else None
        if client_id is None or member is None or queue in group.owners:
            continue
        if group.kicks and group.is_leaving(client_id):  # the next target, which waits to settle, names another client
            continue
        if queue.topic not in member.subscriptions:  # its subscriptions changed since; the next target follows them
            continue
        if group.sliced and slicing.owned_in_part(group, queue) is not None:  # a former slice has some of its messages
            continue
        if not room.take(client_id, queue):  # only after it released others; see `assignment_limits.withheld`
            continue
        slicing.adopt(turn, queue)
        grant(turn, queue, client_id, group.epoch)
        clients.add(client_id)
    return frozenset(clients)


def end_recovery(turn: Turn) -> Outcome:
    """End the recovery a session after a loss of state, and assign unclaimed queues; not while clients reconnect."""
    group = turn.group
    if group.loss is None or group.loss.ends_ms > turn.moment.judged_ms or not turn.moment.may_expire:
        return NOTHING
    group.loss = None
    return sending(assign_free(turn, group.target))


def settle(turn: Turn, freed: tuple[Queue, ...]) -> frozenset[str]:
    """Assign the queues that were freed in this turn, and record those that stay free.

    Returns:
        The clients that were assigned a queue.
    """
    if not freed:
        return NOBODY
    group = turn.group
    new = [other for queue in freed for other in slicing.overlapping(group, queue) if other in group.target]
    clients = assign_free(turn, [*freed, *new, *assignment_limits.withheld(group, freed)])
    for queue in freed:
        if queue in turn.unrecorded:
            record(turn, queue, group.freed[queue], None)
    return clients
