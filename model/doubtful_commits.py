"""Doubtful commits: commits beyond the newest known end of their queue, accepted if the queue may have grown so far."""

from model.group import Doubt
from model.queue import Queue
from model.turn import Turn


def note_commit(turn: Turn, queue: Queue, offset: int) -> None:
    """Remember the last offset before a commit beyond the known end; later routes confirm or contradict the commit."""
    group = turn.group
    end = _end(turn, queue)
    if end is not None and offset > end and queue not in group.doubts:
        group.doubts[queue] = Doubt(group.offsets.get(queue, -1))


def is_too_far(turn: Turn, queue: Queue, offset: int) -> bool:
    """Return whether an offset is beyond what any queue can have grown to since the newest route."""
    end = _end(turn, queue)
    return end is not None and offset > end + turn.limits.max_growth


def _end(turn: Turn, queue: Queue) -> int | None:
    """Return the end of a queue by its newest route; None if the route does not give it."""
    routed = turn.routes.detail(queue)
    return None if routed is None else routed.max_offset
