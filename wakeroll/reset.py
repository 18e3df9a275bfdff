"""Targets and plans for a reset of committed offsets."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from msgspec import Struct

from wakeroll import argument_checks
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll.group_summary import History
from wakeroll_model import config
from wakeroll_model.events import ResetOffset
from wakeroll_model.queue import Queue, TopicName

_LARGEST_OFFSET = 2**63 - 1


class Shift(Struct, frozen=True):
    """A reset target: the committed offset of each queue, moved by a number of messages."""

    messages: int
    """Negative: back."""


ResetPoint = Literal["first", "last"] | int | EpochMs
Relative = Literal["current"] | Shift
"""Target that depends on the committed offset of each queue."""
ResetTarget = ResetPoint | Relative | datetime
"""Target of a reset: the first message, the end, an offset, a time, or relative to the committed offsets. A number is
an offset unless it is `EpochMs`."""


def place_of(where: ResetTarget) -> ResetPoint | Relative:
    """Check a reset target and return it; convert a datetime to `EpochMs`.

    Raises:
        InvalidUsage: the target is not valid.
    """
    match where:
        case datetime():
            return EpochMs.of(where)
        case "first" | "last" | "current" | EpochMs() | Shift():
            return where
        case int() if not isinstance(where, bool) and 0 <= where <= _LARGEST_OFFSET:
            return where
        case _:
            raise InvalidUsage(
                f"where is {where!r}; it must be 'first', 'last', 'current', an offset from 0, a datetime with a "
                "zone, EpochMs or Shift"
            )


def queue_of(text: str) -> Queue:
    """Parse the name of a queue: a topic, a hyphen and a number, and then the slice if the queue is cut.

    >>> queue_of("eu-orders-3"), queue_of("orders-3/5of8")
    (Queue(eu-orders-3), Queue(orders-3/5of8))

    Raises:
        InvalidUsage: the text is not a topic and a number, or there can be no such slice.
    """
    found = re.fullmatch(r"(.+)-([0-9]{1,9})(?:/([0-9]{1,2})of(2|4|8|16|32|64))?", text)
    if found is None or (found[3] is not None and int(found[3]) >= int(found[4])):
        raise InvalidUsage(
            f"{text!r} is not a queue; expected a topic and a number, like orders-3, or a slice, like orders-3/5of8"
        )
    topic = str(argument_checks.checked("a queue's topic", found[1], TopicName))
    return Queue(topic, "", int(found[2]), int(found[4] or 1), int(found[3] or 0))


@dataclass(frozen=True)
class PlannedOffset:
    """One committed offset that a reset would change."""

    queue: Queue
    client_id: str
    """Client with this offset in a broadcasting group; empty for the group's shared offset."""
    committed: int | None
    """Committed offset before the reset; None if unknown."""
    offset: int
    """Offset of the next message to consume after the reset."""

    @property
    def difference(self) -> int | None:
        """Change of the committed offset in messages, negative if it moves back; None if the offset is unknown."""
        return None if self.committed is None else self.offset - self.committed


@dataclass(frozen=True)
class ResetPlan:
    """The changes that a reset would make; creating a plan changes nothing."""

    group_id: str
    asked: str
    """Reset target in words; a part of the recorded request."""
    rows: tuple[PlannedOffset, ...]
    """Changed offsets, sorted by queue and client; at least one."""
    notes: tuple[str, ...] = ()
    """Sentences about offsets that differ from the requested ones."""

    @property
    def offsets(self) -> list[ResetOffset]:
        """Offsets in the request to the coordinator: one per queue, for all clients."""
        return [
            ResetOffset(queue=queue, offset=offset)
            for queue, offset in {row.queue: row.offset for row in self.rows}.items()
        ]


def plan_of(
    group_id: str, asked: str, offsets: Mapping[Queue, int], history: History, notes: tuple[str, ...] = ()
) -> ResetPlan:
    """Compare the target of a reset with the committed offsets.

    Args:
        group_id: the group.
        asked: the reset target in words.
        offsets: offset of the target in each queue.
        history: known state of the group.
        notes: sentences about offsets that differ from the requested ones.

    Raises:
        InvalidUsage: there is no queue to reset, or there are too many for one record.
    """
    if not offsets:
        raise InvalidUsage(f"group {group_id!r} has no queue to reset")
    if len(offsets) > config.MAX_QUEUES:
        raise InvalidUsage(f"cannot reset {len(offsets)} queues at once, at most {config.MAX_QUEUES}; name a topic")
    owners = history.clients if history.mode == "broadcasting" and history.clients else [""]
    known = history.lowest
    rows = tuple(
        PlannedOffset(queue, owner, known.get((owner, queue)), offset)
        for queue, offset in sorted(offsets.items())
        for owner in owners
    )
    return ResetPlan(group_id, asked, rows, (*notes, *_of_slices(offsets, history)))


def _of_slices(offsets: Mapping[Queue, int], history: History) -> Iterator[str]:
    """Yield a sentence about each partition whose slices have different offsets, and get the same one."""
    parts: dict[Queue, list[int]] = {}
    for (_, queue), committed in history.committed.items():
        if queue.slices > 1 and queue.whole in offsets:
            parts.setdefault(queue.whole, []).append(committed)
    for whole, known in sorted(parts.items()):
        if (first := min(known)) < (last := max(known)):
            yield (
                f"the slices of {whole} have committed offsets from {first} to {last}; all of them become "
                f"{offsets[whole]}"
            )


def in_words(place: ResetPoint | Relative) -> str:
    """Describe a reset target, such as ``to offset 17``."""
    match place:
        case "first":
            return "to the first message"
        case "last":
            return "to the end"
        case "current":
            return "to the committed offset"
        case Shift():
            return f"{abs(place.messages)} messages {'back' if place.messages < 0 else 'ahead'}"
        case EpochMs():
            return f"to the first message since {place}"
        case _:
            return f"to offset {place}"
