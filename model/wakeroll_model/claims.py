"""Claims: after a loss of state, queues get their owners back by the queues that heartbeats list.

A claimed queue counts as assigned in epoch 0, before all others: its owner continues at its position.
"""

from wakeroll_model import assignment_limits, slicing
from wakeroll_model.config import ERA_EPOCHS
from wakeroll_model.events import Heartbeat
from wakeroll_model.group import Member
from wakeroll_model.ownership import free, grant, revoke
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined, sending


def accept(turn: Turn, beat: Heartbeat, member: Member, *, target_stands: bool) -> Outcome:
    """Make a client the owner of queues that it lists and that have no owner: the coordinator had lost this group.

    If the queue's offset was reset after the epoch that the claimant shows, the claimant must start the queue again
    instead. Queues that no member has claimed are not assigned for a session, because their owners may be alive and
    have sent no heartbeat yet.

    A queue of a topic that the claimant does not subscribe any more is revoked: the claimant is draining it. A queue
    that is missing in its topic's route cannot be claimed, and its revocation is sent to the claimant. If the route has
    the queue again later, a claim of it is accepted and the queue is revoked first.

    Args:
        turn: the turn of the heartbeat.
        beat: the heartbeat.
        member: the member that sent it.
        target_stands: whether no new target was requested: a queue that the target gives to another member is revoked.
    """
    group = turn.group
    if group.loss is None:
        return NOTHING
    outcomes: list[Outcome] = []
    room = assignment_limits.AssignmentRoom(group.members)
    for queue in sorted(set(beat.owned)):
        others = list(slicing.overlapping(group, queue))
        if any(one in group.owners or one in group.freed for one in (queue, *others)):
            continue
        if not turn.routes.lacks(queue):
            if not room.take(beat.client_id, queue):
                break
            is_reset = any(group.reset_epochs.get(one, -1) > beat.epoch for one in (queue, *others))
            without_target = beat.client_id if queue.topic in member.subscriptions else None
            has_next_owner = target_stands and group.target.get(queue, without_target) != beat.client_id
            is_revoked = has_next_owner or member.sent_epoch >= 0
            slicing.note(group, queue)
            grant(turn, queue, beat.client_id, group.epoch if is_reset and not is_revoked else 0)
            if is_revoked:
                outcomes.append(revoke(turn, [queue]))
                member.revoking[queue].was_reset = is_reset
            elif is_reset:
                member.reset[queue] = group.epoch
                outcomes.append(sending((beat.client_id,)))
    return combined(*outcomes)


def withdraw(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Free queues that a late heartbeat claimed after a loss of state, although its client did not have them any more.

    A client that has the queues it claimed lists them in every heartbeat of the new era.
    """
    if len(beat.owned) >= len(member.owned) or beat.epoch < turn.group.epoch - turn.group.epoch % ERA_EPOCHS:
        return NOTHING
    owned = frozenset(beat.owned)
    claimed = sorted(queue for queue, epoch in member.owned.items() if epoch == 0 and queue not in owned)
    return free(turn, {queue: "removed" for queue in claimed if queue not in member.revoking})
