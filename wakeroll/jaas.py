"""The login line of Kafka's Java clients, `sasl.jaas.config`: how to write it for a user, and how to read it.

>>> print(jaas_of("PLAIN", "billing", "secret"))
org.apache.kafka.common.security.plain.PlainLoginModule required username="billing" password="secret";
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from wakeroll.errors import InvalidUsage

_PACKAGE = "org.apache.kafka.common.security"
MODULES: Mapping[str, str] = {
    "PLAIN": f"{_PACKAGE}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_PACKAGE}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_PACKAGE}.scram.ScramLoginModule",
}
"""SASL mechanism -> the login module of Kafka's Java clients for it. Java clients and librdkafka support these
mechanisms."""

# The tokens of java.io.StreamTokenizer, by which Kafka reads the line.
_TOKEN = re.compile(
    r"""\s*(?:"(?P<double>(?:[^"\\\r\n]|\\.)*)"|'(?P<single>(?:[^'\\\r\n]|\\.)*)'|(?P<word>[\w$.-]+|[=;]))"""
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)")
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_EXPECTED = 'it must be: <login module> required username="..." password="...";'


class Login(NamedTuple):
    """A user's login."""

    module: str
    """Class of the login module."""
    username: str
    password: str

    def __repr__(self) -> str:
        """Return all fields except the password."""
        return f"Login({self.module!r}, {self.username!r})"


def jaas_of(mechanism: str, username: str, password: str) -> str:
    """Return the line for a mechanism of `MODULES` and a user."""
    return f"{MODULES[mechanism]} required username={_quoted(username)} password={_quoted(password)};"


def read_jaas(line: str) -> Login:
    r"""Read the line of a user.

    >>> read_jaas(jaas_of("PLAIN", "billing", 'a "b" \\c')).password
    'a "b" \\c'

    Raises:
        InvalidUsage: the line has another form, or options other than username and password. The message contains no
            value of the line.
    """
    tokens = _tokens(line)
    if len(tokens) < 3 or tokens[1].lower() not in _FLAGS or tokens[-1] != ";":
        raise InvalidUsage(f"sasl.jaas.config has another form; {_EXPECTED}")
    options, rest = {}, tokens[2:-1]
    while rest:
        if len(rest) < 3 or rest[1] != "=":
            raise InvalidUsage(f"sasl.jaas.config has another form; {_EXPECTED}")
        options[rest[0]] = rest[2]
        rest = rest[3:]
    if options.keys() != {"username", "password"}:
        named = ", ".join(sorted(options)) or "none"
        raise InvalidUsage(f"sasl.jaas.config has these options: {named}; expected: username and password")
    return Login(tokens[0], options["username"], options["password"])


def _tokens(line: str) -> list[str]:
    tokens, place, line = [], 0, line.strip()
    while place < len(line):
        found = _TOKEN.match(line, place)
        if found is None:
            raise InvalidUsage(f"sasl.jaas.config cannot be read at character {place + 1}; {_EXPECTED}")
        text = found["double"] if found["double"] is not None else found["single"]
        tokens.append(found["word"] if text is None else _ESCAPE.sub(_unescaped, text))
        place = found.end()
    return tokens


def _unescaped(escape: re.Match[str]) -> str:
    letter = escape[1]
    return chr(int(letter, 8)) if letter.isdigit() and letter < "8" else _ESCAPES.get(letter, letter)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    # A quoted text ends at a line break.
    return '"' + "".join(f"\\{ord(letter):03o}" if letter < " " else letter for letter in escaped) + '"'
