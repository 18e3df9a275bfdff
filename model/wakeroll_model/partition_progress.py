"""How far a group has processed a partition that is cut into slices, from the offsets that it has committed.

>>> progress = PartitionProgress()
>>> progress.note(Queue("orders", "", 0, 2, 0), 150)
>>> progress.lowest
>>> progress.note(Queue("orders", "", 0, 2, 1), 120)
>>> progress.lowest
120
"""

from collections.abc import Iterator

from wakeroll_model.queue import Queue
from wakeroll_model.slices import MOST, overlapping, sizes

_NUMBERS = tuple(2**bits for bits in range(MOST.bit_length()))


class PartitionProgress:
    """The committed offsets of the slices of one partition, or of the whole of it."""

    def __init__(self) -> None:
        self.offsets: dict[Queue, int] = {}
        """Queue -> its committed offset; none of them overlap."""

    @property
    def is_covered(self) -> bool:
        """Whether all messages of the partition are in a queue that has a committed offset."""
        return sizes(self.offsets).total() == MOST

    @property
    def lowest(self) -> int | None:
        """Offset below which all messages are processed; None if a part of the partition has no committed offset."""
        return min(self.offsets.values()) if self.is_covered else None

    def note(self, queue: Queue, offset: int | None) -> None:
        """Note the committed offset of a queue, None if it was deleted; it replaces those of overlapping queues."""
        if offset is None:
            self.offsets.pop(queue, None)
            return
        for other in overlaps(queue):
            self.offsets.pop(other, None)
        self.offsets[queue] = offset

    def unread(self, end: int) -> int:
        """Return how many queues may have messages below `end` that are not processed, at least one."""
        return max(sum(offset < end for offset in self.offsets.values()), 1)


def overlaps(queue: Queue) -> Iterator[Queue]:
    """Yield the other queues that have messages in common with a queue, whatever the number of slices."""
    return overlapping(queue, _NUMBERS)
