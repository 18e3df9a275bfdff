"""Pauses: an operator pauses a group. Its members keep their queues, send heartbeats, and deliver no message.

RocketMQ's `consumeEnable` does the same. Members receive the pause with their assignments, in an epoch of its own. It
ends with a resume, or when the group is forgotten.
"""

from wakeroll_model import assignment_limits, commits
from wakeroll_model.decisions import Change, Membership
from wakeroll_model.events import Pause
from wakeroll_model.group import Paused
from wakeroll_model.strategies import pinned
from wakeroll_model.target import strategy_of
from wakeroll_model.turn import NOTHING, Outcome, Turn, sending

RULE = "pause"
"""Rule of the rejection of a `pause`."""


def pause(turn: Turn, event: Pause) -> Outcome:
    """Pause a group, or resume it; a repeated request has no effect."""
    group = turn.group
    if not turn.accepts(event.request_id, RULE, _wrong(turn, event)):
        return NOTHING
    change: Change = "resumed" if event.resume else "paused"
    detail = f"{change} by {event.by}{event.reason and ': '}{event.reason}"
    group.paused = None if event.resume else Paused(event.by, event.reason, turn.moment.at_ms)
    owned = {queue for member in group.members.values() for queue in member.owned}
    # A member that has not received its assignment shows an older epoch, and is sent it again.
    commits.begin_epoch(turn, "pause", len(owned), detail)
    turn.emit(
        Membership(
            group_id=group.group_id,
            client_id="",
            change=change,
            epoch=group.epoch,
            detail=assignment_limits.shortened(detail),
        )
    )
    return sending(group.members)


def _wrong(turn: Turn, event: Pause) -> str:
    """Return why a request cannot be carried out; empty if it can."""
    group = turn.group
    if group.is_forgotten:
        return f"there is no group {group.group_id!r}"
    if event.resume:
        return "" if group.paused is not None else f"group {group.group_id!r} is not paused"
    if group.paused is not None:
        return f"group {group.group_id!r} is paused already, by {group.paused.by}"
    if strategy_of(group)[0] == pinned.NAME:
        return (
            f"the members of group {group.group_id!r} are those of a group of Kafka that is watched; pause them there"
        )
    return ""
