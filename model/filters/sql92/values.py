"""Values and how they compare: Java's Boolean, Integer, Long, Double and String as `ComparisonExpression` mixes them.

A whole number is an Integer if it fits into 32 bits, else a Long.  No number here is a Long that would have fitted:
constants have no sign, and what changes the sign keeps the type, so -2147483648 is a Long and counts as too large.
"""

import math
import re
from functools import lru_cache

Value = bool | int | float | str | None
"""What a part of a condition can be; None is SQL's null."""

_INTEGER_LIMIT = 2**31
_LONG_LIMIT = 2**63

_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(
    r"[+-]?(?:NaN|Infinity)|([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?",
)
_HEXADECIMAL = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
# String.trim, which Double.valueOf does and Integer.valueOf does not.
_BLANKS = "".join(map(chr, range(0x21)))


class IncomparableError(ValueError):
    """Two values that Java cannot compare: it throws, and the message does not match."""


def equal(left: Value, right: Value) -> bool:
    """Whether two values, neither of them null, are the same; text is read as what stands on the other side.

    Raises:
        IncomparableError: text that is no such number, or a boolean on the left of text (a ClassCastException in Java).
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
    """Return below, at or above 0 as left is less than, equal to or greater than right; both texts are doubles then.

    Raises:
        IncomparableError: text that is no such number.
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
    """Read text as `Integer.valueOf` does, or `Long.valueOf` where `like` is a Long.

    No blanks, point or exponent; a plus sign and the digits of other scripts are fine, those beyond U+FFFF are not.

    Raises:
        IncomparableError: it is no whole number, or too large: "3000000000" is not greater than 10.
    """
    limit = _INTEGER_LIMIT if -_INTEGER_LIMIT < like < _INTEGER_LIMIT else _LONG_LIMIT
    number = _whole(text)
    if number is not None and -limit <= number < limit:
        return number
    raise IncomparableError(f"{text[:40]!r} is no whole number from {-limit} to {limit - 1}")


def double(text: str) -> float:
    """Read text as `Double.valueOf` does: blanks around, NaN, Infinity, hexadecimals, an f or d at the end.

    Raises:
        IncomparableError: it is no number.
    """
    number = _double(text)
    if number is None:
        raise IncomparableError(f"{text[:40]!r} is no number")
    return number


# A message's property is compared with many constants, by many filters: a long text is read once.
@lru_cache(maxsize=128)
def _whole(text: str) -> int | None:
    # 4,000 digits are far beyond any limit, and Python refuses to read many more.
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
    """Return what sorts as `Double.compareTo` does: -0.0 below 0.0, and NaN equal to itself above all others."""
    if math.isnan(number):
        return True, 0.0, 0.0
    return False, number, math.copysign(1.0, number)
