"""Sets of small numbers as the bits of an int."""

from collections.abc import Iterator


def first(numbers: int) -> int:
    """Return the smallest number of a non-empty set.

    >>> first(0b1100)
    2
    """
    return (numbers & -numbers).bit_length() - 1


def each(numbers: int) -> Iterator[int]:
    """Yield the numbers of a set, smallest first.

    >>> list(each(0b1101))
    [0, 2, 3]
    """
    while numbers:
        lowest = numbers & -numbers
        yield lowest.bit_length() - 1
        numbers ^= lowest
