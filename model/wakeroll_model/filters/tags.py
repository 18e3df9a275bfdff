"""Tags of messages: their codes, and the tags in an expression.

>>> tags_code("Aa"), tags_code("BB")
(2112, 2112)
>>> sorted(tags_of(" a ||b|| "))
['a', 'b']
"""

import struct

from wakeroll_model.filters.filter_error import FilterError

ALL = "*"
"""Expression that matches every message; it must stand alone, without blanks."""

# Characters that Java's String.trim removes: up to U+0020.  An ideographic or no-break space is a part of the tag.
_BLANKS = "".join(map(chr, range(0x21)))


def tags_code(tags: str | None) -> int:
    """Return the code of a message's tags, as `MessageExtBrokerInner.tagsString2tagsCode` does.

    It is Java's `String.hashCode` of the whole text: over UTF-16 code units, in 32 bits with a sign.
    Different tags may have the same code.  No tags, or empty ones: 0.
    """
    if not tags:
        return 0
    code = 0
    for (unit,) in struct.iter_unpack("<H", tags.encode("utf-16-le", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFF_FFFF
    return low_32_bits(code)


def low_32_bits(code: int) -> int:
    """Return Java's `(int) code`; only these bits of a code are compared."""
    return ((code & 0xFFFF_FFFF) ^ 0x8000_0000) - 0x8000_0000


def tags_of(expression: str) -> frozenset[str]:
    """Return the tags in an expression other than `ALL`; if the result is empty, no message matches.

    As in `FilterAPI.buildSubscriptionData`, the parts between ``||`` are trimmed, and empty parts are ignored.

    Raises:
        FilterError: the expression consists of separators alone.
    """
    parts = expression.split("||")
    if not any(parts):
        raise FilterError(
            f"subString split error: {expression[:40]!r} has separators and no tag; use {ALL} for all messages"
        )
    return frozenset(tag for part in parts if (tag := part.strip(_BLANKS)))
