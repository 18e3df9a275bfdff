"""Instances that wait for their client_id, that are turned away, or that have ended.

A client_id has one live instance, which is the member. Another instance never replaces it.
"""

from msgspec import structs

from wakeroll_model import admission, conflicts, patterns
from wakeroll_model.config import ENDED_MS, MAX_RIVALS, WAITING_MS
from wakeroll_model.decisions import Fenced, FencedReason
from wakeroll_model.events import Heartbeat
from wakeroll_model.group import EndedInstance, Group, Member, Rival
from wakeroll_model.turn import NOTHING, Outcome, Turn

# --- instances that are not let in ---


def turn_away(
    turn: Turn, beat: Heartbeat, rule: str, detail: str, reason: FencedReason = "refused", by: str = ""
) -> Outcome:
    """Reject the heartbeat of an instance that cannot become a member, and fence the instance."""
    turn.reject(beat, rule, detail)
    _fence(turn, beat.client_id, beat.instance_id, reason, by)
    if beat.owned:
        _wait_for_reader(turn, beat)
    return NOTHING


def _wait_for_reader(turn: Turn, beat: Heartbeat) -> None:
    """After a loss of state, assign unclaimed queues later: this instance may read some until it is fenced."""
    group = turn.group
    if group.loss is not None:
        group.loss = group.loss.while_read(turn.moment.now_ms, beat.session_timeout_ms)


# --- instances that wait ---


def wait(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Let an instance wait until the live one has left or expired, unless it is an old one or a duplicate.

    A static member waits in the same way in Kafka's KIP-848 (UNRELEASED_INSTANCE_ID).
    """
    if beat.epoch >= 0 or beat.owned:
        return _end_former_member(turn, beat, member)
    if _is_duplicate(turn.group, beat, member):
        return _end_duplicate(turn, beat, member)
    return _let_wait(turn, beat, member)


def _end_former_member(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """End an instance that was a member before a loss of state, and still reads.

    An instance that only waits has received no assignment and owns no queue.
    """
    _stop_waiting(turn, beat, member)
    end(turn, beat.client_id, beat.instance_id, "expired")
    _wait_for_reader(turn, beat)
    return NOTHING


def _is_duplicate(group: Group, beat: Heartbeat, member: Member) -> bool:
    """Return whether the live instance was certainly alive after another instance with its client_id appeared.

    A record may be late by a session. So a heartbeat of the live instance proves that it was alive after the other
    instance appeared only if it arrives more than a session later. The time is counted for each waiting instance: the
    live instance may have been alive when an earlier one appeared, and have died since.
    """
    since_ms = member.waiting.get(beat.instance_id, -1)
    return since_ms >= 0 and member.seen_ms > since_ms + group.session_of(member) + 1


def _end_duplicate(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """End an instance whose client_id another process uses, and report that."""
    _stop_waiting(turn, beat, member)
    end(turn, beat.client_id, beat.instance_id, "duplicate", by=member.instance_id)
    conflicts.note_duplicate(turn, beat.client_id, member, beat.instance_id)
    return NOTHING


def _let_wait(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Remember an instance that waits, and its latest heartbeat; answer its first one."""
    now_ms, session_ms = turn.moment.now_ms, turn.group.session_of(member) + 1
    is_new = beat.instance_id not in member.waiting
    size = admission.size_of(beat.subscriptions, beat.strategy_params, patterns.text_of(beat))
    rival = Rival(structs.replace(beat, owned=[]), size, now_ms)  # it owns nothing, whatever its heartbeat claims
    if is_new:
        _note_waiting(member, beat.instance_id, now_ms, session_ms)
    if full := _replace_rival(turn, member, rival):
        turn.reject(beat, "limit", full)
    elif is_new:
        detail = (
            f"client_id {beat.client_id!r} is in use by instance {member.instance_id!r}, whose last heartbeat came "
            f"{now_ms - member.seen_ms} ms ago; this instance joins when that one has left, or has sent no heartbeat "
            f"for {session_ms} ms"
        )
        turn.reject(beat, "in-use", detail)
    return NOTHING


def _note_waiting(member: Member, instance_id: str, now_ms: int, session_ms: int) -> None:
    """Remember since when an instance waits, if there is room; earlier instances are kept.

    If later instances replaced earlier ones, and more wait than are remembered, none would ever be answered. An
    instance that appeared more than two sessions ago and is still listed has sent no heartbeat since, because by then
    it would be a duplicate, or the member's session would have ended. Such an instance is removed if there is no room.
    """
    waiting = member.waiting
    if len(waiting) >= MAX_RIVALS:
        first = min(waiting, key=waiting.__getitem__)
        if now_ms - waiting[first] <= 2 * session_ms + WAITING_MS:
            return
        del waiting[first]
    waiting[instance_id] = now_ms


def _stop_waiting(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Forget that an instance waits for the client_id of a member."""
    member.waiting.pop(beat.instance_id, None)
    if member.rival is not None and member.rival.beat.instance_id == beat.instance_id:
        _replace_rival(turn, member, None)


def _replace_rival(turn: Turn, member: Member, rival: Rival | None) -> str:
    """Replace a member's rival, or remove it; return why there is no room for the new one, empty if there is."""
    before = 0 if member.rival is None else member.rival.bytes
    more = (0 if rival is None else rival.bytes) - before
    if full := admission.no_room(turn, more):
        return full
    turn.group.bytes += more
    member.rival = rival
    return ""


# --- instances that ended ---


def find_ended(group: Group, client_id: str, instance_id: str) -> EndedInstance | None:
    """Return how an instance ended; None if it has not ended, or is forgotten."""
    return group.ended.get(_life(client_id, instance_id))


def end(turn: Turn, client_id: str, instance_id: str, reason: FencedReason, by: str = "") -> None:
    """Fence an instance, and remember that it ended."""
    _fence(turn, client_id, instance_id, reason, by)
    remember(turn, client_id, instance_id, EndedInstance(reason, 0, turn.moment.now_ms, by))


def fence_again(turn: Turn, beat: Heartbeat, ended: EndedInstance) -> Outcome:
    """Fence an ended instance again, at most twice per heartbeat interval: it may have missed the first decision."""
    now_ms = turn.moment.now_ms
    if now_ms - ended.fenced_ms >= turn.group.settings.heartbeat_ms // 2:
        ended.fenced_ms = now_ms
        _fence(turn, beat.client_id, beat.instance_id, ended.reason, ended.by)
    remember(turn, beat.client_id, beat.instance_id, ended)
    return NOTHING


def remember(turn: Turn, client_id: str, instance_id: str, ended: EndedInstance) -> None:
    """Keep how an instance ended, for as long as a record of it may be late.

    While the group only learns from a log, it publishes nothing. So an instance that ended here may still be alive,
    unless it left by itself.
    """
    if turn.group.is_learning and ended.reason != "left":
        return
    group, life = turn.group, _life(client_id, instance_id)
    group.ended.pop(life, None)
    while len(group.ended) >= turn.limits.max_ended:
        del group.ended[next(iter(group.ended))]
    ended.until_ms = turn.moment.now_ms + ENDED_MS
    group.ended[life] = ended
    group.remind(ended.until_ms)


def _life(client_id: str, instance_id: str) -> str:
    return f"{client_id} {instance_id}"  # no name contains a blank


def _fence(turn: Turn, client_id: str, instance_id: str, reason: FencedReason, by: str = "") -> None:
    group_id = turn.group.group_id
    turn.emit(Fenced(group_id=group_id, client_id=client_id, instance_id=instance_id, reason=reason, by=by))
