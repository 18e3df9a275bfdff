"""Type checks of operands, which RocketMQ makes when it parses a condition, not for each message.

They follow `ComparisonExpression.create*` and `SelectorParser.asBooleanExpression`.
"""

from wakeroll_model.filters.filter_error import FilterError
from wakeroll_model.filters.sql92.conditions import (
    Between,
    Cast,
    Condition,
    Constant,
    Equal,
    Negative,
    OneOf,
    Order,
    Property,
    Symbol,
)
from wakeroll_model.filters.sql92.values import order

NULL = Constant(None)


def as_boolean(part: Condition) -> Condition:
    """Return a part whose value is true, false or null; a property is wrapped in a cast.

    Raises:
        FilterError: the part is a constant of another type, or a calculation.
    """
    if isinstance(part, Property):
        return Cast(part)
    if not _is_boolean(part):
        raise FilterError(f"Invalid MessageSelector: {_name(part)} is neither true nor false")
    return part


def equal_to(left: Condition, right: Condition) -> Equal:
    """Return ``left = right``; NULL needs IS, and TRUE or FALSE cannot stand before a constant of another type.

    Raises:
        FilterError: one side is NULL, or TRUE or FALSE stands before a constant of another type.
    """
    if NULL in (left, right):
        raise FilterError("Invalid MessageSelector: 'NULL' cannot be compared; write IS NULL or IS NOT NULL")
    if isinstance(left, Constant) and isinstance(right, Constant) and _is_boolean(left) and not _is_boolean(right):
        raise FilterError(f"Invalid MessageSelector: {_name(left)} cannot be compared with {_name(right)}")
    return Equal(left, right)


def ordered(left: Condition, symbol: Symbol, right: Condition) -> Order:
    """Return an ordered comparison; reject conditions, and constants that are not numbers."""
    _check_order(left, right)
    return Order(left, symbol, right)


def between(part: Condition, low: Condition, high: Condition, negated: bool) -> Between:
    """Return BETWEEN or NOT BETWEEN; reject conditions, and constants that are not numbers.

    The bounds of BETWEEN must be in order if both are constants.  A negative number is not a constant, but a sign and a
    constant.

    Raises:
        FilterError: a part cannot be a number, or the bounds of BETWEEN are not in order.
    """
    _check_order(part, low, high)
    if not negated and isinstance(low, Constant) and isinstance(high, Constant) and order(high.value, low.value) < 0:
        raise FilterError(
            f"Invalid MessageSelector: Illegal values of between, {_name(low)} must not be greater than {_name(high)}"
        )
    return Between(part, low, high, negated)


def one_of(part: Condition, texts: frozenset[str], negated: bool) -> OneOf:
    """Return IN or NOT IN of a property.

    Raises:
        FilterError: the operand is not a property.
    """
    if not isinstance(part, Property):
        raise FilterError(f"Invalid MessageSelector: IN needs a property before it, not {_name(part)}")
    return OneOf(part, texts, negated)


def _check_order(*parts: Condition) -> None:
    for part in parts:
        if _is_boolean(part) or (isinstance(part, Constant) and isinstance(part.value, str)):
            raise FilterError(f"Invalid MessageSelector: {_name(part)} cannot be compared as a number")


def _is_boolean(part: Condition) -> bool:
    if isinstance(part, Constant):
        return part.value is None or isinstance(part.value, bool)
    return not isinstance(part, Property | Negative)


def _name(part: Condition) -> str:
    """Return the name of a part for an error."""
    match part:
        case Property(name=name):
            return f"the property {name[:40]}"
        case Negative():
            return "a number with a sign"
        case Constant(value=None):
            return "NULL"
        case Constant(value=str(text)):
            return repr(text[:40])
        case Constant(value=value):
            return str(value).upper()
    return "a condition"
