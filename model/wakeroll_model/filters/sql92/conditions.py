"""The parts of a condition, and their evaluation for a message: true, false, or null if a property is missing.

Each part is one class of `org.apache.rocketmq.filter.expression`.  The order of evaluation matters, and so do the parts
that are not evaluated: if a part raises, the whole condition does not match, even next to an OR that is true.
"""

from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import ClassVar, Literal, Protocol

from msgspec import Struct

from wakeroll_model.filters.sql92.values import IncomparableError, Value, equal, order

Properties = Mapping[str, str]
Symbol = Literal["<", "<=", ">", ">="]
Test = Literal["CONTAINS", "STARTSWITH", "ENDSWITH"]

_ORDERS: dict[Symbol, Callable[[int, int], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_TESTS: dict[Test, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Condition(Protocol):
    """A part of a condition, or a whole condition."""

    @property
    def operands(self) -> tuple["Condition", ...]:
        """Operands of this part."""
        ...

    def evaluate(self, properties: Properties) -> Value:
        """Return the value for a message.

        Raises:
            IncomparableError: two values cannot be compared.
        """
        ...


def holds(condition: Condition, properties: Properties) -> bool:
    """Return whether a message with these properties matches: the result is neither false, nor null, nor an error."""
    try:
        return condition.evaluate(properties) is True
    except IncomparableError:
        return False


class Constant(Struct, frozen=True):
    """A constant: TRUE, FALSE, NULL, a number or text."""

    operands: ClassVar[tuple[Condition, ...]] = ()
    value: Value

    def evaluate(self, _properties: Properties) -> Value:
        """Return the value."""
        return self.value


class Property(Struct, frozen=True):
    """A property of the message, by its exact name."""

    operands: ClassVar[tuple[Condition, ...]] = ()
    name: str

    def evaluate(self, properties: Properties) -> Value:
        """Return the text of the property; None if it is missing."""
        return properties.get(self.name)


class _Unary(Struct, frozen=True):
    """A part with one operand."""

    operand: Condition

    @property
    def operands(self) -> tuple[Condition, ...]:
        """The operand."""
        return (self.operand,)


class Negative(_Unary, frozen=True):
    """A number with its sign changed; text has no sign, so ``-a`` is null for every property."""

    def evaluate(self, properties: Properties) -> Value:
        """Return the negated number, or null."""
        value = self.operand.evaluate(properties)
        return None if value is None or isinstance(value, bool | str) else -value


class Cast(_Unary, frozen=True):
    """A property in the place of a boolean; every text counts as false."""

    operand: Property

    def evaluate(self, properties: Properties) -> Value:
        """Return false, or null if the property is missing."""
        return None if self.operand.evaluate(properties) is None else False


class Not(_Unary, frozen=True):
    """The negation of a boolean; null stays null."""

    def evaluate(self, properties: Properties) -> Value:
        """Return the negation."""
        value = self.operand.evaluate(properties)
        return None if value is None else not value


class Junction(Struct, frozen=True):
    """A chain of ANDs, which ends with the first false, or of ORs, which ends with the first true; not with null."""

    decisive: bool
    operands: tuple[Condition, ...]

    def evaluate(self, properties: Properties) -> Value:
        """Evaluate from the left, up to the operand that ends the chain."""
        unknown = False
        for operand in self.operands:
            value = operand.evaluate(properties)
            if value is self.decisive:
                return value
            unknown = unknown or value is None
        return None if unknown else not self.decisive


class Equal(Struct, frozen=True):
    """``=`` and IS NULL: true if both sides are null, false if only the right one is, null if only the left one is."""

    left: Condition
    right: Condition

    @property
    def operands(self) -> tuple[Condition, ...]:
        """The two sides."""
        return self.left, self.right

    def evaluate(self, properties: Properties) -> Value:
        """Evaluate both sides, then compare."""
        left = self.left.evaluate(properties)
        right = self.right.evaluate(properties)
        if left is None:
            return True if right is None else None
        return right is not None and equal(left, right)


class Order(Struct, frozen=True):
    """A comparison of two numbers; null if either is missing."""

    left: Condition
    symbol: Symbol
    right: Condition

    @property
    def operands(self) -> tuple[Condition, ...]:
        """The two sides."""
        return self.left, self.right

    def evaluate(self, properties: Properties) -> Value:
        """Evaluate both sides, the right one only if there is a left one, then compare."""
        left = self.left.evaluate(properties)
        if left is None:
            return None
        right = self.right.evaluate(properties)
        if right is None:
            return None
        return _ORDERS[self.symbol](order(left, right), 0)


class Between(Struct, frozen=True):
    """BETWEEN and NOT BETWEEN, which are ``>= low AND <= high`` and ``< low OR > high``.

    Java evaluates the value once per bound. One evaluation has the same result, and the cost does not double with each
    level of nesting.
    """

    operand: Condition
    low: Condition
    high: Condition
    negated: bool

    @property
    def operands(self) -> tuple[Condition, ...]:
        """The value and its bounds."""
        return self.operand, self.low, self.high

    def evaluate(self, properties: Properties) -> Value:
        """Compare with the low bound, then with the high bound unless the first comparison decides."""
        value = self.operand.evaluate(properties)
        if value is None:
            return None
        low = self.low.evaluate(properties)
        if low is not None and order(value, low) < 0:
            return self.negated
        high = self.high.evaluate(properties)
        if high is not None and order(value, high) > 0:
            return self.negated
        return None if low is None or high is None else not self.negated


class OneOf(_Unary, frozen=True):
    """IN and NOT IN; both are null if the property is missing."""

    operand: Property
    texts: frozenset[str]
    negated: bool

    def evaluate(self, properties: Properties) -> Value:
        """Return the result for the property; null if it is missing."""
        value = self.operand.evaluate(properties)
        return None if value is None else (value in self.texts) is not self.negated


class Search(_Unary, frozen=True):
    """CONTAINS, STARTSWITH, ENDSWITH and their NOT forms: false if the text or the searched text is missing."""

    test: Test
    text: str
    negated: bool

    def evaluate(self, properties: Properties) -> Value:
        """Return the result of the search; false if the text or the searched text is missing."""
        if not self.text:
            return False
        value = self.operand.evaluate(properties)
        return isinstance(value, str) and _TESTS[self.test](value, self.text) is not self.negated
