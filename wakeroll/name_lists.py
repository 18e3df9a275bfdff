"""Lists of names: shortened for messages, and as patterns."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

SHOWN = 5
"""Number of names that a list shows."""


def names_of(things: Iterable[object]) -> str:
    """Return the names of the first few things, and how many others there are.

    >>> names_of(f"orders-{number}" for number in range(7))
    'orders-0, orders-1, orders-2, orders-3, orders-4 and 2 others'
    """
    names = [str(thing) for thing in things]
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} other{'s' * (more > 1)}" if more > 0 else "")


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of some patterns, in which ``*`` is any text and ``?`` any character.

    >>> matches_any("orders-7", ["billing", "orders-*"]), matches_any("orders", [])
    (True, False)
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)
