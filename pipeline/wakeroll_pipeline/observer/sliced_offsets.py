"""Committed offsets of slices, for the mirror: Kafka's groups have one offset per partition, the lowest of its slices.

A mirror that starts continues where it stopped, so it does not read unchanged offsets again. They are in the text that
Kafka stores with the offset of the partition: ``wakeroll 0/2=150 1/2=170``.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from wakeroll.kafka_groups import MIRRORED, StoredOffset
from wakeroll_model.partition_progress import PartitionProgress, overlaps
from wakeroll_model.queue import Queue

_PART = re.compile(r"([0-9]{1,2})/(2|4|8|16|32|64)=([0-9]{1,19})")


class _Partition(PartitionProgress):
    """The committed offsets of one partition of a group, and the offset that Kafka has."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[Queue] = set()
        """Queues whose offsets were deleted before the offsets in Kafka's text are known."""
        self.is_known = False
        """Whether the text is known."""
        self.written: int | None = None
        """Offset of the partition that a mirror has written to Kafka's group; None if there is none."""

    @property
    def writable(self) -> int | None:
        """Offset that Kafka's group may have: it is not ahead of any slice; None if that is not known."""
        if self.is_covered or self.written is None:
            return self.lowest
        # Slices without an offset begin by a policy, which only a client resolves.
        return min([self.written, *self.offsets.values()])

    def note(self, queue: Queue, offset: int | None) -> None:
        """Note the newest committed offset of a queue, None if it was deleted."""
        super().note(queue, offset)
        if not self.is_known:
            self.gone |= {queue} if offset is None else set(overlaps(queue))

    def learn(self, stored: StoredOffset | None, whole: Queue) -> None:
        """Add the offsets of Kafka's group; decisions that were read are newer."""
        self.is_known = True
        if stored is None or stored.text.split(" ")[0] != MIRRORED:
            return
        self.written = stored.offset
        for queue, offset in _slices_in(stored.text, whole):
            if queue not in self.gone and not any(other in self.offsets for other in (queue, *overlaps(queue))):
                self.offsets[queue] = offset


class SlicedOffsets:
    """The committed offsets of all partitions that groups cut into slices, or have cut."""

    def __init__(self) -> None:
        self._partitions: dict[tuple[str, Queue], _Partition] = {}

    def __contains__(self, place: tuple[str, Queue]) -> bool:
        """Return whether a partition of a group is or was cut, so that all its offsets must be noted."""
        return place in self._partitions

    def note(self, group_id: str, queue: Queue, offset: int | None, before: int | None = None) -> None:
        """Note the committed offset of a slice, or of a whole partition that was cut.

        Args:
            group_id: the group.
            queue: the slice or partition.
            offset: the offset; None: it is deleted.
            before: offset of the whole partition that was read before the first offset of its slices, if any.
        """
        place = group_id, queue.whole
        partition = self._partitions.get(place)
        if partition is None:
            partition = self._partitions[place] = _Partition()
            if before is not None:
                partition.note(queue.whole, before)
        partition.note(queue, offset)

    def is_unknown(self, group_id: str, wholes: Iterable[Queue]) -> bool:
        """Return whether the offsets of Kafka's group for these partitions must be queried."""
        return any(
            partition is not None and not partition.is_known
            for partition in (self._partitions.get((group_id, whole)) for whole in wholes)
        )

    def learn(self, group_id: str, wholes: Iterable[Queue], stored: Mapping[Queue, StoredOffset]) -> None:
        """Note the offsets of Kafka's group for these partitions."""
        for whole in wholes:
            partition = self._partitions.get((group_id, whole))
            if partition is not None and not partition.is_known:
                partition.learn(stored.get(whole), whole)

    def lowest(self, group_id: str, whole: Queue) -> StoredOffset | None:
        """Return the offset that Kafka's group must have for a partition; None while a slice has no offset."""
        partition = self._partitions[group_id, whole]
        offset = partition.writable
        if offset is None:
            return None
        return StoredOffset(offset, " ".join([MIRRORED, *_text_of(partition.offsets)]))

    def wrote(self, group_id: str, whole: Queue, offset: int) -> None:
        """Note the offset that Kafka's group has now; forget a partition that is not cut any more."""
        partition = self._partitions.get((group_id, whole))
        if partition is not None:
            partition.written = offset
            if partition.offsets.keys() == {whole}:
                del self._partitions[group_id, whole]


def _text_of(offsets: Mapping[Queue, int]) -> Iterator[str]:
    return (f"{queue.slice_text}={offset}" for queue, offset in sorted(offsets.items()) if queue.slices > 1)


def _slices_in(text: str, whole: Queue) -> Iterator[tuple[Queue, int]]:
    """Yield the slices in the text of an offset; a text that another program has changed has none."""
    for part in text.split(" ")[1:]:
        found = _PART.fullmatch(part)
        if found is None:
            continue
        number, slices, offset = map(int, found.groups())
        if number < slices:
            yield Queue(whole.topic, whole.broker, whole.queue_id, slices, number), offset
