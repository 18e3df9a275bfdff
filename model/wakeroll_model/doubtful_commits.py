"""Doubtful commits: commits beyond the newest known end of their queue, accepted if the queue may have grown so far."""

from wakeroll_model.group import Doubt
from wakeroll_model.queue import Queue
from wakeroll_model.turn import Turn


def note_commit(turn: Turn, queue: Queue, offset: int) -> None:
    """Remember the last offset before a commit beyond the known end; later routes confirm or contradict the commit."""
    group = turn.group
    if is_beyond(turn, queue, offset) and queue not in group.doubts:
        group.doubts[queue] = Doubt(group.offsets.get(queue, -1))


def is_beyond(turn: Turn, queue: Queue, offset: int) -> bool:
    """Return whether an offset is beyond the known end of its queue."""
    end = _end(turn, queue)
    return end is not None and offset > end


def is_too_far(turn: Turn, queue: Queue, offset: int) -> bool:
    """Return whether an offset is beyond the end that a queue can have reached since the newest route."""
    end = _end(turn, queue)
    return end is not None and offset > end + turn.limits.max_growth


def is_contradicted(turn: Turn, queue: Queue) -> bool:
    """Return whether a route since the last commit shows that the queue ends below it; False below feature level 3.

    Then a smaller offset is accepted: its owner found that the log lost its tail, and moved back.
    """
    doubt = turn.group.doubts.get(queue)
    return turn.level >= 3 and doubt is not None and doubt.routes > 0


def _end(turn: Turn, queue: Queue) -> int | None:
    """Return the end of a queue by its newest route; None if the route does not contain it."""
    routed = turn.routes.detail(queue)
    return None if routed is None else routed.max_offset
