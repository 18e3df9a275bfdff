"""Hand-over: how ownership follows the target, by revocations, releases, assignments and their records.

Cooperative hand-over works as Kafka's `CurrentAssignmentBuilder`: a queue is assigned only when nobody owns it, so two
clients never read it, and a client reads on from the queues that it keeps. Eager hand-over works as RocketMQ: the map
of owners changes at once, and the old owner may read until it receives its new assignment.

`grant`, `free` and `take_claims` are the only functions that change the owner of a queue.
"""

from collections.abc import Collection, Iterable, Mapping

from model import assignment_limits, broadcast, locks
from model.config import ERA_EPOCHS
from model.decisions import AssignedQueue, Assignment, Handover, How, Start
from model.events import Heartbeat
from model.group import Freed, Group, Member, Revocation, Turn
from model.queue import Queue


def follow_target(turn: Turn) -> None:
    """Follow a new target: revoke queues that have another owner in it, assign free queues, and send assignments."""
    group = turn.group
    for queue in sorted(queue for queue, client_id in group.owners.items() if group.target.get(queue) != client_id):
        if group.settings.handover == "eager":
            free(turn, queue, "eager" if queue in group.target else "removed")
        else:
            _ask_back(turn, queue)
    give_what_is_free(turn, group.target)
    turn.tell.update(
        client_id for client_id, member in group.members.items() if member.sent_epoch <= group.configured_epoch
    )


def give_what_is_free(turn: Turn, queues: Iterable[Queue]) -> None:
    """Assign each of these queues to its client in the target, if nobody owns it; do not wait for the settle interval.

    After a loss of state nothing is assigned for a session, not even a queue that was freed since. A late heartbeat of
    an ended instance may have claimed it, while its real owner lives and has sent no heartbeat yet.
    """
    group = turn.group
    if group.loss is not None:
        return
    room = assignment_limits.AssignmentRoom(group.members)
    for queue in queues:
        client_id = group.target.get(queue)
        member = group.members.get(client_id) if client_id is not None else None
        if client_id is None or member is None or queue in group.owners:
            continue
        if queue.topic not in member.subscriptions:  # its subscriptions changed since; the next target follows them
            continue
        if not room.take(client_id, queue):  # only after it released others; see `assignment_limits.withheld`
            continue
        grant(turn, queue, client_id)


def grant(turn: Turn, queue: Queue, client_id: str) -> None:
    """Make a client the owner of a free queue, in the group's epoch."""
    group = turn.group
    assert queue not in group.owners, f"{queue} would have two owners, {group.owners[queue]} and {client_id}"
    freed = group.freed.pop(queue, None)
    group.owners[queue] = client_id
    group.members[client_id].owned[queue] = group.epoch
    turn.tell.add(client_id)
    _say(turn, queue, freed, client_id)


def free(turn: Turn, queue: Queue, how: How) -> None:
    """Take a queue from its owner; nobody owns it afterwards."""
    group = turn.group
    client_id = group.owners.pop(queue)
    member = group.members[client_id]
    del member.owned[queue]
    revocation = member.revoking.pop(queue, None)
    member.reset.pop(queue, None)
    group.freed[queue] = Freed(client_id, how, turn.moment.at_ms, revocation.at_ms if revocation else None)
    turn.freed.append(queue)
    turn.tell.add(client_id)
    locks.end(turn, queue)


def free_all(turn: Turn, client_id: str, how: How) -> None:
    """Free all queues of a client at once."""
    if turn.group.is_broadcasting:
        broadcast.leave(turn, client_id)
        return
    for queue in sorted(turn.group.members[client_id].owned):
        free(turn, queue, how)


