"""The headers of a message: its tag and its properties, which the filters of subscriptions match."""

import math
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import msgspec
from confluent_kafka import Message

from wakeroll.errors import InvalidUsage
from wakeroll.expectations import problem_of
from wakeroll_model.events import Arrival
from wakeroll_model.filters import ParsedSubscription, matches, tags_code
from wakeroll_model.filters.matching import TAGS_PROPERTY

TAGS_HEADER = TAGS_PROPERTY
"""Name of the header with the tag; RocketMQ uses the same name for the tag among its properties."""
WRITER_HEADER = "writer"
"""Header of a published decision: name of the process that published it, like ``b@host:4321``."""

_DECLARED = {field.name: field.type for field in msgspec.structs.fields(Arrival)}


Property = str | int | float | bool
"""Value of a property; its header is text in Java's format, and a condition converts the text back."""
Headers = Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]
"""Names and values of headers; a name may occur several times."""

_LONG = 2**63


def headers_of(tags: str, properties: Mapping[str, Property], others: Headers = ()) -> list[tuple[str, bytes | None]]:
    """Return a message's headers: the tag, unless it is empty, then the properties, then other headers.

    Raises:
        InvalidUsage: a property is neither text nor a number nor a flag, is too long, or exceeds the bounds of an
            arrival; or another header is not bytes, or has the name of the tag or of a property.
    """
    return [*_described_headers(tags, properties), *_other_headers(others, properties)]


def described(headers: Iterable[tuple[str, bytes | None]]) -> tuple[str | None, dict[str, str] | None]:
    """Return tag and properties of a message for an arrival, each None if it exceeds the bounds of an arrival.

    A header that is not UTF-8 is not a property. An arrival without tag or properties wakes all pulls of the queue.
    """
    texts = texts_of(headers)
    tags = texts.pop(TAGS_HEADER, "")
    # All properties or none: a condition on some of them would be evaluated wrongly.
    properties = {name: text for name, text in texts.items() if text is not None}
    return tags if fits("tags", tags) else None, properties if fits("properties", properties) else None


def _other_headers(others: Headers, properties: Mapping[str, Property]) -> list[tuple[str, bytes | None]]:
    if isinstance(others, str | bytes) or not isinstance(others, Iterable):
        raise InvalidUsage(f"headers is {reprlib.repr(others)}; it must map names to bytes, or be pairs of them")
    found = list(others.items() if isinstance(others, Mapping) else others)
    for one in found:
        if not (isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)):
            raise InvalidUsage(f"headers has {reprlib.repr(one)}; it must map names to bytes, or be pairs of them")
        name, value = one
        if not isinstance(value, bytes | None):
            raise InvalidUsage(f"header {name!r:.80} is {reprlib.repr(value)}; it must be bytes; text is a property")
        if not name.isprintable() or name in ("", TAGS_HEADER) or name in properties:
            raise InvalidUsage(f"a header is named {name!r:.80}; it must be printable, and no property's or tag's name")
    return found


def _text(name: str, value: object) -> object:
    """Return a property as text, in the format of Java's `String.valueOf`; return any other value unchanged.

    Raises:
        InvalidUsage: it is a whole number of more than 64 bits, which no condition can compare.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if not -_LONG <= value < _LONG:
            raise InvalidUsage(f"property {name!r:.80} is {reprlib.repr(value)}; a whole number must have 64 bits")
        return str(int(value))
    if isinstance(value, float):
        if math.isfinite(value):
            return repr(float(value))
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def texts_for(properties: Mapping[str, Property]) -> dict[str, str]:
    """Return properties as the texts of their headers."""
    return {name: cast(str, _text(name, value)) for name, value in properties.items()}


def _described_headers(tags: str, given: Mapping[str, Property]) -> list[tuple[str, bytes]]:
    if not isinstance(tags, str):
        raise InvalidUsage(f"tags is {reprlib.repr(tags)}; it must be text, or empty for no tag")
    _check("tags", tags, _DECLARED["tags"])
    if not isinstance(given, Mapping):
        raise InvalidUsage(f"properties is {reprlib.repr(given)}; it must map names to text")
    properties = texts_for(given)
    for name, text in properties.items():
        if name in ("", TAGS_HEADER):
            raise InvalidUsage(f"a property is named {name!r}; it must have a name, and the tag is passed in tags=")
        _check(f"property {name!r:.80}", {name: text}, _DECLARED["properties"])
    _check("properties", dict(properties), _DECLARED["properties"])
    texts = {TAGS_HEADER: tags, **properties} if tags else properties
    try:
        for text in texts:
            text.encode()
        return [(name, text.encode()) for name, text in texts.items()]
    except UnicodeEncodeError as error:
        raise InvalidUsage(f"{reprlib.repr(error.object)} cannot be encoded in UTF-8: {error.reason}") from None


def wants(subscription: ParsedSubscription, message: Message) -> bool:
    """Return whether a message matches a subscription, by its headers.

    A message without a tag matches no subscription to tags. Headers that are not UTF-8 are ignored.
    """
    properties = {name: text for name, text in texts_of(pairs_of(message)).items() if text is not None}
    tags = properties.get(TAGS_HEADER, "")
    return matches(subscription, tags_code(tags), tags, properties)


def pairs_of(message: Message) -> list[tuple[str, bytes | None]]:
    """Return the headers of a received message in order; a name may occur several times."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])  # a consumed message has bytes or None


def texts_of(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str | None]:
    """Return the texts of headers by name; None if a value is not UTF-8.

    The last one of several headers with the same name counts, as with Kafka's `lastHeader`. Headers without a value are
    left out.
    """
    return {name: _text_of(value) for name, value in dict(headers).items() if value is not None}


def fits(name: Literal["tags", "properties"], value: object) -> bool:
    """Return whether these tags or properties are within the bounds of an arrival."""
    try:
        msgspec.convert(value, _DECLARED[name])
    except msgspec.ValidationError:
        return False
    return True


def _text_of(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _check(name: str, value: object, declared: Any) -> None:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError as error:
        raise InvalidUsage(problem_of(name, value, declared, error)) from None
