"""The headers of a message: its tag and its properties, which the filters of subscriptions match."""

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


def headers_of(tags: str, properties: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return a message's headers: the tag, unless it is empty, then the properties.

    Raises:
        InvalidUsage: a value is not text, is too long, or exceeds the bounds of an arrival.
    """
    if not isinstance(tags, str):
        raise InvalidUsage(f"tags is {reprlib.repr(tags)}; it must be text, or empty for no tag")
    _check("tags", tags, _DECLARED["tags"])
    if not isinstance(properties, Mapping):
        raise InvalidUsage(f"properties is {reprlib.repr(properties)}; it must map names to text")
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
