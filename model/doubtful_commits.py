"""Commits beyond the newest known end of their queue: believed if the queue can have grown so far, and remembered."""

from model.group import Doubt, Turn
from model.queue import Queue


def note_commit(turn: Turn, queue: Queue, offset: int) -> None:
    """Remember what was committed before an offset beyond the newest known end: the next routes confirm it, or not."""
    group = turn.group
    end = _end(turn, queue)
    if end is not None and offset > end and queue not in group.doubts:
        group.doubts[queue] = Doubt(group.offsets.get(queue, -1))


def is_too_far(turn: Turn, queue: Queue, offset: int) -> bool:
    """Return whether no queue can have grown so far since the newest route."""
    end = _end(turn, queue)
    return end is not None and offset > end + turn.limits.max_growth


def _end(turn: Turn, queue: Queue) -> int | None:
    """Return the end of a queue, as the newest route knows it; None if it does not."""
    routed = turn.routes.detail(queue)
    return None if routed is None else routed.max_offset
