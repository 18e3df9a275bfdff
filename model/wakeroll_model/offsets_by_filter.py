"""Offsets by filter: how far the queues of a group are processed, while its members want different messages.

A committed offset never passes a message that a member of the group wants and that is not processed. For each filter,
an owner may have come further: every message that matches the filter is processed below its own offset, which is
``ahead`` of the committed one. The next owner starts at the committed offset and passes over those messages.
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
    """Return the highest offset for each filter of both, sorted by filter, without those at or below `offset`.

    A processed message stays processed, so the highest one counts, unless its leader epoch is lower: then the log has
    lost its tail since. Of too many filters, those with the highest offsets are kept.
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
    """Return whether an offset replaces the one that is known for the same filter; None if there is none."""
    if before is None:
        return True
    return leader_epochs.is_news(one.offset, one.leader_epoch, before.offset, before.leader_epoch)


def store(group: Group, queue: Queue, ahead: tuple[Ahead, ...]) -> None:
    """Replace the offsets by filter of a queue; without room for them in the group, none are kept."""
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
