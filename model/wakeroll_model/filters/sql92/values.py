"""Values and their comparison: Java's Boolean, Integer, Long, Double and String, mixed as in `ComparisonExpression`.

An integer constant is a Java Integer if it fits into 32 bits, else a Long.  Constants have no sign, and a change of
the sign keeps the type.  So -2147483648 is a Long, because 2147483648 does not fit into 32 bits.
"""

import math
import re
from functools import lru_cache

Value = bool | int | float | str | None
"""Value of a part of a condition; None is SQL's null."""

_INTEGER_LIMIT = 2**31
_LONG_LIMIT = 2**63

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity)|([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?",
)
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
# Characters that String.trim removes; Double.valueOf trims, Integer.valueOf does not.
_BLANKS = "".join(map(chr, range(0x21)))


class IncomparableError(ValueError):
    """Two values that Java cannot compare: Java throws, and the message does not match."""


def equal(left: Value, right: Value) -> bool:
    """Return whether two values that are not null are equal; text is converted to the type of the other side.

    Raises:
        IncomparableError: text that is not such a number, or a boolean on the left of text (a ClassCastException in
            Java).
    """
    if isinstance(left, bool):
        if isinstance(right, str):
            raise IncomparableError(f"{left} cannot be compared with text; write the property first")
        return left is right
    if isinstance(right, bool):
        return isinstance(left, str) and (left.lower() == "true") is right
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    return order(left, right) == 0


def order(left: Value, right: Value) -> int:
    """Return a negative number, 0 or a positive one if left is less than, equal to or greater than right.

    Text is converted to the type of the other side, and to a double if both sides are text.

    Raises:
        IncomparableError: text that is not such a number.
    """
    if isinstance(left, str):
        left = whole(left, right) if isinstance(right, int) else double(left)
    if isinstance(right, str):
        right = whole(right, left) if isinstance(left, int) else double(right)
    assert left is not None, "null is not compared"
    assert right is not None, "null is not compared"
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    a, b = _total(float(left)), _total(float(right))
    return (a > b) - (a < b)


def whole(text: str, like: int) -> int:
    """Convert text as `Integer.valueOf` does, or as `Long.valueOf` does if `like` is a Long.

    Blanks, a point or an exponent are errors; a plus sign and digits of other scripts up to U+FFFF are valid.

    Raises:
        IncomparableError: it is not a whole number, or too large for the type; so "3000000000" is not greater than 10.
    """
    limit = _INTEGER_LIMIT if -_INTEGER_LIMIT < like < _INTEGER_LIMIT else _LONG_LIMIT
    number = _whole(text)
    if number is not None and -limit <= number < limit:
        return number
    raise IncomparableError(f"{text[:40]!r} is no whole number from {-limit} to {limit - 1}")


def double(text: str) -> float:
    """Convert text as `Double.valueOf` does, with outer blanks, NaN, Infinity, hexadecimals, and an f or d at the end.

    Raises:
        IncomparableError: the text is not a number.
    """
    number = _double(text)
    if number is None:
        raise IncomparableError(f"{text[:40]!r} is no number")
    return number


# Many filters compare a property of a message with many constants: the cache converts a long text once.
@lru_cache(maxsize=128)
def _whole(text: str) -> int | None:
    # 4,000 digits are far beyond any limit, and Python rejects texts with many more.
    if len(text) < 4_000 and _WHOLE.fullmatch(text) and max(text) <= "\uffff":
        return int(text)
    return None


@lru_cache(maxsize=128)
def _double(text: str) -> float | None:
    trimmed = text.strip(_BLANKS)
    if found := _DECIMAL.fullmatch(trimmed):
        return float(found[1] or trimmed)
    if found := _HEXADECIMAL.fullmatch(trimmed):
        try:
            return float.fromhex(found[1])
        except OverflowError:
            return -math.inf if trimmed.startswith("-") else math.inf
    return None


def _total(number: float) -> tuple[bool, float, float]:
    """Return a sort key in the order of `Double.compareTo`: -0.0 below 0.0; NaN equal to itself and the highest."""
    if math.isnan(number):
        return True, 0.0, 0.0
    return False, number, math.copysign(1.0, number)
