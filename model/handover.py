"""How ownership follows the target: who must give up what, who gets what is free, and who is told.

Cooperative, as Kafka's `CurrentAssignmentBuilder` does it: a queue is given only when nobody holds it, so that two
clients never read it; a client that keeps a queue reads on.  Eager, as RocketMQ does it: the map follows at once, and
the old owner may read until it hears of it.

`grant` and `free` are the only functions that change who owns a queue.
"""

from collections.abc import Collection, Iterable, Mapping

from model import assignment_limits, broadcast, locks
from model.config import ERA_EPOCHS
from model.decisions import AssignedQueue, Assignment, Handover, How, Start
from model.events import Heartbeat
from model.group import Freed, Group, Member, Revocation, Turn
from model.queue import Queue


def follow_target(turn: Turn) -> None:
    """Take a new target: ask back what is not in it any more, give what is free, tell who must know."""
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
    """Give each of these queues to its client in the target, if nobody holds it; no settle interval delays that.

    After a loss of state nothing is given for a session, not even what came free since: a late heartbeat of an instance
    that is over may have claimed it, and its owner may live and not have been heard yet.
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
        if queue.topic not in member.subscriptions:  # it wants something else since; the next target knows
            continue
        if not room.take(client_id, queue):  # not before it gave up others; see `limits.withheld`
            continue
        grant(turn, queue, client_id)


def grant(turn: Turn, queue: Queue, client_id: str) -> None:
    """Make a client the owner of a queue that nobody holds, in the group's epoch."""
    group = turn.group
    assert queue not in group.owners, f"{queue} would have two owners, {group.owners[queue]} and {client_id}"
    freed = group.freed.pop(queue, None)
    group.owners[queue] = client_id
    group.members[client_id].owned[queue] = group.epoch
    turn.tell.add(client_id)
    _say(turn, queue, freed, client_id)


def free(turn: Turn, queue: Queue, how: How) -> None:
    """Take a queue from its owner: nobody holds it now."""
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
    """Free all that a client holds, at once."""
    if turn.group.is_broadcasting:
        broadcast.leave(turn, client_id)
        return
    for queue in sorted(turn.group.members[client_id].owned):
        free(turn, queue, how)


def take_receipt(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Take what a heartbeat shows about queues that were asked back: received, or released.

    Released is what it does not list any more, once it shows the epoch of the assignment that asked: a heartbeat that
    was on its way before says nothing about the queue.
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
    """Free what a late heartbeat claimed after a loss of state, and its client did not hold any more.

    A client that holds what it claimed says so in every heartbeat of the new era.
    """
    group = turn.group
    if group.is_broadcasting or beat.epoch < group.epoch - group.epoch % ERA_EPOCHS:
        return
    owned = frozenset(beat.owned)
    for queue in sorted(queue for queue, given in member.owned.items() if given == 0 and queue not in owned):
        if queue not in member.revoking:
            free(turn, queue, "removed")


def take_claims(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Enter queues that a client holds and the map has never heard of: the coordinator had lost this group.

    What is claimed is the claimant's, given in an epoch before all others: it reads on, and does not start anew -
    unless its offset was reset since the claimant was told.  What nobody has claimed yet is not given for a session:
    its owner may live and not have been heard.  A queue of a topic that the claimant does not subscribe any more, which
    it drains then, is asked back.  A queue that its topic's route does not have cannot be claimed; who claimed it then
    was told to give it up, and so gives it up first when the route has it again.
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
    """Free what was asked back, is known to have been heard, and was not released in time.

    An ordered group waits for an owner that lives, however slow: two consumers of a queue would break the order.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if group.is_ordered:
        return
    for member in group.members.values():
        for queue, revocation in sorted(member.revoking.items()):
            if revocation.ends_ms <= now_ms:
                free(turn, queue, "timeout")


def end_recovery(turn: Turn) -> None:
    """Give what nobody has claimed within a session of a loss of state; not while clients reconnect."""
    group = turn.group
    if group.loss is not None and group.loss.ends_ms <= turn.moment.judged_ms and turn.moment.may_expire:
        group.loss = None
        give_what_is_free(turn, group.target)


def finish(turn: Turn) -> None:
    """Give on what came free in this turn, put the rest on record, and tell whose queues changed."""
    if turn.freed:
        give_what_is_free(turn, [*turn.freed, *assignment_limits.withheld(turn)])
    for queue in turn.freed:
        if queue in turn.group.freed:
            _say(turn, queue, turn.group.freed[queue], None)
    if turn.tell:
        _send(turn, turn.tell)


def tell_again(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Tell a member again if it shows an older assignment than was sent, or other queues than the map holds for it.

    However it comes to be told in this turn, it is told to give up what it claims and does not own.
    """
    note_claims(turn, beat, member)
    if member.sent_epoch < 0:
        return
    if beat.epoch < member.sent_epoch or member.owned.keys() != set(beat.owned):
        turn.tell.add(beat.client_id)


def note_claims(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Keep in mind what a client claims and does not own: should it be told anything in this turn, it is told that."""
    turn.claimant = beat.client_id
    turn.claims = [queue for queue in beat.owned if queue not in member.owned]


def _ask_back(turn: Turn, queue: Queue) -> None:
    """Ask the owner to give a queue up; one that was asked before and is wanted back is released first all the same."""
    group = turn.group
    client_id = group.owners[queue]
    member = group.members[client_id]
    if queue not in member.revoking:
        unheard = queue in member.reset and member.shown_epoch < member.owned[queue]  # it may never begin anew
        timeout_ms = group.settings.revoke_timeout_ms
        member.revoking[queue] = Revocation(group.epoch, turn.moment.at_ms, timeout_ms, was_reset=unheard)
        turn.tell.add(client_id)


def _send(turn: Turn, client_ids: Collection[str]) -> None:
    """Send each of these members, if it is one, its assignment; oldest member first."""
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
    """Count, for each of these clients, the queues of its target that it does not have yet."""
    waiting = dict.fromkeys(client_ids, 0)
    for queue, client_id in group.target.items():
        if client_id in waiting and group.owners.get(queue) != client_id:
            waiting[client_id] += 1
    return waiting


def _start(group: Group, client_id: str, queue: Queue) -> Start:
    """Where a member starts a queue: at the committed offset, else by its consume_from."""
    if group.is_broadcasting:
        return broadcast.start(group, client_id, queue)
    if queue in group.offsets:
        return Start(offset=group.offsets[queue])
    return Start(policy="first") if queue in group.added else group.members[client_id].first_start


def _say(turn: Turn, queue: Queue, freed: Freed | None, to: str | None) -> None:
    """Put on record that a queue changed hands: from whom it came free, if anybody ever had it, and who has it now."""
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
