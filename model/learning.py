"""What a group learns of offsets from a log that a former era decided: as much as heartbeats and commits show.

Which commit was accepted, and in which epoch a queue was given, nobody says.  But a commit means that its messages were
handled, so it counts if its instance lists the queue in the heartbeat before.  After a reset it counts from a session
on: until then it may have been made before its client heard of the reset.
"""

from model.events import Commit, Heartbeat, Unregister
from model.group import Turn
from model.queue import Queue


def hear(turn: Turn, beat: Heartbeat) -> None:
    """Note which queues an instance lists, until its next heartbeat."""
    listed = turn.group.listed
    listed.pop(beat.instance_id, None)
    listed[beat.instance_id] = beat.owned
    if len(listed) > turn.limits.max_ended:
        del listed[next(iter(listed))]


def end(turn: Turn, event: Unregister) -> None:
    """Forget an instance that has left."""
    turn.group.listed.pop(event.instance_id, None)


def note_reset(turn: Turn, queue: Queue) -> None:
    """Note that an offset was set."""
    if turn.group.is_learning:
        turn.group.reset_at[queue] = turn.moment.now_ms


def counts(turn: Turn, event: Commit, queue: Queue) -> bool:
    """Return whether a former era took a commit of a queue, as far as the log shows."""
    group = turn.group
    if group.is_broadcasting and event.client_id not in group.own_offsets:
        return False
    return queue in group.listed.get(event.instance_id, ()) and not _is_before_reset(turn, queue)


def _is_before_reset(turn: Turn, queue: Queue) -> bool:
    """Return whether a commit may have been on its way when the offset was reset."""
    group = turn.group
    since_ms = group.reset_at.get(queue)
    if since_ms is None:
        return False
    session_ms = max([group.settings.session_timeout_ms, *(one.session_ms for one in group.members.values())])
    return turn.moment.now_ms - since_ms <= session_ms
