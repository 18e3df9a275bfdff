"""Kicks: an operator makes a member leave its group, and may keep its client out for a time.

A silent member may still be alive, so a kicked member counts as alive. It stays a member and is not part of new
targets, so all its queues are revoked and handed over as in any rebalance. When it owns none, it is removed and fenced.
If it does not answer, the end of its session, or the last will of its process, frees its queues as usual.
"""

from wakeroll_model import assignment_limits, config
from wakeroll_model.decisions import Membership
from wakeroll_model.events import Kick
from wakeroll_model.group import Group, Kicked, Member
from wakeroll_model.strategies import pinned
from wakeroll_model.target import strategy_of
from wakeroll_model.turn import NOTHING, Outcome, Turn

RULE = "kick"
"""Rule of the rejection of a `kick`."""
OUT_RULE = "kicked"
"""Rule of the rejection of a heartbeat of a client that is kept out."""
_NAMED = 5
"""Maximum number of clients that a rejection names."""


def kick(turn: Turn, event: Kick) -> Outcome:
    """Mark a member as kicked, or let a client that is kept out join again; a repeated request has no effect."""
    group = turn.group
    if not turn.accepts(event.request_id, RULE, _wrong(turn, event)):
        return NOTHING
    if event.readmit:
        return _readmit(turn, event)
    member = group.members[event.client_id]
    until_ms = turn.moment.now_ms + event.keep_out_ms if event.keep_out_ms else 0
    found = Kicked(member.instance_id, event.by, event.reason, until_ms)
    group.kicks[event.client_id] = found
    if until_ms:
        group.remind(until_ms)
    detail = f"{in_words(found, turn.moment.now_ms)}; {_plan(turn, member)}"
    turn.note(event.client_id, member, "leaving", assignment_limits.shortened(detail))
    return Outcome(triggers=("kick",)) if group.mode == "clustering" else NOTHING


def keeps_out(turn: Turn, client_id: str, instance_id: str = "") -> Kicked | None:
    """Return the kick that keeps an instance of a client out now; None if there is none.

    The instance that must leave is not kept out: after a loss of state it joins again, and hands its queues over.
    """
    kicked = turn.group.kicks.get(client_id)
    if kicked is None or kicked.until_ms <= turn.moment.now_ms or kicked.instance_id == instance_id:
        return None
    return kicked


def in_words(kicked: Kicked, now_ms: int) -> str:
    """Return who kicked a client, why, and for how long it is kept out."""
    why = f": {kicked.reason}" if kicked.reason else ""
    kept_out = f"; kept out for {kicked.until_ms - now_ms} ms" if kicked.until_ms > now_ms else ""
    return f"kicked by {kicked.by}{why}{kept_out}"


def end(turn: Turn, client_id: str) -> None:
    """Note that a kicked member has left: forget the kick, unless the client is kept out."""
    kicked = turn.group.kicks.get(client_id)
    if kicked is not None and kicked.until_ms <= turn.moment.now_ms:
        del turn.group.kicks[client_id]


def forget(turn: Turn) -> None:
    """Forget the kicks that are over: the client may join again."""
    group, now_ms = turn.group, turn.moment.now_ms
    for client_id, kicked in list(group.kicks.items()):
        if kicked.until_ms <= now_ms and not group.is_leaving(client_id):
            del group.kicks[client_id]


def next_due_ms(group: Group) -> int:
    """Return when the next client may join again, by the shard's clock; `NEVER_MS` if none is kept out."""
    return min([kicked.until_ms for kicked in group.kicks.values() if kicked.until_ms], default=config.NEVER_MS)


def no_member(group: Group, client_id: str) -> str:
    """Return the sentence that a client is not a member, with the names of the members."""
    members = _names(sorted(group.members))
    return f"client_id {client_id!r} is no member of group {group.group_id!r}; its members: {members}"


def _plan(turn: Turn, member: Member) -> str:
    """Describe how the queues of a kicked member become free, and when at the latest."""
    group, now_ms = turn.group, turn.moment.now_ms
    if group.mode != "clustering":
        return "it is removed at once: the group broadcasts"
    if not member.owned:
        return "it owns no queue"
    count = "1 queue" if len(member.owned) == 1 else f"{len(member.owned)} queues"
    if group.settings.handover == "eager":
        return f"its {count} are assigned to others at once: the hand-over of the group is eager"
    end = "when it has processed what it was handed, because the group consumes in order"
    if not group.is_ordered:
        end = f"at the latest {group.settings.revoke_timeout_ms} ms after it has received that"
    return (
        f"if it lives, it hands {count} over, {end}; if it stays silent, its session ends in "
        f"{max(group.session_ends_ms(member) - now_ms, 0)} ms (last heartbeat {now_ms - member.seen_ms} ms ago)"
    )


def _wrong(turn: Turn, event: Kick) -> str:
    """Return why a request cannot be carried out; empty if it can."""
    group, client_id = turn.group, event.client_id
    kept_out = keeps_out(turn, client_id)
    if event.readmit:
        where = f"of group {group.group_id!r}"
        return "" if kept_out else f"client_id {client_id!r} {where} is not kept out; kept out: {_names(_out(turn))}"
    if client_id not in group.members:
        if kept_out:
            left_ms = kept_out.until_ms - turn.moment.now_ms
            return f"client_id {client_id!r} is no member of group {group.group_id!r}, and is kept out for {left_ms} ms"
        return no_member(group, client_id)
    if strategy_of(group)[0] == pinned.NAME:
        return (
            f"the members of group {group.group_id!r} are those of a group of Kafka that is watched; "
            "end the consumer there"
        )
    if client_id not in group.kicks and len(group.kicks) >= config.MAX_KICKS:
        return f"{len(group.kicks)} clients are kicked or kept out already; expected at most {config.MAX_KICKS}"
    return ""


def _readmit(turn: Turn, event: Kick) -> Outcome:
    """Let a client that is kept out join again; a kicked member still leaves."""
    group, client_id = turn.group, event.client_id
    kicked = group.kicks[client_id]
    if group.is_leaving(client_id):
        group.kicks[client_id] = Kicked(kicked.instance_id, kicked.by, kicked.reason, 0)
    else:
        del group.kicks[client_id]
    why = f": {event.reason}" if event.reason else ""
    turn.emit(
        Membership(
            group_id=group.group_id,
            client_id=client_id,
            instance_id=kicked.instance_id,
            change="readmitted",
            epoch=group.epoch,
            detail=assignment_limits.shortened(f"readmitted by {event.by}{why}"),
        )
    )
    return NOTHING


def _out(turn: Turn) -> list[str]:
    return sorted(client_id for client_id in turn.group.kicks if keeps_out(turn, client_id))


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more if names else "none"
