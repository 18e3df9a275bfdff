"""The words of a condition: keywords, names, constants and signs.  The tokens of RocketMQ's `SelectorParser.jj`."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from model.filters.filter_error import FilterError

KEYWORDS = frozenset(
    {
        "AND", "BETWEEN", "CONTAINS", "ENDSWITH", "FALSE", "IN", "IS", "NOT", "NULL", "OR", "STARTSWITH", "TRUE",
    }
)  # fmt: skip
"""In capitals here; in an expression they may be written as one likes."""

# The longest token wins, as in JavaCC: what may begin like another one stands before it.  A comment up to the end of
# the line needs that end; without it the two signs are minuses.
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
    """One word."""

    kind: str
    """A keyword, a sign, or one of FLOAT, WHOLE, TEXT, NAME, END."""
    text: str
    """As it stands in the expression."""
    at: int
    """Its first character, counted from 1."""

    def __str__(self) -> str:
        """Return what an error shows of it."""
        return "the end" if self.kind == "END" else repr(self.text[:40])


def tokens(expression: str) -> Iterator[Token]:
    """Yield the words of an expression, and END for ever after.

    One at a time, for what is never asked for may be anything.

    Raises:
        FilterError: the next word cannot begin like this.
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
