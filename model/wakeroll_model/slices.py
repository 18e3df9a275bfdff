"""Slices: a partition is cut by a hash of the key, so that a group may have more members than partitions.

Slice i of n contains slices 2i and 2i + 1 of 2n: two slices of a partition either contain one another, or have no
message in common.

>>> slice_of(b"customer-17", 8), slice_of(b"customer-17", 16)
(7, 14)
"""

from zlib import crc32

MOST = 64
"""Largest number of slices of a partition."""
_GOLDEN_RATIO = 2_654_435_769
"""2**32 divided by the golden ratio: it spreads the bits of the checksum, of which the highest count."""


def slice_of(key: bytes, slices: int) -> int:
    """Return the slice that has the messages with a key, of so many slices (a power of two, at most `MOST`).

    The hash is independent of murmur2, by which Kafka's producers choose the partition: else the keys of one partition
    would be in few of its slices.
    """
    return (crc32(key) * _GOLDEN_RATIO % 2**32 * slices) >> 32


def key_of_offset(offset: int) -> bytes:
    """Return the key that counts for a message without a key: its offset, 8 bytes, the highest first."""
    return offset.to_bytes(8, "big")
