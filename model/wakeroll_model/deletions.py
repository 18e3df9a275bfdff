"""Deletions: an operator deletes a group that has no members, or committed offsets that no member uses.

Both are refused while a member could commit, as in Kafka's DeleteGroups and OffsetDelete. Ended instances stay
remembered, so that they cannot join again.
"""

from collections.abc import Iterable

from wakeroll_model import assignment_limits, commits, slicing
from wakeroll_model.decisions import Membership
from wakeroll_model.events import Delete
from wakeroll_model.group import GroupSettings
from wakeroll_model.modes import offsets_of
from wakeroll_model.turn import Turn

RULE = "delete"
"""Rule of the rejection of a `delete`."""
_NAMED = 5
"""Maximum number of members that a rejection names."""


def delete(turn: Turn, event: Delete) -> None:
    """Delete the group, or offsets of it; a repeated request for offsets has no effect."""
    if not turn.accepts(event.request_id, RULE, _wrong(turn, event)):
        return
    if event.what == "group":
        _delete_group(turn, event)
        return
    queues = list(dict.fromkeys(event.queues))
    # A client may still drain them, and commit what it has processed; its commit has an earlier epoch, and is too old.
    note = f"{event.by!r} deleted offsets, queues: {len(queues)}{event.reason and '; reason: '}{event.reason}"
    commits.begin_epoch(turn, "reset", len(queues), note)
    for queue in queues:
        offsets_of(turn.group).delete_offset(turn, queue, event.reason, event.by)


def forget(turn: Turn, why: str = "") -> None:
    """Forget the state of a group without members, and record the lost offsets; its epoch and ended instances are kept.

    `why`: who deleted it, in words; empty if it was unused for too long.
    """
    group = turn.group
    lost = [why] if why else []
    lost += [f"offsets of {len(group.offsets)} queues"] if group.offsets else []
    lost += [f"offsets of {len(group.broadcast_offsets)} clients"] if group.broadcast_offsets else []
    lost += ["settings"] if group.settings != GroupSettings() else []
    detail = assignment_limits.shortened(", ".join(lost))
    turn.emit(Membership(group_id=group.group_id, client_id="", change="forgotten", epoch=group.epoch, detail=detail))
    group.clear()


def _delete_group(turn: Turn, event: Delete) -> None:
    group, ended = turn.group, turn.group.ended
    forget(turn, f"deleted by {event.by}{event.reason and ': '}{event.reason}")
    group.ended = ended
    for one in ended.values():
        group.remind(one.until_ms)


def _wrong(turn: Turn, event: Delete) -> str:
    """Return why a request cannot be carried out; empty if it can."""
    group = turn.group
    if (event.what == "group") == bool(event.queues):
        return f"queues: {len(event.queues)}; expected none to delete a group, and at least one to delete offsets"
    if group.is_forgotten:
        return f"there is no group {group.group_id!r}"
    if group.loss is not None:
        left_ms = max(group.loss.ends_ms - turn.moment.now_ms, 0)
        when = "" if group.is_learning else f"; repeat this in {left_ms} ms"
        return f"the coordinator has lost its state, so members of group {group.group_id!r} may live unnoticed{when}"
    if event.what == "group":
        return _members(group.members, f"group {group.group_id!r} has", "wait until it is empty, or kick them")
    topics = {queue.topic for queue in event.queues}
    users = [name for name, member in group.members.items() if topics & member.subscriptions.keys()]
    if users:
        return _members(users, f"{', '.join(sorted(topics))} is subscribed by", "stop them first")
    concerned = {one for queue in event.queues for one in (queue, *slicing.overlapping(group, queue))}
    owners = sorted({group.owners[queue] for queue in concerned if queue in group.owners})
    if owners:
        return _members(owners, "these queues are not released yet by", "wait for that")
    if not any(offsets_of(group).has_offset(group, queue) for queue in event.queues):
        some = ", ".join(map(str, sorted(event.queues)[:_NAMED]))
        return f"group {group.group_id!r} has no committed offset of {some}"
    return ""


def _members(names: Iterable[str], what: str, remedy: str) -> str:
    """Return the sentence that members prevent the request; empty if there are no members."""
    found = sorted(names)
    if not found:
        return ""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    count = "1 member" if len(found) == 1 else f"{len(found)} members"
    return f"{what} {count}: {', '.join(found[:_NAMED])}{more}; {remedy}"
