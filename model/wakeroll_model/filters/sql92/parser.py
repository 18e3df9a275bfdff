"""The parser of conditions: the grammar of RocketMQ's `SelectorParser.jj`, one method per rule.

>>> read("a > 10")
Order(left=Property(name='a'), symbol='>', right=Constant(value=10))
"""

from typing import cast

from wakeroll_model.filters.filter_error import FilterError
from wakeroll_model.filters.sql92 import rules
from wakeroll_model.filters.sql92.conditions import (
    Condition,
    Constant,
    Equal,
    Junction,
    Negative,
    Not,
    Property,
    Search,
    Symbol,
    Test,
)
from wakeroll_model.filters.sql92.lexer import Token, tokens

MAX_NESTING = 100
"""Maximum depth of parentheses and of nested parts.  Java fails at the end of its stack, near 1,000 parentheses; this
parser takes five calls per level, and Python allows 1,000 nested calls."""

_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_COMPARISONS = frozenset({"<", "<=", ">", ">="})
_SEARCHES = frozenset({"CONTAINS", "STARTSWITH", "ENDSWITH"})
_PREDICATES = _COMPARISONS | _SEARCHES | {"BETWEEN", "IN", "NOT"}
_PREFIXES = frozenset({"+", "-", "NOT"})
_LONG_MAX = 2**63 - 1


def read(expression: str) -> Condition:
    """Parse a condition; ignore text after a complete one, as RocketMQ does.

    Raises:
        FilterError: the text is not a condition, its parts cannot be compared, or it is nested deeper than
            `MAX_NESTING`.
    """
    condition = rules.as_boolean(_Parser(expression).disjunction())
    parts: list[Condition] = [condition]
    for _ in range(MAX_NESTING):
        parts = [operand for part in parts for operand in part.operands]
    if parts:
        # Chained comparisons, such as a = b = c, are nested parts too.
        raise _too_deep()
    return condition


class _Parser:
    """A parser of one expression with a lookahead of one token."""

    def __init__(self, expression: str) -> None:
        self._tokens = tokens(expression)
        self._next = next(self._tokens)
        self._open = 0
        """Number of open parentheses."""

    def disjunction(self) -> Condition:
        """Parse operands that are joined by OR."""
        left = self._conjunction()
        if self._next.kind != "OR":
            return left
        operands = [rules.as_boolean(left)]
        while self._accept("OR"):
            operands.append(rules.as_boolean(self._conjunction()))
        return Junction(True, tuple(operands))

    def _conjunction(self) -> Condition:
        left = self._equality()
        if self._next.kind != "AND":
            return left
        operands = [rules.as_boolean(left)]
        while self._accept("AND"):
            operands.append(rules.as_boolean(self._equality()))
        return Junction(False, tuple(operands))

    def _equality(self) -> Condition:
        left = self._comparison()
        while True:
            if self._accept("="):
                left = rules.equal_to(left, self._comparison())
            elif self._accept("<>"):
                left = Not(rules.equal_to(left, self._comparison()))
            elif self._accept("IS"):
                negated = self._accept("NOT")
                self._expect("NULL")
                null = Equal(left, rules.NULL)
                left = Not(null) if negated else null
            else:
                return left

    def _comparison(self) -> Condition:
        left = self._unary()
        while self._next.kind in _PREDICATES:
            negated = self._accept("NOT")
            sign = self._take()
            if sign.kind in _COMPARISONS and not negated:
                left = rules.ordered(left, cast(Symbol, sign.kind), self._unary())
            elif sign.kind in _SEARCHES:
                left = Search(left, cast(Test, sign.kind), self._text(), negated)
            elif sign.kind == "BETWEEN":
                low = self._unary()
                self._expect("AND")
                left = rules.between(left, low, self._unary(), negated)
            elif sign.kind == "IN":
                left = rules.one_of(left, self._texts(), negated)
            else:
                raise _unexpected("CONTAINS, STARTSWITH, ENDSWITH, BETWEEN or IN after NOT", sign)
        return left

    def _unary(self) -> Condition:
        prefixes = []
        while self._next.kind in _PREFIXES:
            prefixes.append(self._take().kind)
            if len(prefixes) > MAX_NESTING:
                raise _too_deep()
        if self._accept("("):
            self._open += 1
            if self._open > MAX_NESTING:
                raise _too_deep()
            part = self.disjunction()
            self._expect(")")
            self._open -= 1
        else:
            part = self._primary()
        for prefix in reversed(prefixes):
            if prefix == "NOT":
                part = Not(rules.as_boolean(part))
            elif prefix == "-":
                part = Negative(part)
        return part

    def _primary(self) -> Condition:
        token = self._take()
        match token.kind:
            case "NAME":
                return Property(token.text)
            case "TEXT":
                return Constant(_unquoted(token))
            case "WHOLE":
                return Constant(_whole(token))
            case "FLOAT":
                return Constant(_float(token))
            case "TRUE" | "FALSE" | "NULL":
                return Constant(_CONSTANTS[token.kind])
        raise _unexpected("a property, a constant or a parenthesis", token)

    def _texts(self) -> frozenset[str]:
        self._expect("(")
        texts = {self._text()}
        while self._accept(","):
            texts.add(self._text())
        self._expect(")")
        return frozenset(texts)

    def _text(self) -> str:
        return _unquoted(self._expect("TEXT"))

    def _accept(self, kind: str) -> bool:
        """Consume the next token if it is of this kind; return whether it was."""
        found = self._next.kind == kind
        if found:
            self._take()
        return found

    def _expect(self, kind: str) -> Token:
        if self._next.kind != kind:
            raise _unexpected("text in quotes" if kind == "TEXT" else kind, self._next)
        return self._take()

    def _take(self) -> Token:
        token, self._next = self._next, next(self._tokens)
        return token


def _unquoted(token: Token) -> str:
    """Return the text between the quotes; two quotes within it stand for one."""
    return token.text[1:-1].replace("''", "'")


def _whole(token: Token) -> int:
    digits = token.text.rstrip("lL")
    if len(digits) > len(str(_LONG_MAX)) or int(digits) > _LONG_MAX:
        raise FilterError(f"Invalid MessageSelector: {token} is greater than {_LONG_MAX}")
    return int(digits)


def _float(token: Token) -> float:
    number = float(token.text)
    if number in (0.0, float("inf")):
        bound = "greater than 1.7976931348623157E308" if number else "less than 4.9E-324"
        raise FilterError(f"Invalid MessageSelector: {token} is {bound}; for zero write 0")
    return number


def _unexpected(wanted: str, found: Token) -> FilterError:
    return FilterError(f"Invalid MessageSelector: {wanted} expected at character {found.at}, not {found}")


def _too_deep() -> FilterError:
    return FilterError(f"Invalid MessageSelector: nested deeper than {MAX_NESTING} levels")
