"""Releases: the heartbeats of its owner show when a revoked queue becomes free.

1. A new target revokes the queue; the assignment sent to its owner lists it in `revoke`.
2. The receipt: a heartbeat shows the epoch of the revocation and still lists the queue, because the owner drains it.
3. The release: a heartbeat shows that epoch and no longer lists the queue.

If a heartbeat shows that the owner has not received its assignment, the assignment is repeated. If a receipt is not
followed by a release in time, the queue is freed without one.
"""

from wakeroll_model import slicing
from wakeroll_model.decisions import How
from wakeroll_model.events import Heartbeat
from wakeroll_model.group import Member, Revocation
from wakeroll_model.ownership import free
from wakeroll_model.queue import Queue
from wakeroll_model.turn import NOBODY, NOTHING, Outcome, Turn


def receipt_or_release(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Process revoked queues by a heartbeat: it shows the receipt of the revocation, or the release of the queue.

    A heartbeat with an epoch below that of the revocation was sent before the revocation arrived, and has no effect.
    """
    if not member.revoking:
        return NOTHING
    owned = frozenset(beat.owned)
    released: dict[Queue, How] = {}
    for queue, revocation in sorted(member.revoking.items()):
        if beat.epoch < revocation.epoch:
            continue
        if queue not in owned:
            released[queue] = "released" if slicing.is_wanted(turn.group, queue) else "removed"
        elif revocation.shown_ms < 0:
            _note_receipt(turn, revocation)
    return free(turn, released)


def _note_receipt(turn: Turn, revocation: Revocation) -> None:
    """Note that the owner has received a revocation: its revoke timeout begins."""
    revocation.shown_ms = turn.moment.now_ms
    turn.group.remind(revocation.ends_ms)


def release_overdue(turn: Turn) -> Outcome:
    """Free queues whose owner showed the revocation and did not release them within the revoke timeout.

    An ordered group waits for a live owner, however slow it is, because two consumers of a queue would break the order.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if group.is_ordered:
        return NOTHING
    overdue: dict[Queue, How] = {}
    for member in group.members.values():
        for queue, revocation in sorted(member.revoking.items()):
            if revocation.ends_ms <= now_ms:
                overdue[queue] = "timeout"
    return free(turn, overdue)


def repeat_assignment(beat: Heartbeat, member: Member) -> Outcome:
    """Send a member its assignment again if it shows an older epoch, or lists other queues than it owns.

    If the member receives an assignment in this turn for any reason, the assignment also revokes the queues that it
    lists and does not own.
    """
    if beat.epoch >= member.sent_epoch and member.owned.keys() == set(beat.owned):
        return NOTHING  # the case of almost every heartbeat
    client = frozenset((beat.client_id,)) if member.sent_epoch >= 0 else NOBODY
    return Outcome(send=client, claims=_claims(beat, member))


def note_claims(beat: Heartbeat, member: Member) -> Outcome:
    """Note the queues that a new member lists and does not own: its first assignment revokes them."""
    return Outcome(claims=_claims(beat, member)) if beat.owned else NOTHING


def _claims(beat: Heartbeat, member: Member) -> dict[str, tuple[Queue, ...]]:
    return {beat.client_id: tuple(queue for queue in beat.owned if queue not in member.owned)}
