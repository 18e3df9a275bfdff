"""What a group learns of offsets from a log that a former era decided: as much as heartbeats and commits show.

Which commit was accepted, and in which epoch a queue was given, nobody says.  But a commit means that its messages were
handled, so it counts if its instance lists the queue in the heartbeat before.  After a reset it counts from a session
on: until then it may have been made before its client heard of the reset.
"""

from model.events import Commit, GroupEvent, Heartbeat, Unregister
from model.group import Turn
from model.queue import Queue


def listen(turn: Turn, event: GroupEvent) -> None:
    """Note which queues an instance lists, until its next heartbeat or its end."""
    listed = turn.group.listed
    match event:
        case Heartbeat():
            listed.pop(event.instance_id, None)
            listed[event.instance_id] = event.owned
            if len(listed) > turn.limits.max_ended:
                del listed[next(iter(listed))]
        case Unregister():
            listed.pop(event.instance_id, None)
        case _:
            pass


def note_reset(turn: Turn, queue: Queue) -> None:
    """Note that an offset was set."""
    if turn.group.is_learning:
        turn.group.reset_at[queue] = turn.moment.now_ms


def counted(turn: Turn, event: Commit) -> set[Queue]:
    """Return the queues whose commits of this instance a former era took, as far as the log shows."""
    group, now_ms = turn.group, turn.moment.now_ms
    if group.is_broadcasting and event.client_id not in group.own_offsets:
        return set()
    session_ms = max(map(group.session_of, group.members.values()), default=group.settings.session_timeout_ms)
    # A commit within a session of a reset may have been on its way when the offset was set.
    doubtful = {queue for queue, at_ms in group.reset_at.items() if now_ms - at_ms <= session_ms}
    return set(group.listed.get(event.instance_id, ())) - doubtful
