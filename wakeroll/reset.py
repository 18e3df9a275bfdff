"""Reset targets of committed offsets, as an operator names them, and the plan of a reset."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from model import config
from model.events import ResetOffset
from model.queue import Queue, TopicName
from wakeroll import argument_checks
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.group_summary import History

_LARGEST_OFFSET = 2**63 - 1


ResetPoint = Literal["first", "last"] | int | EpochMs
ResetTarget = ResetPoint | datetime
"""The first message, the end, an offset, or a time: a number is an offset unless it is an `EpochMs`."""


def place_of(where: ResetTarget) -> ResetPoint:
    """Return what is meant, checked; a datetime becomes an `EpochMs`.

    Raises:
        InvalidUsage: it is none of what it may be.
    """
    match where:
        case datetime():
            return EpochMs.of(where)
        case "first" | "last" | EpochMs():
            return where
        case int() if not isinstance(where, bool) and 0 <= where <= _LARGEST_OFFSET:
            return where
        case _:
            raise InvalidUsage(
                f"where is {where!r}; it must be 'first', 'last', an offset from 0, a datetime with a zone, or EpochMs"
            )


def time_of(text: str) -> EpochMs:
    """Read a time as people write it: ISO 8601 with a zone, or epoch milliseconds.

    >>> str(time_of("2026-07-01T05:00+02:00")), str(time_of("1782874800000"))
    ('2026-07-01T03:00:00.000Z', '2026-07-01T03:00:00.000Z')

    Raises:
        InvalidUsage: the text is no time, or has no zone.
    """
    if re.fullmatch(r"[0-9]+", text):
        return EpochMs(int(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidUsage(
            f"{text!r} is no time; it must be like 2026-07-01T03:00:00Z, or epoch milliseconds"
        ) from None
    return EpochMs.of(moment)


def queue_of(text: str) -> Queue:
    """Read a queue as people write it.

    >>> queue_of("eu-orders-3")
    Queue(topic='eu-orders', broker='', queue_id=3)

    Raises:
        InvalidUsage: the text is no topic and number.
    """
    found = re.fullmatch(r"(.+)-([0-9]{1,9})", text)
    if found is None:
        raise InvalidUsage(f"{text!r} is no queue; it must be a topic and a number, like orders-3")
    return Queue(str(argument_checks.checked("a queue's topic", found[1], TopicName)), "", int(found[2]))


@dataclass(frozen=True)
class PlannedOffset:
    """One committed offset that a reset would change."""

    queue: Queue
    client_id: str
    """Whose it is: empty for the group's own; in a broadcasting group every client has its own."""
    committed: int | None
    """The offset on record now; None: none is known."""
    offset: int
    """The next message to consume after the reset."""

    @property
    def difference(self) -> int | None:
        """How many messages forward, below 0 back; None if nothing is known to count from."""
        return None if self.committed is None else self.offset - self.committed


@dataclass(frozen=True)
class ResetPlan:
    """What a reset would do; nothing has happened yet."""

    group_id: str
    asked: str
    """What was asked for, in words; part of the record."""
    rows: tuple[PlannedOffset, ...]
    """Sorted by queue and client; at least one."""

    @property
    def offsets(self) -> list[ResetOffset]:
        """What the coordinator is asked for: one offset a queue, whoever they are."""
        return [
            ResetOffset(queue=queue, offset=offset)
            for queue, offset in {row.queue: row.offset for row in self.rows}.items()
        ]


def plan_of(group_id: str, place: ResetPoint, offsets: Mapping[Queue, int], history: History) -> ResetPlan:
    """Put what was asked for beside what is on record.

    Args:
        group_id: the group.
        place: what was asked for.
        offsets: where that is in each queue.
        history: what is known of the group.

    Raises:
        InvalidUsage: there is nothing to reset, or it is too much for one record.
    """
    if not offsets:
        raise InvalidUsage(f"there is no queue to reset for group {group_id!r}")
    if len(offsets) > config.MAX_QUEUES:
        raise InvalidUsage(f"{len(offsets)} queues at once are too many, at most {config.MAX_QUEUES}; name a topic")
    owners = history.clients if history.mode == "broadcasting" and history.clients else [""]
    rows = tuple(
        PlannedOffset(queue, owner, history.committed.get((owner, queue)), offset)
        for queue, offset in sorted(offsets.items())
        for owner in owners
    )
    return ResetPlan(group_id, _in_words(place), rows)


def _in_words(place: ResetPoint) -> str:
    match place:
        case "first":
            return "to the first message"
        case "last":
            return "to the end"
        case EpochMs():
            return f"to the first message since {place}"
        case _:
            return f"to offset {place}"
