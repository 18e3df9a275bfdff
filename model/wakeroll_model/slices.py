"""Slices: a partition is cut by a hash of the key, so that a group may have more members than partitions.

Slice i of n contains slices 2i and 2i + 1 of 2n: two slices of a partition either contain one another, or have no
message in common.

>>> slice_of(b"customer-17", 8), slice_of(b"customer-17", 16)
(7, 14)
"""

from binascii import crc32
from collections import Counter
from collections.abc import Iterable, Iterator

from wakeroll_model.queue import Queue

MOST = 64
"""Largest number of slices of a partition."""
GOLDEN_RATIO = 2_654_435_769
"""2**32 divided by the golden ratio: as a factor, it spreads the bits of the checksum, of which the highest are
used."""


def slice_of(key: bytes, slices: int) -> int:
    """Return the slice that has the messages with a key, of this number of slices (a power of two, at most `MOST`).

    The hash is independent of murmur2, by which Kafka's producers choose the partition. Otherwise the keys of one
    partition would be in only a few of its slices.
    """
    return (crc32(key) * GOLDEN_RATIO % 2**32 * slices) >> 32


def cut(queue: Queue, number: int) -> list[Queue]:
    """Return the slices that a queue contains, of `number` slices of its partition, at least the queue's."""
    times = number // queue.slices
    return [
        Queue(queue.topic, queue.broker, queue.queue_id, number, queue.slice * times + each) for each in range(times)
    ]


def container(queue: Queue, number: int) -> Queue:
    """Return the slice that contains a queue, of `number` slices of its partition, at most the queue's."""
    return Queue(queue.topic, queue.broker, queue.queue_id, number, queue.slice // (queue.slices // number))


def overlapping(queue: Queue, numbers: Iterable[int]) -> Iterator[Queue]:
    """Yield the other queues that have messages in common with a queue, for these numbers of slices."""
    for number in numbers:
        if number > queue.slices:
            yield from cut(queue, number)
        elif number < queue.slices:
            yield container(queue, number)


def sizes(queues: Iterable[Queue]) -> Counter[Queue]:
    """Return how much of each partition these queues are, which do not overlap: a whole one counts `MOST`."""
    found = Counter[Queue]()
    for queue in queues:
        found[queue.whole] += MOST // queue.slices
    return found


def key_of_offset(offset: int) -> bytes:
    """Return the key of a message without a key: its offset as 8 bytes, the highest first."""
    return offset.to_bytes(8, "big")
