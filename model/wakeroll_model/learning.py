"""Learning: how a group restores offsets from the log of a former era, as far as heartbeats and commits show them.

The log does not show which commit was accepted, nor the epoch in which a queue was assigned. But a commit means that
its messages were processed, so it counts if the last heartbeat of its instance lists the queue. After a reset, commits
count again after a session: an earlier one may have been made before its client received the reset.
"""

from wakeroll_model.config import NEVER_MS
from wakeroll_model.events import Commit, GroupEvent, Heartbeat, Unregister
from wakeroll_model.queue import Queue
from wakeroll_model.slicing import overlapping
from wakeroll_model.turn import Turn


def listen(turn: Turn, event: GroupEvent) -> None:
    """Note the queues that an instance lists; they are valid until its next heartbeat or its end."""
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
    """Note that an offset was reset."""
    if turn.group.is_learning:
        turn.group.reset_at[queue] = turn.moment.now_ms


def counted(turn: Turn, event: Commit) -> set[Queue]:
    """Return the queues of this commit that a former era accepted, as far as the log shows."""
    group, now_ms = turn.group, turn.moment.now_ms
    if group.loss is None:
        return set()
    listed = set(group.listed.get(event.instance_id, ()))
    member = group.members.get(event.client_id)
    trusted_ms = group.session_of(member) if member else group.settings.session_timeout_ms
    session_ms = max(trusted_ms, group.loss.session_ms)
    # A commit within a session of a reset may have been sent before the reset.
    return {
        entry.queue
        for entry in event.offsets
        if entry.queue in listed
        and all(
            now_ms - group.reset_at.get(one, -NEVER_MS) > session_ms
            for one in (entry.queue, *overlapping(group, entry.queue))
        )
    }