def take_receipt(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Process what a heartbeat shows about revoked queues: the revocation was received, or the queue was released.

    A queue is released if a heartbeat shows at least the epoch of the revocation and does not list the queue. A
    heartbeat with a lower epoch was sent before the revocation arrived, and proves nothing.
    """
    if len(beat.owned) < len(member.owned):
        _take_back_claims(turn, beat, member)
    if not member.revoking:
        return
    group = turn.group
    owned = frozenset(beat.owned)
    for queue, revocation in sorted(member.revoking.items()):
        if beat.epoch < revocation.epoch:
            continue
        if queue not in owned:
            free(turn, queue, "released" if queue in group.target else "removed")
        elif revocation.shown_ms < 0:
            revocation.shown_ms = turn.moment.now_ms
            group.remind(revocation.ends_ms)


def _take_back_claims(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Free queues that a late heartbeat claimed after a loss of state, although its client did not have them any more.

    A client that has the queues it claimed lists them in every heartbeat of the new era.
    """
    group = turn.group
    if group.is_broadcasting or beat.epoch < group.epoch - group.epoch % ERA_EPOCHS:
        return
    owned = frozenset(beat.owned)
    for queue in sorted(queue for queue, given in member.owned.items() if given == 0 and queue not in owned):
        if queue not in member.revoking:
            free(turn, queue, "removed")


def take_claims(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Make a client the owner of queues that it lists and that have no owner: the coordinator had lost this group.

    A claimed queue counts as assigned in epoch 0, before all others: its owner reads on from where it is. If the
    queue's offset was reset after the epoch that the claimant shows, the claimant must start the queue again instead.
    Queues that nobody has claimed are not assigned for a session, because their owners may live and have sent no
    heartbeat yet.

    A queue of a topic that the claimant does not subscribe any more is revoked: the claimant is draining it. A queue
    that its topic's route lacks cannot be claimed, and the claimant is told to release it. If the route has the queue
    again later, a claim of it is accepted and the queue is revoked first.
    """
    group = turn.group
    if group.loss is None or group.is_broadcasting:
        return
    room = assignment_limits.AssignmentRoom(group.members)
    for queue in sorted(set(beat.owned)):
        if queue not in group.owners and queue not in group.freed and not turn.routes.lacks(queue):
            if not room.take(beat.client_id, queue):
                break
            group.owners[queue] = beat.client_id
            is_reset = group.reset_epochs.get(queue, -1) > beat.epoch
            by_default = beat.client_id if queue.topic in member.subscriptions else None
            is_unwanted = not group.pending and group.target.get(queue, by_default) != beat.client_id
            goes_back = is_unwanted or member.sent_epoch >= 0
            member.owned[queue] = group.epoch if is_reset and not goes_back else 0
            _say(turn, queue, None, beat.client_id)
            if goes_back:
                _ask_back(turn, queue)
                member.revoking[queue].was_reset = is_reset
            elif is_reset:
                member.reset[queue] = group.epoch
                turn.tell.add(beat.client_id)


def time_out(turn: Turn) -> None:
    """Free queues whose owner showed the revocation and did not release them within the revoke timeout.

    An ordered group waits for an owner that lives, however slow it is: two consumers of a queue would break the order.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if group.is_ordered:
        return
    for member in group.members.values():
        for queue, revocation in sorted(member.revoking.items()):
            if revocation.ends_ms <= now_ms:
                free(turn, queue, "timeout")


def end_recovery(turn: Turn) -> None:
    """End the recovery a session after a loss of state, and assign what nobody claimed; not while clients reconnect."""
    group = turn.group
    if group.loss is not None and group.loss.ends_ms <= turn.moment.judged_ms and turn.moment.may_expire:
        group.loss = None
        give_what_is_free(turn, group.target)


def finish(turn: Turn) -> None:
    """Assign what was freed in this turn, record the queues that stay free, and send the changed assignments."""
    if turn.freed:
        give_what_is_free(turn, [*turn.freed, *assignment_limits.withheld(turn)])
    for queue in turn.freed:
        if queue in turn.group.freed:
            _say(turn, queue, turn.group.freed[queue], None)
    if turn.tell:
        _send(turn, turn.tell)


def tell_again(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Send a member its assignment again if it shows an older epoch, or lists other queues than it owns.

    If the member receives an assignment in this turn for any reason, the assignment also revokes the queues that it
    lists and does not own.
    """
    note_claims(turn, beat, member)
    if member.sent_epoch < 0:
        return
    if beat.epoch < member.sent_epoch or member.owned.keys() != set(beat.owned):
        turn.tell.add(beat.client_id)


def note_claims(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Remember which queues a client lists and does not own: an assignment sent to it in this turn revokes them."""
    turn.claimant = beat.client_id
    turn.claims = [queue for queue in beat.owned if queue not in member.owned]


def _ask_back(turn: Turn, queue: Queue) -> None:
    """Revoke a queue; a queue whose owner should have it again meanwhile is still released first."""
    group = turn.group
    client_id = group.owners[queue]
    member = group.members[client_id]
    if queue not in member.revoking:
        unheard = queue in member.reset and member.shown_epoch < member.owned[queue]  # its owner may have missed it
        timeout_ms = group.settings.revoke_timeout_ms
        member.revoking[queue] = Revocation(group.epoch, turn.moment.at_ms, timeout_ms, was_reset=unheard)
        turn.tell.add(client_id)


def _send(turn: Turn, client_ids: Collection[str]) -> None:
    """Send each of these clients that is a member its assignment, the oldest member first."""
    group = turn.group
    waiting = _waiting(group, client_ids)
    for client_id in [name for name in group.members if name in client_ids]:
        member = group.members[client_id]
        claims = assignment_limits.first_claims(turn.claims, member.owned) if client_id == turn.claimant else []
        revoke = sorted({*member.revoking, *claims})
        member.sent_epoch = group.epoch
        turn.say(
            Assignment(
                group_id=group.group_id,
                client_id=client_id,
                instance_id=member.instance_id,
                epoch=group.epoch,
                queues=[
                    AssignedQueue(queue, given, _start(group, client_id, queue))
                    for queue, given in sorted(member.owned.items())
                    if queue not in member.revoking
                ],
                revoke=revoke,
                state="unrevoked" if revoke else "unreleased" if waiting[client_id] else "stable",
                heartbeat_ms=group.settings.heartbeat_ms,
                session_timeout_ms=group.settings.session_timeout_ms,
                revoke_timeout_ms=group.settings.revoke_timeout_ms,
                mode=group.mode,
            )
        )


def _waiting(group: Group, client_ids: Collection[str]) -> Mapping[str, int]:
    """Return, for each of these clients, how many queues of its target it does not own yet."""
    waiting = dict.fromkeys(client_ids, 0)
    for queue, client_id in group.target.items():
        if client_id in waiting and group.owners.get(queue) != client_id:
            waiting[client_id] += 1
    return waiting


def _start(group: Group, client_id: str, queue: Queue) -> Start:
    """Return where a member starts a queue: at the committed offset, else by its consume_from."""
    if group.is_broadcasting:
        return broadcast.start(group, client_id, queue)
    if queue in group.offsets:
        return Start(offset=group.offsets[queue])
    return Start(policy="first") if queue in group.added else group.members[client_id].first_start


def _say(turn: Turn, queue: Queue, freed: Freed | None, to: str | None) -> None:
    """Record a hand-over: the last owner and how the queue was freed, if it ever had an owner, and the new owner."""
    turn.say(
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
