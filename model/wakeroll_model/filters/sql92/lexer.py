"""The tokens of a condition, as in RocketMQ's `SelectorParser.jj`: keywords, names, constants and signs."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from wakeroll_model.filters.filter_error import FilterError

KEYWORDS = frozenset(
    {
        "AND", "BETWEEN", "CONTAINS", "ENDSWITH", "FALSE", "IN", "IS", "NOT", "NULL", "OR", "STARTSWITH", "TRUE",
    }
)  # fmt: skip
"""Keywords in capitals; in an expression their case does not matter."""

# The longest token wins, as in JavaCC, so alternatives that extend others come first.  A line comment needs a line end;
# without it, `--` is two minus signs.
_TOKEN = re.compile(
    r"""
    (?P<SKIPPED>    [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*(?s:.*?)\*/ )
  | (?P<FLOAT>      [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
  | (?P<WHOLE>      0 | [1-9][0-9]*[lL]? )
  | (?P<TEXT>       '[^']*(?:''[^']*)*' )
  | (?P<NAME>       [A-Za-z_$][A-Za-z0-9_$]* )
  | (?P<SIGN>       <> | <= | >= | [=<>(),+-] )
    """,
    re.VERBOSE,
)


class Token(NamedTuple):
    """One token."""

    kind: str
    """Keyword, sign, or one of FLOAT, WHOLE, TEXT, NAME, END."""
    text: str
    """Text in the expression."""
    at: int
    """Position of its first character, counted from 1."""

    def __str__(self) -> str:
        """Return the token for an error message."""
        return "the end" if self.kind == "END" else repr(self.text[:40])


def tokens(expression: str) -> Iterator[Token]:
    """Yield the tokens of an expression, then END forever.

    Tokens are read on demand, because text after a complete condition may be invalid.

    Raises:
        FilterError: no token begins with the next character.
    """
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise FilterError(f"Invalid MessageSelector: no word begins with {expression[at]!r} at character {at + 1}")
        kind, text = str(found.lastgroup), found[0]
        if kind != "SKIPPED":
            keyword = text.upper()
            yield Token(keyword if kind == "SIGN" or keyword in KEYWORDS else kind, text, at + 1)
        at = found.end()
    while True:
        yield Token("END", "", at + 1)
