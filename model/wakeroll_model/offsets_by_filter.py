"""Offsets by filter: the progress in the queues of a group while its members have different filters.

A committed offset never passes an unprocessed message that matches the filter of a member. For a single filter, an
owner may have progressed further: that filter has an offset of its own, ``ahead`` of the committed one, below which all
matching messages are processed. The next owner starts at the committed offset and skips those messages.
"""

from collections.abc import Iterable, Sequence

import msgspec

from wakeroll_model import config, leader_epochs
from wakeroll_model.events import Ahead, Filter
from wakeroll_model.group import Group
from wakeroll_model.queue import Queue

_encode = msgspec.json.Encoder().encode


def of(group: Group, queue: Queue) -> tuple[Ahead, ...]:
    """Return the offsets by filter of a queue, all above its committed offset, sorted by filter."""
    return group.ahead.get(queue, ())


def merged(known: Sequence[Ahead], more: Sequence[Ahead], offset: int) -> tuple[Ahead, ...]:
    """Merge two lists: return the highest offset for each filter, sorted by filter, without those at or below `offset`.

    A processed message stays processed, so the highest offset counts, unless its leader epoch is lower: then the log
    has lost its tail since. If there are too many filters, those with the highest offsets are kept.
    """
    if not known and not more:
        return ()
    highest: dict[Filter, Ahead] = {}
    for one in (*known, *more):
        if one.offset > offset and is_progress(one, highest.get(one.filter)):
            highest[one.filter] = one
    kept = sorted(highest.values(), key=lambda one: (-one.offset, one.filter))[: config.MAX_FILTERS]
    return tuple(sorted(kept, key=lambda one: one.filter))


def is_progress(one: Ahead, before: Ahead | None) -> bool:
    """Return whether an offset replaces the known one of the same filter, which is None if there is none."""
    if before is None:
        return True
    return leader_epochs.is_news(one.offset, one.leader_epoch, before.offset, before.leader_epoch)


def store(group: Group, queue: Queue, ahead: tuple[Ahead, ...]) -> None:
    """Replace the offsets by filter of a queue; drop them if the group has no room for them."""
    size = bytes_of(ahead)
    group.ahead_bytes -= bytes_of(group.ahead.pop(queue, ()))
    if ahead and group.ahead_bytes + size <= config.MAX_AHEAD_BYTES:
        group.ahead[queue] = ahead
        group.ahead_bytes += size


def forget(group: Group, queues: Iterable[Queue]) -> None:
    """Forget the offsets by filter of these queues."""
    for queue in queues:
        store(group, queue, ())


def bytes_of(ahead: tuple[Ahead, ...]) -> int:
    """Return the size of offsets by filter in JSON, in bytes."""
    return len(_encode(ahead)) if ahead else 0
